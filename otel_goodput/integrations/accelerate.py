"""Steps of a loop that is written by hand with an ``Accelerator``: make a :class:`GoodputCallback` of it.

A step begins with a batch of a prepared loader, and ends when a prepared optimizer has taken its step; the batches
whose gradients it accumulates are its parts. Accelerate has no callbacks and counts no steps of the optimizer, so its
methods are wrapped, and steps are numbered from 0, after a restart from where the restored checkpoint was saved.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from weakref import WeakSet

from otel_goodput._integrations.trainer_loop import TrainerLoop
from otel_goodput._integrations.wrapping import Done, within, wrap, wrap_iterator
from otel_goodput._recording.loading import Loads
from otel_goodput._recording.tracer import PhaseTracer
from otel_goodput._runtime.guard import contain, containing
from otel_goodput._text.redact import redacting_logger
from otel_goodput.integrations import new_loop

__all__ = ["GoodputCallback"]

logger = redacting_logger("otel_goodput")

MICRO_BATCH: Final = "micro_batch"
# The arguments that each method begins with in the versions that are known, by module and class.
METHODS: Final[dict[tuple[str, str], dict[str, tuple[str, ...]]]] = {
    ("accelerate.accelerator", "Accelerator"): {
        "backward": ("loss",),
        "save_state": ("output_dir",),
        "load_state": ("input_dir",),
    },
    ("accelerate.optimizer", "AcceleratedOptimizer"): {"step": ()},
}
LOADERS: Final = ("DataLoaderShard", "DataLoaderDispatcher", "SkipDataLoader")  # of accelerate.data_loader
_NUMBER: Final = re.compile(r"(\d+)\D*$")


class GoodputCallback:
    """Records the steps, loads and checkpoints of a loop that is written by hand with an ``Accelerator``.

    ``goodput.configure("name")`` is called by you, before training; without it, this does nothing.

    Args:
        accelerator: whose checkpoints and backward passes are recorded.
    """

    def __init__(self, accelerator: Any) -> None:
        _attached.by_hand = True
        _attached.accelerators.add(accelerator)
        attach()


class Steps:
    """Which batches are steps: those with which something is done that is done in training only.

    The first batch of a loader begins a step on trial; later ones do if batches of its dataset were trained on.
    """

    def __init__(self, loop: TrainerLoop) -> None:
        self.loop = loop
        self._dataset = 0  # id of that of the latest batch
        self._trained: set[int] = set()  # ids of datasets that were trained on
        self._others: set[int] = set()  # ids of those that were not
        self._on_trial = False  # nothing that is done in training only was done since the open step began
        self._stepped: int | None = None  # id of the optimizer that has taken a step in the open one
        self._last: int | None = None  # id of the optimizer that takes its step last
        self._labels: dict[str, int] = {}  # of checkpoints without a number in their name

    # --- batches ------------------------------------------------------------------------------------------------------

    def ask(self) -> None:
        """The loop asks for a batch: what it did with the one before is over."""
        if self._on_trial:
            self._on_trial = False
            self._others.add(self._dataset)
            self.loop.drop_step(idle=True)
        self.complete()

    def hand(self, dataset: int) -> None:
        """The loop gets a batch of the dataset with this id."""
        tracer = self.loop.recorder
        # A thread that loads ahead, or somebody's own steps.
        if tracer is None or not tracer.blocks(None) or tracer.spans.loading():
            return
        self._dataset = dataset
        if dataset not in self._trained and (self._trained or dataset in self._others):
            return
        if self.loop.stepping:
            self.loop.begin_part(MICRO_BATCH)
            return
        self.loop.begin()
        self.loop.begin_step(None)
        self._on_trial = True

    def over(self, dataset: int, *, left: bool = False) -> None:
        """A pass over a dataset is over, at its end, or because the loop was `left`."""
        self.ask()
        if dataset in self._trained:
            if left:
                self.loop.drop_step(idle=None)
            if not self.loop.stepping:
                self.loop.end()

    # --- what is done with them ---------------------------------------------------------------------------------------

    def train(self) -> None:
        """Something is done with the batch that is done in training only."""
        if self._on_trial:
            self._on_trial = False
            self._trained.add(self._dataset)
        if not self.loop.stepping and self.loop.free:
            self._trained.add(self._dataset)
            self.loop.begin()
            self.loop.begin_step(None)

    def fail(self, error: BaseException) -> None:
        """It failed with `error`."""
        self.loop.end_step(error)
        self._stepped = None

    def step(self, optimizer: Any) -> None:
        """A prepared optimizer has taken its step."""
        self._stepped = id(optimizer)
        if self._last == self._stepped or _alone():
            self.complete()

    def complete(self) -> None:
        """End the open step, if an optimizer has taken its step in it."""
        if self._stepped is not None:
            self._last, self._stepped = self._stepped, None
            self.loop.end_step()

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def save(self, folder: Any, label: int | None) -> Done:
        """A checkpoint is saved, whose `folder` has the number `label` in its name."""
        self.complete()
        tracer = self.loop.recorder
        if label is None and tracer is not None:
            label = self._labels[str(folder)] = tracer.next_number()
        return within(self.loop.save(label))

    def restore(self, folder: Any, label: int | None) -> Done:
        """A checkpoint is restored: without a number, the one of this name, or else the latest that was saved."""
        tracer = self.loop.recorder
        if label is None and tracer is not None:
            latest, done = tracer.labels.durable
            label = self._labels.get(str(folder), latest if done >= 0 else None)
        return within(self.loop.restore(label))


class Pass:
    """One pass over a prepared loader."""

    def __init__(self, steps: Steps, loader: Any, batches: Iterator[Any]) -> None:
        self._steps, self._batches = steps, batches
        # Another loader of the same, such as one that skips batches, has the same dataset.
        self._dataset = id(getattr(loader, "dataset", loader))
        self._loads: Iterator[Any] = Loads(lambda: steps.loop.recorder, batches)
        self._over = False

    def __iter__(self) -> Pass:
        return self

    def __next__(self) -> Any:
        try:
            self._steps.ask()
        except Exception as error:
            contain("accelerate", error)
        try:
            batch = next(self._loads)
        except StopIteration:
            self._end(left=False)
            raise
        try:
            self._steps.hand(self._dataset)
        except Exception as error:
            contain("accelerate", error)
        return batch

    def _end(self, *, left: bool) -> None:
        if not self._over:
            self._over = True
            with containing("accelerate"):
                self._steps.over(self._dataset, left=left)

    def __getattr__(self, name: str) -> Any:
        if name == "_batches":  # it is being copied
            raise AttributeError(name)
        return getattr(self._batches, name)

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self._end(left=True)


# --- what is wrapped --------------------------------------------------------------------------------------------------


class Attached:
    """What has been wrapped, and for whom.

    Attributes:
        methods: what unwraps each method.
        accelerators: those that callbacks were made of.
        by_hand: a callback was made by hand.
        everything: any accelerator is recorded.
        unknown: this version's methods are not those that are known.
        steps: records them.
    """

    def __init__(self) -> None:
        self.methods: list[Callable[[], None]] = []
        self.accelerators: WeakSet[Any] = WeakSet()
        self.by_hand = self.everything = self.unknown = False
        self.steps = Steps(new_loop())

    def records(self, accelerator: Any) -> bool:
        if self.everything:
            self.accelerators.add(accelerator)
        return accelerator in self.accelerators


_attached: Final = Attached()


def attach() -> bool:
    """Wrap the methods of a version that is known, unless that was done; return whether Accelerate is imported."""
    if _attached.methods or _attached.unknown:
        return True
    owners = {kind: getattr(sys.modules.get(module), kind, None) for module, kind in METHODS}
    loaders = [getattr(sys.modules.get("accelerate.data_loader"), kind, None) for kind in LOADERS]
    if None in owners.values():
        return False
    version = getattr(sys.modules.get("accelerate"), "__version__", "of unknown version")
    with containing("accelerate"):
        for (_, kind), methods in METHODS.items():
            for name, begins in methods.items():
                method = getattr(owners[kind], name, None)
                if tuple(inspect.signature(method).parameters)[1 : len(begins) + 1] != begins if method else True:
                    logger.info("accelerate %s is not known: nothing of it is recorded", version)
                    _attached.unknown = True
                    return True
        accelerator, optimizer = owners.values()
        for name, before in {"backward": _backward, "save_state": _save, "load_state": _load}.items():
            _attached.methods.append(wrap(accelerator, name, before, "accelerate"))
        _attached.methods.append(wrap(optimizer, "step", _step, "accelerate"))
        for loader in filter(None, loaders):
            _attached.methods.append(wrap_iterator(loader, "__iter__", _pass, "accelerate"))
        logger.info("accelerate %s: recording loops with an Accelerator", version)
    return True


def _pass(loader: Any, batches: Any) -> Any:
    return Pass(_attached.steps, loader, batches) if _attached.steps.loop.free else batches


def _backward(accelerator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Done | None:
    if not _attached.records(accelerator):
        return None
    _attached.steps.train()
    return _failing


def _failing(_: Any, error: BaseException | None) -> None:
    if error is not None:
        _attached.steps.fail(error)


def _step(optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Done | None:
    steps = _attached.steps
    steps.train()

    def done(_: Any, error: BaseException | None) -> None:
        if error is not None:
            steps.fail(error)
        elif optimizer.gradient_state.sync_gradients:
            steps.step(optimizer)

    return done


def _alone() -> bool:
    """Whether only one optimizer has been prepared."""
    return sum(len(getattr(each, "_optimizers", ())) for each in tuple(_attached.accelerators)) == 1


def _save(accelerator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Done | None:
    if not _attached.records(accelerator):
        return None
    folder = args[0] if args else kwargs.get("output_dir")
    label = accelerator.save_iteration if folder is None else _number_in(folder)
    return _attached.steps.save(folder, label)


def _load(accelerator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Done | None:
    if not _attached.records(accelerator):
        return None
    folder = args[0] if args else kwargs.get("input_dir")
    return _attached.steps.restore(folder, None if folder is None else _number_in(folder))


def _number_in(folder: Any) -> int | None:
    """Return the last number in the name of a checkpoint's folder, which labels it; None if there is none."""
    match = _NUMBER.search(Path(folder).name)
    return None if match is None else int(match[1])


def install(tracer: PhaseTracer) -> Callable[[], None] | None:
    """Record loops with any ``Accelerator``; return what ends that, or None before it is imported."""
    if not attach():
        return None
    before, _attached.everything = _attached.steps, True
    _attached.steps = Steps(TrainerLoop(lambda: tracer))

    def remove() -> None:
        _attached.steps, _attached.everything = before, False
        if not _attached.by_hand:
            while _attached.methods:
                _attached.methods.pop()()

    return remove

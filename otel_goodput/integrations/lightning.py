"""PyTorch Lightning: ``Trainer(callbacks=[GoodputCallback()])``, of ``lightning.pytorch`` or ``pytorch_lightning``.

A step of the optimizer is a step, with ``accumulate_grad_batches`` its batches are parts of it. With manual
optimization, which may do any number of steps in a batch, each batch is a step. A load is the ``next`` of the trainer's
loader, so what callbacks and loggers do between two batches is none. Checkpoints are seen where the trainer saves and
loads them.

In a program with Fabric, the loop is the user's, who calls ``goodput.steps()``. There, the callback adds what
``fabric.save()`` and ``fabric.load()`` do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial, wraps
from importlib import import_module
from importlib.util import find_spec
from threading import get_ident
from typing import Any, Final

from otel_goodput._integrations.trainer_loop import TrainerLoop
from otel_goodput._integrations.wrapping import Before, Done, within, wrap
from otel_goodput._recording.contexts import enclosing
from otel_goodput._recording.loading import begin_pass
from otel_goodput._recording.tracer import PhaseTracer, Save
from otel_goodput._runtime.guard import containing, guarded, report_once
from otel_goodput._text.redact import redacting_logger
from otel_goodput.integrations import new_loop
from otel_goodput.semconv import Phase

__all__ = ["GoodputCallback"]

logger = redacting_logger("otel_goodput")

PACKAGES: Final = ("lightning.pytorch", "pytorch_lightning")
FABRICS: Final = ("lightning.fabric", "lightning_fabric")
KNOWN: Final = "2"  # major version
MICRO_BATCH: Final = "micro_batch"
# Names of the custom phases, by what the trainer does.
ASIDE: Final = {"sanity_check": "sanity_check", "validate": "eval", "test": "test", "predict": "predict"}
ENTRIES: Final = ("fit", "validate", "test", "predict")  # at which a trainer without a callback gets one
RESTORES: Final = ("load_checkpoint", "load_model_state_dict", "load_optimizer_state_dict")  # of its strategy


class GoodputCallback:
    """Records the steps, loads, evaluations and checkpoints of a ``Trainer``.

    ``goodput.configure("name")`` is called by you, before training; without it, this does nothing. It is a ``Callback``
    of each of the two packages that the program has imported. A trainer that has several of it is recorded once.
    """

    _loop: TrainerLoop
    _recorded: _Recorded | None

    def __new__(cls, *_: object, **__: object) -> GoodputCallback:
        return object.__new__(_kind(cls))

    def __init__(self) -> None:
        self._loop = new_loop()
        self._recorded = None
        for package in FABRICS:
            _attach_fabric(package)

    def __reduce__(self) -> Any:
        return next(one for one in type(self).__mro__ if one not in _kinds.values()), ()

    # Called by the trainer. Fabric calls whatever the user wants, with any arguments.

    @guarded(None)
    def setup(self, trainer: Any = None, pl_module: Any = None, stage: Any = None, **_: object) -> None:
        package = next((name for name in PACKAGES if isinstance(trainer, _trainers(name))), None)
        if package is None or not _attach(package):
            return
        # First of all, so that a step ends before what the other callbacks do after it.
        trainer.callbacks = [self, *(one for one in trainer.callbacks if one is not self)]
        self._loop.begin()
        if self._loop.tracer is not None:
            _Recorded.now = self._recorded = _Recorded(self._loop, trainer, package)

    @guarded(None)
    def on_train_start(self, *_: object, **__: object) -> None:
        if self._recorded is not None:
            self._recorded.prepared()

    @guarded(None)
    def on_train_batch_start(self, trainer: Any = None, pl_module: Any = None, *_: object, **__: object) -> None:
        if self._recorded is not None:
            self._recorded.begin_batch(pl_module)

    @guarded(None)
    def on_train_batch_end(self, *_: object, **__: object) -> None:
        if self._recorded is not None:
            self._recorded.end_batch()

    @guarded(None)
    def on_train_epoch_end(self, *_: object, **__: object) -> None:
        if self._recorded is not None:
            self._recorded.end_epoch()

    @guarded(None)
    def on_sanity_check_start(self, *_: object, **__: object) -> None:
        if self._recorded is not None:
            self._recorded.step_aside(ASIDE["sanity_check"])

    @guarded(None)
    def on_sanity_check_end(self, *_: object, **__: object) -> None:
        if self._recorded is not None:
            self._recorded.come_back()

    @guarded(None)
    def on_validation_start(self, *_: object, **__: object) -> None:
        if self._recorded is not None:
            self._recorded.evaluates()

    on_test_start = on_predict_start = on_validation_start

    @guarded(None)
    def on_validation_end(self, *_: object, **__: object) -> None:
        if self._recorded is not None and self._recorded.stage != "sanity_check":
            self._recorded.come_back()

    on_test_end = on_predict_end = on_validation_end

    @guarded(None)
    def on_exception(self, trainer: Any = None, pl_module: Any = None, exception: Any = None, **_: object) -> None:
        self._end(exception)

    @guarded(None)
    def teardown(self, *_: object, **__: object) -> None:
        self._end(None)

    def _end(self, error: BaseException | None) -> None:
        recorded, self._recorded = self._recorded, None
        if recorded is not None:
            recorded.end(error)


_kinds: Final[dict[tuple[type, ...], type]] = {}


def _kind(cls: type) -> type:
    """Return the class `cls` that is also a callback of those packages that have been imported."""
    modules = [sys.modules.get(f"{package}.callbacks") for package in PACKAGES]
    bases = [module.Callback for module in modules if module is not None]
    if not bases and any(package in sys.modules for package in FABRICS):
        return cls  # Fabric takes anything
    if not bases:  # the program's import of it comes later
        package = next((name for name in PACKAGES if find_spec(name.partition(".")[0]) is not None), PACKAGES[0])
        bases = [import_module(f"{package}.callbacks").Callback]
    if all(issubclass(cls, base) for base in bases):
        return cls
    key = (cls, *bases)
    if (kind := _kinds.get(key)) is None:
        about = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
        kind = _kinds[key] = type(cls.__name__, key, about)
    return kind


class _Recorded:
    """A trainer at work, one at a time."""

    now: _Recorded | None = None

    def __init__(self, loop: TrainerLoop, trainer: Any, package: str) -> None:
        self.loop = loop
        self.trainer = trainer
        self.thread = get_ident()
        self.loader: Any = None  # which it trains on
        self.loads: Iterator[Any] = iter(())
        self.saving: dict[str, Save] = {}  # by path: what a thread is still to write
        self._aside: Done | None = None
        self._preparing: Done | None = within(loop.preparation()) if trainer.state.fn == "fit" else None
        self._done = 0  # steps before the open one
        self._each = True  # each batch is a step
        self._open = False  # a batch
        _attach_strategy(trainer.strategy, package)

    @property
    def stage(self) -> str:
        """What the trainer does."""
        stage = self.trainer.state.stage
        return "" if stage is None else str(stage.value)

    @property
    def here(self) -> bool:
        """Whether the caller is what goes on in this trainer."""
        return self.thread == get_ident()

    def prepared(self, error: BaseException | None = None) -> None:
        preparing, self._preparing = self._preparing, None
        if preparing is not None:
            preparing(None, error)

    def begin_batch(self, module: Any) -> None:
        loop, trainer = self.loop, self.trainer
        self._open = True
        if not loop.stepping:
            automatic = bool(module.automatic_optimization)
            self._each = not automatic or (trainer.accumulate_grad_batches == 1)
            self._done = done = trainer.global_step
            loop.begin_step(done if automatic else trainer.fit_loop.total_batch_idx)
        if not self._each:
            loop.begin_part(MICRO_BATCH)

    def end_batch(self) -> None:
        self._open = False
        if self._each or self.trainer.global_step != self._done:
            self.loop.end_step()
        else:
            self.loop.end_part()

    def end_epoch(self) -> None:
        if self._open:  # the module's on_train_batch_start has said to skip the rest
            self._open = False
            self.loop.drop_step()

    def evaluates(self) -> None:
        """A pass over other batches than those to train on begins."""
        if (name := ASIDE.get(self.stage)) is not None:
            self.step_aside(name)

    def step_aside(self, name: str) -> None:
        if self._aside is None:
            self._aside = within(self.loop.evaluation(name))

    def come_back(self, error: BaseException | None = None) -> None:
        aside, self._aside = self._aside, None
        if aside is not None:
            aside(None, error)

    def end(self, error: BaseException | None) -> None:
        if _Recorded.now is self:
            _Recorded.now = None
        self.come_back(error)
        self.prepared(error)
        self.loop.end(error)


# --- where Lightning does it ------------------------------------------------------------------------------------------

_attached: Final[dict[str, bool]] = {}  # by package: whether its version is known
_wrapped: Final[set[tuple[type, str]]] = set()
_inviting: Final[set[PhaseTracer]] = set()  # while there is one, trainers without a callback get one


def install(tracer: PhaseTracer) -> Callable[[], None] | None:
    """Give a callback to trainers that have none from now on. Return what ends that, or None if it is too early."""
    packages = [name for name in PACKAGES if _trainers(name)]
    if not packages:
        return None
    for package in packages:
        _attach(package)
    _inviting.add(tracer)
    return lambda: _inviting.discard(tracer)


def _trainers(package: str) -> tuple[type, ...]:
    """Return the class of a package's trainers, if it has been imported."""
    kind = getattr(sys.modules.get(package), "Trainer", None)
    return () if kind is None else (kind,)


def _attach(package: str) -> bool:
    """Wrap the methods by which a package's trainers work, once; return whether its version is known."""
    if package not in _attached:
        version = str(getattr(sys.modules[package], "__version__", ""))
        loader = getattr(sys.modules.get(f"{package}.utilities.combined_loader"), "CombinedLoader", None)
        _attached[package] = version.partition(".")[0] == KNOWN and loader is not None
        if not _attached[package]:
            report_once(f"{package} version", "%s %s is not known, so it is not recorded", package, version)
            return False
        trainer = _trainers(package)[0]
        _wrap(trainer, "save_checkpoint", _saves)
        for name in ENTRIES:
            _wrap(trainer, name, _enters)
        _record_passes(loader)
        logger.info("%s %s: its Trainer is recorded", package, version)
    return _attached[package]


def _wrap(owner: type, name: str, before: Before) -> None:
    if (owner, name) not in _wrapped and hasattr(owner, name):
        _wrapped.add((owner, name))
        wrap(owner, name, before, "lightning")


def _enters(trainer: Any, *_: object) -> None:
    if _inviting and not any(isinstance(one, GoodputCallback) for one in trainer.callbacks):
        trainer.callbacks = [GoodputCallback(), *trainer.callbacks]


def _record_passes(kind: Any) -> None:
    """Have the loads of the class of loaders `kind` recorded where a trainer trains on them."""
    begin, following = kind.__iter__, kind.__next__

    @wraps(begin)
    def __iter__(self: Any) -> Any:
        recorded = _Recorded.now
        if recorded is None or not recorded.here:
            return begin(self)
        trains = recorded.stage == "train"
        with containing("lightning"):
            if not trains:
                recorded.evaluates()  # its workers start now
            trains = trains and self.iterables is recorded.trainer.train_dataloader  # not another trainer inside of it
        if not trains:
            return begin(self)
        recorded.loader = self
        recorded.loads = recorded.loop.batches(iter(partial(following, self), recorded))  # it is never equal to a batch
        return begin_pass(lambda: recorded.loop.tracer, lambda: begin(self))

    @wraps(following)
    def __next__(self: Any) -> Any:
        recorded = _Recorded.now
        return following(self) if recorded is None or recorded.loader is not self else next(recorded.loads)

    kind.__iter__, kind.__next__ = __iter__, __next__


def _attach_strategy(strategy: Any, package: str) -> None:
    for name in RESTORES:
        _wrap(type(strategy), name, _restores)
    kind = getattr(sys.modules.get(f"{package}.plugins.io"), "AsyncCheckpointIO", None)
    storing = strategy.checkpoint_io
    if kind is not None and isinstance(storing, kind):
        _wrap(type(storing), "teardown", _waits)
        _wrap(type(storing.checkpoint_io), "save_checkpoint", _stores)


def _restores(strategy: Any, *_: object) -> Done | None:
    recorded = _Recorded.now
    if recorded is None or recorded.trainer.strategy is not strategy:
        return None
    loop = recorded.loop
    leave = within(loop.restore(None))

    def done(result: Any, error: BaseException | None) -> None:
        span, steps = (
            enclosing(Phase.CHECKPOINT_RESTORE),
            result.get("global_step") if isinstance(result, dict) else None,
        )
        if span is not None and type(steps) is int and loop.tracer is not None:
            loop.tracer.restored(steps, span.get_span_context().span_id)
        leave(result, error)

    return done


def _saves(trainer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Done | None:
    recorded = _Recorded.now
    if recorded is None or recorded.trainer is not trainer:
        return None
    storing = trainer.strategy.checkpoint_io
    later = trainer.is_global_zero and (type(storing), "teardown") in _wrapped
    phase = recorded.loop.save(trainer.global_step, durable=not later)
    save = phase.__enter__()
    path = str(args[0] if args else kwargs.get("filepath"))
    if later and isinstance(save, Save):
        recorded.saving[path] = save

    def done(_: Any, error: BaseException | None) -> None:
        if error is not None:
            recorded.saving.pop(path, None)
        phase.__exit__(None if error is None else type(error), error, None)

    return done


def _stores(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Done | None:
    """A thread writes the file of a checkpoint."""
    recorded = _Recorded.now
    save = (
        None if recorded is None else recorded.saving.pop(str(args[1] if len(args) > 1 else kwargs.get("path")), None)
    )
    if save is None:
        return None
    promised = save
    return lambda _, error: promised.durable() if error is None else None


def _waits(*_: object) -> Done | None:
    """The trainer waits for that thread."""
    recorded = _Recorded.now
    return None if recorded is None or not recorded.saving else within(recorded.loop.save(None, durable=False))


def _attach_fabric(package: str) -> None:
    fabric = getattr(sys.modules.get(package), "Fabric", None)
    if fabric is not None:
        loop = new_loop()
        _wrap(fabric, "save", lambda *_: within(loop.save(None)))
        _wrap(fabric, "load", lambda *_: within(loop.restore(None)))

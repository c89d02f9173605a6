"""Steps of Hugging Face's ``Trainer``, and of TRL's trainers: pass a :class:`GoodputCallback` to them.

A step of the optimizer is a step; with gradient accumulation, its micro-batches are parts of it. Callbacks do not hear
of loads, evaluations and checkpoints, so the methods of ``Trainer`` that do these are wrapped. They look for the
callback among those of the trainer, and without one do nothing else than before.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from threading import get_ident
from typing import Any, Final

from transformers import TrainerCallback

from otel_goodput._integrations.trainer_loop import TrainerLoop
from otel_goodput._integrations.wrapping import Done, within, wrap
from otel_goodput._recording.tracer import PhaseTracer
from otel_goodput._runtime.guard import containing, guarded
from otel_goodput._text.redact import redacting_logger
from otel_goodput.integrations import new_loop

__all__ = ["GoodputCallback"]

logger = redacting_logger("otel_goodput")

TRAINER: Final = "transformers.trainer"
GENERATION: Final = "transformers.generation.utils"
MICRO_BATCH: Final = "micro_batch"
OPTIMIZER: Final = "optimizer"
ROLLOUT: Final = "rollout"  # the name of the custom phase
_CHECKPOINT: Final = re.compile(r"checkpoint-(\d+)")


class GoodputCallback(TrainerCallback):  # type: ignore[misc]
    """Records the steps, loads, evaluations and checkpoints of a ``Trainer``, and the rollouts of one of TRL.

    ``goodput.configure("name")`` is called by you, before training; without it, this does nothing. Trainers that share
    one callback, or have several, are recorded once.
    """

    def __init__(self) -> None:
        _attached.by_hand = True
        self._record(new_loop())
        attach()

    def _record(self, loop: TrainerLoop) -> None:
        self._loop = loop
        self._trains = 0  # how many calls of train() are open
        self._prepared: Done | None = None  # ends the phase before the first step
        self._number = 0  # of the open step
        self._drained: Any = None  # the iterator that has no more batches
        self._generates_on = 0  # the thread on which a trainer of TRL trains

    @classmethod
    def of(cls, tracer: PhaseTracer) -> GoodputCallback:
        """Return one that nobody has made by hand, which records by `tracer`."""
        callback = cls.__new__(cls)
        callback._record(TrainerLoop(lambda: tracer))
        return callback

    def __reduce__(self) -> Any:
        return type(self), ()

    # --- called by the trainer ----------------------------------------------------------------------------------------

    @guarded(None)
    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        attach()

    @guarded(None)
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._trains > 1:
            return
        self._loop.begin()
        self._end_preparation(None)

    @guarded(None)
    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._trains > 1:
            return
        loop = self._loop
        # Data may end amid a step, which the next epoch then goes on with.
        if not (loop.stepping and self._number == state.global_step):
            self._number = state.global_step
            loop.begin_step(self._number)
        if args.gradient_accumulation_steps > 1:
            loop.begin_part(MICRO_BATCH)

    @guarded(None)
    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._trains <= 1:
            self._loop.begin_part(MICRO_BATCH)

    @guarded(None)
    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._trains <= 1 and args.gradient_accumulation_steps > 1:
            self._loop.begin_part(OPTIMIZER)

    @guarded(None)
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._trains <= 1:
            self._loop.end_step()

    @guarded(None)
    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._trains <= 1:
            self._loop.end_part()

    @guarded(None)
    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._trains <= 1:
            self._end(None)

    # --- around the trainer's methods ---------------------------------------------------------------------------------

    def _train(self, trainer: Any, given: Any) -> Done:
        wrap_methods_of(type(trainer))
        self._trains += 1
        if self._trains == 1:
            self._loop.begin()
            self._prepared = within(self._loop.preparation())
            self._generates_on = get_ident() if any(map(_of_trl, type(trainer).__mro__)) else 0
        _attached.training.append(self)

        def done(_: Any, error: BaseException | None) -> None:
            _attached.training.remove(self)
            self._trains -= 1
            if not self._trains:
                self._end(error)

        return done

    def _attempt(self, trainer: Any, given: Any) -> Done | None:
        """The loop begins: again, if with ``auto_find_batch_size`` the memory did not suffice for the first one."""
        if self._trains != 1:
            return None
        if self._prepared is None:
            self._prepared = within(self._loop.preparation())

        def done(_: Any, error: BaseException | None) -> None:
            if error is not None:
                self._end_preparation(error)
                self._loop.end_step(error)

        return done

    def _end_preparation(self, error: BaseException | None) -> None:
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            prepared(None, error)

    def _end(self, error: BaseException | None) -> None:
        self._drained = None
        self._end_preparation(error)
        if error is None:
            self._loop.drop_step()  # the data ended amid a step
        self._loop.end(error)

    def _load(self, trainer: Any, batches: Any) -> Done | None:
        # At the end of data of unknown length, the trainer asks for batches until it has done all steps of the epoch.
        if batches is not None and batches is self._drained:
            return None
        load = self._loop.begin_load()
        if load is None:
            return None

        def done(result: Any, error: BaseException | None) -> None:
            empty = error is None and not result[0]
            self._drained = batches if empty else None
            self._loop.end_load(load, empty=empty, failed=error is not None)

        return done

    def _micro_batch(self, trainer: Any, given: Any) -> Done | None:
        """Before version 5, no callback is called for a step that began in the epoch before it."""
        if not self._loop.stepping and trainer.is_in_train and self._trains <= 1:
            self._number = trainer.state.global_step
            self._loop.begin_step(self._number)
        return None

    def _evaluate(self, trainer: Any, given: Any) -> Done:
        return within(self._loop.evaluation())

    def _roll_out(self, trainer: Any, given: Any) -> Done | None:
        training = self._loop.tracer is not None and self._generates_on == get_ident()
        return within(self._loop.evaluation(ROLLOUT)) if training else None

    def _save(self, trainer: Any, given: Any) -> Done:
        return within(self._loop.save(trainer.state.global_step))

    def _restore(self, trainer: Any, checkpoint: Any) -> Done | None:
        return None if checkpoint is None else within(self._loop.restore(_step_of(checkpoint)))

    def _restore_best(self, trainer: Any, given: Any) -> Done:
        return within(self._loop.restore(None))  # training does not go on from there


def _step_of(checkpoint: Any) -> int | None:
    """Return the number of steps after which the trainer saved the folder `checkpoint`, by its name."""
    match = _CHECKPOINT.fullmatch(Path(checkpoint).name)
    return None if match is None else int(match[1])


# --- what is wrapped --------------------------------------------------------------------------------------------------

# The arguments that each method begins with in the versions that are known; the callback's method to call before it.
METHODS: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "train": (("resume_from_checkpoint", "trial"), "_train"),
    "_inner_training_loop": (("batch_size", "args"), "_attempt"),
    "get_batch_samples": (("epoch_iterator", "num_batches"), "_load"),
    "training_step": (("model", "inputs"), "_micro_batch"),
    "evaluate": (("eval_dataset", "ignore_keys"), "_evaluate"),
    "predict": (("test_dataset", "ignore_keys"), "_evaluate"),
    "_save_checkpoint": (("model", "trial"), "_save"),
    "_load_from_checkpoint": (("resume_from_checkpoint",), "_restore"),
    "_load_optimizer_and_scheduler": (("checkpoint",), "_restore"),
    "_load_best_model": ((), "_restore_best"),
}
OLD: Final = ("4",)  # versions of which the method `training_step` is wrapped
# Those of subclasses are wrapped as well, because they may do more than the one that they override.
OVERRIDDEN: Final = tuple(name for name in METHODS if name != "train")
# At these, a trainer without a callback gets one; at the last, because the others were called before they were wrapped.
ENTRIES: Final = ("train", "evaluate", "predict", "get_batch_samples")


class Attached:
    """What has been wrapped, and for whom.

    Attributes:
        methods: what unwraps each method, by its class and name.
        by_hand: a callback was made by hand.
        unknown: ``Trainer`` is not as in the versions that are known.
        tracer: records trainers without a callback; None: nothing does.
        training: the callbacks of those that train, in the order of their begin.
    """

    def __init__(self) -> None:
        self.methods: dict[tuple[type, str], Callable[[], None]] = {}
        self.by_hand = self.unknown = False
        self.tracer: PhaseTracer | None = None
        self.training: list[GoodputCallback] = []


_attached: Final = Attached()


def attach() -> bool:
    """Wrap the methods of ``Trainer``, unless that was done; return whether it has been imported."""
    trainer = getattr(sys.modules.get(TRAINER), "Trainer", None)
    if trainer is None:
        return False
    if _attached.unknown or (trainer, "train") in _attached.methods:
        return True
    with containing("transformers"):
        version = str(getattr(sys.modules.get("transformers"), "__version__", "of unknown version"))
        used = [name for name in METHODS if name != "training_step" or version.partition(".")[0] in OLD]
        known = [name for name in used if _begins(trainer, name, METHODS[name][0])]
        if "train" not in known:
            _attached.unknown = True
            logger.info("transformers %s is not known: its loads and checkpoints are not recorded", version)
            return True
        for name in known:
            wrap_method(trainer, name, METHODS[name][1])
        unknown = ", ".join(name for name in used if name not in known)
        logger.info("transformers %s: recording Trainer%s", version, unknown and f", but for {unknown}, not known")
    return True


def _begins(trainer: Any, name: str, arguments: tuple[str, ...]) -> bool:
    """Whether the class has a method of this name that begins with these arguments."""
    return inspect.isfunction(getattr(trainer, name, None)) and _arguments(trainer, name)[: len(arguments)] == arguments


def _arguments(trainer: Any, name: str) -> tuple[str, ...]:
    return tuple(inspect.signature(getattr(trainer, name)).parameters)[1:]


def wrap_method(kind: type, name: str, handler: str) -> None:
    """Wrap a method of a class of trainers, unless that was done: the callback's method `handler` is called before."""
    if (kind, name) in _attached.methods:
        return
    first = next(iter(_arguments(kind, name)), "")

    def before(trainer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Done | None:
        callback = callback_of(trainer, entering=name in ENTRIES)
        if callback is None:
            return None
        done: Done | None = getattr(callback, handler)(trainer, args[0] if args else kwargs.get(first))
        return done

    _attached.methods[kind, name] = wrap(kind, name, before, "transformers")


def wrap_methods_of(kind: type) -> None:
    """Wrap the methods that the class `kind`, and those between it and ``Trainer``, define themselves."""
    base = getattr(sys.modules.get(TRAINER), "Trainer", None)
    for each in kind.__mro__[: kind.__mro__.index(base)] if base in kind.__mro__ else ():
        for name in OVERRIDDEN:
            if name in vars(each) and (base, name) in _attached.methods:
                wrap_method(each, name, METHODS[name][1])
        if _of_trl(each):
            _wrap_generation(each)


def _of_trl(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "trl"


def _wrap_generation(kind: type) -> None:
    """Wrap the method by which a class of TRL generates; where it has none, it calls that of the model."""
    if "_generate" in vars(kind):
        wrap_method(kind, "_generate", "_roll_out")
    mixin = getattr(sys.modules.get(GENERATION), "GenerationMixin", None)
    if mixin is not None and (mixin, "generate") not in _attached.methods:

        def before(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Done | None:
            return _attached.training[-1]._roll_out(None, None) if _attached.training else None

        _attached.methods[mixin, "generate"] = wrap(mixin, "generate", before, "transformers")


def callback_of(trainer: Any, *, entering: bool) -> GoodputCallback | None:
    """Return the callback of a trainer. If it has none and is `entering`, it is given one, if it is to be recorded."""
    for one in trainer.callback_handler.callbacks:
        if isinstance(one, GoodputCallback):
            return one
    tracer = _attached.tracer
    if not entering or tracer is None or tracer.closed:
        return None
    callback = GoodputCallback.of(tracer)
    trainer.add_callback(callback)
    if trainer.is_in_train:
        callback._loop.begin()
    return callback


def install(tracer: PhaseTracer) -> Callable[[], None] | None:
    """Record trainers that have no callback, too; return what ends that, or None before ``Trainer`` is imported."""
    if not attach():
        return None
    _attached.tracer = tracer

    def remove() -> None:
        if _attached.tracer is not tracer:
            return
        _attached.tracer = None
        if not _attached.by_hand:
            while _attached.methods:
                _attached.methods.popitem()[1]()

    return remove

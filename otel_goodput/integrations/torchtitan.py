"""torchtitan: a :class:`GoodputCallback` records its ``Trainer``, which has no callbacks, by wrapped methods.

A call of ``train_step`` is a step, in which it fetches the batches. Checkpoints are those of PyTorch's distributed
checkpoints, which the integration ``torch_save`` records.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakKeyDictionary

from otel_goodput._integrations.trainer_loop import TrainerLoop
from otel_goodput._integrations.wrapping import Done, within, wrap, wrap_iterator
from otel_goodput._recording.tracer import PhaseTracer
from otel_goodput._runtime.guard import containing
from otel_goodput._text.redact import redacting_logger
from otel_goodput.integrations import new_loop

__all__ = ["GoodputCallback"]

logger = redacting_logger("otel_goodput")

TRAINER: Final = "torchtitan.trainer"
# How many arguments each method has in the versions that are known; subclasses may name them otherwise.
METHODS: Final = {"train": 1, "train_step": 2, "batch_generator": 2}
_EXHAUSTED: Final = "DataloaderExhaustedError"  # torchtitan then cancels the step

_loops: Final[WeakKeyDictionary[Any, TrainerLoop]] = WeakKeyDictionary()  # by trainer
_wrapped: Final[dict[tuple[type, str], Callable[[], None]]] = {}  # what unwraps each method
_everybody: Final[list[PhaseTracer]] = []  # record trainers that nobody has given a callback


class GoodputCallback:
    """Records the steps, loads and validations of a torchtitan ``Trainer``: ``GoodputCallback(trainer)``.

    ``goodput.configure("name")`` is called by you, before training; without it, this does nothing.

    Args:
        trainer: the trainer, before its ``train()``.
    """

    def __init__(self, trainer: Any) -> None:
        with containing("torchtitan"):
            _attach(type(trainer))
            _loops.setdefault(trainer, new_loop())


def _attach(kind: type) -> bool:
    """Wrap the methods of a class of trainers, where they are not yet; return whether they are known."""
    for name, arguments in METHODS.items():
        method = getattr(kind, name, None)
        if method is None or len(inspect.signature(method).parameters) != arguments:
            version = getattr(sys.modules.get("torchtitan"), "__version__", "of unknown version")
            logger.info("torchtitan %s: %s.%s() is not known, so nothing is recorded", version, kind.__name__, name)
            return False
    new = False
    for name in METHODS:
        # Where it is defined: a subclass may override it, and call that of its parent.
        owner = next(one for one in kind.__mro__ if name in vars(one))
        if (owner, name) in _wrapped:
            continue
        new = True
        if name == "batch_generator":
            _wrapped[owner, name] = wrap_iterator(owner, name, _batches, "torchtitan")
        else:
            _wrapped[owner, name] = wrap(owner, name, _train if name == "train" else _step, "torchtitan")
    if new:
        logger.info("torchtitan: recording %s", kind.__name__)
    return True


def _loop(trainer: Any) -> TrainerLoop | None:
    loop = _loops.get(trainer)
    if loop is None and _everybody:
        tracer = _everybody[-1]
        loop = _loops[trainer] = TrainerLoop(lambda: tracer)
    return loop


def _train(trainer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Done | None:
    loop = _loop(trainer)
    if loop is None or loop.tracer is not None:  # a subclass calls the method of its parent
        return None
    loop.begin()
    unwrap = []
    validator = getattr(trainer, "validator", None)
    if validator is not None and hasattr(type(validator), "validate"):
        unwrap.append(wrap(type(validator), "validate", lambda *_: within(loop.evaluation()), "torchtitan"))

    def done(_: Any, error: BaseException | None) -> None:
        for each in unwrap:
            each()
        loop.end(error)

    return done


def _step(trainer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Done | None:
    loop = _loop(trainer)
    if loop is None or loop.stepping:
        return None
    loop.begin_step(trainer.step - 1)  # it counts from 1

    def done(_: Any, error: BaseException | None) -> None:
        if type(error).__name__ == _EXHAUSTED:
            loop.drop_step()
        else:
            loop.end_step(error)

    return done


def _batches(trainer: Any, batches: Any) -> Any:
    loop = _loop(trainer)
    return batches if loop is None else loop.batches(batches)


def install(tracer: PhaseTracer) -> Callable[[], None] | None:
    """Record trainers that nobody has given a callback, too; return what ends that, None before they are imported."""
    trainer = getattr(sys.modules.get(TRAINER), "Trainer", None)
    if trainer is None:
        return None
    if not _attach(trainer):
        return lambda: None
    _everybody.append(tracer)

    def remove() -> None:
        _everybody.remove(tracer)
        if not (_everybody or _loops):
            while _wrapped:
                _wrapped.popitem()[1]()

    return remove

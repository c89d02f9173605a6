"""The steps of a loop that a framework owns (a trainer), as its callbacks and wrapped methods tell of them.

Whoever trains with a trainer has no loop to put ``steps()`` in. The integrations of all frameworks record by one
:class:`TrainerLoop`: it decides whose steps are recorded if there are several trainers or callbacks, and none of its
methods raises.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final
from weakref import WeakKeyDictionary

from otel_goodput._recording.fast_span import FastSpan
from otel_goodput._recording.loading import Loading, Loads
from otel_goodput._recording.phases import Phases
from otel_goodput._recording.tracer import Find, PhaseTracer
from otel_goodput._runtime.guard import contain, containing

EVALUATION: Final = "eval"  # the name of the custom phase

# The loop that trains now. One that begins inside of it, as a second callback or a trainer in an evaluation, does not.
_training: Final[WeakKeyDictionary[PhaseTracer, TrainerLoop]] = WeakKeyDictionary()


class TrainerLoop:
    """One loop of a framework. Its callbacks may come from any thread, but those of one training from the same one.

    Step numbers count the steps of the optimizer, from 0 over all epochs and attempts, as frameworks do; a checkpoint
    is labeled with the number of steps that were completed.

    Args:
        find: returns the recorder, or None.
    """

    def __init__(self, find: Find) -> None:
        self._find = find
        self._phases = Phases(find)
        self._step: FastSpan | None = None
        self._part: FastSpan | None = None

    @property
    def tracer(self) -> PhaseTracer | None:
        """The recorder, if this loop is the one that trains; else None."""
        tracer = self._find()
        return tracer if tracer is not None and _training.get(tracer) is self else None

    def begin(self) -> None:
        """Training begins, unless another loop is training already."""
        with containing("a trainer's begin"):
            tracer = self._find()
            if tracer is not None and not tracer.closed:
                _training.setdefault(tracer, self)

    def end(self, error: BaseException | None = None) -> None:
        """Training is over, with `error` or without."""
        with containing("a trainer's end"):
            self.end_step(error)
            if (tracer := self.tracer) is not None:
                del _training[tracer]

    def begin_step(self, number: int) -> None:
        """A step of the optimizer begins."""
        try:
            if (tracer := self.tracer) is None:
                return
            if self._step is not None:
                self.end_step()
            if tracer.open_step is None:
                self._step = step = tracer.step(number)
                step.__enter__()
        except Exception as error:
            contain("a trainer's step", error)

    def end_step(self, error: BaseException | None = None) -> None:
        """The open step is over; with `error`, it was not completed."""
        try:
            self.end_part(error)
            step, self._step = self._step, None
            if step is not None:
                step.__exit__(None if error is None else type(error), error, None)
        except Exception as trouble:
            contain("a trainer's step", trouble)

    def begin_part(self, name: str) -> None:
        """A part of the open step begins, such as a micro-batch; the one before it is over."""
        try:
            self.end_part()
            if self._step is not None and (tracer := self.tracer) is not None:
                self._part = part = FastSpan.of_part(tracer, name)
                part.__enter__()
        except Exception as error:
            contain("a trainer's part", error)

    def end_part(self, error: BaseException | None = None) -> None:
        """The open part is over, if there is one."""
        try:
            part, self._part = self._part, None
            if part is not None:
                part.__exit__(None if error is None else type(error), error, None)
        except Exception as trouble:
            contain("a trainer's part", trouble)

    @property
    def stepping(self) -> bool:
        """Whether a step of this loop is open."""
        return self._step is not None

    def batches(self, batches: Any) -> Any:
        """Return an iterable, or an iterator, whose loads are recorded while this loop trains."""
        with containing("a trainer's loader"):
            if type(batches) not in (Loading, Loads):
                kind = Loads if hasattr(batches, "__next__") else Loading
                return kind(lambda: self.tracer, batches)
        return batches

    def evaluation(self, name: str = EVALUATION) -> AbstractContextManager[Any]:
        """Return the phase of an evaluation, or of the like, if this loop is training."""
        return nullcontext() if self.tracer is None else self._phases.custom(name)

    def save(self, number: int, *, durable: bool = True) -> AbstractContextManager[Any]:
        """Return the phase of saving a checkpoint after so many steps, if this loop is training."""
        return nullcontext() if self.tracer is None else self._phases.checkpoint_save(number, durable=durable)

    def restore(self, number: int | None) -> AbstractContextManager[Any]:
        """Return the phase of restoring the checkpoint that was saved after so many steps, if this loop is training."""
        return nullcontext() if self.tracer is None else self._phases.checkpoint_restore(number)

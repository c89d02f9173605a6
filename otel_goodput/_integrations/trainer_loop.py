"""The steps of a loop that a framework owns (a trainer), as its callbacks and wrapped methods tell of them.

Whoever trains with a trainer has no loop to put ``steps()`` in. The integrations of all frameworks record by one
:class:`TrainerLoop`: it decides whose steps are recorded if there are several trainers or callbacks, and none of its
methods raises.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakSet

from otel_goodput._recording.contexts import enclosing
from otel_goodput._recording.fast_span import FastSpan
from otel_goodput._recording.loading import Loading, Loads
from otel_goodput._recording.phases import Phases
from otel_goodput._recording.tracer import Find, PhaseTracer
from otel_goodput._runtime.guard import contain, containing
from otel_goodput.semconv import Phase

EVALUATION: Final = "eval"  # the name of the custom phase

# The loop that trains now. One that begins inside of it, as a second callback or a trainer in an evaluation, does not.
_training: Final[WeakKeyDictionary[PhaseTracer, TrainerLoop]] = WeakKeyDictionary()
# Those whose latest training ended with an error: who trains again begins that training again.
_failed: Final[WeakSet[PhaseTracer]] = WeakSet()


def trains(tracer: PhaseTracer) -> bool:
    """Whether a loop of a framework trains now, so that its callbacks record what it does."""
    return tracer in _training


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
        self._ahead: int | None = None  # of the framework's numbers; None: no step has begun in this training
        self._evaluating = False
        self._recording: PhaseTracer | None = None  # the recorder of the training that this loop is in

    @property
    def tracer(self) -> PhaseTracer | None:
        """The recorder, if this loop is the one that trains; else None."""
        tracer = self._find()
        return tracer if tracer is self._recording else None

    @property
    def free(self) -> bool:
        """Whether something records, and no other loop trains."""
        return self.recorder is not None

    @property
    def recorder(self) -> PhaseTracer | None:
        """The recorder, unless another loop trains."""
        tracer = self._find()
        return tracer if tracer is self._recording or tracer is None or tracer not in _training else None

    def begin(self) -> None:
        """Training begins, unless another loop is training already."""
        with containing("a trainer's begin"):
            tracer = self._find()
            if tracer is not None and not tracer.closed and tracer not in _training:
                tracer.hooks.give_way(True)
                tracer.jobs.of_trainer = True
                _training[tracer], self._recording = self, tracer
                self._ahead = None

    def end(self, error: BaseException | None = None) -> None:
        """Training is over, with `error` or without."""
        with containing("a trainer's end"):
            self.end_step(error)
            if (tracer := self.tracer) is not None:
                self._leave(tracer)
                (_failed.discard if error is None else _failed.add)(tracer)

    def _leave(self, tracer: PhaseTracer) -> None:
        self._recording = None
        _training.pop(tracer, None)

    def begin_step(self, number: int | None) -> None:
        """A step of the optimizer begins; None: the next one, of a framework that does not count them."""
        try:
            if (tracer := self.tracer) is None:
                return
            if self._step is not None:
                self.end_step()
            if tracer.open_step is None:
                if number is None:
                    self._step = step = tracer.step(tracer.next_number())
                    step.numbered = not tracer.unsure
                else:
                    if self._ahead is None:
                        self._ahead = self._count_on(tracer, number)
                    self._step = step = tracer.step(number + self._ahead)
                step.__enter__()
        except Exception as error:
            contain("a trainer's step", error)

    @staticmethod
    def _count_on(tracer: PhaseTracer, number: int) -> int:
        """Return what to add to the numbers of a training whose first step is `number`.

        A second training in a process repeats nothing of the first, unless that failed.
        """
        following = tracer.next_number()
        return following - number if number < following and tracer.begun >= 0 and tracer not in _failed else 0

    def end_step(self, error: BaseException | None = None) -> None:
        """The open step is over; with `error`, it was not completed."""
        try:
            self.end_part(error)
            step, self._step = self._step, None
            if step is not None:
                step.__exit__(None if error is None else type(error), error, None)
        except Exception as trouble:
            contain("a trainer's step", trouble)

    def drop_step(self, *, idle: bool | None = False) -> None:
        """The open step is over, but was not completed: its work is lost.

        If it was `idle`, it was none; None: if it took less than half as long as steps usually do.
        """
        try:
            self.end_part()
            step, self._step = self._step, None
            if step is not None and (tracer := self._find()) is not None:
                now = tracer.clock()
                if idle is None:
                    idle = tracer.policy.sampler.fleeting(now - step.start_time)
                step.abandon(now, left=idle, took=0 if idle else None)
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

    def begin_load(self) -> FastSpan | None:
        """Fetching data begins; None if that is not recorded, as in an evaluation. Else end it by :meth:`end_load`."""
        try:
            tracer = self._loader()
            if tracer is None or tracer.spans.loading():
                return None
            load = tracer.load()
            load.open(tracer.clock())
            return load
        except Exception as error:
            contain("a trainer's load", error)
            return None

    def end_load(self, load: FastSpan, *, empty: bool = False, failed: bool = False) -> None:
        """Fetching is over: there was nothing left if it is `empty`, and it raised if it `failed`."""
        try:
            tracer = self._find()
            if tracer is not None and (empty or failed):
                load.abandon(tracer.clock(), failed=failed)
            elif tracer is not None:
                load.close(tracer.clock())
        except Exception as error:
            contain("a trainer's load", error)

    def _loader(self) -> PhaseTracer | None:
        """The recorder, if loads are those of training."""
        return None if self._evaluating else self.tracer

    def batches(self, batches: Any) -> Any:
        """Return an iterable, or an iterator, whose loads are recorded while this loop trains."""
        with containing("a trainer's loader"):
            if type(batches) not in (Loading, Loads):
                kind = Loads if hasattr(batches, "__next__") else Loading
                return kind(self._loader, batches)
        return batches

    def preparation(self) -> AbstractContextManager[Any]:
        """Return the phase of what a trainer does before its first step, if this loop is training."""
        return nullcontext() if self.tracer is None else self._phases.training_prep()

    def evaluation(self, name: str = EVALUATION) -> AbstractContextManager[Any]:
        """Return the phase of an evaluation, or of the like, unless another loop is training."""
        return self._apart(name) if self.free and not self._evaluating else nullcontext()

    @contextmanager
    def _apart(self, name: str) -> Iterator[None]:
        """A custom phase whose loads are not those of training, and in which no other loop trains."""
        alone = self.tracer is None
        if alone:
            self.begin()
        self._evaluating = True
        try:
            with self._phases.custom(name):
                yield
        finally:
            self._evaluating = False
            if alone and (tracer := self.tracer) is not None:
                self._leave(tracer)

    def save(self, number: int | None, *, durable: bool = True) -> AbstractContextManager[Any]:
        """Return the phase of saving a checkpoint after so many steps, unless another loop trains, or it is open."""
        again = not self.free or enclosing(Phase.CHECKPOINT_SAVE) is not None
        return nullcontext() if again else self._phases.checkpoint_save(number, durable=durable)

    def restore(self, number: int | None) -> AbstractContextManager[Any]:
        """Return the phase of restoring the checkpoint that was saved after so many steps, as :meth:`save`."""
        again = not self.free or enclosing(Phase.CHECKPOINT_RESTORE) is not None
        return nullcontext() if again else self._phases.checkpoint_restore(number)

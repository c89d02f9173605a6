"""The iterator of ``steps()``: a data load and a step for each batch."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from sys import _getframe
from threading import get_ident
from types import CodeType, FrameType, TracebackType
from typing import Final, Generic, TypeVar

from otel_goodput._accounting.rules import DATA_LOADING, STEP
from otel_goodput._recording import departure
from otel_goodput._recording.departure import clean_exit
from otel_goodput._recording.fast_span import FastSpan
from otel_goodput._recording.loading import begin_pass
from otel_goodput._recording.step_line import StepLine
from otel_goodput._recording.tracer import PhaseTracer
from otel_goodput._recording.turns import Turns
from otel_goodput._runtime.guard import contain

T = TypeVar("T")
_US: Final = __name__.partition(".")[0]


class Steps(Generic[T]):
    """Iterable of (step number, batch). The numbers are plain ints: they go into checkpoints and to workers.

    A class rather than a generator: a generator never sees an exception in the loop's body and would end the failed
    step as completed. Here, a step is completed when the next item is requested. A step left by an exception is not
    completed; for a step left by ``break``, the account decides by its duration.

    Args:
        tracer: the recorder; None if nothing records.
        batches: the iterable of batches.
        start: number of the first step; None: continue after the previous loop or the restored checkpoint.
    """

    _step: FastSpan | None = None
    _handed = 0  # when the latest batch was returned, ns: the begin of the loop's body

    def __init__(self, tracer: PhaseTracer | None, batches: Iterable[T], start: int | None) -> None:
        self._line = tracer
        self._number = start
        self._given = start is not None
        self._source = batches
        self._place = departure.Place()
        self._thread = get_ident()
        self._turns: Turns  # if something records
        if self._line is not None:
            leave_loop(self._line)
            self._line.begin_loop(sys.exc_info()[1], _called_from())
            self._turns = Turns(self._line)
        self._batches = begin_pass(lambda: tracer, lambda: iter(batches))

    def __iter__(self) -> Iterator[tuple[int, T]]:
        line = self._line
        if line is not None and not line.blocks(None):
            line.thread.moves(None)
            line.misused.pulled(self._thread)
        frame = _getframe(1)
        return _Passage(self, frame.f_code, frame.f_lasti)

    def __len__(self) -> int:
        """Return the length of the batches.

        Raises:
            TypeError: they have none.
        """
        return len(self._source)  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        return True

    def __next__(self) -> tuple[int, T]:
        return self._advance(_getframe(1))

    def _advance(self, asking: FrameType) -> tuple[int, T]:
        """Complete the open step and begin the next one, which the frame `asking` asks for."""
        line = self._line
        if line is None or line.closed:
            return self._unrecorded()
        number, before, clock = self._number, self._step, line.clock
        if number is None:
            number = line.next_number()
        load = None
        try:
            try:
                now = clock()
                if before is None or (load := self._turns.load(before, number, now)) is None:
                    load = self._begin_load(line, before, number, now)
                self._step = None
            except Exception as error:
                contain("steps", error)
            batch = next(self._batches)
            try:
                place = self._place
                if id(asking) != place.frame or asking.f_lasti != place.at:  # else it is the same loop
                    place.ask(asking)
                    if get_ident() != self._thread:
                        place.elsewhere = True
                        line.misused.pulled(self._thread)
                if load is not None and (step := self._turns.step(load, number)) is not None:
                    self._step, self._handed = step, step._start
                else:
                    self._step = self._begin_step(line, load, number, clock())
                    self._handed = clock()
            except Exception as error:
                contain("steps", error)
            self._number = number + 1
            return number, batch
        except BaseException as error:
            self._give_up(before, load, error)
            raise

    def _begin_load(self, line: StepLine, before: FastSpan | None, number: int, now: int) -> FastSpan:
        """End the step before at `now` (ns) and begin the data load of step `number`."""
        if before is not None:
            now = before.close(now)
            self._step = None
        load = FastSpan(line, DATA_LOADING, number, None, None, None)
        load.open(now)
        return load

    def _begin_step(self, line: StepLine, load: FastSpan | None, number: int, now: int) -> FastSpan:
        """End `load` at `now` (ns) and begin its step."""
        if load is not None:
            load.close(now)
        self._step = span = FastSpan(line, STEP, number, None, None, None)
        span.loop = self._place
        if line.unsure and not self._given:
            span.numbered = False
        span.open(now)
        self._turns.follow(span)
        return span

    def _unrecorded(self) -> tuple[int, T]:
        batch = next(self._batches)
        number = self._number or 0
        self._number = number + 1
        return number, batch

    def _give_up(self, before: FastSpan | None, load: FastSpan | None, error: BaseException) -> None:
        """Close all open spans, because there is no next item or `error` interrupted ``__next__()``."""
        if self._line is None:
            return
        try:
            now = self._line.clock()
            begun = self._step
            if begun is not None and begun is not before:
                begun.abandon(now)
            for opened in (self._turns.latest, load):  # the same, unless an interrupt came while one began
                if opened is not None and opened is not before:
                    opened.abandon(now, failed=not isinstance(error, StopIteration))
            if before is not None:
                before.abandon(now, failed=False)  # it had completed: the next item was requested
            self._step = None
        except Exception as trouble:
            contain("steps", trouble)

    def close(self) -> None:
        """Leave the loop and end the step in progress, if there is one."""
        if self._line is not None:
            self._leave(self._line.clock(), raising(self._line))

    def _leave(self, now: int, failed: bool) -> None:
        try:
            step = self._step
            if step is not None:
                step.abandon(now, left=not failed, took=now - self._handed)
                self._step = None
        except Exception as error:
            contain("steps", error)

    def __enter__(self) -> Steps[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._line is not None:
            self._leave(self._line.clock(), error is not None and not clean_exit(error))

    def _drop(self, code: CodeType | None, begun: int) -> None:
        """Leave the loop, which began at the bytecode offset `begun` of `code`, because its iterator is dropped."""
        # A step that has ended already needs none of this; at the end of the interpreter, modules are gone.
        if self._step is not None and not self._step.closed and self._line is not None:
            now = self._line.clock()
            failed, idle = departure.way_left(code, begun, depth=2)
            if idle:
                self._handed = now  # the body did no work, no matter how long a busy machine took to get there
            self._leave(now, failed)

    def __del__(self) -> None:
        self._drop(None, -1)


class _Passage(Iterator[tuple[int, T]]):
    """The iterator of one loop over `steps`. The loop alone holds it, so it is dropped when the loop is left.

    Whoever keeps ``steps()`` in a variable, as tqdm does, would otherwise keep the iterator.

    Args:
        steps: what gives the items.
        code: the code of the loop.
        begun: bytecode offset in it at which the loop begins.
    """

    __slots__ = ("_advance", "_begun", "_code", "_steps")

    def __init__(self, steps: Steps[T], code: CodeType, begun: int) -> None:
        self._steps, self._code, self._begun = steps, code, begun
        self._advance = steps._advance

    def __next__(self) -> tuple[int, T]:
        advance = self._advance  # faster than to call the attribute, with CPython 3.11
        return advance(_getframe(1))

    def __del__(self) -> None:
        # A loop that is left by `break`, `return` or an exception drops its iterator at once.
        self._steps._drop(self._code, self._begun)


def _called_from() -> tuple[str, int]:
    """Return file and line of the call that begins a loop: the first outside of this package."""
    frame = _getframe(2)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == _US:
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def leave_loop(line: StepLine) -> None:
    """End the open step of an earlier loop whose iterator is still referenced, because a new loop begins."""
    try:
        step = line.open_step
        if step is not None and step.loop is not None and line.blocks(None):
            step.lapse(line.clock(), failed=raising(line))
        line.leave_lapsed()
    except Exception as error:
        contain("steps", error)


def raising(line: StepLine) -> bool:
    """Return whether a failure is being handled that was not when the loop began; ``sys.exit(0)`` is not a failure."""
    error = sys.exc_info()[1]
    return error is not None and id(error) != line.handled and not clean_exit(error)

"""The loop over steps: a data load and a step for each batch, in one iterator."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from types import CodeType, TracebackType
from typing import Generic, TypeVar

from opentelemetry.trace import INVALID_SPAN, Span
from opentelemetry.util import types

from otel_goodput.guard import contain
from otel_goodput.recording import departure
from otel_goodput.recording.fast_span import FastSpan, clean_exit
from otel_goodput.recording.tracer import PhaseTracer

T = TypeVar("T")


class Step(int):
    """The number of a step, and its span: an int that takes attributes and events."""

    span: Span = INVALID_SPAN

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        # A copy is a number: checkpoint libraries copy and pickle what they are given.
        return int, (int(self),)

    def observe(self, output: object) -> None:
        """As :meth:`FastSpan.observe`."""
        if isinstance(self.span, FastSpan):
            self.span.observe(output)

    def set_attribute(self, key: str, value: types.AttributeValue) -> None:
        self.span.set_attribute(key, value)

    def set_attributes(self, attributes: Mapping[str, types.AttributeValue]) -> None:
        self.span.set_attributes(attributes)

    def add_event(self, name: str, attributes: types.Attributes = None, timestamp: int | None = None) -> None:
        self.span.add_event(name, attributes, timestamp)

    def record_exception(self, exception: BaseException, attributes: types.Attributes = None) -> None:
        self.span.record_exception(exception, attributes)


class Steps(Generic[T]):
    """Iterator of (step, batch).

    A class and not a generator: a generator never sees the exception of the loop's body and would close the fatal step
    as a healthy one. Here a step has completed when the next item is asked for. A step left by an exception has not; of
    one left by ``break`` the account decides by what it took.

    Args:
        tracer: what records; None: nothing does.
        batches: the items.
        start: number of the first step; None: the loop before, or a restored checkpoint, tells.
    """

    _step: FastSpan | None = None
    _handed = 0  # when the latest batch was handed over, ns: what the step's body took begins there
    _code: CodeType | None = None  # what iterates
    _begun = -1  # where in it the loop begins, a bytecode offset

    def __init__(self, tracer: PhaseTracer | None, batches: Iterable[T], start: int | None) -> None:
        self._tracer = tracer
        self._number = start
        self._source = batches
        self._batches: Iterator[T] = iter(batches)
        if tracer is not None:
            leave_loop(tracer)
            tracer.handled = id(sys.exc_info()[1])

    def __iter__(self) -> Steps[T]:
        frame = sys._getframe(1)
        self._code, self._begun = frame.f_code, frame.f_lasti
        tracer = self._tracer
        if tracer is not None and not tracer.blocks(None):
            tracer.thread.moves(None)
        return self

    def __len__(self) -> int:
        """That of what is iterated over, where it has one."""
        return len(self._source)  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        return True

    def __next__(self) -> tuple[Step, T]:
        tracer = self._tracer
        if tracer is None or tracer.closed:
            return self._unrecorded()
        number = tracer.next_number() if self._number is None else self._number
        step = Step(number)
        before = self._step
        load = None
        try:
            try:
                now = tracer.clock()
                if before is not None:
                    now = before.close(now)
                    self._step = None
                load = tracer.load(step=number)
                load.open(now)
            except Exception as error:
                contain("steps", error)
            batch = next(self._batches)
            try:
                now = tracer.clock()
                if load is not None:
                    load.close(now)
                self._step = step.span = span = tracer.loop_step(number)
                span.open(now)
            except Exception as error:
                contain("steps", error)
            self._number = number + 1
            self._handed = tracer.clock()
            return step, batch
        except BaseException as error:
            self._give_up(before, load, error)
            raise

    def _unrecorded(self) -> tuple[Step, T]:
        batch = next(self._batches)
        number = self._number or 0
        self._number = number + 1
        return Step(number), batch

    def _give_up(self, before: FastSpan | None, load: FastSpan | None, error: BaseException) -> None:
        """There is no next item, or we were interrupted on the way to it: nothing of it stays open."""
        tracer = self._tracer
        if tracer is None:
            return
        try:
            now = tracer.clock()
            begun = self._step
            if begun is not None and begun is not before:
                begun.abandon(now)
            if load is not None:
                load.abandon(now, failed=not isinstance(error, StopIteration))
            if before is not None:
                before.abandon(now, failed=False)  # it had completed: the next one was asked for
            self._step = None
        except Exception as trouble:
            contain("steps", trouble)

    def close(self) -> None:
        """Leave the loop: the step in progress, if any, ends here."""
        tracer = self._tracer
        if tracer is not None:
            self._leave(tracer.clock(), raising(tracer))

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
        if self._tracer is not None:
            self._leave(self._tracer.clock(), error is not None and not clean_exit(error))

    def __del__(self) -> None:
        # A loop that is left by `break` or by an exception drops its iterator at once.
        if self._step is not None and self._tracer is not None:
            now = self._tracer.clock()
            if departure.at_head(self._code, self._begun):
                self._handed = now  # nothing was done, however long a busy machine took to come there
            self._leave(now, departure.by_exception(self._code))


def leave_loop(tracer: PhaseTracer) -> None:
    """Another loop begins on this thread, or the job ends: one that somebody still holds is over."""
    try:
        step = tracer.spans.step
        if step is not None and step.in_loop and tracer.blocks(None):
            step.abandon(tracer.clock(), left=not raising(tracer))
    except Exception as error:
        contain("steps", error)


def raising(tracer: PhaseTracer) -> bool:
    """Whether an exception is being handled here that was not when the loop began; ``sys.exit(0)`` is no failure."""
    error = sys.exc_info()[1]
    return error is not None and id(error) != tracer.handled and not clean_exit(error)

"""The loop over steps: a data load and a step for each batch, in one iterator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Generic, TypeVar

from opentelemetry.trace import INVALID_SPAN, Span
from opentelemetry.util import types

from otel_goodput.guard import contain
from otel_goodput.spans.fast import FastSpan
from otel_goodput.spans.tracer import PhaseTracer

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
    as a healthy one. Here a step has completed when the next item is asked for; a step left by ``break`` or by an
    exception has not.
    """

    def __init__(self, tracer: PhaseTracer | None, batches: Iterable[T], start: int) -> None:
        self._tracer = tracer
        self._number = start
        self._step: FastSpan | None = None
        self._batches: Iterator[T] = iter(batches)

    def __iter__(self) -> Steps[T]:
        return self

    def __next__(self) -> tuple[Step, T]:
        tracer = self._tracer
        number = self._number
        step = Step(number)
        if tracer is None or tracer.closed:
            batch = next(self._batches)
            self._number = number + 1
            return step, batch
        load = None
        try:
            now = tracer.clock()
            if self._step is not None:
                self._step.close(now)
                self._step = None
            load = tracer.load(step=number)
            load.open(now)
        except Exception as error:
            contain("steps", error)
        try:
            batch = next(self._batches)
        except BaseException as error:
            self._end_load(load, failed=not isinstance(error, StopIteration))
            raise
        try:
            now = tracer.clock()
            if load is not None:
                load.close(now)
            self._step = step.span = span = tracer.step(number)
            span.open(now)
        except Exception as error:
            contain("steps", error)
        self._number = number + 1
        return step, batch

    def _end_load(self, load: FastSpan | None, failed: bool) -> None:
        try:
            if load is not None and self._tracer is not None:
                load.close(self._tracer.clock(), failed)
        except Exception as error:
            contain("steps", error)

    def close(self) -> None:
        """Leave the loop: the step in progress, if any, has not completed."""
        try:
            step, self._step = self._step, None
            if step is not None and self._tracer is not None:
                step.abandon(self._tracer.clock())
        except Exception as error:
            contain("steps", error)

    def __enter__(self) -> Steps[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # A loop that is left by `break` or by an exception drops its iterator at once.
        self.close()

"""Checkpoint saves: phases that may end before their checkpoint is durable."""

from __future__ import annotations

from collections.abc import Mapping

from opentelemetry import trace as trace_api
from opentelemetry.trace import SpanContext, Status, StatusCode
from opentelemetry.util import types

from otel_goodput.guard import contain
from otel_goodput.recording.contexts import PhaseContext
from otel_goodput.recording.fast_span import clean_exit
from otel_goodput.recording.tracer import PhaseTracer
from otel_goodput.semconv import GOODPUT_CHECKPOINT_DURABLE


class SaveContext(PhaseContext):
    """The context manager of a checkpoint save; yields a :class:`Save`."""

    __slots__ = ()

    def _begin(self, tracer: PhaseTracer, start: int) -> trace_api.Span:
        span = super()._begin(tracer, start)
        line = tracer.line
        if line.admission.budget.detailed and span.get_span_context().span_id not in line.admission.left_out:
            line.thinner.cut()
        span.set_attribute(GOODPUT_CHECKPOINT_DURABLE, bool(self._arguments["durable"]))
        step = line.spans.step if tracer.blocks(None) else None
        if step is not None:
            step.saved = True
        return span

    def _finish(self, tracer: PhaseTracer, span: trace_api.Span, error: BaseException | None) -> None:
        if error is not None and not clean_exit(error):
            span.set_attribute(GOODPUT_CHECKPOINT_DURABLE, False)

    def _yielded(self, tracer: PhaseTracer | None, span: trace_api.Span) -> Save:
        return Save(tracer, span)


class Save(trace_api.Span):
    """The span of a checkpoint save; :meth:`durable` marks the checkpoint as durable."""

    def __init__(self, tracer: PhaseTracer | None, span: trace_api.Span) -> None:
        self._tracer = tracer
        self._span = span

    def durable(self) -> None:
        """Mark the checkpoint as safely stored: the steps it covers are no longer at risk.

        Needed only after ``checkpoint_save(step, durable=False)``, for saves that continue in the background.
        """
        try:
            if self._span.is_recording():
                self._span.set_attribute(GOODPUT_CHECKPOINT_DURABLE, True)
            elif self._tracer is not None:
                self._tracer.account.durable(self._span.get_span_context().span_id, self._tracer.clock())
        except Exception as error:
            contain("checkpoint durable", error)

    def end(self, end_time: int | None = None) -> None:
        self._span.end(end_time)

    def get_span_context(self) -> SpanContext:
        return self._span.get_span_context()

    def set_attributes(self, attributes: Mapping[str, types.AttributeValue]) -> None:
        self._span.set_attributes(attributes)

    def set_attribute(self, key: str, value: types.AttributeValue) -> None:
        self._span.set_attribute(key, value)

    def add_event(self, name: str, attributes: types.Attributes = None, timestamp: int | None = None) -> None:
        self._span.add_event(name, attributes, timestamp)

    def add_link(self, context: SpanContext, attributes: types.Attributes = None) -> None:
        self._span.add_link(context, attributes)

    def update_name(self, name: str) -> None:
        self._span.update_name(name)

    def is_recording(self) -> bool:
        return self._span.is_recording()

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        self._span.set_status(status, description)

    def record_exception(
        self,
        exception: BaseException,
        attributes: types.Attributes = None,
        timestamp: int | None = None,
        escaped: bool = False,
    ) -> None:
        self._span.record_exception(exception, attributes, timestamp, escaped)

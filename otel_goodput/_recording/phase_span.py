"""The span of a phase other than steps, loads and parts, as those see it who open it or are inside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from opentelemetry import context as context_api
from opentelemetry import trace as trace_api
from opentelemetry.trace import INVALID_SPAN_CONTEXT, SpanContext, Status, StatusCode
from opentelemetry.util import types

from otel_goodput._recording import plain
from otel_goodput._recording.ids import SAMPLED
from otel_goodput._recording.nesting import Nested, Nesting
from otel_goodput._runtime.guard import contain, guarded
from otel_goodput.semconv import GOODPUT_CHECKPOINT_DURABLE

if TYPE_CHECKING:
    from otel_goodput._recording.step_line import StepLine
    from otel_goodput._recording.tracer import PhaseTracer


class PhaseSpan(Nested):
    """Passes everything on to the SDK's span of a phase, except requests for its identity.

    Args:
        line: the state of the recording; None if nothing records.
        span: the SDK's span.

    Attributes:
        span: as given.
    """

    def __init__(self, line: StepLine | None, span: trace_api.Span) -> None:
        self.span = span
        self._line = line
        if line is not None:
            self._within = within = context_api.get_current()
            self._outer = line.nesting.place(within).phase

    @property
    def nesting(self) -> Nesting:
        assert self._line is not None, "nobody asks where nothing records"
        return self._line.nesting

    @property
    def identity(self) -> SpanContext:
        return self.span.get_span_context()

    @property
    def sampled(self) -> bool:
        context = self.identity
        return context.trace_flags.sampled or (self._line is not None and context.span_id in self._line.admission.kept)

    @property
    def closed(self) -> bool:
        return not self.span.is_recording()

    def claim(self) -> bool:
        if self._line is None or self.sampled:
            return True
        around = self.around
        if self.closed or self._line.closed or (isinstance(around, Nested) and not around.claim()):
            return False
        return self._line.admission.claim(self.identity)

    def enclosing(self) -> SpanContext:
        around = self.around
        if isinstance(around, Nested):
            return around.shown()
        parent: SpanContext | None = getattr(self.span, "parent", None)
        return parent or INVALID_SPAN_CONTEXT

    def shown(self) -> SpanContext:
        shown = super().shown()
        if shown is self.identity and not shown.trace_flags.sampled and self.sampled:
            # The SDK's span keeps the flag that it began with.
            self._shown = shown = SpanContext(shown.trace_id, shown.span_id, False, SAMPLED, shown.trace_state)
        return shown

    def get_span_context(self) -> SpanContext:
        return self.identity if self._line is None else super().get_span_context()

    @property
    def context(self) -> SpanContext:
        return self.get_span_context()

    # --- passed on ----------------------------------------------------------------------------------------------------

    if not TYPE_CHECKING:  # otherwise a type checker would accept any name

        def __getattr__(self, name: str) -> Any:
            if name == "span":  # it is being copied, and has no attributes yet
                raise AttributeError(name)
            return getattr(self.span, name)

    def end(self, end_time: int | None = None) -> None:
        self.span.end(end_time)

    @guarded(None)
    def set_attributes(self, attributes: Mapping[str, types.AttributeValue]) -> None:
        self.span.set_attributes(plain.attributes(attributes))

    @guarded(None)
    def set_attribute(self, key: str, value: types.AttributeValue) -> None:
        self.span.set_attributes(plain.attribute(key, value))

    @guarded(None)
    def add_event(self, name: str, attributes: types.Attributes = None, timestamp: int | None = None) -> None:
        self.span.add_event(
            plain.text(name) or plain.quoted(name), plain.attributes(attributes), plain.integer(timestamp)
        )

    @guarded(None)
    def add_link(self, context: SpanContext, attributes: types.Attributes = None) -> None:
        self.span.add_link(context, plain.attributes(attributes))

    @guarded(None)
    def update_name(self, name: str) -> None:
        self.span.update_name(plain.text(name) or plain.quoted(name))

    def is_recording(self) -> bool:
        return self.span.is_recording()

    @guarded(None)
    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        self.span.set_status(status, plain.text(description))


class Save(PhaseSpan):
    """The span of a checkpoint save; :meth:`durable` marks the checkpoint as durable."""

    def __init__(self, tracer: PhaseTracer | None, span: trace_api.Span) -> None:
        super().__init__(None if tracer is None else tracer.line, span)
        self._tracer = tracer

    def durable(self) -> None:
        """Mark the checkpoint as safely stored: the steps it covers are no longer at risk.

        Needed only after ``checkpoint_save(step, durable=False)``, for saves that continue in the background.
        """
        try:
            if self.is_recording():
                self.set_attribute(GOODPUT_CHECKPOINT_DURABLE, True)
            elif self._tracer is not None:
                self._tracer.account.durable(self.identity.span_id, self._tracer.clock())
        except Exception as error:
            contain("checkpoint durable", error)

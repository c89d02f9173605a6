"""``ddtrace.internal.opentelemetry.context``: a runtime context that keeps an identity, and cannot let go of it."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanContext


class DDRuntimeContext:
    def attach(self, otel_context: Context) -> object:
        KEPT.set(trace.get_current_span(otel_context).get_span_context())
        return object()

    def get_current(self) -> Context:
        kept = KEPT.get()
        return Context() if kept is None else trace.set_span_in_context(trace.NonRecordingSpan(kept), Context())

    def detach(self, token: Any) -> None:
        """Do nothing."""


KEPT: ContextVar[SpanContext | None] = ContextVar("ddtrace", default=None)

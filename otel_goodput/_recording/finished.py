"""Finished spans for exporters, which the account already includes."""

from __future__ import annotations

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext

from otel_goodput._recording import ids
from otel_goodput.semconv import ATTEMPT_SPAN


class PhaseReadableSpan(ReadableSpan):
    """A finished span for exporters. Its type tells our span processor that the ledger already includes it."""


class AttemptSpan(PhaseReadableSpan):
    """The root of an attempt's trace, linked to the previous attempt's; of no duration, so that it is exported at once.

    Args:
        run_id, attempt: identify the attempt.
        resource: the resource of the process.
        scope: our instrumentation scope.
        moment: when the first job began, ns.
    """

    def __init__(self, run_id: str, attempt: int, resource: Resource, scope: InstrumentationScope, moment: int) -> None:
        context = ids.attempt_span_context(run_id, attempt)
        super().__init__(
            ATTEMPT_SPAN,
            SpanContext(context.trace_id, context.span_id, False, ids.SAMPLED),
            None,
            resource,
            links=(Link(ids.attempt_span_context(run_id, attempt - 1)),) if attempt > 0 else (),
            start_time=moment,
            end_time=moment,
            instrumentation_scope=scope,
        )


def taken_after_all(span: ReadableSpan, parent: SpanContext | None) -> PhaseReadableSpan:
    """Return a copy of the finished, unsampled `span` that is sampled and has the parent `parent`."""
    context = span.get_span_context()
    if context is not None:
        context = SpanContext(context.trace_id, context.span_id, False, ids.SAMPLED, context.trace_state)
    return PhaseReadableSpan(
        span.name,
        context,
        parent,
        span.resource,
        span.attributes,
        span.events,
        span.links,
        span.kind,
        status=span.status,
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )

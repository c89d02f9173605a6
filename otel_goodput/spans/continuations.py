"""Where the spans of an attempt go on in another trace: a root there, linked back, and a word in the trace before.

Neither has a length, so both are there at once, and are written once.
"""

from __future__ import annotations

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext

from otel_goodput.semconv import CONTINUATION_SPAN, CONTINUED_SPAN, GOODPUT_TRACE_NUMBER
from otel_goodput.spans import ids
from otel_goodput.spans.finished import PhaseReadableSpan
from otel_goodput.spans.volumes import Volumes


class ContinuationSpan(PhaseReadableSpan):
    """The root of a further trace, linked to that of the trace before and to the attempt's.

    Args:
        volumes: the attempt's traces.
        number, before: which of them it is the root of, and behind which.
        resource: of the process.
        scope: ours.
        moment: when the first span there began, ns.
    """

    def __init__(
        self,
        volumes: Volumes,
        number: int,
        before: int,
        resource: Resource,
        scope: InstrumentationScope,
        moment: int,
    ) -> None:
        super().__init__(
            CONTINUATION_SPAN,
            volumes.root(number),
            None,
            resource,
            {GOODPUT_TRACE_NUMBER: number},
            links=[Link(volumes.root(each)) for each in sorted({before, 0}, reverse=True)],
            start_time=moment,
            end_time=moment,
            instrumentation_scope=scope,
        )


def continued_span(
    volumes: Volumes, number: int, before: int, resource: Resource, scope: InstrumentationScope, moment: int
) -> PhaseReadableSpan:
    """What says in the trace `before` that the attempt goes on in the trace `number`, since `moment` (ns)."""
    parent = volumes.root(before)
    key = ids.continued_span_id(volumes.run_id, volumes.attempt, number)
    return PhaseReadableSpan(
        CONTINUED_SPAN,
        SpanContext(parent.trace_id, key, False, ids.SAMPLED),
        parent,
        resource,
        {GOODPUT_TRACE_NUMBER: before} if before else {},
        links=[Link(volumes.root(number))],
        start_time=moment,
        end_time=moment,
        instrumentation_scope=scope,
    )

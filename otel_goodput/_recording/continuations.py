"""Spans that connect the traces of an attempt: a root in the new trace, linked back, and a pointer in the previous one.

The first trace of a further group of processes follows the first trace of the previous group in the same way. Both
spans have no duration, so that they can be exported at once and only once.
"""

from __future__ import annotations

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext

from otel_goodput._recording import ids
from otel_goodput._recording.finished import PhaseReadableSpan
from otel_goodput._recording.volumes import Volumes
from otel_goodput.semconv import CONTINUATION_SPAN, CONTINUED_SPAN, GOODPUT_TRACE_GROUP, GOODPUT_TRACE_NUMBER


def _place(volumes: Volumes, number: int) -> dict[str, int]:
    """Return the attributes that identify trace `number`: its number and its group, without those that are 0."""
    found = {GOODPUT_TRACE_NUMBER: number, GOODPUT_TRACE_GROUP: volumes.group}
    return {key: value for key, value in found.items() if value}


def _links(behind: SpanContext, first: SpanContext) -> list[Link]:
    return [Link(behind), *([Link(first)] if behind.span_id != first.span_id else [])]


class ContinuationSpan(PhaseReadableSpan):
    """The root of a further trace, linked to the root of the previous trace and to the attempt's root.

    Args:
        volumes: the traces of a group.
        number: number of the new trace.
        before: number of the previous trace (see :meth:`Volumes.behind`).
        resource: the resource of the process.
        scope: our instrumentation scope.
        moment: when the new trace's first span began, ns.
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
            _place(volumes, number),
            links=_links(volumes.behind(number, before), volumes.of(0).root(0)),
            start_time=moment,
            end_time=moment,
            instrumentation_scope=scope,
        )


def continued_span(
    volumes: Volumes, number: int, before: int, resource: Resource, scope: InstrumentationScope, moment: int
) -> PhaseReadableSpan:
    """Return the span in the previous trace that links to the root of trace `number`, begun at `moment` (ns)."""
    parent = volumes.behind(number, before)
    theirs = volumes if parent == volumes.root(before) else volumes.of(volumes.group - 1)
    key = ids.continued_span_id(volumes.run_id, volumes.attempt, number, volumes.group)
    return PhaseReadableSpan(
        CONTINUED_SPAN,
        SpanContext(parent.trace_id, key, False, ids.SAMPLED),
        parent,
        resource,
        _place(theirs, before),
        links=[Link(volumes.root(number))],
        start_time=moment,
        end_time=moment,
        instrumentation_scope=scope,
    )

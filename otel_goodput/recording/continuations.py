"""Where the spans of an attempt go on in another trace: a root there, linked back, and a word in the trace before.

A further group of processes has its first trace behind that of the group before in the same way. Neither has a length,
so both are there at once, and are written once.
"""

from __future__ import annotations

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext

from otel_goodput.recording import ids
from otel_goodput.recording.finished import PhaseReadableSpan
from otel_goodput.recording.volumes import Volumes
from otel_goodput.semconv import CONTINUATION_SPAN, CONTINUED_SPAN, GOODPUT_TRACE_GROUP, GOODPUT_TRACE_NUMBER


def _place(volumes: Volumes, number: int) -> dict[str, int]:
    """Which trace it is, where it is not the attempt's own."""
    found = {GOODPUT_TRACE_NUMBER: number, GOODPUT_TRACE_GROUP: volumes.group}
    return {key: value for key, value in found.items() if value}


def _links(behind: SpanContext, first: SpanContext) -> list[Link]:
    return [Link(behind), *([Link(first)] if behind.span_id != first.span_id else [])]


class ContinuationSpan(PhaseReadableSpan):
    """The root of a further trace, linked to that of the trace before and to the attempt's.

    Args:
        volumes: the attempt's traces, of a group.
        number, before: which of them it is the root of, and behind which (:meth:`Volumes.behind`).
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
            _place(volumes, number),
            links=_links(volumes.behind(number, before), volumes.of(0).root(0)),
            start_time=moment,
            end_time=moment,
            instrumentation_scope=scope,
        )


def continued_span(
    volumes: Volumes, number: int, before: int, resource: Resource, scope: InstrumentationScope, moment: int
) -> PhaseReadableSpan:
    """What says in the trace before that the attempt goes on in the trace `number`, since `moment` (ns)."""
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

"""Finished spans for exporters: roots of traces, links between traces, summaries, and phases that are exported late.

The account already includes what they stand for. Roots and links have no duration, so that each is exported at once and
only once.
"""

from __future__ import annotations

from typing import Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext
from opentelemetry.util import types

from otel_goodput import semconv
from otel_goodput._accounting import events as ev
from otel_goodput._accounting import rules
from otel_goodput._journal.records import INTERRUPTED, OUTLIER
from otel_goodput._journal.thinning import Summary
from otel_goodput._recording import ids
from otel_goodput._recording.trace_layout import TraceLayout


class PhaseReadableSpan(ReadableSpan):
    """A finished span for exporters. Its type tells our span processor that the ledger already includes it."""


_NAMES: Final = {
    rules.CUSTOM_PHASE: semconv.GOODPUT_CUSTOM_NAME,
    rules.PART: semconv.GOODPUT_PART_NAME,
    rules.PHASE_INDEX[semconv.Phase.ELASTIC_WAIT]: semconv.GOODPUT_ELASTIC_KIND,
    rules.COMPILE: semconv.GOODPUT_COMPILE_FUNCTION,
}


def phase_attributes(
    phase: int, step: int, name: str, flags: int, end_flags: int, trace: int
) -> dict[str, types.AttributeValue]:
    """Return the attributes of a phase that follow from its records, of a living attempt and of a dead one.

    Args:
        phase: index into ``semconv.PHASES``.
        step: number of its step; negative if it has none.
        name: its name, empty if it has none.
        flags, end_flags: those of its START and its END; 0 for an END that is still to come.
        trace: the number of its trace.
    """
    attributes: dict[str, types.AttributeValue] = {semconv.GOODPUT_PHASE: semconv.PHASES[phase]}
    if step >= 0:
        attributes[semconv.GOODPUT_STEP] = step
    if name and phase in _NAMES:
        attributes[_NAMES[phase]] = name
    if flags & ev.NONBLOCKING:
        attributes[semconv.GOODPUT_BLOCKING] = False
    if trace:
        attributes[semconv.GOODPUT_TRACE_NUMBER] = trace
    if end_flags:
        if phase == rules.STEP and end_flags & (ev.FAILED | INTERRUPTED):
            attributes[semconv.GOODPUT_STEP_COMPLETED] = False
        if end_flags & OUTLIER:
            attributes[semconv.GOODPUT_STEP_OUTLIER] = True
        if end_flags & INTERRUPTED:
            attributes[semconv.GOODPUT_INTERRUPTED] = True
    return attributes


class AttemptSpan(PhaseReadableSpan):
    """The root of an attempt's trace, linked to the previous attempt's; `moment` is when the first job began, ns."""

    def __init__(self, run_id: str, attempt: int, resource: Resource, scope: InstrumentationScope, moment: int) -> None:
        context = ids.attempt_span_context(run_id, attempt)
        super().__init__(
            semconv.ATTEMPT_SPAN,
            SpanContext(context.trace_id, context.span_id, False, ids.SAMPLED),
            None,
            resource,
            links=(Link(ids.attempt_span_context(run_id, attempt - 1)),) if attempt > 0 else (),
            start_time=moment,
            end_time=moment,
            instrumentation_scope=scope,
        )


def sampled_copy(span: ReadableSpan, parent: SpanContext | None) -> PhaseReadableSpan:
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


def _attributes(layout: TraceLayout, number: int) -> dict[str, int]:
    """Return the attributes that identify trace `number`: its number and its group, without those that are 0."""
    attributes = {semconv.GOODPUT_TRACE_NUMBER: number, semconv.GOODPUT_TRACE_GROUP: layout.group}
    return {key: value for key, value in attributes.items() if value}


def _links(behind: SpanContext, first: SpanContext) -> list[Link]:
    return [Link(behind), *([Link(first)] if behind.span_id != first.span_id else [])]


class ContinuationSpan(PhaseReadableSpan):
    """The root of a further trace, linked to the root of the previous trace and to the attempt's root.

    Args:
        layout: the traces of a group.
        number, before: numbers of the new trace and of the previous one (see :meth:`TraceLayout.behind`).
        resource, scope: of the span.
        moment: when the new trace's first span began, ns.
    """

    def __init__(
        self,
        layout: TraceLayout,
        number: int,
        before: int,
        resource: Resource,
        scope: InstrumentationScope,
        moment: int,
    ) -> None:
        super().__init__(
            semconv.CONTINUATION_SPAN,
            layout.root(number),
            None,
            resource,
            _attributes(layout, number),
            links=_links(layout.behind(number, before), layout.of(0).root(0)),
            start_time=moment,
            end_time=moment,
            instrumentation_scope=scope,
        )


def continued_span(
    layout: TraceLayout, number: int, before: int, resource: Resource, scope: InstrumentationScope, moment: int
) -> PhaseReadableSpan:
    """Return the span in the previous trace that links to the root of trace `number`, begun at `moment` (ns)."""
    parent = layout.behind(number, before)
    theirs = layout if parent == layout.root(before) else layout.of(layout.group - 1)
    key = ids.continued_span_id(layout.run_id, layout.attempt, number, layout.group)
    return PhaseReadableSpan(
        semconv.CONTINUED_SPAN,
        SpanContext(parent.trace_id, key, False, ids.SAMPLED),
        parent,
        resource,
        _attributes(theirs, before),
        links=[Link(layout.root(number))],
        start_time=moment,
        end_time=moment,
        instrumentation_scope=scope,
    )


# Attributes of a summary: the number of steps or phases, and of their durations the sum, minimum, median, P90, maximum.
_STEPS: Final = (
    *(semconv.GOODPUT_STEPS_COUNT, semconv.GOODPUT_STEPS_SUM, semconv.GOODPUT_STEPS_MIN),
    *(semconv.GOODPUT_STEPS_MEDIAN, semconv.GOODPUT_STEPS_P90, semconv.GOODPUT_STEPS_MAX),
)
_PHASES: Final = (
    *(semconv.GOODPUT_PHASES_COUNT, semconv.GOODPUT_PHASES_SUM, semconv.GOODPUT_PHASES_MIN),
    *(semconv.GOODPUT_PHASES_MEDIAN, semconv.GOODPUT_PHASES_P90, semconv.GOODPUT_PHASES_MAX),
)


def summary_span(
    summary: Summary,
    name: str,
    parent: SpanContext,
    number: int,
    identity: tuple[str, int, int],
    resource: Resource,
    scope: InstrumentationScope,
) -> PhaseReadableSpan:
    """Return the span that stands for many unexported steps, or for many unexported phases of one name.

    Args:
        summary: the figures of the steps or phases.
        name: name of the phases; empty for steps.
        parent: the span's parent.
        number: which of the attempt's traces it is in.
        identity: run id, attempt and process.
        resource, scope: of the span.
    """
    figures = (summary.steps, summary.total, summary.min, summary.median, summary.p90, summary.max)
    attributes: dict[str, types.AttributeValue] = dict(zip(_PHASES if name else _STEPS, figures, strict=True))
    if name:
        key = ids.phases_span_id(*identity, name, summary.start)
        attributes[semconv.GOODPUT_PHASES_NAME] = name
    else:
        key = ids.summary_span_id(*identity, summary.first, summary.start)
        attributes |= {semconv.GOODPUT_STEPS_FIRST: summary.first, semconv.GOODPUT_STEPS_LAST: summary.last}
    if number:
        attributes[semconv.GOODPUT_TRACE_NUMBER] = number
    return PhaseReadableSpan(
        semconv.PHASES_SUMMARY_SPAN if name else semconv.STEPS_SUMMARY_SPAN,
        SpanContext(parent.trace_id, key, False, ids.SAMPLED),
        parent,
        resource,
        attributes,
        start_time=summary.start,
        end_time=summary.end,
        instrumentation_scope=scope,
    )

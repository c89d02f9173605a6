"""Spans that summarize many unexported steps, or many unexported phases of one name."""

from __future__ import annotations

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext
from opentelemetry.util import types

from otel_goodput._journal.thinning import Summary
from otel_goodput._recording import ids
from otel_goodput._recording.finished import PhaseReadableSpan
from otel_goodput.semconv import (
    GOODPUT_PHASES_COUNT,
    GOODPUT_PHASES_MAX,
    GOODPUT_PHASES_MEDIAN,
    GOODPUT_PHASES_MIN,
    GOODPUT_PHASES_NAME,
    GOODPUT_PHASES_P90,
    GOODPUT_PHASES_SUM,
    GOODPUT_STEPS_COUNT,
    GOODPUT_STEPS_FIRST,
    GOODPUT_STEPS_LAST,
    GOODPUT_STEPS_MAX,
    GOODPUT_STEPS_MEDIAN,
    GOODPUT_STEPS_MIN,
    GOODPUT_STEPS_P90,
    GOODPUT_STEPS_SUM,
    GOODPUT_TRACE_NUMBER,
    PHASES_SUMMARY_SPAN,
    STEPS_SUMMARY_SPAN,
)


def steps_span(
    summary: Summary,
    parent: SpanContext,
    number: int,
    identity: tuple[str, int, int],
    resource: Resource,
    scope: InstrumentationScope,
) -> PhaseReadableSpan:
    """Return the ``steps`` span of a summary of steps.

    Args:
        summary: the figures of the steps.
        parent: the span's parent.
        number: which of the attempt's traces it is in.
        identity: run id, attempt and process.
        resource: the resource of the process.
        scope: our instrumentation scope.
    """
    key = ids.summary_span_id(*identity, summary.first, summary.start)
    attributes: dict[str, types.AttributeValue] = {
        GOODPUT_STEPS_FIRST: summary.first,
        GOODPUT_STEPS_LAST: summary.last,
        GOODPUT_STEPS_COUNT: summary.steps,
        GOODPUT_STEPS_SUM: summary.total,
        GOODPUT_STEPS_MIN: summary.min,
        GOODPUT_STEPS_MEDIAN: summary.median,
        GOODPUT_STEPS_P90: summary.p90,
        GOODPUT_STEPS_MAX: summary.max,
    }
    return _span(STEPS_SUMMARY_SPAN, key, attributes, summary, parent, number, resource, scope)


def phases_span(
    name: str,
    summary: Summary,
    parent: SpanContext,
    number: int,
    identity: tuple[str, int, int],
    resource: Resource,
    scope: InstrumentationScope,
) -> PhaseReadableSpan:
    """Return the ``phases`` span of a summary of phases called `name`; arguments as for :func:`steps_span`."""
    key = ids.phases_span_id(*identity, name, summary.start)
    attributes: dict[str, types.AttributeValue] = {
        GOODPUT_PHASES_NAME: name,
        GOODPUT_PHASES_COUNT: summary.steps,
        GOODPUT_PHASES_SUM: summary.total,
        GOODPUT_PHASES_MIN: summary.min,
        GOODPUT_PHASES_MEDIAN: summary.median,
        GOODPUT_PHASES_P90: summary.p90,
        GOODPUT_PHASES_MAX: summary.max,
    }
    return _span(PHASES_SUMMARY_SPAN, key, attributes, summary, parent, number, resource, scope)


def _span(
    name: str,
    key: int,
    attributes: dict[str, types.AttributeValue],
    summary: Summary,
    parent: SpanContext,
    number: int,
    resource: Resource,
    scope: InstrumentationScope,
) -> PhaseReadableSpan:
    if number:
        attributes[GOODPUT_TRACE_NUMBER] = number
    return PhaseReadableSpan(
        name,
        SpanContext(parent.trace_id, key, False, ids.SAMPLED),
        parent,
        resource,
        attributes,
        start_time=summary.start,
        end_time=summary.end,
        instrumentation_scope=scope,
    )

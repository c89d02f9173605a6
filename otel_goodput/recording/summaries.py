"""Spans that stand for many phases of one name that are not exported."""

from __future__ import annotations

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext
from opentelemetry.util import types

from otel_goodput.journal.thinning import Summary
from otel_goodput.recording import ids
from otel_goodput.recording.finished import PhaseReadableSpan
from otel_goodput.semconv import (
    GOODPUT_PHASES_COUNT,
    GOODPUT_PHASES_MAX,
    GOODPUT_PHASES_MEDIAN,
    GOODPUT_PHASES_MIN,
    GOODPUT_PHASES_NAME,
    GOODPUT_PHASES_P90,
    GOODPUT_PHASES_SUM,
    GOODPUT_TRACE_NUMBER,
    PHASES_SUMMARY_SPAN,
)


def phases_span(
    name: str,
    summary: Summary,
    identity: tuple[str, int, int],
    parent: SpanContext,
    number: int,
    resource: Resource,
    scope: InstrumentationScope,
) -> PhaseReadableSpan:
    """The ``phases`` span of a stretch of phases called `name`; `identity` is run id, attempt and process.

    It is in the attempt's trace of that number.
    """
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
    if number:
        attributes[GOODPUT_TRACE_NUMBER] = number
    return PhaseReadableSpan(
        PHASES_SUMMARY_SPAN,
        SpanContext(parent.trace_id, key, False, ids.SAMPLED),
        parent,
        resource,
        attributes,
        start_time=summary.start,
        end_time=summary.end,
        instrumentation_scope=scope,
    )

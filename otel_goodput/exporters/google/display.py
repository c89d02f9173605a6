"""What a person reads in Cloud Trace: the number of a step beside its name, a length of time with its unit.

Only there: the name of a span is what metrics and filters go by, and is to stay one of a few.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from opentelemetry.sdk.trace import ReadableSpan

from otel_goodput.semconv import (
    GOODPUT_PHASE,
    GOODPUT_STEP,
    GOODPUT_STEPS_FIRST,
    GOODPUT_STEPS_LAST,
    SPAN_ATTRIBUTES,
    STEPS_SUMMARY_SPAN,
    Phase,
)
from otel_goodput.text.durations import NS
from otel_goodput.text.quantities import format_duration

TEXT: Final = ".text"  # behind the key of an attribute that is a number of ns
_LENGTHS: Final = tuple(attribute.key for attribute in SPAN_ATTRIBUTES if attribute.type == "int (ns)")


def display_name(span: ReadableSpan) -> str | None:
    """``step 123``, ``steps 100 to 1099``; None where the span's own name is to stand."""
    attributes: Mapping[str, Any] = span.attributes or {}
    if span.name == Phase.STEP == attributes.get(GOODPUT_PHASE) and GOODPUT_STEP in attributes:
        return f"{span.name} {attributes[GOODPUT_STEP]}"
    if span.name == STEPS_SUMMARY_SPAN and GOODPUT_STEPS_FIRST in attributes and GOODPUT_STEPS_LAST in attributes:
        return f"{span.name} {attributes[GOODPUT_STEPS_FIRST]} to {attributes[GOODPUT_STEPS_LAST]}"
    return None


def lengths(span: ReadableSpan) -> Iterator[tuple[str, str]]:
    """Beside each attribute of ours that is a number of ns, one that says it with a unit."""
    attributes: Mapping[str, Any] = span.attributes or {}
    for key in _LENGTHS if len(attributes) > 1 else ():
        value = attributes.get(key)
        if isinstance(value, int):
            yield key + TEXT, format_duration(value / NS)

"""What people read in Cloud Trace: the step's number beside the span's name, durations with their unit.

This is for Cloud Trace's display only: metrics and filters use span names, which must stay few.
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

TEXT: Final = ".text"  # appended to the key of an attribute in ns
_LENGTHS: Final = tuple(attribute.key for attribute in SPAN_ATTRIBUTES if attribute.type == "int (ns)")


def display_name(span: ReadableSpan) -> str | None:
    """Return ``step 123`` or ``steps 100 to 1099``; None if the span's own name is to be shown."""
    attributes: Mapping[str, Any] = span.attributes or {}
    if span.name == Phase.STEP == attributes.get(GOODPUT_PHASE) and GOODPUT_STEP in attributes:
        return f"{span.name} {attributes[GOODPUT_STEP]}"
    if span.name == STEPS_SUMMARY_SPAN and GOODPUT_STEPS_FIRST in attributes and GOODPUT_STEPS_LAST in attributes:
        return f"{span.name} {attributes[GOODPUT_STEPS_FIRST]} to {attributes[GOODPUT_STEPS_LAST]}"
    return None


def lengths(span: ReadableSpan) -> Iterator[tuple[str, str]]:
    """Yield (key, text) of an additional attribute for each attribute of ours in ns: the duration with its unit."""
    attributes: Mapping[str, Any] = span.attributes or {}
    for key in _LENGTHS if len(attributes) > 1 else ():
        value = attributes.get(key)
        if isinstance(value, int):
            yield key + TEXT, format_duration(value / NS)

"""Spans and metrics made fit for Google before they are translated: one odd value must not cost a whole batch.

What does not fit is told in another way (an integer above 64 bits as text), never left out, where that can be.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from opentelemetry.sdk.metrics.export import Metric, NumberDataPoint
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.trace import Link, Status

from otel_goodput.semconv import DISRUPTIONS, METRICS

LEAST, MOST = -(2**63), 2**63 - 1
UNNAMED: Final = "unnamed"

LABEL_LENGTH: Final = 100  # characters of a label's key
VALUE_LENGTH: Final = 1024  # characters of a label's value
MOST_LABELS: Final = 30
_FOREIGN: Final = re.compile(r"[^A-Za-z0-9_]")

# Of these the values are whole numbers; every other metric has fractions from its first point on, for Cloud Monitoring
# fixes the type of a metric by that one.
COUNTS: Final = frozenset(metric.name for metric in METRICS if metric.unit.startswith("{"))

# A restart goes on with these: they count from the beginning of the run, not of the process.
OF_THE_RUN: Final = frozenset({DISRUPTIONS.name})


# --- spans ------------------------------------------------------------------------------------------------------------


def fitting(span: ReadableSpan, *, floats: bool = True) -> ReadableSpan:
    """The span itself, or where something of it cannot be sent, a copy without that.

    `floats`: whether floats can be sent; else they become text (Cloud Trace has none, and keeps four decimals).
    """
    start = span.start_time or span.end_time or 0
    end = max(span.end_time or start, start)
    start, end = _moment(start), _moment(end)
    name = _text(span.name) or UNNAMED
    given = span.attributes  # another view each time
    attributes = _attributes(given, floats)
    events = [_event(event, floats) for event in span.events]
    links = [_link(link, floats) for link in span.links]
    description = span.status.description
    same = (
        attributes is given
        and name == span.name
        and (start, end) == (span.start_time, span.end_time)
        and all(one is other for one, other in zip(events, span.events, strict=True))
        and all(one is other for one, other in zip(links, span.links, strict=True))
        and (description is None or _text(description) == description)
    )
    if same:
        return span
    return ReadableSpan(
        name,
        span.get_span_context(),
        span.parent,
        span.resource,
        attributes,
        events,
        links,
        span.kind,
        status=Status(span.status.status_code, _text(description)) if description else span.status,
        start_time=start,
        end_time=end,
        instrumentation_scope=span.instrumentation_scope,
    )


def _event(event: Event, floats: bool) -> Event:
    name, attributes = _text(event.name) or UNNAMED, _attributes(event.attributes, floats)
    moment = _moment(event.timestamp)
    if (name, moment) == (event.name, event.timestamp) and attributes is event.attributes:
        return event
    return Event(name, attributes, moment)


def _link(link: Link, floats: bool) -> Link:
    attributes = _attributes(link.attributes, floats)
    return link if attributes is link.attributes else Link(link.context, attributes)


def _attributes(attributes: Mapping[str, Any] | None, floats: bool) -> Mapping[str, Any] | None:
    """Themselves where all of them can be sent."""
    if not attributes or all(_fits(key, floats) and _fits(value, floats) for key, value in attributes.items()):
        return attributes
    return {_text(key) or UNNAMED: _value(value, floats) for key, value in attributes.items()}


def _fits(value: Any, floats: bool) -> bool:
    if isinstance(value, str):
        return value.isascii() or _text(value) == value
    if isinstance(value, bool):
        return True
    if isinstance(value, int):
        return LEAST <= value <= MOST
    if isinstance(value, float):
        return floats
    return all(_fits(one, floats) for one in value) if isinstance(value, Sequence) else True


def _value(value: Any, floats: bool) -> Any:
    if isinstance(value, str):
        return _text(value)
    if _fits(value, floats):
        return value
    if isinstance(value, (int, float)):
        return repr(value)
    return [_value(one, floats) if isinstance(one, str) else str(one) for one in value]


def _moment(time: int) -> int:
    """Unix ns within what 64 bits hold; what is no time of ours the service may refuse, but can be asked."""
    return min(max(time, 0), MOST)


def _text(text: str) -> str:
    """Without what is no Unicode text (lone surrogates)."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


# --- metrics ----------------------------------------------------------------------------------------------------------


class Labels:
    """Attribute keys as Cloud Monitoring's label keys, no two of a metric alike and each the same at all times.

    `renamed=False`: Google renames them itself; only such keys are changed as would become alike.
    """

    def __init__(self, *, renamed: bool = True) -> None:
        self._renamed = renamed
        self._taken: dict[str, dict[str, str]] = {}  # by metric: label key, whose

    def __call__(self, metric: str, attributes: Mapping[str, Any] | None) -> dict[str, str]:
        """The labels of a point: at most 30, values as text of at most 1,024 characters."""
        taken = self._taken.setdefault(metric, {})
        labels = {}
        for key, value in sorted((attributes or {}).items())[:MOST_LABELS]:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            label = _label(key, taken)
            if not self._renamed and key.isascii() and len(key) <= LABEL_LENGTH and taken.get(_plain(key)) == key:
                label = key
            labels[label] = _text(text)[:VALUE_LENGTH]
        return labels


def _plain(key: str) -> str:
    label = _FOREIGN.sub("_", key)
    return (label if label[:1].isalpha() else f"key_{label}")[:LABEL_LENGTH]


def _label(key: str, taken: dict[str, str]) -> str:
    label = _plain(key)
    if taken.setdefault(label, key) != key:
        label = f"{label[: LABEL_LENGTH - 9]}_{zlib.crc32(key.encode('utf-8', 'replace')):08x}"
        taken[label] = key
    return label


def fitting_metric(metric: Metric, labels: Labels, run_started: int | None) -> Metric | None:
    """The metric with labels and values that Cloud Monitoring takes; None where it has no points.

    `run_started`: unix ns, from which what counts over the whole run does; None: not known.
    """
    start = run_started if metric.name in OF_THE_RUN else None
    points: list[Any] = [
        replace(point, attributes=labels(metric.name, point.attributes)) for point in metric.data.data_points
    ]
    if points and isinstance(points[0], NumberDataPoint):
        points = list(_numbers(points, metric.name in COUNTS, start))
    if not points:
        return None
    data: Any = metric.data
    return replace(metric, data=replace(data, data_points=points))


def _numbers(points: Sequence[Any], counts: bool, start: int | None) -> Iterator[Any]:
    for point in points:
        value = point.value
        if not math.isfinite(value):
            continue
        value = min(max(int(value), LEAST), MOST) if counts else float(value)
        begun = point.start_time_unix_nano if start is None else start
        yield replace(point, value=value, start_time_unix_nano=begun)

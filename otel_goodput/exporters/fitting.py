"""Make spans and metrics fit to be sent: one odd value must not cost a whole batch.

Values that cannot be sent are converted (an integer above 64 bits to text), never dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk.metrics.export import Metric, MetricsData
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util import BoundedList
from opentelemetry.trace import Link, Status

from otel_goodput._text.redact import encodable

_Item = TypeVar("_Item")

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
UNNAMED: Final = "unnamed"
LEAST_INTERVAL: Final = 1_000_000  # ns; Cloud Monitoring stores milliseconds, and rejects an interval without length


# --- spans ------------------------------------------------------------------------------------------------------------


def fitting(span: ReadableSpan, *, floats: bool = True) -> ReadableSpan:
    """Return the span itself, or, if something in it cannot be sent, a copy in which that is converted.

    `floats`: whether floats can be sent; else they become text (Google's exporter to Cloud Trace would round them).
    """
    start = span.start_time or span.end_time or 0
    end = max(span.end_time or start, start)
    start, end = _moment(start), _moment(end)
    name = encodable(str(span.name)) or UNNAMED
    given = span.attributes  # the property makes a new view each time
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
        and (description is None or encodable(description) == description)
    )
    if same:
        return span
    description = encodable(description) if description else description
    return replaced(span, name, attributes, events, description, links=links, times=(start, end))


def replaced(
    span: ReadableSpan,
    name: str,
    attributes: Mapping[str, Any] | None,
    events: list[Event],
    description: str | None,
    *,
    links: list[Link] | None = None,
    times: tuple[int | None, int | None] | None = None,
) -> ReadableSpan:
    """Return a copy of a span with other contents; it still says what the SDK has dropped of it."""
    start, end = (span.start_time, span.end_time) if times is None else times
    return ReadableSpan(
        name,
        span.get_span_context(),
        span.parent,
        span.resource,
        counting(attributes, span.dropped_attributes),
        _counted(events, span.dropped_events),
        _counted(list(span.links) if links is None else links, span.dropped_links),
        span.kind,
        status=Status(span.status.status_code, description) if description else span.status,
        start_time=start,
        end_time=end,
        instrumentation_scope=span.instrumentation_scope,
    )


def _event(event: Event, floats: bool) -> Event:
    name, attributes = encodable(event.name) or UNNAMED, _attributes(event.attributes, floats)
    moment = _moment(event.timestamp)
    if (name, moment) == (event.name, event.timestamp) and attributes is event.attributes:
        return event
    return Event(name, counting(attributes, event.dropped_attributes), moment)


def _link(link: Link, floats: bool) -> Link:
    attributes = _attributes(link.attributes, floats)
    if attributes is link.attributes:
        return link
    return Link(link.context, counting(attributes, link.dropped_attributes))


def counting(attributes: Mapping[str, Any] | None, dropped: int) -> Mapping[str, Any] | None:
    """Return attributes that say how many others the SDK has dropped."""
    if not dropped:
        return attributes
    counting = BoundedAttributes(attributes=attributes)
    counting.dropped = dropped
    return counting


def _counted(items: list[_Item], dropped: int) -> Sequence[_Item]:
    """Return events or links that say how many others the SDK has dropped."""
    if not dropped:
        return items
    counted = BoundedList.from_seq(len(items), items)
    counted.dropped = dropped
    return counted


def _attributes(attributes: Mapping[str, Any] | None, floats: bool) -> Mapping[str, Any] | None:
    """Return the attributes themselves if all of them can be sent, else converted ones."""
    if not attributes or all(_fits(key, floats) and _fits(value, floats) for key, value in attributes.items()):
        return attributes
    return {encodable(key) or UNNAMED: _value(value, floats) for key, value in attributes.items()}


def _fits(value: Any, floats: bool) -> bool:
    if isinstance(value, str):
        return value.isascii() or encodable(value) == value
    if isinstance(value, bool):
        return True
    if isinstance(value, int):
        return INT64_MIN <= value <= INT64_MAX
    if isinstance(value, float):
        return floats
    return all(_fits(one, floats) for one in value) if isinstance(value, Sequence) else True


def _value(value: Any, floats: bool) -> Any:
    if isinstance(value, str):
        return encodable(value)
    if _fits(value, floats):
        return value
    if isinstance(value, (int, float)):
        return repr(value)
    return [_value(one, floats) if isinstance(one, str) else str(one) for one in value]


def _moment(time: int) -> int:
    """Clamp a time in unix ns to a non-negative int64."""
    return min(max(time, 0), INT64_MAX)


# --- metrics ----------------------------------------------------------------------------------------------------------


def fitting_metrics(data: MetricsData) -> MetricsData:
    """Return the metrics themselves, or a copy with attributes, texts and times that cannot be sent converted."""
    resources = []
    for resource in data.resource_metrics:
        scopes = []
        for scope in resource.scope_metrics:
            metrics = [_metric(metric) for metric in scope.metrics]
            changed = any(one is not other for one, other in zip(metrics, scope.metrics, strict=True))
            scopes.append(replace(scope, metrics=metrics) if changed else scope)
        changed = any(one is not other for one, other in zip(scopes, resource.scope_metrics, strict=True))
        resources.append(replace(resource, scope_metrics=scopes) if changed else resource)
    changed = any(one is not other for one, other in zip(resources, data.resource_metrics, strict=True))
    return replace(data, resource_metrics=resources) if changed else data


def _metric(metric: Metric) -> Metric:
    given = metric.data.data_points
    points: list[Any] = [_point(point) for point in given]
    description = encodable(metric.description or "")
    if description == (metric.description or "") and all(
        one is other for one, other in zip(points, given, strict=True)
    ):
        return metric
    data: Any = metric.data
    return replace(metric, description=description, data=replace(data, data_points=points))


def _point(point: Any) -> Any:
    attributes = _attributes(point.attributes, floats=True)
    if attributes is not point.attributes:
        point = replace(point, attributes=attributes)
    # The SDK takes the time of a collection when it begins: a series that another thread starts meanwhile begins after
    # its end. The end is moved, not the start, because a start that changes between points looks like a counter reset.
    start = point.start_time_unix_nano
    if start and point.time_unix_nano <= start:
        point = replace(point, time_unix_nano=start + LEAST_INTERVAL)
    return point

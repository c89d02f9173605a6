"""Make spans and metrics fit to be sent: one odd value must not cost a whole batch.

Values that cannot be sent are converted (an integer above 64 bits to text), never dropped.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk.metrics import Histogram
from opentelemetry.sdk.metrics.export import Metric, MetricsData, ResourceMetrics, ScopeMetrics
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util import BoundedList
from opentelemetry.trace import Link, Status

from otel_goodput._text.redact import encodable
from otel_goodput.semconv import SCOPE_NAME

_Item = TypeVar("_Item")
Attributes = Mapping[str, Any] | None

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
EXPONENTIAL: Final[dict[type, Any]] = {Histogram: ExponentialBucketHistogramAggregation()}
"""The preferred aggregation of exporters, where the receiver takes it: no bounds have to fit the values."""
UNNAMED: Final = "unnamed"
LEAST_INTERVAL: Final = 1_000_000  # ns; Cloud Monitoring stores milliseconds, and rejects an interval without length


def fitting(span: ReadableSpan, *, floats: bool = True) -> ReadableSpan:
    """Return the span itself, or, if something in it cannot be sent, a copy in which that is converted.

    `floats`: whether floats can be sent; else they become text (Google's exporter to Cloud Trace would round them).
    """
    start = span.start_time or span.end_time or 0
    end = max(span.end_time or start, start)
    return converted(span, _name, partial(_attributes, floats=floats), _moment, (_moment(start), _moment(end)))


def converted(
    span: ReadableSpan,
    text: Callable[[str], str],
    attributes: Callable[[Attributes], Attributes],
    moment: Callable[[int], int] | None = None,
    times: tuple[int | None, int | None] | None = None,
) -> ReadableSpan:
    """Return the span with its texts, attributes, the moments of its events, and its start and end converted.

    It is the span itself if that changes nothing. `attributes` returns what it is given if that is to stay. A copy
    still says how much of the span the SDK has dropped.
    """

    def event_of(event: Event) -> Event:
        name, kept = text(event.name), attributes(event.attributes)
        time = event.timestamp if moment is None else moment(event.timestamp)
        if (name, time) == (event.name, event.timestamp) and kept is event.attributes:
            return event
        return Event(name, _bounded(kept, event.dropped_attributes), time)

    def link_of(link: Link) -> Link:
        kept = attributes(link.attributes)
        return link if kept is link.attributes else Link(link.context, _bounded(kept, link.dropped_attributes))

    name, description, given = text(span.name), span.status.description, span.attributes
    kept, message = attributes(given), text(description) if description else description
    events, links = [event_of(event) for event in span.events], [link_of(link) for link in span.links]
    times = times or (span.start_time, span.end_time)
    same = (name, message, times) == (span.name, description, (span.start_time, span.end_time)) and kept is given
    if same and all(map(operator.is_, (*events, *links), (*span.events, *span.links))):
        return span
    return ReadableSpan(
        name,
        span.get_span_context(),
        span.parent,
        span.resource,
        _bounded(kept, span.dropped_attributes),
        _shortened(events, span.dropped_events),
        _shortened(links, span.dropped_links),
        span.kind,
        status=Status(span.status.status_code, message) if message else span.status,
        start_time=times[0],
        end_time=times[1],
        instrumentation_scope=span.instrumentation_scope,
    )


def _bounded(attributes: Attributes, dropped: int) -> Attributes:
    """Return attributes that say how many others the SDK has dropped."""
    if not dropped:
        return attributes
    bounded = BoundedAttributes(attributes=attributes)
    bounded.dropped = dropped
    return bounded


def _shortened(items: list[_Item], dropped: int) -> Sequence[_Item]:
    """Return events or links that say how many others the SDK has dropped."""
    if not dropped:
        return items
    shortened = BoundedList.from_seq(len(items), items)
    shortened.dropped = dropped
    return shortened


def _name(text: str) -> str:
    return encodable(str(text)) or UNNAMED


def _attributes(attributes: Attributes, floats: bool) -> Attributes:
    """Return the attributes themselves if all of them can be sent, else converted ones."""
    if not attributes or all(_fits(key, floats) and _fits(value, floats) for key, value in attributes.items()):
        return attributes
    return {_name(key): _value(value, floats) for key, value in attributes.items()}


def _fits(value: Any, floats: bool) -> bool:
    if isinstance(value, str):
        return value.isascii() or encodable(value) == value
    if isinstance(value, bool):
        return True
    if isinstance(value, int):
        return INT64_MIN <= value <= INT64_MAX
    if isinstance(value, float):
        return floats
    return all(_fits(item, floats) for item in value) if isinstance(value, Sequence) else True


def _value(value: Any, floats: bool) -> Any:
    if isinstance(value, str):
        return encodable(value)
    if _fits(value, floats):
        return value
    if isinstance(value, (int, float)):
        return repr(value)
    return [_value(item, floats) if isinstance(item, str) else str(item) for item in value]


def _moment(time: int) -> int:
    """Clamp a time in unix ns to a non-negative int64."""
    return min(max(time, 0), INT64_MAX)


def fitting_metrics(data: MetricsData) -> MetricsData:
    """Return the metrics with attributes, texts and times that cannot be sent converted."""

    def fitted(_: ScopeMetrics, metric: Metric) -> Metric:
        points = [_point(point) for point in metric.data.data_points]
        return replace(with_points(metric, points), description=encodable(metric.description or ""))

    return converted_metrics(data, fitted)


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


def every_metric(data: MetricsData) -> Iterator[tuple[ResourceMetrics, ScopeMetrics, Metric]]:
    """Yield each metric after its resource and scope."""
    for resource in data.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                yield resource, scope, metric


def own_metrics(data: MetricsData) -> Iterator[Metric]:
    """Yield the metrics of this package."""
    return (metric for _, scope, metric in every_metric(data) if scope.scope.name == SCOPE_NAME)


def every_point(data: MetricsData) -> Iterator[Any]:
    """Yield the points of all metrics."""
    for _, _, metric in every_metric(data):
        yield from metric.data.data_points


def with_points(metric: Metric, points: list[Any]) -> Metric:
    """Return `metric` with other points."""
    data: Any = metric.data
    return replace(metric, data=replace(data, data_points=points))


def converted_metrics(
    data: MetricsData,
    metric: Callable[[ScopeMetrics, Metric], Metric | None],
    resource: Callable[[Resource], Resource] = lambda resource: resource,
) -> MetricsData:
    """Return `data` with each metric (None: left out) and each resource converted."""
    groups = []
    for group in data.resource_metrics:
        scopes = [
            replace(scope, metrics=[new for each in scope.metrics if (new := metric(scope, each)) is not None])
            for scope in group.scope_metrics
        ]
        groups.append(replace(group, resource=resource(group.resource), scope_metrics=scopes))
    return MetricsData(groups)

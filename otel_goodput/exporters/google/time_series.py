"""The ``TimeSeries`` of Cloud Monitoring: made for one value, taken as a series to write, packed into requests.

Both exporters go through here: what Google's exporter has translated, and Google's own goodput series, which it cannot
write (their names and resource are not its own).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from otel_goodput.exporters.google.connection import Connection, load
from otel_goodput.exporters.google.delivery import Send
from otel_goodput.exporters.google.series import Series, called

_TYPES: Final = "google.cloud.monitoring_v3.types"
_CUMULATIVE: Final = 3  # google.api.MetricDescriptor.MetricKind


def time_series(
    metric: str, labels: Mapping[str, str], resource: str, where: Mapping[str, str], value: float, end: int
) -> Any:
    """Return a ``TimeSeries``, a protobuf message, with one `value` at `end` (unix ns).

    Args:
        metric: type of the metric.
        labels: the metric's.
        resource: type of the monitored resource.
        where: the resource's labels.
        value: an int or a float, which are different types of value.
        end: of the point, unix ns.
    """
    types = load(_TYPES)
    data = types.TimeSeries.pb(types.TimeSeries())
    data.metric.type = metric
    data.metric.labels.update(labels)
    data.resource.type = resource
    data.resource.labels.update(where)
    point = data.points.add()
    point.interval.end_time.FromNanoseconds(end)
    if isinstance(value, int):
        point.value.int64_value = value
    else:
        point.value.double_value = value
    return data


def series_of(data: Any) -> Series:
    """Return a ``TimeSeries`` (a protobuf message with one point) as what the writer takes."""
    interval = data.points[0].interval
    labels = tuple(sorted(data.metric.labels.items()))
    start = interval.start_time.ToNanoseconds() if data.metric_kind == _CUMULATIVE else None
    where = tuple(sorted(data.resource.labels.items()))
    key = (data.metric.type, labels, where)
    return Series(key, called(data.metric.type, labels), start, interval.end_time.ToNanoseconds(), data)


class TimeSeriesRequests:
    """Makes the request for some series whose data is a ``TimeSeries``; a call returns the function that sends it."""

    def __init__(self, connection: Connection, client: Callable[[], Any]) -> None:
        self._connection = connection
        self._client = client

    def __call__(self, series: Sequence[Series]) -> Send:
        request = load(_TYPES).CreateTimeSeriesRequest()
        message = type(request).pb(request)
        for one in series:
            interval = one.data.points[0].interval
            interval.end_time.FromNanoseconds(one.end)
            if one.start is not None:
                interval.start_time.FromNanoseconds(one.start)
            message.time_series.append(one.data)

        def send(seconds: float) -> None:
            message.name = f"projects/{self._connection.project}"
            self._client().create_time_series(request=request, timeout=seconds, retry=None)

        return send

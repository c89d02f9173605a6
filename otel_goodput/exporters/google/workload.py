"""The `workload` exporter: Google's own goodput series, for the ML Goodput dashboards of Google Cloud.

They are what ml-goodput-measurement writes (see ``workload_series``), made from the metrics of every other exporter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from opentelemetry.sdk.metrics.export import MetricsData, NumberDataPoint
from opentelemetry.sdk.resources import Resource

from otel_goodput import semconv
from otel_goodput._metrics import workload_series as google
from otel_goodput._text.durations import NS, parse_duration
from otel_goodput.exporters.fitting import own_metrics
from otel_goodput.exporters.google import monitoring
from otel_goodput.exporters.google.connection import load
from otel_goodput.exporters.google.delivery import Delivery
from otel_goodput.semconv import Category

PERCENT: Final = 100.0
WHOLE_RUN: Final = "0"  # the window size that Google's writer gives for the whole run
UNKNOWN: Final = "UNKNOWN"
# The names of chips in Google's writer; other chips keep our names.
_ACCELERATORS: Final = {
    "TPU v2": "TPU-v2",
    "TPU v3": "TPU-v3",
    "TPU v4": "TPU-v4p",
    "TPU v5e": "TPU-v5e",
    "TPU v5p": "TPU-v5p",
    "TPU v6e": "TPU-v6e",
    "TPU 7x": "TPU-7x",
    "A100": "NVIDIA-A100",
    "H100 SXM": "NVIDIA-H100",
    "H200 SXM": "NVIDIA-H200",
}

_SLICES: Final = {semconv.SLICE_STEPPING: google.STEPPING_SLICES, semconv.SLICE_AVAILABLE: google.AVAILABLE_SLICES}


class Row(NamedTuple):
    """A value for one of Google's series, with the labels that differ between rows. `end` in unix ns."""

    series: google.WorkloadSeries
    value: float
    labels: dict[str, str]
    end: int


Points = Sequence[tuple[Mapping[str, Any], float, int]]
"""Attributes, value and unix ns of each point of a metric."""


def rows(metrics: Mapping[str, Points]) -> Iterator[Row]:
    """Yield the rows of Google's series for our metrics, given by name; :func:`nameless` points are skipped.

    Google's account has no stalled time: it is that of the steps, whatever became of them. Points that give the same
    series with the same labels are one row, their sum.
    """
    metrics = _with_whole_steps(metrics)
    sums: dict[tuple[str, ...], tuple[Row, list[float]]] = {}
    for metric, (needed, rows_of) in _CONVERSIONS.items():
        for attributes, value, end in metrics.get(metric.name, ()):
            if needed <= attributes.keys():
                for series, labels in rows_of(attributes):
                    row = Row(series, 0.0, labels, end)
                    sums.setdefault((series.type, *labels.values()), (row, []))[1].append(value)
    for row, values in sums.values():
        yield row._replace(value=math.fsum(values) * (PERCENT if row.series in _OF_INTERVALS else 1))


# Where stalled time goes by the state of its steps; that of other steps is in BADPUT_SOURCES.
_WHOLE_STEPS: Final = {semconv.STEP_KEPT: Category.PRODUCTIVE, semconv.STEP_LOST: Category.WASTED_PROGRESS}


def _with_whole_steps(metrics: Mapping[str, Points]) -> dict[str, Points]:
    """Give stalled time to what its steps came to."""
    shares: dict[tuple[str, str], float] = {}  # by window and category
    for attributes, ratio, _ in metrics.get(semconv.STALLED_RATIO.name, ()):
        category = _WHOLE_STEPS.get(attributes.get(semconv.GOODPUT_STEP_STATE, ""))
        if category is not None and ratio:
            window = attributes[semconv.GOODPUT_WINDOW]
            shares[window, category] = ratio
            shares[window, Category.STALLED] = shares.get((window, Category.STALLED), 0.0) - ratio
    if not shares:
        return dict(metrics)
    elapsed = math.fsum(seconds for _, seconds, _ in metrics.get(semconv.TIME.name, ()))

    def share(point: Mapping[str, Any]) -> float:
        window = point.get(semconv.GOODPUT_WINDOW, semconv.WINDOW_RUN)
        return shares.get((window, point.get(semconv.GOODPUT_CATEGORY, Category.PRODUCTIVE)), 0.0)

    whole = dict(metrics)
    for metric, unit in ((semconv.TIME, elapsed), (semconv.RATIO, 1.0), (semconv.BADPUT_RATIO, 1.0)):
        points = metrics.get(metric.name, ())
        whole[metric.name] = [(point, value + unit * share(point), end) for point, value, end in points]
    return whole


def nameless(metrics: Mapping[str, Points]) -> int:
    """Return how many points lack a needed attribute, such as the SDK's overflow point above its limit."""
    checked = ((needed, metrics.get(metric.name, ())) for metric, (needed, _) in _CONVERSIONS.items())
    return sum(not needed <= point[0].keys() for needed, points in checked for point in points)


Rows = Iterable[tuple[google.WorkloadSeries, dict[str, str]]]
"""The series that a point counts in, and its labels there."""


def _time(attributes: Mapping[str, Any]) -> Rows:
    yield google.ELAPSED_TIME, {google.WINDOW_TYPE: google.CUMULATIVE}
    if attributes[semconv.GOODPUT_CATEGORY] == Category.PRODUCTIVE:
        yield google.GOODPUT_TIME, {google.GOODPUT_SOURCE: google.TOTAL}
    else:
        yield google.BADPUT_TIME, {google.BADPUT_SOURCE: _source(attributes)}


def _source(attributes: Mapping[str, Any]) -> str:
    source = google.BADPUT_SOURCES[attributes[semconv.GOODPUT_CATEGORY]]
    name = attributes.get(semconv.GOODPUT_CUSTOM_NAME)
    return f"{source}.{str(name).upper()}" if name else source


def _window_size(attributes: Mapping[str, Any]) -> str:
    """Return the length of a rolling window in whole seconds."""
    return str(parse_duration(attributes[semconv.GOODPUT_WINDOW]) // NS)


def _interval(attributes: Mapping[str, Any]) -> Rows:
    if attributes[semconv.GOODPUT_WINDOW] == semconv.WINDOW_RUN:
        return
    size = {google.WINDOW_SIZE: _window_size(attributes)}
    if semconv.GOODPUT_CATEGORY in attributes:
        yield google.INTERVAL_BADPUT, {google.BADPUT_SOURCE: _source(attributes), **size}
    else:
        yield google.INTERVAL_GOODPUT, {google.GOODPUT_SOURCE: google.TOTAL, **size}


def _slices(attributes: Mapping[str, Any]) -> Rows:
    window = semconv.GOODPUT_WINDOW in attributes
    labels = {
        google.WINDOW_TYPE: google.SLICES_INTERVAL if window else google.SLICES_CUMULATIVE,
        google.WINDOW_SIZE: _window_size(attributes) if window else WHOLE_RUN,
    }
    yield _SLICES[attributes[semconv.GOODPUT_SLICE_STATE]], labels


_OF_INTERVALS: Final = (google.INTERVAL_GOODPUT, google.INTERVAL_BADPUT)
# The attributes that a point of a metric needs, and its rows.
_CONVERSIONS: Final[dict[semconv.Metric, tuple[set[str], Callable[[Mapping[str, Any]], Rows]]]] = {
    semconv.TIME: ({semconv.GOODPUT_CATEGORY}, _time),
    semconv.DISRUPTIONS: (set(), lambda _: [(google.DISRUPTIONS, {google.WINDOW_TYPE: google.CUMULATIVE})]),
    semconv.STEP_MAX: (set(), lambda _: [(google.MAX_STEP, {})]),
    semconv.STEP_DEVIATION: (set(), lambda _: [(google.STEP_DEVIATION, {})]),
    semconv.STEP_IDEAL: (set(), lambda _: [(google.PERFORMANCE, {})]),
    semconv.RATIO: ({semconv.GOODPUT_WINDOW}, _interval),
    semconv.BADPUT_RATIO: ({semconv.GOODPUT_WINDOW, semconv.GOODPUT_CATEGORY}, _interval),
    semconv.SLICE_EFFICIENCY: ({semconv.GOODPUT_SLICE_STATE}, _slices),
    semconv.SLICE_WINDOW_EFFICIENCY: ({semconv.GOODPUT_SLICE_STATE, semconv.GOODPUT_WINDOW}, _slices),
}


class WorkloadExporter(monitoring.TimeSeriesExporter):
    """Exports goodput to Google's own series; `replica` is the id of this process if the resource has none."""

    def __init__(self, delivery: Delivery, replica: str) -> None:
        super().__init__(delivery)
        self._replica = replica

    def series(self, data: MetricsData, seconds: float) -> list[monitoring.Series]:
        series: list[monitoring.Series] = []
        for resource in data.resource_metrics:
            metrics: dict[str, Points] = {
                metric.name: [
                    (point.attributes or {}, point.value, point.time_unix_nano)
                    for point in metric.data.data_points
                    if isinstance(point, NumberDataPoint)
                ]
                for metric in own_metrics(MetricsData([resource]))
            }
            self._lost += nameless(metrics)
            series += self._of(rows(metrics), resource.resource)
        return series

    def write_rows(self, rows: Iterable[Row], resource: Resource, seconds: float) -> None:
        self._writer.write(self._of(rows, resource), seconds)

    def _of(self, rows: Iterable[Row], resource: Resource) -> list[monitoring.Series]:
        return [_series(row, resource, self._replica) for row in rows if math.isfinite(row.value)]


def _series(row: Row, resource: Resource, replica_id: str) -> monitoring.Series:
    where = monitoring.location(resource)  # waits until the resource is detected, so its attributes are read after this
    known = resource.attributes
    accelerator = str(known.get(semconv.ACCELERATOR_TYPE, UNKNOWN))
    labels = {
        google.ACCELERATOR_TYPE: _ACCELERATORS.get(accelerator, accelerator),
        google.CLUSTER_NAME: str(known.get(semconv.K8S_CLUSTER_NAME, "")),
        **row.labels,
    }
    labels = {key: labels[key][: monitoring.VALUE_LENGTH] for key in row.series.labels if labels[key]}
    replica = {
        google.LOCATION: where,
        # The run, because two runs of one job at once would write the same series. By default it has the job's name.
        google.ID: str(known.get(semconv.RUN_ID) or known.get(semconv.SERVICE_NAME, ""))[: monitoring.VALUE_LENGTH],
        google.REPLICA_ID: str(known.get(semconv.REPLICA_ID, replica_id)),
    }
    types = load(monitoring.TYPES)
    data = types.TimeSeries.pb(types.TimeSeries())
    data.metric.type = row.series.type
    data.metric.labels.update(labels)
    data.resource.type = google.RESOURCE
    data.resource.labels.update(replica)
    point = data.points.add()
    point.interval.end_time.FromNanoseconds(row.end)
    if row.series.value_type == google.INT64:
        point.value.int64_value = int(row.value)
    else:
        point.value.double_value = float(row.value)
    return monitoring.series_of(data)

"""Write points to Cloud Monitoring: no series more often than is allowed, and the last value always.

The rules are those of https://cloud.google.com/monitoring/quotas and of ``TimeInterval`` in the Monitoring API: at most
200 series per request, and one point of a series in five seconds, in order of time. A bad point must not cost others.
A point that comes too early is held: the next one of its series replaces it, and at the end it is written with the
earliest time that is allowed.
"""

from __future__ import annotations

import math
import re
import threading
import time
import zlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from opentelemetry.sdk.metrics.export import Metric, MetricExporter, MetricExportResult, MetricsData, NumberDataPoint
from opentelemetry.sdk.resources import Resource

from otel_goodput import semconv
from otel_goodput._resources.detected import DetectedResource
from otel_goodput._runtime.guard import report_once
from otel_goodput._text.redact import encodable
from otel_goodput.exporters.fitting import INT64_MAX, INT64_MIN, every_point, with_points
from otel_goodput.exporters.google.connection import MONITORING, load
from otel_goodput.exporters.google.delivery import HOPELESS, Delivery, Outcome, Send, short
from otel_goodput.exporters.wrappers import SPACING
from otel_goodput.semconv import METRICS

LABEL_LENGTH: Final = 100  # characters of a label's key
VALUE_LENGTH: Final = 1024  # characters of a label's value
MOST_LABELS: Final = 30
_FOREIGN: Final = re.compile(r"[^A-Za-z0-9_]")

# Metrics with integer values. All others are sent as floats from the first point on, because Cloud Monitoring derives
# the type of a metric from its first point.
COUNTS: Final = frozenset(metric.name for metric in METRICS if metric.unit.startswith("{"))


class Labels:
    """Converts attribute keys to Cloud Monitoring's label keys, unique within a metric and the same in every export.

    `renamed=False`: Google converts the keys itself; only those that would become equal are changed.
    """

    def __init__(self, *, renamed: bool = True) -> None:
        self._renamed = renamed
        self._taken: dict[str, dict[str, str]] = {}  # by metric: label key -> attribute key

    def __call__(self, metric: str, attributes: Mapping[str, Any] | None) -> dict[str, str]:
        """Return the labels of a point: at most 30, values as text of at most 1,024 characters."""
        taken = self._taken.setdefault(metric, {})
        labels = {}
        for key, value in sorted((attributes or {}).items())[:MOST_LABELS]:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            label = _label(key, taken)
            if not self._renamed and key.isascii() and len(key) <= LABEL_LENGTH and taken.get(_plain(key)) == key:
                label = key
            labels[label] = encodable(text)[:VALUE_LENGTH]
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


def fitting_metric(metric: Metric, labels: Labels) -> Metric | None:
    """Return the metric with labels and values that Cloud Monitoring accepts; None if it has no points."""
    points: list[Any] = [
        replace(point, attributes=labels(metric.name, point.attributes)) for point in metric.data.data_points
    ]
    if points and isinstance(points[0], NumberDataPoint):
        points = list(_numbers(points, metric.name in COUNTS))
    return with_points(metric, points) if points else None


def _numbers(points: Sequence[Any], counts: bool) -> Iterator[Any]:
    for point in points:
        value = point.value
        if not math.isfinite(value):
            continue
        value = min(max(int(value), INT64_MIN), INT64_MAX) if counts else float(value)
        yield replace(point, value=value)


NOWHERE: Final = "global"
# `us-central1`, `us-central1-a`; with anything else every point would be rejected.
_PLACE: Final = re.compile(r"[a-z]+-[a-z]+\d+(-[a-z])?")


def location(resource: Resource) -> str:
    """Return the zone, else the region, else ``global``. Waits a moment if it is still being detected."""
    settled(resource)
    for key in (semconv.CLOUD_AVAILABILITY_ZONE, semconv.CLOUD_REGION):
        place = str(resource.attributes.get(key, ""))
        if _PLACE.fullmatch(place):
            return place
    return NOWHERE


def settled(resource: Resource) -> None:
    """Wait, a second at most, until the resource is detected, because a series keeps its first labels."""
    if isinstance(resource, DetectedResource):
        resource.wait()


MOST_SERIES: Final = 200  # in one request
AVOIDED_S: Final = 600.0  # how long a rejected series is not sent
LAST_TRIES: Final = 4  # writes at the end, each with later times
PATIENCE: Final = 3
SHARE_OF_TIMEOUT: Final = 0.9  # of the timeout that a reader gives an export

# "Points must be written in order. One or more of the points had an older end time than the most recent point",
# "written more frequently than the maximum sampling period", "Duplicate TimeSeries encountered".
_EARLY: Final = re.compile(r"in order|more frequently|sampling period|most recent point|duplicate timeseries", re.I)
_START: Final = re.compile(r"start time", re.I)  # a cumulative series has to restart with a later start time
_NAMED: Final = re.compile(r"timeSeries\[([\d,\s-]+)\]", re.I)


class Series(NamedTuple):
    """The newest point of a series. `start` and `end` are unix ns; a gauge has no `start`."""

    key: Hashable
    name: str
    start: int | None
    end: int
    data: Any


def called(metric: str, labels: Iterable[tuple[str, str]]) -> str:
    """Return the name of a series with its labels, for people."""
    return metric + "".join(f" {label}={value}" for label, value in labels if value)


class SeriesWriter:
    """Writes points of series as soon as each is allowed; `refused` counts those that the service rejected."""

    def __init__(self, delivery: Delivery, request: Callable[[Sequence[Series]], Send]) -> None:
        self._delivery = delivery
        self._request = request
        self._lock = threading.Lock()
        self._held: dict[Hashable, Series] = {}
        self._latest: set[Hashable] = set()  # series of the latest export
        self._written: dict[Hashable, int] = {}  # end of the newest point that the service has or may have, unix ns
        self._early: dict[Hashable, int] = {}  # how often in a row it was rejected as too early
        self._starts: dict[Hashable, int] = {}  # later start of a cumulative series that had to restart, unix ns
        self._avoided: dict[Hashable, float] = {}
        self._undelivered: set[Hashable] = set()  # series whose held point could not be delivered
        self._replaced = 0  # such points whose place newer ones took
        self._left = 0  # points that were held at the end
        self._taken, self._bad = False, 0  # of the current batch: whether points were accepted, how many were rejected
        self.refused = 0

    @property
    def held(self) -> int:
        """Number of points that are not written yet."""
        return len(self._held)

    @property
    def lost(self) -> int:
        """Number of points that were rejected, or that could not be delivered and will not be tried again."""
        return self.refused + self._replaced + self._left

    def write(self, series: Iterable[Series], budget_s: float) -> bool:
        """Write points that may be written now, hold the others. Return False if a request could not be delivered."""
        with self._lock:
            now = time.monotonic()
            self._latest = set()
            for one in series:
                self._latest.add(one.key)
                self._replaced += one.key in self._undelivered
                self._undelivered.discard(one.key)
                if self._avoided.get(one.key, now) <= now:
                    self._held[one.key] = one
                else:
                    self.refused += 1
            return self._send(self._due(), now + budget_s)

    def finish(self, budget_s: float) -> bool:
        """Write all points that are held, with the earliest times allowed. Return False if some are left.

        A series without a point in the latest export (a ratio that is not known any more) is not given a later time.
        """
        with self._lock:
            due = {one.key for one in self._due()}
            self._held = {key: one for key, one in self._held.items() if key in self._latest or key in due}
            until = time.monotonic() + budget_s
            for _ in range(LAST_TRIES):
                if not self._held or not self._send(self._shifted(), until):
                    break
            self._left = len(self._held)
            return not self._held

    def _due(self) -> list[Series]:
        written = self._written
        return [one for key, one in self._held.items() if key not in written or one.end >= written[key] + SPACING]

    def _shifted(self) -> list[Series]:
        """Return all points held, with the earliest times allowed: seconds ahead, where five minutes are accepted."""
        written = self._written
        return [
            one._replace(end=max(one.end, written[key] + SPACING)) if key in written else one
            for key, one in self._held.items()
        ]

    def _send(self, series: Sequence[Series], until: float) -> bool:
        well = True
        for at in range(0, len(series), MOST_SERIES):
            self._taken, self._bad = False, 0
            well = self._deliver([self._begun(one) for one in series[at : at + MOST_SERIES]], until) and well
        return well

    def _begun(self, one: Series) -> Series:
        start = self._starts.get(one.key)
        return one if start is None or one.start is None else one._replace(start=max(start, one.start))

    def _deliver(self, batch: Sequence[Series], until: float, *, tried: bool = False) -> bool:
        """Write a batch, in parts if it is rejected. `tried`: an earlier request may have written these points."""
        answer = self._delivery.batch(self._request, batch, until - time.monotonic())
        if answer.outcome is Outcome.DELIVERED:
            self._accept(batch)
            return True
        if answer.outcome is not Outcome.REFUSED:
            self._undelivered.update(one.key for one in batch)
            if answer.repeated:  # they may have been written: the next points must keep their distance
                for one in batch:
                    self._written[one.key] = max(one.end, self._written.get(one.key, 0))
            return False
        tried = tried or answer.repeated
        reasons = _reasons(answer.text, len(batch))
        good = [one for at, one in enumerate(batch) if at not in reasons]
        early = {at: text for at, text in reasons.items() if _EARLY.search(text)}
        bad = [batch[at] for at in reasons if at not in early]
        known = answer.written == len(good)  # else the answer was too long to name all that are bad
        if known or (early and tried):
            self._accept(good)
            good = []
        for at, text in early.items():
            self._judge(batch[at], text, tried)
        if bad and (len(batch) == 1 or (not self._taken and self._bad >= HOPELESS)):
            self._refuse(bad, answer.text)
            bad = []
        well = True
        middle = len(batch) // 2
        for part in (good, bad) if len(bad) < len(batch) else (batch[:middle], batch[middle:]):
            if part:
                well = self._deliver(part, until, tried=tried or not known) and well
        return well

    def _accept(self, batch: Iterable[Series]) -> None:
        for one in batch:
            self._taken = True
            self._written[one.key] = max(one.end, self._written.get(one.key, 0))
            self._early.pop(one.key, None)
            self._held.pop(one.key, None)
            self._undelivered.discard(one.key)

    def _judge(self, one: Series, text: str, tried: bool) -> None:
        """Handle a point that was too early: an earlier try has written it, or somebody else writes this series."""
        if tried:
            self._accept([one])
            return
        times = self._early[one.key] = self._early.get(one.key, 0) + 1
        # Once or twice it is due to an attempt that ended a moment ago, whose last points may be dated ahead.
        if times >= PATIENCE:
            report_once(
                "two leaders",
                "%s is also written by another process (%s). Are there two leaders, or two jobs of this name? Give "
                "each process its index (JAX_PROCESS_ID, process_index=) and each job its own name",
                one.name,
                short(text),
            )
        self._written[one.key] = one.end
        if _START.search(text):
            self._starts[one.key] = one.end

    def _refuse(self, batch: Sequence[Series], text: str) -> None:
        for one in batch:
            self._held.pop(one.key, None)
            self._undelivered.discard(one.key)
            self._avoided[one.key] = time.monotonic() + AVOIDED_S
        self.refused += len(batch)
        self._bad += len(batch)
        self._delivery.refused(batch[0].name, len(batch), text)


def _reasons(text: str, count: int) -> dict[int, str]:
    """Return which of `count` series are bad and why, from Google's answer; if it names none, all are.

    A series is named after the reason: ``out of order: … timeSeries[0,3-5]: …; not finite: … timeSeries[1]: …``.
    """
    reasons: dict[int, str] = {}
    begin = 0
    for match in _NAMED.finditer(text):
        for part in filter(None, map(str.strip, match[1].split(","))):
            first, _, last = part.partition("-")
            if first.isdigit() and (not last or last.isdigit()):
                for at in range(int(first), min(int(last or first), count - 1) + 1):
                    reasons.setdefault(at, text[begin : match.end()])
        begin = match.end()
    reasons = {at: reason for at, reason in sorted(reasons.items()) if at < count}
    return reasons or dict.fromkeys(range(count), text)


class SeriesExporter(MetricExporter):
    """A metric exporter whose points are written as series; `preferences` are those of the SDK's ``MetricExporter``."""

    def __init__(self, delivery: Delivery, **preferences: Any) -> None:
        super().__init__(**preferences)
        self._delivery = delivery
        self._writer = SeriesWriter(delivery, self.request)
        self._lost = 0  # points that are in no series
        self._well = False  # whether the latest export succeeded

    def series(self, data: MetricsData, seconds: float) -> Iterable[Series] | None:
        """Return the points as series; None if nothing can be written now. It may take `seconds`."""
        raise NotImplementedError

    def request(self, series: Sequence[Series]) -> Send:
        """Make one request of some series, with their `start` and `end`, and return the function that sends it."""
        raise NotImplementedError

    @property
    def dropped(self) -> int:
        """Number of points that are lost."""
        return self._lost + self._writer.lost

    @property
    def held(self) -> int:
        """Number of points that are not written yet."""
        return self._writer.held

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: object) -> MetricExportResult:
        """Write points. It succeeds if they are written, or will be tried again."""
        seconds = timeout_millis / 1000 * SHARE_OF_TIMEOUT
        series: Iterable[Series] | None = None
        try:
            series = self.series(metrics_data, seconds)
        finally:
            if series is None:
                self._lost += sum(1 for _ in every_point(metrics_data))
        self._well = series is not None and self._writer.write(series, seconds)
        return MetricExportResult.SUCCESS if self._well else MetricExportResult.FAILURE

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: object) -> None:
        self._writer.finish(timeout_millis / 1000)


class TimeSeriesExporter(SeriesExporter):
    """A metric exporter to Cloud Monitoring: the data of a series is a ``TimeSeries``, a protobuf message."""

    def request(self, series: Sequence[Series]) -> Send:
        request = load(TYPES).CreateTimeSeriesRequest()
        message = type(request).pb(request)
        for one in series:
            interval = one.data.points[0].interval
            interval.end_time.FromNanoseconds(one.end)
            if one.start is not None:
                interval.start_time.FromNanoseconds(one.start)
            message.time_series.append(one.data)

        def send(seconds: float) -> None:
            connection = self._delivery.connection
            message.name = f"projects/{connection.project}"
            connection.client(MONITORING).create_time_series(request=request, timeout=seconds, retry=None)

        return send


TYPES: Final = "google.cloud.monitoring_v3.types"
_CUMULATIVE: Final = 3  # google.api.MetricDescriptor.MetricKind


def series_of(data: Any) -> Series:
    """Return a ``TimeSeries`` (a protobuf message with one point) as what the writer takes."""
    interval = data.points[0].interval
    labels = tuple(sorted(data.metric.labels.items()))
    start = interval.start_time.ToNanoseconds() if data.metric_kind == _CUMULATIVE else None
    where = tuple(sorted(data.resource.labels.items()))
    key = (data.metric.type, labels, where)
    return Series(key, called(data.metric.type, labels), start, interval.end_time.ToNanoseconds(), data)

"""Metrics for Cloud Monitoring: no series is written more often than is allowed, and the last value always.

The rules are those of https://cloud.google.com/monitoring/quotas and of ``TimeInterval`` in the Monitoring API. A point
that comes too early is held: the next one of its series replaces it, and at the end it is written with the earliest
time that is allowed. A bad point must not cost others.
"""

from __future__ import annotations

import math
import re
import threading
import time
import zlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, NamedTuple

from opentelemetry.sdk.metrics.export import Metric, MetricExporter, MetricExportResult, MetricsData, NumberDataPoint
from opentelemetry.sdk.resources import Resource

from otel_goodput import semconv
from otel_goodput._resources.process import DetectedResource
from otel_goodput._runtime.guard import contain, report_once
from otel_goodput._text.redact import encodable
from otel_goodput.exporters.fitting import INT64_MAX, INT64_MIN, converted_metrics, every_point, with_points
from otel_goodput.exporters.google.connection import MONITORING, hide_deprecations, load, stock_exporter
from otel_goodput.exporters.google.delivery import HOPELESS, Delivery, Outcome, Send, short
from otel_goodput.exporters.wrappers import SPACING
from otel_goodput.semconv import METRICS

# --- what Cloud Monitoring accepts ------------------------------------------------------------------------------------

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
            labels[self._label(key, taken)] = encodable(text)[:VALUE_LENGTH]
        return labels

    def _label(self, key: str, taken: dict[str, str]) -> str:
        label = _FOREIGN.sub("_", key)
        label = (label if label[:1].isalpha() else f"key_{label}")[:LABEL_LENGTH]
        if taken.setdefault(label, key) != key:
            label = f"{label[: LABEL_LENGTH - 9]}_{zlib.crc32(key.encode('utf-8', 'replace')):08x}"
            taken[label] = key
        elif not self._renamed and key.isascii() and len(key) <= LABEL_LENGTH:
            return key
        return label


def fitting_metric(metric: Metric, labels: Labels) -> Metric | None:
    """Return the metric with labels and values that Cloud Monitoring accepts; None if it has no points."""
    points: list[Any] = []
    for point in metric.data.data_points:
        changed: dict[str, Any] = {"attributes": labels(metric.name, point.attributes)}
        if isinstance(point, NumberDataPoint):
            if not math.isfinite(point.value):
                continue
            count = metric.name in COUNTS
            changed["value"] = min(max(int(point.value), INT64_MIN), INT64_MAX) if count else float(point.value)
        points.append(replace(point, **changed))
    return with_points(metric, points) if points else None


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


# --- points at the pace that is allowed -------------------------------------------------------------------------------

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
_RANGE: Final = re.compile(r"(?<![\d-])([0-9]+)(?:-([0-9]+))?(?![\d-])")


class Series(NamedTuple):
    """The newest point of a series, called `name`; `start` (None: a gauge) and `end`, unix ns; `data` for requests."""

    key: Hashable
    name: str
    start: int | None
    end: int
    data: Any


def called(metric: str, labels: Iterable[tuple[str, str]]) -> str:
    return metric + "".join(f" {label}={value}" for label, value in labels if value)


class SeriesWriter:
    """Writes points of series as soon as each is allowed; `refused` counts those that the service rejected."""

    def __init__(self, delivery: Delivery, request: Callable[[Sequence[Series]], Send]) -> None:
        self._delivery = delivery
        self._request = request
        self._lock = threading.Lock()
        self.held: dict[Hashable, Series] = {}  # points that are not written yet
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
                    self.held[one.key] = one
                else:
                    self.refused += 1
            return self._send(self._due(), now + budget_s)

    def finish(self, budget_s: float) -> bool:
        """Write all points that are held, with the earliest times allowed. Return False if some are left.

        A series without a point in the latest export (a ratio that is not known any more) is not given a later time.
        """
        with self._lock:
            keys = self._latest | {one.key for one in self._due()}
            self.held = {key: one for key, one in self.held.items() if key in keys}
            until = time.monotonic() + budget_s
            for _ in range(LAST_TRIES):
                # These times are seconds ahead; five minutes are accepted.
                later = [one._replace(end=max(one.end, self._earliest(key))) for key, one in self.held.items()]
                if not later or not self._send(later, until):
                    break
            self._left = len(self.held)
            return not self.held

    def _due(self) -> list[Series]:
        return [one for key, one in self.held.items() if one.end >= self._earliest(key)]

    def _earliest(self, key: Hashable) -> int:
        """Return the time from which on a series may be written again, unix ns."""
        return self._written[key] + SPACING if key in self._written else 0

    def _send(self, series: Sequence[Series], until: float) -> bool:
        well = True
        starts = self._starts
        series = [
            one if one.start is None else one._replace(start=max(one.start, starts.get(one.key, 0))) for one in series
        ]
        for at in range(0, len(series), MOST_SERIES):
            self._taken, self._bad = False, 0
            well = self._deliver(series[at : at + MOST_SERIES], until) and well
        return well

    def _deliver(self, batch: Sequence[Series], until: float, *, tried: bool = False) -> bool:
        """Write a batch, in parts if it is rejected. `tried`: an earlier request may have written these points."""
        answer = self._delivery.batch(self._request, batch, until - time.monotonic())
        if answer.outcome is Outcome.DELIVERED:
            self._accept(*batch)
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
            self._accept(*good)
            good = []
        for at, text in early.items():
            if tried:  # an earlier try has written it
                self._accept(batch[at])
            else:
                self._keep_away(batch[at], text)
        if bad and (len(batch) == 1 or (not self._taken and self._bad >= HOPELESS)):
            for one in bad:
                self.held.pop(one.key, None)
                self._undelivered.discard(one.key)
                self._avoided[one.key] = time.monotonic() + AVOIDED_S
            self.refused += len(bad)
            self._bad += len(bad)
            self._delivery.refused(bad[0].name, len(bad), answer.text)
            bad = []
        well = True
        middle = len(batch) // 2
        for part in (good, bad) if len(bad) < len(batch) else (batch[:middle], batch[middle:]):
            if part:
                well = self._deliver(part, until, tried=tried or not known) and well
        return well

    def _accept(self, *batch: Series) -> None:
        for one in batch:
            self._taken = True
            self._written[one.key] = max(one.end, self._written.get(one.key, 0))
            self._early.pop(one.key, None)
            self.held.pop(one.key, None)
            self._undelivered.discard(one.key)

    def _keep_away(self, one: Series, text: str) -> None:
        """Keep the distance from a point of somebody else, for which this one was too early."""
        times = self._early[one.key] = self._early.get(one.key, 0) + 1
        # Once or twice it is due to an attempt that ended a moment ago, whose last points may be dated ahead.
        if times >= PATIENCE:
            message = (
                "%s is also written by another process (%s). Are there two leaders, or two jobs of this name? Give "
                "each process its index (JAX_PROCESS_ID, process_index=) and each job its own name"
            )
            report_once("two leaders", message, one.name, short(text))
        self._written[one.key] = one.end
        if _START.search(text):
            self._starts[one.key] = one.end


def _reasons(text: str, count: int) -> dict[int, str]:
    """Return which of `count` series are bad and why, from Google's answer; if it names none, all are.

    A series is named after the reason: ``out of order: … timeSeries[0,3-5]: …; not finite: … timeSeries[1]: …``.
    """
    reasons: dict[int, str] = {}
    begin = 0
    for match in _NAMED.finditer(text):
        for first, last in _RANGE.findall(match[1]):
            for at in range(int(first), min(int(last or first), count - 1) + 1):
                reasons.setdefault(at, text[begin : match.end()])
        begin = match.end()
    return dict(sorted(reasons.items())) or dict.fromkeys(range(count), text)


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
        return self._lost + self._writer.lost

    @property
    def held(self) -> int:
        return len(self._writer.held)

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


# --- the metrics of the `gcp` exporter --------------------------------------------------------------------------------

_MONITORING: Final = "opentelemetry.exporter.cloud_monitoring"
HEAD_START_S: Final = 1.0  # how long the first points wait for their descriptors
BUDGET_S: Final = 30.0  # for one descriptor


class Descriptions:
    """Creates metric descriptors, with units and descriptions for readers, in a thread of its own, until it is closed.

    The points are not held up. Without our descriptor Cloud Monitoring makes one from the first point, and nothing else
    is missing. The thread starts with the object: the first points may be sent at exit, where Python 3.12+ starts no
    threads.
    """

    def __init__(self, delivery: Delivery, create: Callable[[Any, float], object]) -> None:
        self._delivery = replace(delivery, report=self._remember)
        self._create = create
        self._lock = threading.Lock()
        self._wanted: dict[str, Any] = {}
        self._calls: SimpleQueue[bool] = SimpleQueue()  # True: there is something to do; False: end
        self._idle = threading.Event()
        self._idle.set()
        self._prompt = True  # whether to wait; not after they were late, until all are created
        self._trouble: tuple[object, ...] | None = None
        with suppress(RuntimeError):  # no more threads: there will be no descriptions
            threading.Thread(target=self._work, name="otel-goodput-descriptions", daemon=True).start()

    def want(self, requests: Iterable[Any]) -> None:
        """Have these created, and the missing ones of earlier calls; wait for them for `HEAD_START_S` at most."""
        with self._lock:
            self._wanted |= {request.metric_descriptor.type: request for request in requests}
            if not self._wanted:
                return
            if self._idle.is_set():
                self._idle.clear()
                self._calls.put(True)
        if self._prompt:
            self.wait(HEAD_START_S)
            self._prompt = not self._wanted

    def wait(self, seconds: float) -> None:
        """Wait until all are created or nothing more can be done now, for `seconds` and `HEAD_START_S` at most."""
        self._idle.wait(min(max(0.0, seconds), HEAD_START_S))

    def close(self) -> None:
        self._calls.put(False)

    def report(self) -> None:
        """Report a failure, once. Called when points were accepted, so that the failure concerns descriptors alone."""
        tried = self._idle.is_set()  # else the failure may be over by now
        if tried and self._trouble is not None:
            site, message, *arguments = self._trouble
            report_once(f"descriptions {site}", f"{message}. Points are written without it", *arguments)

    def _remember(self, *trouble: object) -> None:
        self._trouble = trouble

    def _work(self) -> None:
        while self._calls.get():
            try:
                while self._create_next():
                    pass
            except Exception as error:
                contain("descriptions of metrics", error)
            finally:
                self._idle.set()

    def _create_next(self) -> bool:
        """Return whether more can be created now."""
        with self._lock:
            name, request = next(iter(self._wanted.items()), (None, None))
        if name is None:
            self._prompt = True
            return False
        self._trouble = None  # what an earlier try met may be over, and a circuit that is open tries nothing
        answer = self._delivery(partial(self._create, request), BUDGET_S)
        if answer.outcome in (Outcome.TIMED_OUT, Outcome.CIRCUIT_OPEN):
            return False
        if answer.outcome is Outcome.REFUSED:
            report_once(f"descriptor {name}", "the description of %s is not accepted: %s", name, short(answer.text))
        with self._lock:
            self._wanted.pop(name, None)
        return True


class CloudMonitoringExporter(TimeSeriesExporter):
    """Exports metrics to Cloud Monitoring, under ``workload.googleapis.com/``.

    Google's exporter, which neither retries nor keeps what it sends, translates them, and is given this object as its
    client. `run_id` and `process_index` identify the series of this process over the attempts of the run; `describing`
    delivers metric descriptors.
    """

    def __init__(self, delivery: Delivery, describing: Delivery, run_id: str, process_index: int) -> None:
        super().__init__(delivery)
        self._identity = {semconv.SERVICE_NAMESPACE: run_id, semconv.SERVICE_INSTANCE_ID: str(process_index)}
        self._lock = threading.Lock()
        self._labels = Labels()
        self._stock: Any = None
        self._descriptors: list[Any] = []  # requests for those that are new
        self._translated: list[Any] = []  # a TimeSeries for each point
        self._descriptions = Descriptions(describing, self._create)

    def series(self, data: MetricsData, seconds: float) -> Iterable[Series] | None:
        with self._lock:
            fitted = converted_metrics(data, lambda _, metric: fitting_metric(metric, self._labels), self._task)
            if self._stock is None:
                project = self._delivery.project(seconds)
                if project is None:
                    return None
                self._stock = stock_exporter(_MONITORING, "CloudMonitoringMetricsExporter", project, self)
            self._descriptors, self._translated = [], []
            hide_deprecations()
            self._stock.export(fitted)
            if self._well:
                self._descriptions.report()
            self._descriptions.want(self._descriptors)
            return map(series_of, self._translated)

    def _task(self, resource: Resource) -> Resource:
        """Return the resource of a ``generic_task``: one for each process of a run, the same in all its attempts.

        A ``gce_instance`` would be shared by all processes on a machine, and a pod's name changes with each restart.
        """
        place = {semconv.CLOUD_REGION: location(resource)}  # waits until the resource is detected
        return Resource(
            {semconv.SERVICE_NAME: resource.attributes.get(semconv.SERVICE_NAME, ""), **self._identity, **place}
        )

    def _create(self, request: Any, seconds: float) -> None:
        self._delivery.connection.client(MONITORING).create_metric_descriptor(
            request=request, timeout=seconds, retry=None
        )

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: object) -> None:
        until = time.monotonic() + timeout_millis / 1000
        if self._writer.finish(timeout_millis / 1000):
            self._descriptions.wait(until - time.monotonic())
        self._descriptions.close()

    def common_project_path(self, project: str) -> str:
        return f"projects/{project}"

    def create_metric_descriptor(self, request: Any) -> Any:
        self._descriptors.append(request)
        return request.metric_descriptor

    def create_time_series(self, request: Any) -> None:
        self._translated += type(request).pb(request).time_series

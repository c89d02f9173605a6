"""Metrics to Cloud Monitoring and to the Telemetry API: every series' last value arrives, and nothing is refused.

Longer than other files: each test is done for both exporters of metrics by the same fixture.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from emulators.google import GoogleEmulator
from emulators.records import Point, SeriesKey
from google.api.metric_pb2 import MetricDescriptor
from google.cloud.monitoring_v3 import MetricServiceClient
from google.cloud.monitoring_v3.services.metric_service.transports import MetricServiceGrpcTransport
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricExportResult, MetricsData
from opentelemetry.sdk.resources import Resource
from waits import until

from exporters.google.conftest import Open
from exporters.google.faults import FAULTS
from exporters.telemetry import collect, observed, recorded
from otel_goodput import Recorder, semconv
from otel_goodput.exporters.google.monitoring import HEAD_START_S
from otel_goodput.exporters.registry import dropped_items

NS = 10**9
LATE = {"an answer that is lost", "quota, come again"}  # what also happens to a later export in every run
METHOD = {"gcp": "CreateTimeSeries", "gcp-otlp": "OtlpMetrics"}


@dataclass
class Metrics:
    """One exporter's way for metrics, and what is stored at its end."""

    name: str
    google: GoogleEmulator
    opened: Open

    def __post_init__(self) -> None:
        self.open()

    def open(self, **context: object) -> None:
        """Another process, or the same one's next attempt."""
        self.exporters = self.opened(self.name, **context)
        assert self.exporters.metric_exporter is not None
        self.exporter = self.exporters.metric_exporter

    def export(self, data: MetricsData) -> MetricExportResult:
        return self.exporter.export(data, timeout_millis=20_000)

    def close(self) -> None:
        self.exporter.shutdown(timeout_millis=20_000)

    @property
    def series(self) -> Mapping[SeriesKey, list[Point]]:
        return self.google.series if self.name == "gcp" else self.google.otlp_series

    def values(self, metric: str) -> dict[str, list[Any]]:
        """By the values of the labels, the points' values."""
        return {
            ",".join(text for _, text in sorted(key.labels) if text): [point.value for point in points]
            for key, points in self.series.items()
            if key.type.rpartition("/")[2] == metric
        }

    @property
    def dropped(self) -> int:
        return dropped_items(self.exporters)["metrics"]


@pytest.fixture(params=["gcp", "gcp-otlp"])
def metrics(request: pytest.FixtureRequest, google: GoogleEmulator, opened: Open) -> Metrics:
    return Metrics(request.param, google, opened)


def gauge(value: float, *, at: int | None = None, **attributes: str) -> MetricsData:
    """A value, collected now or so many seconds from now."""
    data = collect(observed("gauge", "g", (value, attributes or {"a": "b"})))
    if at is not None:
        (point,) = data.resource_metrics[0].scope_metrics[0].metrics[0].data.data_points
        object.__setattr__(point, "time_unix_nano", time.time_ns() + at * NS)
    return data


def test_points_arrive(metrics: Metrics) -> None:
    assert metrics.export(gauge(0.25)) is MetricExportResult.SUCCESS
    assert metrics.values("g") == {"b": [0.25]}
    ((key, (point,)),) = metrics.series.items()
    assert abs(point.end - time.time_ns()) < 30 * NS
    if metrics.name == "gcp":
        assert key.type == "workload.googleapis.com/g"
        assert key.resource == "generic_task"
        where = {"location": "global", "namespace": "run", "job": "llama", "task_id": "0"}
        assert where.items() <= dict(key.resource_labels).items()
        described = metrics.google.descriptors[key.type]
        assert (described.unit, described.description) == ("s", "what it is")


def test_the_last_value_arrives_however_soon_it_comes(metrics: Metrics) -> None:
    """At most one point in five seconds: what comes too early waits, and at the end it is written a little ahead."""
    for value in (10.0, 15.0, 20.0, 62.0):
        assert metrics.export(gauge(value)) is MetricExportResult.SUCCESS
    assert metrics.values("g") == {"b": [10.0]}
    metrics.close()
    assert metrics.values("g") == {"b": [10.0, 62.0]}
    ((first, last),) = metrics.series.values()
    assert 5 * NS <= last.end - first.end <= 6 * NS
    assert not metrics.google.refusals and metrics.dropped == 0
    assert len([one for one in metrics.google.requests if one.method == METHOD[metrics.name]]) == 2


def test_points_in_their_time_are_not_held(metrics: Metrics) -> None:
    for number in range(3):
        metrics.export(gauge(float(number), at=5 * number - 10))
    assert metrics.values("g") == {"b": [0.0, 1.0, 2.0]}
    assert not metrics.google.refusals


def test_a_process_that_measures_often_writes_as_often_as_it_may(metrics: Metrics) -> None:
    for second in range(61):
        metrics.export(gauge(float(second), at=second - 60))
    metrics.close()
    (values,) = metrics.values("g").values()
    assert values == [float(second) for second in range(0, 61, 5)]
    assert not metrics.google.refusals


def test_seconds_are_fractions_from_the_first_point_on(metrics: Metrics) -> None:
    """The type of a metric is that of its first point; every later one of another type would be lost."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], resource=Resource({"service.name": "llama", "service.instance.id": "0"}))
    counter = provider.get_meter("user").create_counter("c", "s")
    for value in (0, 1.25):
        counter.add(value)
        data = reader.get_metrics_data()
        assert data is not None
        metrics.export(data)
    metrics.close()
    provider.shutdown()
    assert metrics.values("c") == {"": [0.0, 1.25]}
    if metrics.name == "gcp":
        assert metrics.google.descriptors["workload.googleapis.com/c"].value_type == 3, "DOUBLE"
    assert not metrics.google.refusals


KEYS = {
    "alike": {"a.b": "1", "a_b": "2"},
    "not ASCII": {"损失": "1", "阶段": "2"},
    "odd beginnings": {"0a": "1", "_a": "2"},
    "long": {"k" * 200: "1", "k" * 199 + "l": "2"},
}


@pytest.mark.parametrize("keys", KEYS)
def test_labels_that_google_does_not_know(metrics: Metrics, keys: str) -> None:
    metrics.export(gauge(1.0, **KEYS[keys]))
    (key,) = metrics.series
    assert sorted(text for _, text in key.labels) == sorted(KEYS[keys].values()), "none took another's place"
    assert not metrics.google.refusals


def test_long_values_and_many_labels(metrics: Metrics) -> None:
    metrics.export(gauge(1.0, **{f"k{number:02}": "v" * 3000 for number in range(40)}))
    (key,) = metrics.series
    assert len(key.labels) == 30 and {len(text) for _, text in key.labels} == {1024}
    assert not metrics.google.refusals


def test_no_number_is_no_value(metrics: Metrics) -> None:
    points = [(float("nan"), {"a": "nan"}), (float("inf"), {"a": "inf"}), (1.0, {"a": "one"})]
    assert metrics.export(collect(observed("gauge", "g", *points))) is MetricExportResult.SUCCESS
    assert metrics.values("g") == {"one": [1.0]}
    assert not metrics.google.refusals


@pytest.mark.parametrize("exponential", [True, False])
def test_histograms(metrics: Metrics, exponential: bool) -> None:
    values = [1e-6 * 1.5**number for number in range(60)] + [0.0]
    metrics.export(collect(recorded("h", *values), exponential=exponential))
    (stored,) = metrics.values("h").values()
    if metrics.name == "gcp":
        assert stored[0].count == 61
        assert stored[0].mean == pytest.approx(sum(values) / 61)
    assert not metrics.google.refusals


def many(count: int) -> MetricsData:
    return collect(*(observed("gauge", f"g{number}", (float(number), {"a": "b"})) for number in range(count)))


def test_a_bad_series_takes_no_other_along(
    google: GoogleEmulator, opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = Metrics("gcp", google, opened)
    wrong = MetricDescriptor(
        type="workload.googleapis.com/g17", metric_kind=MetricDescriptor.GAUGE, value_type=MetricDescriptor.BOOL
    )
    describe(google, wrong)
    with caplog.at_level(logging.WARNING):
        assert metrics.export(many(301)) is MetricExportResult.SUCCESS
    assert len(metrics.series) == 300 and metrics.dropped == 1
    method = "CreateMetricDescriptor"
    until(lambda: len(caplog.records) == 2 and sum(one.method == method for one in google.requests) == 302)
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2, "its description, and its points"
    assert all("g17" in text for text in messages)
    before = len(google.requests)
    metrics.close()
    metrics.export(many(301))
    assert len(google.requests) == before, "it is left out for a while"
    assert metrics.dropped == 2, "and each point of it counted"


def describe(google: GoogleEmulator, descriptor: Any) -> None:
    """Somebody has made a metric of that name before."""
    with grpc.insecure_channel(google.endpoint.removeprefix("http://")) as channel:
        client = MetricServiceClient(transport=MetricServiceGrpcTransport(channel=channel))
        client.create_metric_descriptor(name="projects/test-project", metric_descriptor=descriptor)


def test_many_series_go_in_requests_of_two_hundred(metrics: Metrics) -> None:
    assert metrics.export(many(450)) is MetricExportResult.SUCCESS
    assert len(metrics.series) == 450
    sizes = [one.items for one in metrics.google.requests if one.method == METHOD[metrics.name]]
    assert sizes == [200, 200, 50]


@pytest.mark.parametrize(
    ("when", "fault"),
    [
        *(("first", fault) for fault in FAULTS),
        *(pytest.param("last", fault, marks=[pytest.mark.release] * (fault not in LATE)) for fault in FAULTS),
    ],
)
def test_what_passes_is_waited_for(metrics: Metrics, when: str, fault: str) -> None:
    if when == "last":
        metrics.export(many(210))
    FAULTS[fault](metrics.google, METHOD[metrics.name])
    metrics.export(collect(*(observed("gauge", f"g{number}", (1.0, {"a": "b"})) for number in range(210))))
    metrics.close()
    assert [metrics.values(f"g{number}")["b"][-1] for number in range(210)] == [1.0] * 210
    assert metrics.dropped == 0
    assert len(metrics.google.requests) < (300 if metrics.name == "gcp" else 30)


def test_what_could_not_be_written_is_written_later(metrics: Metrics) -> None:
    metrics.google.fail(METHOD[metrics.name], "UNAVAILABLE", None)
    assert metrics.exporter.export(gauge(1.0), timeout_millis=300) is MetricExportResult.FAILURE
    metrics.google.heal()
    metrics.close()
    assert metrics.values("g") == {"b": [1.0]}


def test_a_missing_permission_is_reported_once(metrics: Metrics, caplog: pytest.LogCaptureFixture) -> None:
    metrics.google.fail("*", "PERMISSION_DENIED", None)
    with caplog.at_level(logging.WARNING):
        for number in range(50):
            assert metrics.export(gauge(float(number))) is MetricExportResult.FAILURE
    (message,) = [record.getMessage() for record in caplog.records]
    role = {"gcp": "roles/monitoring.metricWriter", "gcp-otlp": "roles/telemetry.writer"}[metrics.name]
    assert role in message and {"gcp": "refuses points", "gcp-otlp": "refuses OTLP requests"}[metrics.name] in message
    methods = [request.method for request in metrics.google.requests]
    assert methods == [*(["CreateMetricDescriptor"] if metrics.name == "gcp" else []), METHOD[metrics.name]]


def test_a_refusal_of_many_words(metrics: Metrics) -> None:
    """Of more than gRPC takes as metadata of an answer, unless it is told to."""
    metrics.google.fail(METHOD[metrics.name], "INVALID_ARGUMENT", 1, text="timeSeries[0]: " + "no, " * 1700)
    assert metrics.export(many(150)) is MetricExportResult.SUCCESS
    assert len(metrics.series) == 150 and metrics.dropped == 0


def test_a_role_that_may_write_points_but_no_descriptors(
    google: GoogleEmulator, opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    google.fail("CreateMetricDescriptor", "PERMISSION_DENIED", None)
    metrics = Metrics("gcp", google, opened)
    with caplog.at_level(logging.WARNING):
        for second in (-20, -10):
            assert metrics.export(gauge(1.0, at=second)) is MetricExportResult.SUCCESS
    assert metrics.values("g") == {"b": [1.0, 1.0]}
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith("Cloud Monitoring refuses descriptions of metrics: PERMISSION_DENIED")
    assert message.endswith("Points are written without it")


def test_descriptions_that_nobody_answers_to(
    google: GoogleEmulator, opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    """The first points wait for a moment, all others not at all."""
    google.hang("CreateMetricDescriptor")
    metrics = Metrics("gcp", google, opened)
    assert metrics.export(gauge(1.0, at=-20)) is MetricExportResult.SUCCESS
    begun = time.monotonic()
    for second in (-15, -10, -5):
        assert metrics.export(gauge(float(second), at=second)) is MetricExportResult.SUCCESS
    assert time.monotonic() - begun < HEAD_START_S
    assert metrics.values("g") == {"b": [1.0, -15.0, -10.0, -5.0]}
    google.heal()
    until(lambda: google.descriptors["workload.googleapis.com/g"].unit)
    assert not [record for record in caplog.records if "everything" in record.getMessage()]


def test_a_job_that_is_over_at_once_describes_its_metrics_first(google: GoogleEmulator, tmp_path: Path) -> None:
    with Recorder("llama", directory=tmp_path, exporters=["gcp"], integrations="none") as goodput, goodput.job():
        pass
    methods = [request.method for request in google.requests if request.method.startswith("Create")]
    assert methods.index("CreateTimeSeries") > methods.index("CreateMetricDescriptor")
    assert google.descriptors["workload.googleapis.com/goodput.time"].unit == "s"


def test_four_ranks_on_one_machine(metrics: Metrics) -> None:
    """Their series differ in the rank, whatever the seed; the stock exporter has one series for all of a machine."""
    machine = {"cloud.platform": "gcp_compute_engine", "host.id": "42", "cloud.availability_zone": "us-central1-a"}
    for rank in range(4):
        random.seed(42)
        metrics.open(process_index=rank)
        reader = InMemoryMetricReader()
        identity = {"service.name": "llama", "service.instance.id": f"run/0/{rank}"}
        provider = MeterProvider([reader], resource=Resource({**machine, **identity}))
        provider.get_meter("user").create_gauge("g").set(float(rank))
        data = reader.get_metrics_data()
        assert data is not None
        assert metrics.export(data) is MetricExportResult.SUCCESS
        provider.shutdown()
    assert len(metrics.series) == 4
    assert sorted(points[0].value for points in metrics.series.values()) == [0.0, 1.0, 2.0, 3.0]
    assert {dict(key.resource_labels)["location"] for key in metrics.series} == {"us-central1-a"}
    assert not metrics.google.refusals


def test_an_attempt_goes_on_with_the_series_of_the_run(google: GoogleEmulator, opened: Open) -> None:
    """Even where it begins less than five seconds after the last point of the one before, which was written ahead."""
    metrics = Metrics("gcp", google, opened)
    for attempt in range(3):
        metrics.open(attempt=attempt)
        counted = observed(
            "up_down_counter", semconv.DISRUPTIONS.name, (attempt, {"goodput.disruption.reason": "crash"})
        )
        for value in (attempt + 0.1, attempt + 0.2):
            metrics.export(collect(counted, observed("gauge", "g", (value, {"a": "b"})), recorded("h", 1.0)))
        metrics.close()
    assert metrics.values("g")["b"][-1] == 2.2
    (disruptions,) = metrics.values(semconv.DISRUPTIONS.name).values()
    assert disruptions[-1] == 2 and disruptions == sorted(disruptions)
    assert len(metrics.values("h")["step"]) >= 3, "each attempt's, which begins anew"
    assert metrics.dropped == 0


def test_two_who_write_the_same(google: GoogleEmulator, opened: Open, caplog: pytest.LogCaptureFixture) -> None:
    one, other = Metrics("gcp", google, opened), Metrics("gcp", google, opened)
    with caplog.at_level(logging.WARNING):
        for number in range(20):
            for each, value in ((one, 1.0), (other, 2.0)):
                assert each.export(gauge(value, at=5 * number - 100)) is MetricExportResult.SUCCESS
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 1 and "two leaders" in messages[0]
    assert len(one.values("g")["b"]) >= 10
    assert len(google.requests) < 60


def test_a_whole_job(google: GoogleEmulator, tmp_path: Path) -> None:
    goodput = Recorder("llama", directory=tmp_path, exporters=["gcp", "gcp-otlp"], integrations="none")
    with goodput, goodput.job():
        for number in range(20):
            with goodput.data_loading(), goodput.custom("评估"):
                pass
            with goodput.step(number):
                time.sleep(0.001)
        goodput.flush()
        with goodput.step(20):
            pass
    totals = goodput.totals()
    wanted = {name: duration / NS for name, duration in totals.run.categories.items()}
    for series, dots in ((google.series, "_"), (google.otlp_series, ".")):
        by_category = {}
        for key, points in series.items():
            labels = dict(key.labels)
            if key.type.rpartition("/")[2] == "goodput.time":
                by_category[labels[f"goodput{dots}category"]] = points[-1].value
        assert by_category.pop("custom") == totals.run.custom["评估"] / NS
        assert by_category == wanted
        kept = [
            points[-1].value
            for key, points in series.items()
            if key.type.rpartition("/")[2] == "goodput.step.count" and ("kept" in dict(key.labels).values())
        ]
        assert kept == [21]
    known = {metric.name for metric in semconv.METRICS}
    assert {key.type.partition("/")[2] for key in google.series} <= known
    assert not google.refusals and not google.notes
    assert len(google.spans) == len({one.span_id for one in google.otlp_spans}) == 63


@pytest.mark.parametrize("names", [5_000, pytest.param(100_000, marks=[pytest.mark.attack, pytest.mark.timeout(600)])])
def test_thousands_of_names(google: GoogleEmulator, tmp_path: Path, names: int) -> None:
    """Their number is bounded; what is above has a name that says so."""
    # The last values of so many series take their time on a busy machine, and all of them are to arrive.
    goodput = Recorder(
        "llama", directory=tmp_path, exporters=["gcp"], integrations="none", windows="1h", grace_period=120
    )
    with goodput, goodput.job():
        for number in range(names):
            with goodput.custom(f"phase {number}"):
                pass
        while goodput.totals().behind:  # the end does not wait for an account that is far behind
            time.sleep(0.1)
    series_names = {
        dict(key.labels)["goodput_custom_name"] for key in google.series if key.type.endswith("goodput.time")
    }
    assert len(series_names) <= 1003 and "overflow" in series_names
    histograms = [key for key in google.series if key.type.endswith("goodput.phase.duration")]
    assert len(histograms) <= 1003
    total = sum(points[-1].value for key, points in google.series.items() if key.type.endswith("goodput.time"))
    assert total == pytest.approx(goodput.totals().run.elapsed / NS, rel=1e-9)
    assert not google.refusals

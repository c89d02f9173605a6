"""A service that writes most series of a request, and not those of one metric: the others are not held up by it."""

from __future__ import annotations

import logging
import time

import grpc
import pytest
from emulators.google import GoogleEmulator
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricsData

from exporters.google.conftest import Open
from exporters.telemetry import collect, observed
from otel_goodput.exporters.registry import dropped_items

NS = 10**9
DENIED = "Permission monitoring.timeSeries.create denied for this metric"
QUOTA = "Too many active time series of this metric"


def figures(value: float, seconds: int) -> MetricsData:
    """Three gauges, so many seconds from now."""
    data = collect(*(observed("gauge", name, (value, {"a": "b"})) for name in ("first", "middle", "last")))
    for metric in data.resource_metrics[0].scope_metrics[0].metrics:
        for point in metric.data.data_points:
            object.__setattr__(point, "time_unix_nano", time.time_ns() + seconds * NS)
    return data


def values(google: GoogleEmulator) -> dict[str, list[float]]:
    return {key.type.rpartition("/")[2]: [point.value for point in points] for key, points in google.series.items()}


@pytest.mark.parametrize("metric", ["first", "middle", "last"])
def test_a_metric_that_may_not_be_written(
    google: GoogleEmulator, opened: Open, caplog: pytest.LogCaptureFixture, metric: str
) -> None:
    google.deny(metric, grpc.StatusCode.PERMISSION_DENIED, DENIED)
    exporters = opened("gcp")
    exporter = exporters.metric_exporter
    assert exporter is not None
    with caplog.at_level(logging.WARNING):
        for at, value in enumerate((1.0, 2.0, 3.0)):
            assert exporter.export(figures(value, 10 * at), timeout_millis=20_000) is MetricExportResult.SUCCESS
        exporter.shutdown(timeout_millis=20_000)
    others = {"first", "middle", "last"} - {metric}
    assert values(google) == {name: [1.0, 2.0, 3.0] for name in others}
    assert dropped_items(exporters)["metrics"] == 3
    (refusal,) = caplog.messages
    assert metric in refusal and DENIED in refusal


def test_a_metric_without_quota_is_written_once_it_has_some(google: GoogleEmulator, opened: Open) -> None:
    google.deny("middle", grpc.StatusCode.RESOURCE_EXHAUSTED, QUOTA)
    exporters = opened("gcp")
    exporter = exporters.metric_exporter
    assert isinstance(exporter, MetricExporter)
    assert exporter.export(figures(1.0, 0), timeout_millis=1_000) is MetricExportResult.FAILURE
    assert values(google) == {"first": [1.0], "last": [1.0]}
    assert dropped_items(exporters)["metrics"] == 0, "the one that is left may still be written"
    # Nothing that was written is sent again.
    assert sum(request.items > 1 for request in google.requests if request.method == "CreateTimeSeries") == 1
    google.heal()
    assert exporter.export(figures(2.0, 10), timeout_millis=20_000) is MetricExportResult.SUCCESS
    assert values(google) == {"first": [1.0, 2.0], "middle": [2.0], "last": [1.0, 2.0]}
    assert not google.refusals
    assert dropped_items(exporters)["metrics"] == 1, "a newer point took its place"


@pytest.mark.parametrize("name", ["gcp", "gcp-otlp"])
def test_what_is_counted_as_lost_while_nothing_is_accepted(google: GoogleEmulator, opened: Open, name: str) -> None:
    """Points whose place newer ones take, and at the end those that are left: each once, and none that arrived."""
    exporters = opened(name)
    exporter = exporters.metric_exporter
    assert exporter is not None
    assert exporter.export(figures(1.0, 0), timeout_millis=20_000) is MetricExportResult.SUCCESS
    google.fail("*", "UNAVAILABLE", None)
    for value in (2.0, 3.0):
        assert exporter.export(figures(value, 10 * int(value)), timeout_millis=1_000) is MetricExportResult.FAILURE
    assert dropped_items(exporters)["metrics"] == 3
    exporter.shutdown(timeout_millis=1_000)
    assert dropped_items(exporters)["metrics"] == 6
    arrived = google.series if name == "gcp" else google.otlp_series
    assert [[point.value for point in points] for points in arrived.values()] == [[1.0]] * 3


def test_points_without_a_project_are_lost(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_GOODPUT_GCP_PROJECT")
    exporters = opened("gcp")
    exporter = exporters.metric_exporter
    assert exporter is not None
    assert exporter.export(figures(1.0, 0), timeout_millis=1_000) is MetricExportResult.FAILURE
    assert dropped_items(exporters)["metrics"] == 3


def test_one_without_permission_and_one_without_quota(google: GoogleEmulator, opened: Open) -> None:
    google.deny("first", grpc.StatusCode.PERMISSION_DENIED, DENIED)
    google.deny("last", grpc.StatusCode.RESOURCE_EXHAUSTED, QUOTA)
    exporter = opened("gcp").metric_exporter
    assert exporter is not None
    for at, value in enumerate((1.0, 2.0)):
        exporter.export(figures(value, 10 * at), timeout_millis=1_000)
    google.heal()
    exporter.shutdown(timeout_millis=20_000)
    assert values(google) == {"middle": [1.0, 2.0], "last": [2.0]}


def test_one_that_is_denied_and_one_that_another_process_writes(
    google: GoogleEmulator, opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    """In one answer: each is treated by its own reason."""
    exporters, other = opened("gcp"), opened("gcp").metric_exporter
    exporter = exporters.metric_exporter
    assert exporter is not None and other is not None
    exporter.export(figures(1.0, 0), timeout_millis=20_000)
    google.deny("last", grpc.StatusCode.PERMISSION_DENIED, DENIED)
    elsewhere = collect(observed("gauge", "first", (2.0, {"a": "b"})))
    (point,) = elsewhere.resource_metrics[0].scope_metrics[0].metrics[0].data.data_points
    object.__setattr__(point, "time_unix_nano", time.time_ns() + 7 * NS)
    other.export(elsewhere, timeout_millis=20_000)
    with caplog.at_level(logging.WARNING):
        exporter.export(figures(3.0, 10), timeout_millis=20_000)
    (refusal,) = caplog.messages
    assert "last" in refusal and DENIED in refusal
    assert dropped_items(exporters)["metrics"] == 1
    google.heal()
    exporter.shutdown(timeout_millis=20_000)
    assert values(google) == {"first": [1.0, 2.0, 3.0], "middle": [1.0, 3.0], "last": [1.0]}

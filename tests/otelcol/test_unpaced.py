"""Metrics of those who export whenever they like, such as OpenTelemetry's own SDK at exit: the last value arrives."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.metrics import Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from waits import until

from otel_goodput import Recorder

from .sidecars import Sidecar

CONFIGS = ("gcp-sidecar", "gcp-sidecar-classic")
INTERVAL_S = 6.0  # of the collector; at least five, and here not more for the test's sake
SETTINGS = (f"processors::interval::interval: {INTERVAL_S:.0f}s",)

METRICS = ("counted", "up.down", "asked", "spread")

pytestmark = [pytest.mark.crash, pytest.mark.timeout(120)]


def measure(sidecar: Sidecar, name: str) -> None:
    """As a process does that counts to 3: it exports now and then, and at its end twice within milliseconds."""
    exporter = OTLPMetricExporter(endpoint=sidecar.collector.grpc, insecure=True)
    resource = Resource({"service.name": "other", "service.instance.id": name})
    provider = MeterProvider([PeriodicExportingMetricReader(exporter, 3_600_000)], resource=resource)
    meter = provider.get_meter("other")
    counted, up_down, spread = (
        meter.create_counter("counted"), meter.create_up_down_counter("up.down"), meter.create_histogram("spread"),
    )  # fmt: skip
    meter.create_observable_gauge("asked", [lambda _: [Observation(value)]])
    for value in (1, 2, 3):
        counted.add(1)
        up_down.add(1)
        spread.record(value)
        provider.force_flush()
        time.sleep(0.5 if value < 3 else 0.0)
    provider.shutdown()


def values(sidecar: Sidecar, metric: str, name: str) -> list[float]:
    """What is stored of a process, in its order."""
    return [
        getattr(point.value, "count", point.value)
        for key, points in sidecar.series.items()
        if key.type.endswith(metric) and any(name in value for _, value in key.resource_labels)
        for point in points
    ]


@pytest.mark.parametrize("config", CONFIGS)
def test_the_last_value_arrives(config: str, tmp_path: Path) -> None:
    with Sidecar(tmp_path, config, settings=SETTINGS) as sidecar:
        for name in ("one", "two"):  # wherever the collector's ticks come in between
            measure(sidecar, name)
        time.sleep(INTERVAL_S + 1)  # as preStop does
        assert sidecar.collector.stop() < 5
        for metric in METRICS:
            for name in ("one", "two"):
                seen_values = values(sidecar, metric, name)
                assert seen_values[-1] == 3.0 and seen_values == sorted(set(seen_values)), (metric, name, seen_values)
        assert not sidecar.google.refusals


def test_a_collector_that_is_stopped_at_once_sends_what_it_holds_or_keeps_it_on_disk(tmp_path: Path) -> None:
    with Sidecar(tmp_path, "gcp-sidecar") as sidecar:
        measure(sidecar, "one")
        assert sidecar.collector.stop() < 5
        sidecar.collector.start()
        until(
            lambda: [values(sidecar, metric, "one") for metric in METRICS] == [[3.0]] * len(METRICS),
            lacking=lambda: sidecar.collector.log[-3000:],
        )


def test_our_metrics_through_a_reader_of_the_user_s_are_gathered_too(tmp_path: Path) -> None:
    with Sidecar(tmp_path, "gcp-sidecar", settings=SETTINGS) as sidecar:
        exporter = OTLPMetricExporter(endpoint=sidecar.collector.grpc, insecure=True)
        reader = PeriodicExportingMetricReader(exporter, 3_600_000)
        recorder = Recorder("job", directory=tmp_path / "run", exporters="none", metric_readers=[reader])
        with recorder.job():
            for number in range(4):
                with recorder.step(number):
                    recorder.flush(10)
        recorder.shutdown(10)
        until(lambda: 4.0 in values(sidecar, "goodput.step.count", ""), lacking=lambda: sidecar.collector.log[-3000:])
        assert not sidecar.google.refusals

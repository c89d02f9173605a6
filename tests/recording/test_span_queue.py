"""More spans than can be exported: what is lost is counted, span by span, and said once with what to do."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from exported import Spans, written
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricExporter, MetricExportResult, MetricsData

from otel_goodput import Recorder
from otel_goodput._recording.delegating import DelegatingMetricExporter
from otel_goodput._runtime import guard
from otel_goodput.testing import metrics


def dropped(reader: InMemoryMetricReader) -> dict[str, int]:
    points = metrics(reader)["goodput.telemetry.dropped"].data.data_points
    return {str((point.attributes or {})["goodput.signal"]): point.value for point in points}  # type: ignore[union-attr]


class Hiding:
    """The SDK's private object that does the batching, without its queue."""

    def __init__(self, batching: object) -> None:
        self._batching = batching

    def __getattr__(self, name: str) -> object:
        if name == "_queue":
            raise AttributeError(name)
        return getattr(self._batching, name)


@pytest.mark.parametrize("shown", [True, False])
def test_what_a_full_queue_drops(
    shown: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    guard.contained.clear()
    for name, value in (("MAX_QUEUE_SIZE", 64), ("MAX_EXPORT_BATCH_SIZE", 64), ("SCHEDULE_DELAY", 60_000)):
        monkeypatch.setenv(f"OTEL_BSP_{name}", str(value))
    ended, reader = Spans(), InMemoryMetricReader()
    recorder = Recorder(
        "llama", directory=tmp_path, exporters=["file"], integrations="none", metric_readers=[reader],
        span_processors=[ended.processor],
    )  # fmt: skip
    with caplog.at_level(logging.WARNING, "otel_goodput"), recorder:
        if not shown:
            for batcher in recorder._pipelines.batchers:
                monkeypatch.setattr(batcher, "_batch_processor", Hiding(batcher._batch_processor))
        tracer = recorder.tracer_provider.get_tracer("user")
        with recorder.job():
            for _ in range(3000):
                tracer.start_span("bit").end()
        recorder.flush()
        lost = dropped(reader)["traces"]
        assert 0 < lost < 3000
    assert len(written(tmp_path)) + lost == len(ended.get_finished_spans()) == 3002, "with the job's and the root"
    (told,) = [record.getMessage() for record in caplog.records if "faster than" in record.getMessage()]
    assert "OTEL_BSP_MAX_QUEUE_SIZE" in told


def test_an_exporter_without_the_sdks_private_attributes() -> None:
    class Bare(MetricExporter):
        def __init__(self) -> None:
            """Not the SDK's, which would set them."""

        def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **_: object) -> MetricExportResult:
            return MetricExportResult.SUCCESS

        def force_flush(self, timeout_millis: float = 10_000) -> bool:
            return True

        def shutdown(self, timeout_millis: float = 30_000, **_: object) -> None:
            """Nothing to do."""

    assert DelegatingMetricExporter(Bare()).force_flush()

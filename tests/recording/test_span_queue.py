"""More spans than can be exported: what is lost is counted, span by span, and said once with what to do."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otel_goodput import Recorder, guard


def written(run: Path) -> int:
    return sum(
        len(scope["spans"])
        for path in run.rglob("traces-*.jsonl")
        for line in path.read_text().splitlines()
        for resource in json.loads(line)["resourceSpans"]
        for scope in resource["scopeSpans"]
    )


def dropped(reader: InMemoryMetricReader) -> dict[str, int]:
    data = reader.get_metrics_data()
    assert data is not None
    return {
        str((point.attributes or {})["goodput.signal"]): point.value  # type: ignore[union-attr]
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == "goodput.telemetry.dropped"
        for point in metric.data.data_points
    }


def test_what_a_full_queue_drops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    guard.contained.clear()
    for name, value in (("MAX_QUEUE_SIZE", 64), ("MAX_EXPORT_BATCH_SIZE", 64), ("SCHEDULE_DELAY", 60_000)):
        monkeypatch.setenv(f"OTEL_BSP_{name}", str(value))
    ended, reader = InMemorySpanExporter(), InMemoryMetricReader()
    recorder = Recorder(
        "llama", directory=tmp_path, exporters=["file"], integrations="none", metric_readers=[reader],
        span_processors=[SimpleSpanProcessor(ended)],
    )  # fmt: skip
    with caplog.at_level(logging.WARNING, "otel_goodput"), recorder:
        tracer = recorder.tracer_provider.get_tracer("user")
        with recorder.job():
            for _ in range(3000):
                tracer.start_span("bit").end()
        recorder.flush()
        lost = dropped(reader)["traces"]
        assert 0 < lost < 3000
    assert written(tmp_path) + lost == len(ended.get_finished_spans()) == 3002, "with the job's and the root"
    (told,) = [record.getMessage() for record in caplog.records if "faster than" in record.getMessage()]
    assert "OTEL_BSP_MAX_QUEUE_SIZE" in told

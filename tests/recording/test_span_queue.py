"""More spans than can be exported: what is lost is counted, span by span, and logged once with what to do."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest
from exported import Spans, written
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricExporter, MetricExportResult, MetricsData
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from recorded import Record

import otel_goodput as goodput
from otel_goodput import Recorder
from otel_goodput._recording.delegating import DelegatingMetricExporter
from otel_goodput._recording.emitter import MOST_WAITING
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
    (message,) = [record.getMessage() for record in caplog.records if "faster than" in record.getMessage()]
    assert "OTEL_BSP_MAX_QUEUE_SIZE" in message


class _Hangs(SpanProcessor):
    """Does not return from its first span until it is let go."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.names: list[str] = []
        self.threads: set[int] = set()

    def on_end(self, span: ReadableSpan) -> None:
        self.go_on.wait(60)
        self.names.append(span.name)
        if span.name in ("step", "data_loading"):  # others are passed on where they end if nothing waits
            self.threads.add(threading.get_ident())


def test_a_processor_that_does_not_return_loses_steps_but_never_holds_training(
    record: Record, caplog: pytest.LogCaptureFixture
) -> None:
    guard.contained.clear()
    hangs, reader = _Hangs(), InMemoryMetricReader()
    run = record(span_processors=[hangs], metric_readers=[reader], step_sampling=1)
    steps = MOST_WAITING // 2 + 500
    with caplog.at_level(logging.WARNING, "otel_goodput"), goodput.job():
        for _ in goodput.steps(range(steps)):
            pass
        with goodput.step(steps):
            pass
        with goodput.custom("after"):
            pass
        assert not hangs.names, "nobody else did what the background cannot"
        lost = dropped(reader)["traces"]
        assert lost > 1_000
        hangs.go_on.set()
    goodput.shutdown()
    assert threading.get_ident() not in hangs.threads
    ended = [name for name in hangs.names if name in ("step", "data_loading")]
    assert len(ended) + lost == 2 * (steps + 1), "each step, its load, and the load without a step at the end"
    assert {"job", "after"} < set(hangs.names), "only steps, loads and parts are dropped"
    assert run.report_on_disk()["steps"] == {"executed": steps + 1, "kept": steps + 1, "lost": 0}
    (warning,) = [each.getMessage() for each in caplog.records if "does not return" in each.getMessage()]
    assert "OTEL_GOODPUT_STEP_SAMPLING" in warning and "goodput.telemetry.dropped" in warning


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

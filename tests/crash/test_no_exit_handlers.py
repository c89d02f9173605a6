"""A launcher that ends its workers without their exit handlers, as Ray does: what was recorded by then has arrived."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import warm
from exported import written
from opentelemetry.sdk.metrics.export import (
    InMemoryMetricReader,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
)
from waits import until

from otel_goodput import Recorder

WORKER = """
import os, sys
import otel_goodput as goodput
goodput.configure("worker", exporters="file", directory=sys.argv[1], integrations="none")
for first in (0, 50):
    with goodput.job():
        for step, _ in goodput.steps(range(50), start=first):
            pass
    sys.stdin.readline()  # it lingers until its launcher ends it
os._exit(0)
"""


def kept(folder: Path) -> Iterator[int]:
    """The figures of kept steps that were exported."""
    for path in folder.rglob("metrics-*.jsonl"):
        for line in path.read_text().splitlines():
            for metric in (
                m for r in json.loads(line)["resourceMetrics"] for s in r["scopeMetrics"] for m in s["metrics"]
            ):
                if metric["name"] == "goodput.step.count":
                    for point in metric["sum"]["dataPoints"]:
                        if {"key": "goodput.step.state", "value": {"stringValue": "kept"}} in point["attributes"]:
                            yield int(point["asInt"])


def test_the_last_metrics_of_each_job_are_exported_at_its_end(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WORKER, str(tmp_path)]
    with warm.Process(command, stdin=subprocess.PIPE, text=True) as worker:
        assert worker.stdin is not None
        for jobs in (1, 2):

            def arrived(jobs: int = jobs) -> bool:
                with suppress(ValueError):  # a line that is being written
                    spans = [span["name"] for span in written(tmp_path)]
                    return 50 * jobs in kept(tmp_path) and spans.count("job") == jobs
                return False

            until(arrived)
            worker.stdin.write("on\n")
            worker.stdin.flush()
        assert worker.wait(60) == 0


class Blocking(MetricExporter):
    """Takes until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.exporting, self.free = threading.Event(), threading.Event()

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **_: object) -> MetricExportResult:
        self.exporting.set()
        self.free.wait(60)
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 30_000, **_: object) -> None:
        self.free.set()


class Pulled(InMemoryMetricReader):
    """A reader that nobody but the test reads from."""

    collected = 0

    def _receive_metrics(self, *arguments: Any, **more: Any) -> None:
        self.collected += 1
        super()._receive_metrics(*arguments, **more)


def test_training_waits_for_no_export_and_who_reads_themselves_loses_nothing(tmp_path: Path) -> None:
    exporter, pulled = Blocking(), Pulled()
    readers = [PeriodicExportingMetricReader(exporter, 3_600_000), pulled]
    recorder = Recorder("job", directory=tmp_path, exporters="none", integrations="none", metric_readers=readers)
    with recorder.job(), recorder.step(0):
        pass
    until(exporter.exporting.is_set)
    with recorder.job(), recorder.step(1):
        assert not exporter.free.is_set(), "the export is under way, and training goes on"
    assert not pulled.collected
    exporter.free.set()
    recorder.shutdown()

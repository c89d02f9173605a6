"""A run that is killed and restarted, through the collector's processor that makes deltas of cumulative values."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import warm
from exporters.google.jobs import inherited

from .collector import CONFIGS, OVERLAYS, Collector

ATTEMPT = """
import os, sys, threading
import otel_goodput as goodput
goodput.configure("job", run_id="run", exporters="otlp", integrations="none", directory=sys.argv[1])
def load():
    with goodput.data_loading():
        pass
with goodput.job():
    for _ in range(3):
        thread = threading.Thread(target=load)
        thread.start()
        thread.join()
        for step, _ in goodput.steps(range(100)):
            pass
        goodput.flush()
    if sys.argv[2] == "killed":
        os._exit(9)
goodput.shutdown()
totals = goodput.totals()
print(totals.overlapped_data_loading / 1e9, sum(totals.disruptions.values()))
"""
SETTINGS = (
    "exporters::file/raw: {path: raw.json}",
    "exporters::file/delta: {path: delta.json}",
    "service::pipelines::metrics::exporters: [file/raw]",
    "service::pipelines::metrics/delta::exporters: [file/delta]",
    "service::pipelines::traces::exporters: [file/raw]",
)
COUNTERS = ("goodput.telemetry.overhead", "goodput.telemetry.dropped")
CUMULATIVE, DELTA = 2, 1
Series = tuple[str, str, str]  # name, attributes, instance


def points(path: Path) -> Iterator[tuple[Series, dict[str, Any], dict[str, Any]]]:
    """Each point in the order of arrival, with its series and what holds it."""
    for line in path.read_text(encoding="utf-8").splitlines():
        for resource in json.loads(line).get("resourceMetrics", ()):
            instance = json.dumps(resource["resource"]["attributes"], sort_keys=True)
            for metric in (each for scope in resource["scopeMetrics"] for each in scope["metrics"]):
                held = next(metric[kind] for kind in ("sum", "gauge", "exponentialHistogram") if kind in metric)
                for point in held["dataPoints"]:
                    attributes = json.dumps(point.get("attributes", []), sort_keys=True)
                    yield (metric["name"], attributes, instance), point, held


def value(point: dict[str, Any]) -> float:
    return float(point.get("asDouble", point.get("asInt", 0)))


def test_deltas_add_up_to_the_truth_and_figures_of_the_run_stay(tmp_path: Path) -> None:
    configs = (CONFIGS / "local.yaml", OVERLAYS / "delta.yaml")
    environ = {"OTELCOL_GOODPUT_DELTA": "localhost:1"}
    directory = tmp_path / "collector"
    with Collector(directory, *configs, settings=SETTINGS, environ=environ) as collector:
        environ = {
            **inherited(),
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{collector.grpc}",
        }
        output = ""
        for end in ("killed", "killed", "done"):
            command = [sys.executable, "-c", ATTEMPT, str(tmp_path / "runs"), end]
            done = warm.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False, extras=True)
            assert done.returncode == (9 if end == "killed" else 0), done.stderr
            output = done.stdout
    loading, disruptions = map(float, output.split())
    assert disruptions == 2 and loading > 0

    last = {series: point for series, point, _ in points(directory / "raw.json")}
    added: defaultdict[Series, float] = defaultdict(float)
    counted = 0
    of_the_run: dict[tuple[str, str], float] = {}  # over all processes, the last value
    for series, point, held in points(directory / "delta.json"):
        if series[0] in COUNTERS:
            assert held["isMonotonic"] and held["aggregationTemporality"] == DELTA
            added[series] += value(point)
        elif series[0] == "goodput.step.duration":
            assert held["aggregationTemporality"] == DELTA
            counted += int(point.get("count", 0))
        elif series[0] in ("goodput.disruptions", "goodput.loading.overlapped"):
            assert not held.get("isMonotonic") and held["aggregationTemporality"] == CUMULATIVE
            of_the_run[series[:2]] = value(point)
    assert sum(each for (name, _), each in of_the_run.items() if name == "goodput.disruptions") == disruptions
    assert sum(each for (name, _), each in of_the_run.items() if name != "goodput.disruptions") == pytest.approx(
        loading
    )
    assert counted == 3 * 300
    overhead = [series for series in added if series[0] == COUNTERS[0]]
    assert len(overhead) == 3, "one of each process"
    assert all(added[series] > 0 for series in overhead)
    for series, total in added.items():
        assert total == pytest.approx(value(last[series])), series

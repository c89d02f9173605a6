"""Disruptions of rolling windows, loading on other threads, and the current slices."""

from __future__ import annotations

import time
from pathlib import Path

from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint

from otel_goodput import Recorder

S = 10**9


def points(reader: InMemoryMetricReader, name: str) -> dict[tuple[object, ...], float]:
    """Values of a metric by the values of its attributes, in order of their keys."""
    data = reader.get_metrics_data()
    assert data is not None
    return {
        tuple(value for _, value in sorted((point.attributes or {}).items())): point.value
        for scope in data.resource_metrics[0].scope_metrics
        for metric in scope.metrics
        if metric.name == name
        for point in metric.data.data_points
        if isinstance(point, NumberDataPoint)
    }


def test_a_disruption_leaves_the_window_and_stays_in_the_run(tmp_path: Path) -> None:
    reader = InMemoryMetricReader()
    now = time.time_ns()
    options = {"directory": tmp_path, "run_id": "run", "exporters": "none", "integrations": "none"}
    with Recorder("job", **options) as recorder, recorder.job(start_time=now - 7200 * S, end_time=now - 7000 * S):
        pass
    with Recorder("job", **options) as recorder, recorder.job(start_time=now - 5000 * S, end_time=now - 4000 * S):
        pass
    third = Recorder("job", **options, windows="1h,2h", metric_readers=[reader])
    with third as recorder, recorder.job(start_time=now - 600 * S):
        recorder.add_windows("90m")
        assert points(reader, "goodput.window.disruptions") == {
            ("restart", "1h"): 1, ("restart", "2h"): 2, ("restart", "90m"): 2,
        }  # fmt: skip
        assert points(reader, "goodput.disruptions")[("restart",)] == 2


def test_loading_on_a_thread_other_than_the_training_thread(tmp_path: Path) -> None:
    reader = InMemoryMetricReader()
    with Recorder("job", directory=tmp_path, exporters="none", metric_readers=[reader]) as recorder, recorder.job():
        assert points(reader, "goodput.loading.overlapped") == {(): 0}
        with recorder.data_loading(blocking=False):
            time.sleep(0.05)
        overlapped = points(reader, "goodput.loading.overlapped")[()]
        assert overlapped >= 0.05 and overlapped == recorder.totals().overlapped_data_loading / S


def test_the_slices_of_now(tmp_path: Path) -> None:
    reader = InMemoryMetricReader()
    with Recorder("job", directory=tmp_path, exporters="none", metric_readers=[reader]) as recorder, recorder.job():
        assert points(reader, "goodput.slice.share") == {}
        recorder.slice_counts(2, 3, 4)
        assert points(reader, "goodput.slice.share") == {("available",): 0.75, ("stepping",): 0.5}
        recorder.slice_counts(0, 4, 4)
        assert points(reader, "goodput.slice.share") == {("available",): 1, ("stepping",): 0}

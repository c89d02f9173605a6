"""The metrics as `semconv.METRICS` has them: names, kinds, units, closed sets of attributes, constant types.

Longer than other files: it goes through the table of metrics, one after the other.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from backfill import ORDERS, read_case
from opentelemetry.metrics import Meter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    ExponentialHistogram,
    Gauge,
    InMemoryMetricReader,
    Metric,
    Sum,
)
from recorded import NS, Recording

import otel_goodput as goodput
from otel_goodput._metrics.usage_rows import UsageRows
from otel_goodput.semconv import CATEGORIES, METRICS, REASONS

# Written down once more, by hand: name -> (kind, unit, attribute keys, type of the values).
TABLE: dict[str, tuple[str, str, set[str], type]] = {
    "goodput.time": ("updown", "s", {"goodput.category", "goodput.custom.name"}, float),
    "goodput.ratio": ("gauge", "1", {"goodput.window"}, float),
    "goodput.objective": ("gauge", "1", set(), float),
    "badput.ratio": ("gauge", "1", {"goodput.window", "goodput.category", "goodput.custom.name"}, float),
    "goodput.step.duration": ("histogram", "s", set(), float),
    "goodput.phase.duration": (
        "histogram",
        "s",
        {"goodput.phase", "goodput.custom.name", "goodput.blocking", "error.type"},
        float,
    ),
    "goodput.part.duration": ("histogram", "s", {"goodput.part.name"}, float),
    "goodput.loading.queue_depth": ("gauge", "{batch}", set(), int),
    "goodput.step.count": ("updown", "{step}", {"goodput.step.state"}, int),
    "goodput.stalled.ratio": ("gauge", "1", {"goodput.window", "goodput.step.state"}, float),
    "goodput.step.age": ("gauge", "s", {"goodput.activity"}, float),
    "goodput.step.max_productive": ("gauge", "{step}", set(), int),
    "goodput.step.ideal_time": ("gauge", "s", set(), float),
    "goodput.step.deviation": ("gauge", "s", set(), float),
    "goodput.at_risk": ("gauge", "s", set(), float),
    "goodput.disruptions": ("updown", "{disruption}", {"goodput.disruption.reason"}, int),
    "goodput.window.disruptions": ("gauge", "{disruption}", {"goodput.window", "goodput.disruption.reason"}, int),
    "goodput.loading.overlapped": ("updown", "s", set(), float),
    "goodput.time_to_first_step": ("gauge", "s", set(), float),
    "goodput.disruption.time_to_regain": ("gauge", "s", set(), float),
    "goodput.scheduling.ratio": ("gauge", "1", set(), float),
    "goodput.scheduling.duration": ("gauge", "s", {"goodput.scheduling.stage"}, float),
    "goodput.program.ratio": ("gauge", "1", set(), float),
    "goodput.productivity": ("gauge", "1", set(), float),
    "goodput.slice.efficiency": ("gauge", "1", {"goodput.slice.state"}, float),
    "goodput.slice.share": ("gauge", "1", {"goodput.slice.state"}, float),
    "goodput.slice.window_efficiency": ("gauge", "1", {"goodput.window", "goodput.slice.state"}, float),
    "goodput.clock": ("gauge", "1", {"goodput.clock.state"}, int),
    "goodput.job.state": ("gauge", "1", {"goodput.job.state"}, int),
    "goodput.job.last_sign_of_life": ("gauge", "s", set(), float),
    "goodput.straggler.ratio": ("gauge", "1", set(), float),
    "goodput.loader.stage.duration": ("counter", "s", {"goodput.loader.stage", "goodput.blocking"}, float),
    "goodput.rank.own.time": ("gauge", "s", {"goodput.rank"}, float),
    "goodput.rank.gain": ("gauge", "1", {"goodput.rank"}, float),
    "goodput.rank.wait.time": ("counter", "s", {"goodput.rank", "goodput.category"}, float),
    "goodput.incident.active": (
        "gauge",
        "{incident}",
        {
            "goodput.incident.kind",
            "goodput.incident.cause",
            "goodput.rank",
            "goodput.incident.line",
            "goodput.incident.phase",
        },
        int,
    ),
    "goodput.incident.count": ("counter", "{incident}", {"goodput.incident.kind", "goodput.incident.cause"}, int),
    "goodput.incident.cost.time": ("updown", "s", {"goodput.incident.kind", "goodput.incident.cause"}, float),
    "process.cpu.time": ("counter", "s", {"goodput.rank", "cpu.mode"}, float),
    "process.memory.usage": ("updown", "By", {"goodput.rank"}, float),
    "system.cpu.utilization": ("gauge", "1", {"goodput.rank"}, float),
    "system.memory.usage": ("updown", "By", {"goodput.rank", "system.memory.state"}, float),
    "system.memory.limit": ("updown", "By", {"goodput.rank"}, float),
    "hw.gpu.utilization": ("gauge", "1", {"goodput.rank", "hw.type"}, float),
    "hw.gpu.memory.usage": ("updown", "By", {"goodput.rank", "hw.type"}, float),
    "hw.gpu.memory.limit": ("updown", "By", {"goodput.rank", "hw.type"}, float),
    "hw.power": ("gauge", "W", {"goodput.rank", "hw.type"}, float),
    "goodput.accelerator.throttled": (
        "gauge",
        "1",
        {"goodput.rank", "goodput.accelerator.throttle.reason"},
        float,
    ),
    "goodput.compile.cache": ("counter", "{function}", {"goodput.compile.cache.result"}, int),
    "goodput.compile.time_saved": ("updown", "s", set(), float),
    "goodput.telemetry.overhead": ("counter", "s", set(), float),
    "goodput.telemetry.dropped": ("counter", "{item}", {"goodput.signal"}, int),
}
# Only where the flops are known.
# Of these there is none in a single process to which nobody gave flops, and that does not reach again what it had kept.
NEEDS_MORE = {
    *(metric.name for metric in UsageRows.metrics),
    "goodput.objective",
    "goodput.program.ratio",
    "goodput.productivity",
    "goodput.straggler.ratio",
    "goodput.disruption.time_to_regain",
    "goodput.loader.stage.duration",
    "goodput.rank.own.time",
    "goodput.rank.gain",
    "goodput.rank.wait.time",
    "goodput.incident.active",
    "goodput.incident.count",
    "goodput.incident.cost.time",
}


def kind(metric: Metric) -> str:
    data = metric.data
    if isinstance(data, Sum):
        return "counter" if data.is_monotonic else "updown"
    return {Gauge: "gauge", ExponentialHistogram: "histogram"}[type(data)]


def values(metric: Metric) -> dict[tuple[Any, ...], Any]:
    """Values by the attributes' values."""
    return {
        tuple(value for _, value in sorted((point.attributes or {}).items())): getattr(point, "value", None)
        for point in metric.data.data_points
    }


def check_table(metrics: dict[str, Metric]) -> None:
    for name, metric in metrics.items():
        expected_kind, unit, keys, value_type = TABLE[name]
        assert (kind(metric), metric.unit) == (expected_kind, unit), name
        assert metric.description
        assert metric.data.data_points, name
        for point in metric.data.data_points:
            assert set(point.attributes or {}) == keys, name
            if hasattr(point, "value"):
                assert type(point.value) is value_type, f"{name}: {point.value!r}"
            else:
                assert isinstance(point.sum, float) and point.count > 0


def time_in_ns(metrics: dict[str, Metric]) -> int:
    return sum(round(value * NS) for value in values(metrics["goodput.time"]).values())


def tell_everything(base: int) -> None:
    with goodput.job(start_time=base, end_time=base + 100 * NS):
        with goodput.accelerator_init(start_time=base, end_time=base + NS):
            pass
        goodput.slice_counts(2, 3, 4, time=base + NS)
        for number in range(20):
            start = base + (2 + number * 2) * NS
            with goodput.step(number % 15, start_time=start, end_time=start + NS):
                pass
        with goodput.part("forward"):
            pass
        iter(goodput.loading((), queue_depth=lambda: 7))
        with goodput.custom("eval", start_time=base + 50 * NS, end_time=base + 51 * NS):
            pass
        with goodput.checkpoint_save(4, start_time=base + 51 * NS, end_time=base + 52 * NS):
            pass
        with pytest.raises(OSError), goodput.data_loading(start_time=base + 52 * NS, end_time=base + 53 * NS):
            raise OSError
        with goodput.data_loading(start_time=base + 53 * NS, end_time=base + 54 * NS, blocking=False):
            pass


def test_our_table_is_that_of_the_names_module() -> None:
    kinds = {
        "ObservableUpDownCounter": "updown",
        "ObservableCounter": "counter",
        "ObservableGauge": "gauge",
        "Histogram": "histogram",
    }
    assert {metric.name: (kinds[metric.kind], metric.unit, set(metric.attributes)) for metric in METRICS} == {
        name: row[:3] for name, row in TABLE.items()
    }


def test_the_whole_table(record: Callable[..., Recording], base: int) -> None:
    recording = record(submitted_at=base / NS - 60, windows=["1h", "90s", "24h"])
    assert recording.recorder.tracer is not None
    recording.recorder.tracer.hooks.compile_cache.use()
    recording.recorder.tracer.hooks.waits = {"queued": 90 * NS, "program_start": NS // 2}
    tell_everything(base)
    goodput.flush()
    metrics = recording.metrics()
    check_table(metrics)
    assert set(metrics) == set(TABLE) - NEEDS_MORE
    assert values(metrics["goodput.scheduling.duration"]) == {("queued",): 90.0, ("program_start",): 0.5}
    assert values(metrics["goodput.compile.cache"]) == {("hit",): 0, ("miss",): 0}
    windows = {"run", "1h", "90s", "24h"}
    assert {key for (key,) in values(metrics["goodput.ratio"])} == windows
    assert {key[-1] for key in values(metrics["badput.ratio"])} == windows
    assert values(metrics["goodput.step.count"]) == {("kept",): 5, ("lost",): 15}
    assert values(metrics["goodput.step.max_productive"]) == {(): 4}
    assert values(metrics["goodput.disruptions"]) == {(reason,): int(reason == "rollback") for reason in REASONS}
    assert values(metrics["goodput.slice.efficiency"]) == {("stepping",): 0.5, ("available",): 0.75}
    assert values(metrics["goodput.scheduling.ratio"]) == {(): 100 / 160}
    assert values(metrics["goodput.at_risk"]) == {(): 0.0}
    assert values(metrics["goodput.step.ideal_time"]) == {(): 1.0}
    assert ("journal",) in values(metrics["goodput.telemetry.dropped"])
    durations = {
        tuple(value for _, value in sorted((point.attributes or {}).items())): (point.count, point.sum)  # type: ignore[union-attr]
        for point in metrics["goodput.phase.duration"].data.data_points
    }
    assert durations == {
        ("", True, "", "job"): (1, 100.0),
        ("", True, "", "accelerator_init"): (1, 1.0),
        ("", True, "eval", "custom"): (1, 1.0),
        ("", True, "", "checkpoint_save"): (1, 1.0),
        ("OSError", True, "", "data_loading"): (1, 1.0),
        ("", False, "", "data_loading"): (1, 1.0),
    }
    (steps,) = metrics["goodput.step.duration"].data.data_points
    assert (steps.count, steps.sum, steps.min, steps.max) == (20, 20.0, 1.0, 1.0)  # type: ignore[union-attr]


def test_before_the_job(recording: Recording) -> None:
    metrics = recording.metrics()
    check_table(metrics)
    assert time_in_ns(metrics) == 0
    assert "goodput.ratio" not in metrics, "nothing has passed: there is no share of it"


def test_every_category_is_there_from_the_first_point_on(recording: Recording) -> None:
    """A series that falls to nothing says so, one that has not begun is 0."""
    with goodput.job():
        metrics = recording.metrics()
    assert {key[0] for key in values(metrics["goodput.time"])} == set(CATEGORIES) - {"custom"}


@pytest.mark.parametrize("name", ["38_one_disruption_rollback", "59_in_process_rollback", "23_custom_nested_types"])
def test_time_sums_to_elapsed_exactly(name: str, recording: Recording, base: int) -> None:
    case = read_case(name)
    rows = [row for row in case["events"] if row.get("attempt", 1) == 1]
    ORDERS["as it happened"](rows, base)
    metrics = recording.metrics()
    totals = recording.recorder.totals()
    assert time_in_ns(metrics) == totals.run.elapsed
    assert values(metrics["goodput.time"]) == {
        **{(name, ""): duration / NS for name, duration in totals.run.categories.items()},
        **{("custom", name): duration / NS for name, duration in totals.run.custom.items()},
    }


@pytest.mark.slow
def test_one_snapshot_for_a_collection(recording: Recording) -> None:
    """While the clock runs and steps fly by, the figures of one collection belong together."""
    stop = threading.Event()
    seen: list[dict[str, Metric]] = []

    def collect() -> None:
        while not stop.is_set():
            seen.append(recording.metrics())

    with goodput.job():
        with goodput.step(0):
            pass
        collector = threading.Thread(target=collect)
        collector.start()
        deadline = time.monotonic() + 60
        for number in count(1):
            with goodput.step(number):
                time.sleep(0.0001)  # the work of the step
            if (number > 500 and len(seen) > 12) or time.monotonic() > deadline:
                break
        stop.set()
        collector.join()
    seen = [metrics for metrics in seen if "goodput.ratio" in metrics]
    assert len(seen) > 5
    before = 0
    for metrics in seen:
        elapsed = time_in_ns(metrics)
        seconds = {key[0]: round(value * NS) for key, value in values(metrics["goodput.time"]).items()}
        ratio = values(metrics["goodput.ratio"])[("run",)]
        assert ratio == seconds["productive"] / elapsed
        badput = sum(value for key, value in values(metrics["badput.ratio"]).items() if key[-1] == "run")
        assert ratio + badput == pytest.approx(1.0, abs=1e-12)
        kept = values(metrics["goodput.step.count"])[("kept",)]
        assert values(metrics["goodput.step.max_productive"])[()] == kept - 1
        assert elapsed >= before, "time goes on"
        before = elapsed


def test_two_readers_each_see_one_snapshot(recording: Recording) -> None:
    with goodput.job(), goodput.step(0):
        first, second = recording.metrics(), recording.metrics()
        assert time_in_ns(first) < time_in_ns(second), "each collection looks anew"


def test_types_never_change(record: Callable[..., Recording], base: int) -> None:
    """The classic exporter fixes a series' value type with its first point."""
    types: dict[str, set[type]] = {}

    def note(recording: Recording) -> None:
        metrics = recording.metrics()
        check_table(metrics)
        for name, metric in metrics.items():
            types.setdefault(name, set()).update(type(value) for value in values(metric).values())

    recording = record(submitted_at=base / NS - 60)
    note(recording)
    tell_everything(base)
    note(recording)
    goodput.shutdown()
    recording = record(submitted_at=base / NS - 60)
    note(recording)
    assert all(len(kinds) == 1 for kinds in types.values())


def test_moves_between_categories_are_downs_of_an_up_down_counter(record: Callable[..., Recording], base: int) -> None:
    recording = record()
    with goodput.job(start_time=base, end_time=base + 50 * NS):
        for number in range(10):
            with goodput.step(number, start_time=base + number * NS, end_time=base + (number + 1) * NS):
                pass
        # A question looks at the moment it is asked, which is before all this: it sees what had been settled.
        before = {key[0]: value for key, value in values(recording.metrics()["goodput.time"]).items()}
        with goodput.step(5, start_time=base + 10 * NS, end_time=base + 11 * NS):
            pass
        metrics = recording.metrics()
    after = {key[0]: value for key, value in values(metrics["goodput.time"]).items()}
    assert (before["productive"], before["wasted_progress"]) == (10.0, 0.0)
    assert (after["productive"], after["wasted_progress"]) == (6.0, 5.0)
    assert values(metrics["goodput.step.count"]) == {("kept",): 6, ("lost",): 5}
    data = metrics["goodput.time"].data
    assert isinstance(data, Sum) and not data.is_monotonic
    assert data.aggregation_temporality is AggregationTemporality.CUMULATIVE


def test_a_restart_goes_on_with_the_figures(record: Callable[..., Recording]) -> None:
    """Times, counts, disruptions are those of the run, rolling windows look back over the restart."""
    begin = time.time_ns() - 160 * NS
    for attempt in range(2):
        recording = record(windows=["1h", "40s"])
        start = begin + attempt * 100 * NS
        with goodput.job(start_time=start, end_time=start + 60 * NS):
            for number in range(60):
                first = start + number * NS
                with goodput.step(attempt * 50 + number, start_time=first, end_time=first + NS):
                    pass
        last = recording.metrics()
        goodput.shutdown()
    check_table(last)
    seconds = {key[0]: value for key, value in values(last["goodput.time"]).items()}
    assert seconds["productive"] == 110.0 and seconds["wasted_progress"] == 10.0
    assert seconds["infrastructure_recovery"] == 40.0
    assert values(last["goodput.disruptions"])[("restart",)] == 1
    assert values(last["goodput.time_to_first_step"]) == {(): 1.0}
    assert values(last["goodput.disruption.time_to_regain"]) == {(): 10.0}, "step 59 is the tenth"
    assert values(last["goodput.ratio"]) == {("run",): 110 / 160, ("1h",): 110 / 160, ("40s",): 1.0}
    badput = {key[0]: value for key, value in values(last["badput.ratio"]).items() if key[-1] == "1h"}
    assert badput["infrastructure_recovery"] == 0.25 and badput["wasted_progress"] == 10 / 160


def test_windows_over_a_restart_when_it_happens(record: Callable[..., Recording], base: int) -> None:
    """The same as it happened: the second attempt's windows hold what the first one did in them."""
    first = record(windows=["1h"])
    with goodput.job():
        for number in range(300):
            with goodput.step(number):
                pass
    ended = values(first.metrics()["goodput.ratio"])
    goodput.shutdown()
    second = record(windows=["1h"])
    before = values(second.metrics()["goodput.ratio"])
    assert before[("run",)] == ended[("run",)]
    with goodput.job():
        metrics = second.metrics()
    ratios = values(metrics["goodput.ratio"])
    assert ratios[("1h",)] == pytest.approx(ratios[("run",)], rel=0.05), "the whole run lies in the window"
    badput = {key[0]: value for key, value in values(metrics["badput.ratio"]).items() if key[-1] == "1h"}
    assert badput["infrastructure_recovery"] > 0


def test_names_with_units_of_windows(record: Callable[..., Recording]) -> None:
    recording = record(windows=["60s", "90s", "3600", "24h", "1.5h", "10d"])
    with goodput.job():
        names = {key for (key,) in values(recording.metrics()["goodput.ratio"])}
    assert names == {"run", "1m", "90s", "1h", "24h", "90m", "240h"}


def test_overhead_is_measured(recording: Recording) -> None:
    """Time our own code took on the training thread: more than nothing, less than there was."""
    with goodput.job():
        for number in range(20_000):
            with goodput.data_loading(), goodput.step(number):
                pass
    goodput.flush()
    metrics = recording.metrics()
    overhead = values(metrics["goodput.telemetry.overhead"])[()]
    elapsed = time_in_ns(metrics) / NS
    assert 0 < overhead <= elapsed * 1.2


def test_dropped_spans_are_counted(
    record: Callable[..., Recording], tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    recording = record(exporters="file")
    with goodput.job(), goodput.step(0):
        pass
    goodput.flush()
    assert values(recording.metrics()["goodput.telemetry.dropped"]) == {
        ("journal",): 0,
        ("observations",): 0,
        ("traces",): 0,
        ("metrics",): 0,
    }
    traces = recording.folder / "traces-attempt0000-p0000.jsonl"
    assert json.loads(traces.read_text().splitlines()[0])


def test_ideal_step_time_of_the_users_own(record: Callable[..., Recording]) -> None:
    recording = record(ideal_step_time=0.25)
    with goodput.job(), goodput.step(0):
        pass
    assert values(recording.metrics()["goodput.step.ideal_time"]) == {(): 0.25}
    assert recording.report()["ideal_step_time_s"] == 0.25


def test_a_failing_callback_is_contained(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """After shutdown a reader may still ask; the last account answers."""
    with goodput.job(), goodput.step(0):
        pass
    goodput.shutdown()
    metrics = recording.metrics()
    check_table(metrics)
    assert values(metrics["goodput.step.count"]) == {("kept",): 1, ("lost",): 0}


@pytest.mark.parametrize(
    ("given", "seen"), [(3.0, {(): 3}), (True, {(): 1}), (None, None), ("three", None), (1j, None)]
)
def test_whatever_says_how_many_batches_lie_ready(
    given: Any, seen: Any, recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A figure of another type would spoil the whole export, or the series' type for good."""
    monkeypatch.delenv("OTEL_GOODPUT_STRICT", raising=False)
    with goodput.job():
        for number in goodput.loading(range(2), queue_depth=lambda: given):
            with goodput.step(number):
                pass
        metrics = recording.metrics()
    depth = metrics.get("goodput.loading.queue_depth")
    assert (depth and values(depth)) == seen
    check_table(metrics)


def test_explicit_histograms_where_the_standard_variable_asks_for_them(
    record: Callable[..., Recording], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION", "explicit_bucket_histogram")
    recording = record()
    with goodput.job(), goodput.step(0):
        pass
    goodput.flush()
    assert type(recording.metrics()["goodput.step.duration"].data).__name__ == "Histogram"


def test_a_reader_of_the_users_own_process(recording: Recording) -> None:
    """A second reader on the same provider gets the same figures."""
    assert isinstance(recording.reader, InMemoryMetricReader)
    with goodput.job(), goodput.step(0):
        pass
    one, two = recording.metrics(), recording.metrics()
    assert values(one["goodput.time"]) == values(two["goodput.time"]), "the job has ended, time stands still"


def test_a_reader_may_collect_while_the_recorder_is_being_made(
    record: Callable[..., Recording], caplog: pytest.LogCaptureFixture
) -> None:
    reader, over = InMemoryMetricReader(), threading.Event()

    def collect() -> None:
        while not over.is_set():
            reader.get_metrics_data()

    class Eager(MeterProvider):
        """Asks as soon as there is anything to ask for."""

        def get_meter(self, *args: Any, **kwargs: Any) -> Meter:
            meter = super().get_meter(*args, **kwargs)
            thread.start()
            return meter

    thread = threading.Thread(target=collect)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        record(meter_provider=Eager([reader], shutdown_on_exit=False))
    finally:
        sys.setswitchinterval(interval)
        over.set()
        thread.join(30)
    assert not [entry.getMessage() for entry in caplog.records if "allback" in entry.getMessage()]


def test_windows_of_different_lengths_have_different_names(record: Callable[..., Recording], base: int) -> None:
    recording = record(windows=["1s", "1.5s", "90s", "90.5s", "5400.000000001s", "36h"])
    with goodput.job(start_time=base, end_time=base + 10 * NS):
        pass
    points = recording.metrics()["goodput.ratio"].data.data_points
    names = [(point.attributes or {})["goodput.window"] for point in points]
    assert sorted(map(str, names)) == ["1.5s", "1s", "36h", "5400.000000001s", "90.5s", "90s", "run"]

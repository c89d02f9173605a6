"""What processes tell each other of their paces, and what is made of it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from opentelemetry.sdk.metrics.export import (
    InMemoryMetricReader,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
)

from otel_goodput import Recorder
from otel_goodput._accounting.stats import Pace, late, paces_to_json, straggler
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._journal.sidecars import checked_json
from otel_goodput._journal.usage import STALE_NS, read_paces
from otel_goodput.reports import text as report_text
from otel_goodput.testing import metrics

MS = 1_000_000


def pace(process: int, median: int, outside: int = 0, steps: int = 100, at: int = 0) -> Pace:
    return Pace(process, at, steps, median * MS, median * MS, outside * MS)


def test_the_slowest_is_set_against_the_median_of_all() -> None:
    paces = [pace(0, 100), pace(1, 110), pace(2, 150), pace(3, 90)]
    assert straggler(paces) == (2, pytest.approx(150 / 105))
    assert straggler(paces[:1]) is None and straggler([]) is None


def test_who_has_few_steps_is_not_compared() -> None:
    assert straggler([pace(0, 100), pace(1, 900, steps=9), pace(2, 101)]) == (2, pytest.approx(101 / 100.5))


def test_in_step_with_each_other_the_late_one_shows_outside() -> None:
    paces = [pace(0, 100, 5), pace(1, 75, 30), pace(2, 100, 5)]
    assert late(paces) == (1, pytest.approx(30 / 105))


def test_foreign_torn_and_stale_files_are_left_out(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    run.create({})
    now = time.time_ns()
    good = pace(1, 100, at=now)
    texts = {
        1: checked_json({"attempt": 3, **good._asdict()}).decode(),
        2: checked_json({"attempt": 2, **pace(2, 100, at=now)._asdict()}).decode(),
        3: checked_json({"attempt": 3, **pace(3, 100, at=now - 2 * STALE_NS)._asdict()}).decode(),
        4: checked_json({"attempt": 3, **good._asdict()})[:20].decode(),
        5: "[]",
        6: checked_json({"attempt": 3, "process": "x"}).decode(),
        7: "",
    }
    for process, text in texts.items():
        run.file("pace", process).write_text(text)
    run.file("pace", 8).mkdir()
    assert read_paces(run, 3, now) == [good]


def test_two_processes_in_one_folder(tmp_path: Path) -> None:
    reader = InMemoryMetricReader()
    start = time.time_ns() - 100 * 10**9
    # The follower is the slower one.
    for index, length in ((1, 300), (0, 200)):
        recorder = Recorder(
            "pair",
            run_id="run",
            directory=tmp_path,
            exporters="none",
            process_index=index,
            process_count=2,
            metric_readers=[reader] if index == 0 else [],
        )
        with recorder.job(start_time=start):
            for number in range(20):
                at = start + number * 400 * MS
                with recorder.step(number, start_time=at, end_time=at + length * MS):
                    pass
            recorder.flush()
            if index == 0:
                totals = recorder.totals()
                assert {entry.process: entry.median for entry in totals.paces} == {0: 200 * MS, 1: 300 * MS}
                values = {
                    name: [getattr(point, "value", None) for point in metric.data.data_points]
                    for name, metric in metrics(reader).items()
                }
                assert values["goodput.straggler.ratio"] == [pytest.approx(300 / 250)]
                text = str(recorder.report())
                assert "2 of 2 report step times" in text
                assert "the slowest is process 1: median step 300 ms, 1.20 times the median of all" in text
        recorder.shutdown()


class Slower(MetricExporter):
    """Remembers the straggler's ratio of each export; after it another process is slower than before."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.ratios: list[float] = []
        self.median = 300

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: object) -> MetricExportResult:
        for metric in metrics_data.resource_metrics[0].scope_metrics[0].metrics:
            if metric.name == "goodput.straggler.ratio":
                self.ratios += [point.value for point in metric.data.data_points]  # type: ignore[union-attr, misc]
        self.median += 100
        self.tell()
        return MetricExportResult.SUCCESS

    def tell(self) -> None:
        own = pace(1, self.median * MS, at=time.time_ns())
        whole = self.path.with_suffix(".new")
        whole.write_text(checked_json({"attempt": 0, **own._asdict()}).decode())
        whole.replace(self.path)

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: object) -> None:
        pass


def test_the_last_value_is_that_of_the_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the others go on, and the keeper has work to do behind the last export."""
    monkeypatch.setattr("otel_goodput._journal.usage.EXCHANGED_NS", 0)
    run = RunDirectory(tmp_path / "run")
    exporter = Slower(run.file("pace", 1))
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=10**6)
    recorder = Recorder(
        "pair", run_id="run", directory=tmp_path, exporters="none", process_count=2, metric_readers=[reader]
    )
    exporter.tell()
    with recorder.job():
        for number in range(20):
            with recorder.step(number):
                pass
    recorder.shutdown()
    slowest = straggler(recorder.totals().paces)
    assert slowest is not None and exporter.ratios and exporter.median > 300
    assert exporter.ratios[-1] == slowest.ratio


def test_a_folder_that_cannot_be_written_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder("pair", run_id="run", directory=tmp_path, exporters="none", process_count=2)
    RunDirectory(tmp_path / "run").file("pace", 0).mkdir()
    with recorder.job():
        for number in range(12):
            with recorder.step(number):
                pass
        for _ in range(3):
            recorder.flush()
    recorder.shutdown()
    assert len([record for record in caplog.records if "paces" in record.getMessage()]) == 1
    assert recorder.totals().kept == 12


def test_nobody_is_called_the_slowest_who_is_as_fast_as_the_others() -> None:
    def lines(*paces: Pace) -> list[str]:
        return list(report_text.processes({"processes": paces_to_json(paces, 2)}))

    assert lines(pace(0, 100), pace(1, 104)) == ["  processes  2 of 2 report step times"]
    assert "the slowest is process 1" in lines(pace(0, 100), pace(1, 130))[1]

"""What a report, and an incident, say about data loaders: which stage and which worker training waits for."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from otel_goodput import Recorder
from otel_goodput._incidents.evidence import Circumstance
from otel_goodput._incidents.loader import LoaderStages
from otel_goodput._journal.loader_times import OWN_WORKER, LoaderSheet, WorkerTimes
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput.reports.loader import cause_of, slow_worker
from otel_goodput.reports.report import Report
from otel_goodput.reports.run import RecordedRun
from otel_goodput.semconv import Category, IncidentKind

MS, S = 10**6, 10**9
NOTHING = (0, 0, 0, 0, 0)


def times(worker: int, batches: int, exposed: int, hidden: int) -> WorkerTimes:
    """Of a worker whose time goes into transforms, ms."""
    return WorkerTimes(worker, batches, (0, exposed * MS, 0, 0, 0), (0, hidden * MS, 0, 0, 0))


@pytest.mark.parametrize(
    ("workers", "slow"),
    [
        ([times(0, 10, 900, 100), times(1, 10, 0, 1000), times(2, 10, 0, 1000)], None),  # all as fast, one comes first
        ([times(0, 10, 0, 500), times(1, 10, 900, 900), times(2, 10, 100, 400)], 1),
        ([times(0, 10, 300, 200), times(1, 10, 500, 100), times(2, 10, 400, 100)], None),
        ([times(0, 10, 0, 500), times(1, 10, 100, 900), times(2, 10, 900, 0)], None),  # it is slow, and not waited for
        ([times(OWN_WORKER, 10, 900, 0)], None),
        ([times(OWN_WORKER, 10, 900, 0), times(0, 10, 0, 100)], None),
        ([times(0, 10, 900, 900), times(1, 0, 0, 0)], None),
    ],
)
def test_a_worker_is_named_only_if_its_batches_take_longer(workers: Sequence[WorkerTimes], slow: int | None) -> None:
    named = slow_worker(workers, "transform")
    assert slow == (None if named is None else workers[named.place].worker)
    assert slow_worker(workers, "queue") is None


def test_no_stage_is_named_if_none_has_most_of_the_waiting() -> None:
    assert cause_of((40, 60, 0, 0, 0)) == "transform" and cause_of((40, 40, 20, 0, 0)) is None
    assert cause_of(NOTHING) is None


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """Of 10 s, 4 s were productive, and 5 s were spent waiting for data."""
    recorder = Recorder("loads", run_id="run", directory=tmp_path, exporters="none", integrations="none")
    begin = time.time_ns() + 3600 * S
    with recorder.job(start_time=begin, end_time=begin + 10 * S):
        with recorder.data_loading(start_time=begin + S, end_time=begin + 6 * S):
            pass
        with recorder.step(0, start_time=begin + 6 * S, end_time=begin + 10 * S):
            pass
    recorder.shutdown()
    return RunDirectory(tmp_path / "run")


def fill(run: RunDirectory, *workers: WorkerTimes) -> Report:
    sheet = LoaderSheet(0, 0)
    for one in workers:
        for _ in range(one.batches):
            sheet.take(one.worker, *([time // one.batches for time in of] for of in (one.exposed, one.hidden)))
    sheet.keep(run, last=True)
    return RecordedRun(run).report()


def test_the_goodput_of_an_ideal_loader(run: RunDirectory) -> None:
    report = fill(run, times(0, 10, 500, 100), times(1, 10, 4000, 4000), times(2, 10, 0, 800))
    loader = report.to_json()["loader"]
    assert loader["ideal_goodput"] == pytest.approx(4 / 5) and loader["waited_s"] == 4.5
    assert (loader["waits_in"], loader["slow_rank"], loader["slow_worker"]) == ("transform", 0, 1)
    where = "waiting in transform on worker 1 (800 ms a batch, others 70 ms); with an ideal loader: goodput 80.00 %"
    assert str(report).splitlines()[-1] == (
        f"  The largest loss: 5.0 s (50.00 %) was spent waiting for data (data_loading) ({where}); prefetch batches or "
        "give the input pipeline more workers."
    )
    lines = [line for line in str(report).splitlines() if "data loader" in line or line.startswith("    waiting")]
    hidden = "another 4.9 s was hidden behind steps"
    assert lines == [f"  data loader  training waited 4.5 s: transform 100.00 %; {hidden}", f"    {where}"]


def test_a_run_without_timed_loaders_says_nothing(run: RunDirectory) -> None:
    report = RecordedRun(run).report()
    assert "loader" not in report.to_json() and "data loader" not in str(report)


def test_a_past_moment_has_no_times(run: RunDirectory) -> None:
    fill(run, times(0, 10, 500, 100))
    assert "loader" not in RecordedRun(run).report(at=time.time_ns() + 3605 * S).to_json()


def test_evidence_is_about_the_time_since_the_incident_began() -> None:
    now, sheet = [0], LoaderSheet(0, 0)
    stages = LoaderStages(sheet.times, lambda: now[0])

    def take(seconds: int, transform: int, fetch: int) -> None:
        for _ in range(seconds):
            for worker in range(3):
                slow = transform if worker == 2 else 1
                waited = (fetch * MS, slow * MS, 0, 0, 0) if worker == 2 else NOTHING
                sheet.take(worker, waited, NOTHING if worker == 2 else (0, slow * MS, 0, 0, 0))
            now[0] += S
            stages.look()

    take(56, 1, 100)  # it looks every 5 s
    began = now[0]
    take(20, 300, 100)
    of = Circumstance(IncidentKind.SLOWDOWN, Category.DATA_LOADING, began, now[0])
    text = "of the waiting for data, {} was for stage {}, mostly of worker 2: it takes {} a batch, others {}"
    transform = text.format("75.00 %", "transform", "300 ms", "1 ms")
    assert stages.sentences(of) == [transform]
    assert stages.sentences(of._replace(category=Category.CHECKPOINT_SAVE)) == []
    take(1, 1, 900)
    assert stages.sentences(of) == [transform]  # it changes seldom
    take(100, 1, 900)
    assert stages.sentences(of) == [text.format("93.84 %", "fetch", "768 ms", "0 ms")]
    assert stages.sentences(of._replace(began=now[0])) == []  # nothing was loaded since

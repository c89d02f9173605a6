"""Reports of jobs whose ranks' journals differ: in their format, in number from one attempt to the next, or in fate."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from viewer.ranks import ranks_run, step_together, write_rank

from otel_goodput._accounting import Event
from otel_goodput._accounting import events as ev
from otel_goodput._accounting.rules import PHASE_INDEX
from otel_goodput._journal import records
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput.reports.report import Report
from otel_goodput.reports.run import RecordedRun
from otel_goodput.semconv import Phase


def adds_up(report: Report) -> bool:
    run = report.totals.run
    return sum(run.categories.values()) + sum(run.custom.values()) == run.elapsed > 0


def test_a_rank_whose_journal_is_of_a_newer_version_is_left_out(tmp_path: Path) -> None:
    """An image was updated on some of the hosts only."""
    run = ranks_run(tmp_path, 4, 20)
    before = RecordedRun(run).report()
    for path in run.journal.glob("a*-p0002-*.segment.gz"):
        head = records.HEADER.pack(records.MAGIC, records.VERSION + 1, 2, 0, 0, 1, 0)
        path.with_suffix("").write_bytes(head.ljust(1 << 16, b"\1"))
        path.unlink()
    for suffix in ("snapshot", "digest"):
        run.file(suffix, 2).unlink()
    report = RecordedRun(run).report()
    ranks = report.to_json()["ranks"]
    assert (ranks["count"], ranks["expected"], ranks["missing"]) == (3, 4, [2])
    assert "missing ranks" in {note.kind for note in report.notes} and "journal version 2" in str(report)
    assert adds_up(report) and report.totals.kept == before.totals.kept == 20 and not report.totals.history


def only(attempt: int) -> Callable[[list[Event]], list[Event]]:
    """What a rank records that is there in one of two attempts only."""

    def cut(events: list[Event]) -> list[Event]:
        begins = [at for at, event in enumerate(events) if event.kind == ev.ATTEMPT]
        return events[: begins[1]] if attempt == 0 else events[begins[1] :]

    return cut


@pytest.mark.parametrize("attempt", [0, 1], ids=["fewer", "more"])
def test_an_attempt_with_more_or_fewer_ranks_than_the_one_before(attempt: int, tmp_path: Path) -> None:
    sizes = (5, 3) if attempt == 0 else (3, 5)
    recorded = step_together(5, 40, dies_in=20, back=5)
    run = RunDirectory(tmp_path / "run")
    run.create({"run_id": "run", "job_name": "ranks", "created_at": 1.0, "process_count": sizes[0]})
    for rank, events in enumerate(recorded):
        write_rank(run, rank, events if rank < 3 else only(attempt)(events), sizes)
    report = RecordedRun(run).report()
    ranks = report.to_json()["ranks"]
    assert adds_up(report) and ranks["together"] and not ranks["missing"]
    totals = report.totals
    assert (totals.attempts, totals.kept, totals.lost) == (2, 40, 6) and [one.reason for one in totals.history]
    same = RecordedRun(ranks_run(tmp_path, 5, 40, dies_in=20, back=5, name="all")).report().totals
    assert totals.run.elapsed == same.run.elapsed
    for category, spent in same.run.categories.items():  # a step begins with the last of its ranks
        assert abs(totals.run.categories[category] - spent) < 0.002 * same.run.elapsed, category
    assert report.standing is not None and report.standing.state == "ended" and totals.ended


@pytest.mark.parametrize("phase", [Phase.EXCLUSION, Phase.DATA_LOADING])
def test_a_rank_that_excluded_time_when_the_job_died_is_not_accused(phase: str, tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    run.create({"run_id": "run", "job_name": "ranks", "created_at": 1.0, "process_count": 3})
    for rank, events in enumerate(step_together(3, 20, dies_in=15, ends=True)):
        if rank == 1:
            events[-2] = events[-2]._replace(phase=PHASE_INDEX[phase])  # in place of its last step
        write_rank(run, rank, events, (3,))
    report = RecordedRun(run).report()
    ranks, excluded = report.to_json()["ranks"], report.to_json()["excluded_s"]
    assert adds_up(report) and ranks["open"][1]["phase"] == phase
    if phase == Phase.EXCLUSION:
        assert excluded > 0 and ranks["waiting_for"] is None
    else:
        assert excluded == 0 and ranks["waiting_for"]["rank"] == 1


@pytest.mark.release
def test_a_job_of_which_hundreds_of_ranks_die_at_once(tmp_path: Path) -> None:
    run = ranks_run(tmp_path, 300, 6, dies_in=4, back=1)
    began = time.thread_time()
    report = RecordedRun(run).report(exact=True)
    assert time.thread_time() - began < 60
    ranks = report.to_json()["ranks"]
    assert (ranks["count"], ranks["missing"], ranks["together"]) == (300, [], True)
    assert adds_up(report) and len(report.totals.history) == 1 and report.totals.attempts == 2

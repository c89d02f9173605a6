"""The document of a job of several ranks: the job's own account in all of it, and next to it that of process 0."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from otel_goodput._accounting import rules
from otel_goodput._accounting.job import Cause
from otel_goodput._accounting.rank_updates import Opened
from otel_goodput._accounting.rules import CATEGORY_INDEX
from otel_goodput._journal.job_now import JobNow, RankDoing, write_now
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._viewer.document import document, window
from otel_goodput.reports import excerpt
from otel_goodput.reports.run import FollowedRun, RecordedRun
from otel_goodput.reports.run_view import RunView
from otel_goodput.semconv import Category

from .conftest import NS
from .ranks import BEGIN, Slow, ranks_run, with_records
from .test_document import Container, Page, without_zeros

RANKS, STEPS, DIES_IN, BACK = 4, 90, 60, 6


def run_of(directory: Path) -> RunDirectory:
    """A job in which rank 2 is slow for a while, and which is killed once; its leader saves."""
    return ranks_run(directory, RANKS, STEPS, [Slow(2, 20, 40, 230)], dies_in=DIES_IN, back=BACK, saves=25)


@pytest.fixture(scope="module")
def merged(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return run_of(tmp_path_factory.mktemp("job"))


@pytest.fixture(scope="module")
def page(merged: RunDirectory) -> Page:
    return Page(merged)


class Leader(Page):
    """The part of a document about process 0."""

    def __init__(self, page: Page) -> None:
        self.session, self.container = page.session, page.container
        self.head = {**page.head, **page.head["leader"]}


def consistent(page: Page, report: dict[str, Any]) -> None:
    """All tables of a document add up to the same report."""
    seconds = without_zeros(report["seconds"])
    assert page.seconds({number: sum(values) for number, values in page.bins().items()}) == seconds
    owned, steps = Counter[int](), page.table("steps")
    for row in page.table("owners"):
        owned[row["category"]] += row["length"]
    assert page.seconds(owned) == seconds
    fates = Counter(step["fate"] for step in steps)
    assert (fates[0], fates[1]) == (report["steps"]["kept"], report["steps"]["lost"])
    assert (
        sum(step["net"] for step in steps if step["fate"] == 0)
        == owned[rules.PRODUCTIVE] + owned[rules.PROGRAM_STARTUP]
    )
    histogram = [row for row in page.table("histogram") if row["measure"] == 0]
    assert sum(row["count"] for row in histogram) == report["started_steps"]
    for one, listed in zip(page.head["disruptions"], report["disruption_list"], strict=True):
        assert one["reason"] == listed["reason"]
        assert (one["recovery_ns"] / NS, one["wasted_ns"] / NS) == (listed["recovery_s"], listed["wasted_s"])
    assert [row["step"] for row in page.table("saves")] == [24, 49, 74]
    assert page.table("at_risk")[-1]["ns"] / NS == report["at_risk_s"]


def test_all_of_it_is_the_jobs_and_process_0_has_its_own(merged: RunDirectory, page: Page) -> None:
    whole, own = (RecordedRun(merged).report(process=process).to_json() for process in (None, 0))
    assert whole["seconds"] != own["seconds"]
    for shown, report in ((page, whole), (Leader(page), own)):
        assert shown.head["report"]["seconds"] == report["seconds"]
        consistent(shown, dict(report))
    assert [one["facts"]["attempt"] for one in page.head["attempts"]] == [0, 1]
    assert {row["process"] for row in page.table("process_steps")} == {*range(RANKS)}


def test_the_jobs_own_records_give_the_same_page(merged: RunDirectory, page: Page, tmp_path: Path) -> None:
    run = with_records(RunDirectory(Path(shutil.copytree(merged.path, tmp_path / "run"))))
    again = Page(run, records=True)
    assert again.head["report"].pop("rolling") == []  # these records have no windows
    before = {**page.head, "report": {**page.head["report"]}}
    before["report"].pop("rolling")
    assert again.head | {"made_at": 0} == before | {"made_at": 0}
    content = [document(one.session) for one in (page, again)]
    assert len({data[8 + int.from_bytes(data[4:8], "little") :] for data in content}) == 1


def test_what_a_long_job_sums_up_can_be_read_of_the_job_and_of_its_leader(merged: RunDirectory, tmp_path: Path) -> None:
    run = with_records(RunDirectory(Path(shutil.copytree(merged.path, tmp_path / "run"))))
    view = RunView.open(RecordedRun(run), spans=1, records=True)
    assert view.leader is not None and view.journal.path.name == "job"
    begin, until = BEGIN + 10 * NS, BEGIN + 20 * NS
    for about, of_leader in ((view, False), (view.leader, True)):
        index = excerpt.TimeIndex(about.journal)
        detail, end = excerpt.window(index, about.overview, begin, until, at=view.at, died=False, most=1000)
        shown = Container(window(view, detail, begin, end, of_leader=of_leader))
        starts = shown.table(shown.head["steps"])["start"]
        assert starts == [one.begin - BEGIN for one in about.detail.steps if begin <= one.begin <= until]


def test_of_a_past_moment_it_is_the_report_of_that_moment(merged: RunDirectory) -> None:
    at = BEGIN + 40 * NS
    shown, report = Page(merged, at=at), RecordedRun(merged).report(at=at).to_json()
    assert shown.head["report"]["seconds"] == report["seconds"]
    assert shown.seconds({number: sum(values) for number, values in shown.bins().items()}) == without_zeros(
        report["seconds"]
    )
    assert max(row["start"] for row in shown.table("steps")) < at - BEGIN


def test_a_run_that_is_followed_has_the_report_of_the_jobs_own_records(merged: RunDirectory, tmp_path: Path) -> None:
    run = with_records(RunDirectory(Path(shutil.copytree(merged.path, tmp_path / "run"))))
    followed = FollowedRun(run)
    shown, report = followed.report().to_json(), RecordedRun(run).report(records=True).to_json()
    assert shown["ranks"] == report["ranks"] and report["ranks"] is not None
    assert {**shown, "rolling": []} == {**report, "rolling": []}
    assert followed.leader is not None
    assert followed.leader.to_json()["seconds"] == RecordedRun(run).report(process=0).to_json()["seconds"]


def test_what_the_ranks_did_last_is_in_the_report_of_a_job_that_died(tmp_path: Path) -> None:
    run = with_records(ranks_run(tmp_path, RANKS, 40, dies_in=30, ends=True))
    at = RecordedRun(run).report(records=True).totals.at
    load = Opened(CATEGORY_INDEX[Category.DATA_LOADING], "", 31, at - 30 * NS)
    ranks = [RankDoing(rank, "n1", 7 + rank, at, False, load if rank == 2 else None) for rank in range(RANKS)]
    write_now(run.of_job, JobNow(at, RANKS, ranks, Cause(2, load.category, ""), load.since))
    report = RecordedRun(run).report(records=True)
    assert report.state == "died"
    assert "at the end the job waited for rank 2 on n0: data_loading, for 30.0 s" in str(report)
    assert [one["state"] for one in report.to_json()["ranks"]["open"]] == ["silent"] * RANKS  # type: ignore[index]
    run.of_job.file("now", 0).write_bytes(b"{}")
    assert RecordedRun(run).report(records=True).to_json()["ranks"]["open"] == []  # type: ignore[index]

"""The live account of a job of several real processes, which exchange what they do through the run's folder (R11)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import warm
from waits import until

import otel_goodput as goodput
from otel_goodput._accounting import Ledger
from otel_goodput._accounting.job import Cause
from otel_goodput._accounting.rules import CATEGORY_INDEX, DATA_LOADING, JOB, NS, STEP
from otel_goodput._journal.account import Account
from otel_goodput._journal.job_now import read_now
from otel_goodput._journal.journal import Journal, Segment
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._live.channels import RankChannel
from otel_goodput._live.rank_messages import decode
from otel_goodput._live.ranks import RankExchange
from otel_goodput._settings import config
from otel_goodput._tools.cli import main
from otel_goodput.reports.run import FollowedRun, RecordedRun
from otel_goodput.semconv import Category

RANK = """
import json, os, sys, time
from pathlib import Path
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
import otel_goodput as goodput
rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
folder, first, last, slow, dies = Path(sys.argv[1]), *map(int, sys.argv[2:6])
reader = InMemoryMetricReader()

def loader():
    for number in range(first, last):
        time.sleep(0.04 if rank == slow else 0.004)
        if rank == slow and number == dies:
            (folder / "hangs").touch()
            time.sleep(60)
        yield number

def meet(number):
    (folder / f"{first}-{number}-{rank}").touch()
    while not all((folder / f"{first}-{number}-{other}").exists() for other in range(count)):
        time.sleep(0.001)

def ratio():
    metrics = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
    [point] = [one for metric in metrics if metric.name == "goodput.ratio" for one in metric.data.data_points
               if one.attributes["goodput.window"] == "run"]
    return point.value

goodput.configure("ranks", run_id="run", directory=folder / "runs", exporters="none", metric_readers=[reader])
with goodput.job():
    for number, _ in goodput.steps(loader(), start=first):
        time.sleep(0.01)
        meet(number)
if rank == 0:
    while goodput.report().ranks is None or not goodput.totals().ended:  # until the others have published their ends
        time.sleep(0.01)
    live = goodput.report().to_json()
    print(json.dumps([live, ratio()]))
"""
COUNT = 4


def start(folder: Path, first: int, last: int, *, slow: int = -1, dies: int = -1) -> list[subprocess.Popen[str]]:
    return [
        warm.Process(
            [sys.executable, "-c", RANK, str(folder), *map(str, (first, last, slow, dies))],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(COUNT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(COUNT)
    ]


def finish(processes: list[subprocess.Popen[str]]) -> tuple[dict[str, Any], float]:
    """Wait for all of them; return the last live report of the leader, and its goodput as a metric."""
    outputs = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0] * COUNT, outputs
    report, ratio = json.loads(outputs[0][0])
    return report, ratio


def exact(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["report", str(folder / "runs"), "--exact", "--json"]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


def test_the_live_account_is_the_one_that_is_read_from_all_journals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    live, ratio = finish(start(tmp_path, 0, 30, slow=2))
    whole = exact(tmp_path, capsys)
    monkeypatch.setattr("otel_goodput.reports.ranks.MERGED_BYTES", 0)  # the journals are too large to be merged
    folder = RunDirectory(tmp_path / "runs" / "run")
    recorded = RecordedRun(folder).report().to_json()
    for one in (live, recorded):
        assert one["seconds"] == whole["seconds"] and one["steps"] == whole["steps"] and one["ended"]
        assert one["elapsed_s"] == whole["elapsed_s"]
        assert one["ranks"]["waits"] == whole["ranks"]["waits"]
    assert live["ranks"]["waits"][0]["rank"] == 2 and live["ranks"]["waits"][0]["category"] == "data_loading"
    assert ratio == live["goodput"]


def test_a_rank_whose_job_is_short_publishes_what_it_did(tmp_path: Path) -> None:
    """Before anything of it was published in the background."""
    recorder = goodput.Recorder(
        "short", run_id="run", directory=tmp_path, exporters="none", process_index=1, process_count=2
    )
    with recorder.job(), recorder.step(0):
        pass
    recorder.shutdown()
    channel = RankChannel(RunDirectory(tmp_path / "run"), "run", 0, 2)
    (data,) = channel.receive()[1]
    update = decode(data).update
    assert [one.number for one in update.steps] == [0] and update.left == update.known >= update.steps[0].end


def killed_in_the_wait(folder: Path, hangs: int, waited: int = 0) -> RunDirectory:
    """Kill all ranks once the leader has noted for `waited` ns that they wait for rank 3, which hangs in its loader."""
    processes = start(folder, 0, 1000, slow=3, dies=hangs)
    run = RunDirectory(folder / "runs" / "run")
    until((folder / "hangs").exists)
    began, waiting = time.time_ns(), Cause(3, CATEGORY_INDEX[Category.DATA_LOADING], "")
    until(run.of_job.file("now", 0).exists)
    until(lambda: (now := read_now(run.of_job)).cause == waiting and now.at > began + waited, pause=0.05)
    for process in processes:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    return run


def assert_the_wait_is_in_its_own_records(run: RunDirectory, whole: dict[str, Any], patch: pytest.MonkeyPatch) -> None:
    """The job's own records say of the wait until the end the same as the journals of all ranks."""
    patch.setattr("otel_goodput.reports.ranks.MERGED_BYTES", 0)  # the journals are too large to be merged
    recorded, followed = RecordedRun(run).report(), FollowedRun(run).report().to_json()
    report = recorded.to_json()
    assert report["state"] == "died" and "at the end the job waited for rank 3" in str(recorded)
    for one in (report, followed):
        assert sum(recorded.totals.run.categories.values()) == recorded.totals.run.elapsed
        assert one["elapsed_s"] == pytest.approx(whole["elapsed_s"], abs=1)
        for category, spent in whole["seconds"].items():
            assert one["seconds"][category] == pytest.approx(spent, abs=1), category
        waits = {(each["rank"], each["category"]): each["until"] for each in one["ranks"]["waits"]}
        assert waits[3, "data_loading"] == pytest.approx(whole["ranks"]["waits"][0]["until"], abs=1)
    assert whole["ranks"]["waits"][0]["rank"] == whole["ranks"]["waiting_for"]["rank"] == 3


def test_a_job_that_was_killed_in_its_first_step_waited_for_the_rank_that_had_not_begun_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = killed_in_the_wait(tmp_path, 0, 2 * NS)  # each rank has given a sign of life since the first second of it
    whole = exact(tmp_path, capsys)
    assert whole["seconds"]["wasted_progress"] == 0 and whole["seconds"]["data_loading"] > 1
    assert_the_wait_is_in_its_own_records(run, whole, monkeypatch)


def test_a_job_that_was_killed_goes_on_with_its_own_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = killed_in_the_wait(tmp_path, 60)
    with monkeypatch.context() as patch:
        assert_the_wait_is_in_its_own_records(run, exact(tmp_path, capsys), patch)
    live, _ = finish(start(tmp_path, 40, 60))
    whole = exact(tmp_path, capsys)
    assert live["attempts"] == whole["attempts"] == 2
    assert live["elapsed_s"] == whole["elapsed_s"] and live["steps"]["kept"] == whole["steps"]["kept"] == 60
    # What the attempt before had not decided yet, the latest seconds, counts as part of the outage.
    assert 0 < live["seconds"]["wasted_progress"] <= whole["seconds"]["wasted_progress"]
    assert live["seconds"]["infrastructure_recovery"] >= whole["seconds"]["infrastructure_recovery"] > 0


def test_what_is_recorded_a_moment_later_than_it_happened_is_in_the_live_account(tmp_path: Path) -> None:
    """A thread that records has read the clock, and has to wait for others before it can write."""
    ms, now = 1_000_000, 1_000_000_000_000_000
    run = RunDirectory(tmp_path / "run")
    run.create({"run_id": "run", "job_name": "ranks", "created_at": now / 1e9, "process_count": 2})
    accounts = [Account(Journal(0, rank, Segment(None)), Ledger(), lambda: now) for rank in range(2)]
    ranks = [
        RankExchange(
            config.read("ranks", run_id="run", process_index=rank, process_count=2, directory=str(tmp_path)), account
        )
        for rank, account in enumerate(accounts)
    ]
    begin = now
    for rank, account in zip(ranks, accounts, strict=True):
        rank.start(run, 0)
        account.begin_attempt(0, 0, None)
        account.start(JOB, 1, -1, 0, "", begin)
        account.start(DATA_LOADING, 2, -1, 0, "", begin)
    for account, loaded in zip(accounts, (100, 4100), strict=True):
        if account is accounts[1]:
            now = begin + 5000 * ms
            for rank in reversed(ranks):
                rank.exchange()
        account.end(DATA_LOADING, 2, 0, begin + loaded * ms)
        account.start(STEP, 3, 0, 0, "", begin + loaded * ms)
    now = begin + 6000 * ms
    for account in accounts:
        account.end(STEP, 3, 0, now)
        account.end(JOB, 1, 0, now)
    for rank in reversed(ranks):
        rank.exchange()
    figures = ranks[0].figures()
    assert figures is not None and figures.totals.run.elapsed == 6000 * ms
    assert figures.totals.run.categories[Category.DATA_LOADING] == 4100 * ms
    assert [cause.rank for cause in figures.costs.whole] == [1] and sum(figures.costs.whole.values()) == 4000 * ms
    for rank in ranks:
        rank.close()

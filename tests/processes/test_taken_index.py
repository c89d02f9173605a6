"""Two processes of one job that have the same index, as after a wrong variable: each has a journal of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import warm
from waits import until

from otel_goodput._accounting import Ledger
from otel_goodput._accounting.rules import JOB, STEP
from otel_goodput._journal.account import Account
from otel_goodput._journal.journal import Journal, Segment
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._live.ranks import RankExchange
from otel_goodput._settings import config
from otel_goodput.reports.run import RecordedRun

RANK = """
import os, sys, time
from pathlib import Path
import otel_goodput as goodput
me, folder, count = sys.argv[1], Path(sys.argv[2]), 3

def meet(number):
    (folder / f"{number}-{me}").touch()
    while not all((folder / f"{number}-{other}").exists() for other in range(count)):
        time.sleep(0.001)

goodput.configure("taken", run_id="run", directory=folder / "runs", exporters="none")
(folder / f"began-{me}").touch()
with goodput.job():
    meet("all")
    for number, _ in goodput.steps(range(60)):
        time.sleep(0.003)
        meet(number)
"""


@pytest.mark.parametrize("taken", [0, 1])
def test_what_a_process_with_a_taken_index_does_is_a_run_of_its_own(taken: int, tmp_path: Path) -> None:
    processes = {}
    for name, index in {"0": 0, "1": 1, "2": 2, "again": taken}.items():
        processes[name] = warm.Process(
            [sys.executable, "-c", RANK, name, str(tmp_path)],
            env={**os.environ, "RANK": str(index), "WORLD_SIZE": "3"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        until((tmp_path / f"began-{name}").exists)
    errors = {name: process.communicate(timeout=60)[1] for name, process in processes.items()}
    assert [process.returncode for process in processes.values()] == [0] * 4, errors
    warning = f"as process {taken}; this process records its own run"
    assert {name: text.count(warning) for name, text in errors.items()} == {"0": 0, "1": 0, "2": 0, "again": 1}
    [own] = (tmp_path / "runs").glob("run~*")

    whole = RecordedRun(RunDirectory(tmp_path / "runs" / "run")).report(exact=True)
    ranks = whole.to_json()["ranks"]
    assert (ranks["count"], ranks["expected"], ranks["missing"], ranks["together"]) == (3, 3, [], True)
    assert whole.totals.kept == 60 and not whole.totals.history and not whole.damage
    assert sum(whole.totals.run.categories.values()) + sum(whole.totals.run.custom.values()) == whole.totals.run.elapsed
    [note] = [note.text for note in whole.notes if note.kind == "index taken"]
    assert f"{own.name!r} (process {taken})" in note
    apart = RecordedRun(RunDirectory(own)).report()
    assert apart.totals.kept == 60 and [note.kind for note in apart.notes].count("index taken") == 1


def test_a_process_elsewhere_with_a_taken_index_does_not_look_like_a_successor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Hosts that share no file system do not see each other's locks, but meet in a store."""
    second, now = 1_000_000_000, 1_000_000_000_000_000
    monkeypatch.setattr("otel_goodput._live.ranks.FIRST_S", 3600.0)  # its threads would publish meanwhile
    run = RunDirectory(tmp_path / "run")
    run.create({"run_id": "run", "job_name": "ranks", "created_at": now / 1e9, "process_count": 2})
    every = list[tuple[Account, RankExchange]]()
    for host, rank in (("n0", 0), ("n1", 1), ("n2", 1)):
        monkeypatch.setattr("socket.gethostname", lambda host=host: host)
        account = Account(Journal(0, rank, Segment(None)), Ledger(), lambda: now)
        settings = config.read("ranks", run_id="run", process_index=rank, process_count=2, directory=str(tmp_path))
        every.append((account, RankExchange(settings, account)))
    leader, first, again = every

    def begin(account: Account, ranks: RankExchange) -> None:
        ranks.start(run, 0)
        account.begin_attempt(0, 0, None)
        account.start(JOB, 1, -1, 0, "", now)

    begin(*leader)
    begin(*first)
    for at in range(6):
        now += second
        if at == 1:
            begin(*again)
        if at == 0:
            publishing = [first]
        else:  # the one that publishes last is seen
            publishing = [first, again] if at % 2 else [again, first]
        for account, ranks in (*publishing, leader):
            account.start(STEP, 2, at, 0, "", now - second // 2)
            account.end(STEP, 2, at, now - second // 4)
            ranks.exchange()
    figures = leader[1].figures()
    assert figures is not None and figures.ranks == 2 and figures.together and figures.places[1][0] == "n1"
    assert not figures.totals.history and figures.totals.attempts == 1 and not figures.costs.whole
    assert caplog.text.count("two processes publish as rank 1: pid") == 1
    assert [note.kind for note in leader[0].notes.all()] == ["index taken 1"]
    for _, ranks in every:
        ranks.close()

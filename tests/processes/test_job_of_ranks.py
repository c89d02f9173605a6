"""The account of a job of several real processes that step together, against what they noted by themselves (R11)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import warm

from otel_goodput._tools.cli import main
from otel_goodput.errors import JournalError
from otel_goodput.reports.run import runs_at

RANK = """
import json, os, signal, sys, time
from pathlib import Path
import otel_goodput as goodput
rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
folder, first, last, slow, dies = Path(sys.argv[1]), *map(int, sys.argv[2:6])

def loader():
    for number in range(first, last):
        time.sleep(0.04 if rank == slow else 0.004)
        yield number

def meet(number):
    (folder / f"{first}-{number}-{rank}").touch()
    while count > 1 and not all((folder / f"{first}-{number}-{other}").exists() for other in range(count)):
        time.sleep(0.001)

goodput.configure("ranks", run_id="run", directory=folder / "runs", exporters="none")
with goodput.job(), (folder / f"own-{rank}").open("a") as own:
    for number, _ in goodput.steps(loader(), start=first):
        begin = time.time_ns()
        time.sleep(0.01)
        if dies >= 0 and number == dies and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        meet(number)
        print(json.dumps([number, begin, time.time_ns()]), file=own, flush=True)
"""
COUNT = 4


def train(folder: Path, first: int, last: int, *, slow: int = -1, dies: int = -1) -> None:
    """Have the processes train in step; if one of them dies, kill the others."""
    processes = [
        warm.Process(
            [sys.executable, "-c", RANK, str(folder), *map(str, (first, last, slow, dies))],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(COUNT)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(COUNT)
    ]
    if dies >= 0:
        processes[1].wait(60)
        for process in processes:
            process.send_signal(signal.SIGKILL)
    errors = [process.communicate(timeout=60)[1] for process in processes]
    if dies < 0:
        assert [process.returncode for process in processes] == [0] * COUNT, errors


def own(folder: Path) -> list[list[tuple[int, int]]]:
    """Begin and end (ns) of each completed step on each rank."""
    ranks = [[json.loads(line) for line in (folder / f"own-{rank}").read_text().splitlines()] for rank in range(COUNT)]
    return [[(begin, end) for _, begin, end in step] for step in zip(*ranks, strict=True)]


def exact(folder: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert main(["report", str(folder / "runs"), "--exact", *options]) == 0
    return capsys.readouterr().out


def test_a_rank_with_a_slow_loader_is_named_in_the_second_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path, 0, 30, slow=2)
    lines = [line for line in exact(tmp_path, capsys).splitlines() if line]
    assert lines[1].startswith("  goodput ") and "for rank 2: data_loading" in lines[2]
    report: dict[str, Any] = json.loads(exact(tmp_path, capsys, "--json"))
    steps = own(tmp_path)
    begins = [max(begin for begin, _ in step) for step in steps]
    ends = [max(end for _, end in step) for step in steps]
    works = (sum(ends) - sum(begins)) / 1e9
    assert report["seconds"]["productive"] == pytest.approx(works, rel=0.05, abs=0.05)
    # Without the first step, before which the processes start one after the other.
    lost = sum(
        begin - max(sorted(each for each, _ in step)[1], end)  # half of the others could work
        for begin, step, end in zip(begins[1:], steps[1:], ends, strict=False)
    )
    waited = {one["rank"]: one["seconds"] for one in report["ranks"]["waits"] if one["category"] == "data_loading"}
    assert report["ranks"]["count"] == COUNT and max(waited, key=waited.__getitem__) == 2
    assert waited[2] == pytest.approx(lost / 1e9, rel=0.1, abs=0.06)
    # The account of the leader says nothing of it.
    assert main(["report", str(tmp_path / "runs"), "--json"]) == 0
    leader = json.loads(capsys.readouterr().out)
    assert leader["goodput"] > 2 * report["goodput"] and "ranks" not in leader


def test_the_outage_of_one_rank_is_that_of_the_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path, 0, 30, dies=12)
    train(tmp_path, 10, 20)
    report = json.loads(exact(tmp_path, capsys, "--json"))
    assert report["attempts"] == 2 and report["steps"]["kept"] == 20
    seconds = report["seconds"]
    assert seconds["infrastructure_recovery"] > 0 and seconds["wasted_progress"] > 0
    known = sum(sum(spent.values()) if isinstance(spent, dict) else spent for spent in seconds.values())
    assert round(known * 1e9) == round(report["elapsed_s"] * 1e9)


def test_ranks_that_do_not_step_together_have_no_account_of_the_job(tmp_path: Path) -> None:
    for rank in range(2):  # one after the other
        done = warm.run(
            [sys.executable, "-c", RANK.replace('"WORLD_SIZE"', '"ONE"'), str(tmp_path), "0", "20", "-1", "-1"],
            env={**os.environ, "RANK": str(rank), "ONE": "1", "WORLD_SIZE": "2"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    with runs_at(str(tmp_path / "runs")) as runs:
        assert runs[0].report().totals.executed == 20
        with pytest.raises(JournalError, match="do not step together"):
            runs[0].report_of_ranks()


@pytest.mark.parametrize("option", [["--process", "1"], ["--at", "now"], ["--html", "page.html"], ["--slowest", "3"]])
def test_what_is_about_one_process_is_refused(
    option: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(tmp_path), "--exact", *option]) == 1
    assert option[0] in capsys.readouterr().err

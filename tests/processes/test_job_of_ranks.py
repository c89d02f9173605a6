"""The account of a job of several real processes that step together, against what they noted by themselves (R11)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import warm
from waits import until

from otel_goodput._tools.cli import main
from otel_goodput.errors import JournalError
from otel_goodput.reports import ranks
from otel_goodput.reports.listing import row_of
from otel_goodput.reports.run import runs_at
from otel_goodput.runs import open_run

RANK = """
import json, os, signal, sys, threading, time
from pathlib import Path
import otel_goodput as goodput
rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
folder, first, last, slow, dies, hangs, stands = Path(sys.argv[1]), *map(int, sys.argv[2:8])

def loader():
    for number in range(first, last):
        time.sleep(0.04 if rank == slow else 0.004)
        if rank == slow and number == hangs:
            threading.Event().wait(60)
        yield number

def meet(number):
    (folder / f"{first}-{number}-{rank}").touch()
    while count > 1 and not all((folder / f"{first}-{number}-{other}").exists() for other in range(count)):
        if (folder / "gone").exists():
            raise RuntimeError("connection closed by peer")
        time.sleep(0.001)

goodput.configure("ranks", run_id="run", directory=folder / "runs", exporters="none")
with goodput.job(), (folder / f"own-{rank}").open("a") as own:
    for number, _ in goodput.steps(loader(), start=first):
        begin = time.time_ns()
        time.sleep(1.0 if number == stands else 0.01)
        if dies >= 0 and number == dies and rank == count - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        meet(number)
        print(json.dumps([number, begin, time.time_ns()]), file=own, flush=True)
"""
COUNT = 4
HANG_S = 0.3


def start(folder: Path, first: int, last: int, *numbers: int, count: int = COUNT) -> list[warm.Process]:
    return [
        warm.Process(
            [sys.executable, "-c", RANK, str(folder), *map(str, (first, last, *numbers))],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(count), "OTEL_GOODPUT_STALLED_AFTER": "0.3"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]


def train(
    folder: Path, first: int, last: int, *, slow: int = -1, dies: int = -1, stands: int = -1, count: int = COUNT
) -> float:
    """Have the processes train in step; if the last one dies, the others fail, after they have waited ``HANG_S``.

    Returns when it was gone, s on the monotonic clock; 0 if it did not die.
    """
    processes, gone = start(folder, first, last, slow, dies, -1, stands, count=count), 0.0
    if dies >= 0:
        processes[-1].wait(60)
        gone = time.monotonic()
        until(lambda: time.monotonic() > gone + HANG_S)
        (folder / "gone").touch()
    errors = [process.communicate(timeout=60)[1] for process in processes]
    (folder / "gone").unlink(missing_ok=True)
    if dies < 0:
        assert [process.returncode for process in processes] == [0] * count, errors
    return gone


def own(folder: Path) -> list[list[tuple[int, int]]]:
    """Begin and end (ns) of each completed step on each rank."""
    ranks = [[json.loads(line) for line in (folder / f"own-{rank}").read_text().splitlines()] for rank in range(COUNT)]
    return [[(begin, end) for _, begin, end in step] for step in zip(*ranks, strict=True)]


def worked(steps: list[list[tuple[int, int]]], seconds: float) -> bool:
    """Whether the ranks worked for so long: from when all had begun a step until one, or all, had left it."""
    begins = sum(max(begin for begin, _ in step) for step in steps)
    least, most = (sum(which(end for _, end in step) for step in steps) - begins for which in (min, max))
    return 0.95 * least / 1e9 - 0.05 <= seconds <= 1.05 * most / 1e9 + 0.05


def printed(folder: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert main(["report", str(folder / "runs"), *options]) == 0
    return capsys.readouterr().out


def figures(folder: Path, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(printed(folder, capsys, "--json", *options))
    return report


def harmed_records(segment: Path) -> None:
    data = bytearray(segment.read_bytes())
    data[64 + 32 * 8 : 64 + 32 * 24] = bytes([7]) * 32 * 16
    segment.write_bytes(data)


def harmed_head(segment: Path) -> None:
    segment.write_bytes(b"no segment" * 10)


def removed(segment: Path) -> None:
    """As with a rank that records elsewhere."""
    for path in segment.parent.glob(f"*p{segment.name[7:11]}*"):
        path.unlink()


def test_a_rank_whose_loader_is_slow_lowers_the_headline_and_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path / "even", 0, 20)
    train(tmp_path / "slow", 0, 30, slow=2)
    folder = tmp_path / "slow"
    text = printed(folder, capsys)
    lines = [line for line in text.splitlines() if line]
    assert ", 4 ranks, " in lines[0] and lines[1].startswith("  goodput ")
    assert "of the time the job waited for rank 2, data_loading on host " in lines[2]
    assert "% of it for rank 2" in lines[-1] and "process" not in lines[-1]
    report = figures(folder, capsys)
    assert printed(folder, capsys, "--exact") == text
    steps = own(folder)
    assert worked(steps, report["seconds"]["productive"])
    # Without the first step, before which the processes start one after the other. Half of the others could work.
    least, most = (
        sum(
            max(0, step[2][0] - max(sorted(begin for begin, _ in step)[1], which(end for _, end in before)))
            for before, step in pairwise(steps)
        )
        for which in (max, min)
    )
    waits = [one for one in report["ranks"]["waits"] if one["category"] == "data_loading"]
    waited = {one["rank"]: one["seconds"] for one in waits}
    assert report["ranks"]["count"] == COUNT and max(waited, key=waited.__getitem__) == 2
    assert 0.9 * least / 1e9 - 0.06 <= waited[2] <= 1.1 * most / 1e9 + 0.06
    (longest,) = (one for one in waits if one["rank"] == 2)
    without = report["seconds"]["productive"] / (report["elapsed_s"] - longest["seconds"])
    assert longest["goodput_without"] == pytest.approx(without) and longest["host"]
    assert longest["goodput_without"] > report["goodput"]
    # The account of the leader says nothing of it, and whose it is.
    leader = figures(folder, capsys, "--process", "0")
    assert leader["seconds"]["productive"] > report["seconds"]["productive"] + waited[2] / 2 and "ranks" not in leader
    assert leader["process"] == {"index": 0, "count": COUNT, "reason": None}
    assert ", process 3 of 4, " in printed(folder, capsys, "--process", "3").splitlines()[0]
    # Whoever shows the run shows the job.
    with runs_at(str(folder / "runs")) as runs:
        assert row_of(runs[0]).goodput == report["goodput"]
    assert open_run(folder / "runs").report().totals.run.goodput == report["goodput"]
    assert main(["compare", str(folder / "runs"), str(tmp_path / "even" / "runs"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["a"]["goodput"] == report["goodput"]
    # What cannot be read of one rank says nothing of the others, and nobody is blamed for it.
    for harm in (harmed_records, harmed_head, removed):
        for rank in (0, 3):
            place = tmp_path / f"{harm.__name__}-{rank}"
            copytree(folder / "runs", place / "runs")
            (segment,) = (place / "runs" / "run" / "journal").glob(f"a*-p000{rank}-*.segment")
            harm(segment)
            status = main(["report", str(place / "runs"), "--json"])
            others = json.loads(capsys.readouterr().out)
            missing = others["ranks"]["missing"]
            assert status == (0 if harm is removed else 3)
            assert missing == [rank] or (harm is harmed_records and not missing)
            assert others["ranks"]["count"] == COUNT - len(missing) and others["ranks"]["waits"][0]["rank"] == 2
            if missing:
                left = [[one for at, one in enumerate(step) if at != rank] for step in steps]
                assert worked(left, others["seconds"]["productive"])
    # The past and parts of the job are the job's, too.
    half = report["started_at"] + report["elapsed_s"] / 2
    past = ("--at", str(half), "--window", str(half - report["elapsed_s"] / 4), str(half))
    part, leader = figures(folder, capsys, *past), figures(folder, capsys, *past, "--process", "0")
    assert part["state"] == "running" and part["elapsed_s"] == pytest.approx(report["elapsed_s"] / 2)
    assert part["goodput"] < leader["goodput"] and part["windows"][0]["goodput"] < leader["windows"][0]["goodput"]


def test_journals_that_are_too_large_are_merged_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tmp_path, 0, 10, count=2)
    merged = printed(tmp_path, capsys)
    assert ", 2 ranks, " in merged
    monkeypatch.setattr(ranks, "MERGED_BYTES", 100)
    shutil.rmtree(tmp_path / "runs" / "run" / "job", ignore_errors=True)  # no account of the leader
    text = printed(tmp_path, capsys)
    assert ", process 0 of 2, " in text.splitlines()[0] and "of process 0 of 2 only: the journals of all ranks" in text
    assert main(["runs", str(tmp_path / "runs")]) == 0
    assert "run: of process 0 of 2 only: the journals of all ranks are too large" in capsys.readouterr().out
    assert main(["runs", str(tmp_path / "runs"), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["runs"]
    assert row["process"]["index"] == 0 and row["process"]["count"] == 2
    assert printed(tmp_path, capsys, "--exact") == merged


def test_the_rank_that_hangs_in_its_loader_is_the_one_that_is_accused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    processes = start(tmp_path, 0, 30, 2, -1, 12, -1)
    try:
        until(lambda: (tmp_path / "0-11-2").exists(), 60)

        def waiting() -> bool:
            return bool((figures(tmp_path, capsys).get("ranks") or {}).get("waiting_for"))

        until(waiting, 60)
        for _ in range(3):
            report = figures(tmp_path, capsys)
            known = report["ranks"]
            assert report["state"] == "running" and known["waiting_for"]["rank"] == 2
            assert known["waiting_for"]["category"] == "data_loading"
            doing = {one["rank"]: (one["phase"], one["step"], one["pid"]) for one in known["open"]}
            pids = [process.pid for process in processes]
            assert doing == {rank: ("step", 12, pids[rank]) for rank in (0, 1, 3)} | {
                2: ("data_loading", None, pids[2])
            }
            text = printed(tmp_path, capsys)
            assert "the job waits for rank 2 on " in text and "waits for rank" not in text.replace("rank 2", "it")
    finally:
        for process in processes:
            process.send_signal(signal.SIGKILL)
            process.communicate(timeout=60)
    lines = printed(tmp_path, capsys).splitlines()
    assert lines[0].endswith(", died") and "the job died at" in lines[1]
    assert any(line.startswith("  at the end the job waited for rank 2 on ") for line in lines)


def test_a_standstill_of_all_ranks_is_not_goodput(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path, 0, 20, stands=10)
    report = figures(tmp_path, capsys)
    assert report["steps"]["kept"] == 20 and 0.6 < report["seconds"]["stalled"] < 1.0
    assert not [one for one in report["ranks"]["waits"] if one["category"] == "stalled"], "nobody is accused"


def test_the_outage_of_one_rank_is_that_of_the_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gone = train(tmp_path, 0, 30, dies=12)
    back = time.monotonic()
    train(tmp_path, 10, 20, count=2)  # nobody waits for the two that do not come back
    report = figures(tmp_path, capsys)
    assert report["attempts"] == 2 and report["steps"]["kept"] == 20
    seconds = report["seconds"]
    leader = figures(tmp_path, capsys, "--process", "0")["seconds"]
    assert back - gone < seconds["infrastructure_recovery"] < leader["infrastructure_recovery"] + HANG_S + 0.5
    assert seconds["wasted_progress"] > 0 and report["steps"]["lost"] == 2
    known = sum(sum(spent.values()) if isinstance(spent, dict) else spent for spent in seconds.values())
    assert round(known * 1e9) == round(report["elapsed_s"] * 1e9)


def test_ranks_that_do_not_step_together_have_the_sum_of_their_accounts(tmp_path: Path) -> None:
    for rank in range(2):  # one after the other
        done = warm.run(
            [
                sys.executable,
                "-c",
                RANK.replace('"WORLD_SIZE"', '"ONE"'),
                str(tmp_path),
                "0",
                "20",
                "-1",
                "-1",
                "-1",
                "-1",
            ],
            env={**os.environ, "RANK": str(rank), "ONE": "1", "WORLD_SIZE": "2"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    with runs_at(str(tmp_path / "runs")) as runs:
        report = runs[0].report()
        assert report.ranks is not None and not report.ranks.together
        assert "the ranks do not step together: this is the sum of their accounts" in str(report)
        alone = [runs[0].report(process=rank).totals.run for rank in range(2)]
        assert report.totals.run.goodput == pytest.approx(
            sum(one.productive for one in alone) / sum(one.elapsed for one in alone)
        )
        # A part of their time is not known: then it is that of one process, and said so.
        part = runs[0].report(windows=[(0, 1)])
        assert part.process is not None and "do not step together" in (part.process.reason or "")
        assert ", process 0 of 2, " in str(part).splitlines()[0]
        with pytest.raises(JournalError, match="do not step together"):
            runs[0].report(windows=[(0, 1)], exact=True)


def test_a_rank_that_numbers_the_same_steps_one_higher_is_named(tmp_path: Path) -> None:
    program = (
        RANK.replace("start=first)", "start=first + (rank == 1))")
        .replace("        meet(number)\n", "        meet(number - (rank == 1))\n")
        .replace("else 0.004", "else 0.02")  # longer than clocks of ranks may be apart
    )
    program += """
    while rank == 0 and goodput.report().ranks is None:  # no other rank has been heard of
        time.sleep(0.01)
goodput.shutdown()
if rank == 0:
    (folder / "live").write_text(str(goodput.report()))
"""
    processes = [
        warm.Process(
            [sys.executable, "-c", program, str(tmp_path), "0", "30", *["-1"] * 4],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "3"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    for process in processes:
        _, error = process.communicate(timeout=60)
        assert process.returncode == 0, error
    with runs_at(str(tmp_path / "runs")) as runs:
        texts = [(tmp_path / "live").read_text(), *(str(runs[0].report(exact=exact)) for exact in (False, True))]
    for text in texts:
        assert "the ranks do not step together" in text
        assert "number the same steps otherwise than the others: rank 1 by 1 higher" in " ".join(text.split())


@pytest.mark.parametrize("option", [["--process", "1"], ["--html", "page.html"], ["--slowest", "3"]])
def test_what_is_about_one_process_is_refused(
    option: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(tmp_path), "--exact", *option]) == 1
    assert option[0] in capsys.readouterr().err

"""Who ended whom: a launcher ends the other processes once one has crashed; a scheduler ends all of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import warm

from benchmarks.container import Container
from otel_goodput._accounting.events import NO_STEP
from otel_goodput._accounting.rules import NS
from otel_goodput._journal.clock_offsets import KnownOffset, write_offsets
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._timeline.run_state import APART_NS, RAISED_NS, WAITED_NS, Culprit, Death, culprit
from otel_goodput._viewer.document import document
from otel_goodput.reports import perfetto
from otel_goodput.reports.run import FollowedRun, RecordedRun
from otel_goodput.reports.run_view import RunView

RANK = """
import os, signal, sys, time
real, ahead = time.time_ns, int(os.environ.get("AHEAD", "0").split(",")[-int(os.environ["RANK"])])
time.time_ns = lambda: real() + ahead
import otel_goodput as goodput
how = sys.argv[1]
goodput.configure("ranks", run_id="run", exporters="none")
def meet(step):  # as in a collective operation, none goes on before all are there
    place = os.environ["MEET"]
    open(os.path.join(place, f"{step}-{os.environ['RANK']}"), "w").close()
    while not all(os.path.exists(os.path.join(place, f"{step}-{rank}")) for rank in (0, 1)):
        time.sleep(0.0005)
with goodput.job():
    for step, _ in goodput.steps(range(100_000)):
        time.sleep(0.002)
        if step == 5:
            print("there", flush=True)
            sys.stdin.readline()
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "raise":
                raise RuntimeError(os.environ.get("ERROR", "diverged"))
            if how == "end":
                break
        meet(step)
"""


def start(folder: Path, hows: list[str], **variables: str) -> list[warm.Process]:
    processes = []
    place = Path(tempfile.mkdtemp(prefix="meet-", dir=folder))
    for rank, how in enumerate(hows):
        environment = {**os.environ, "OTEL_GOODPUT_STRICT": "", "RANK": str(rank), "WORLD_SIZE": str(len(hows))}
        environment["MEET"] = str(place)
        processes.append(
            warm.Process(
                [sys.executable, "-c", RANK, how],
                cwd=folder,
                env={**environment, **variables},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        )
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
    return processes


def go_on(process: warm.Process) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def disruption(folder: Path) -> dict[str, Any]:
    """What is recorded of the latest one, once all have begun again and ended."""
    processes = start(folder, ["end", "end"])
    for process in processes:
        process.communicate("\n", timeout=60)
    run = RunDirectory(folder / "goodput" / "run")
    report = RecordedRun(run).report()
    (disruption_listed,) = report.to_json()["disruption_list"]
    followed = FollowedRun(run)
    (leaders,) = followed.report().to_json()["disruption_list"]
    who = ("reason", "process", "process_known", "error_type", "ended_by", "attempt")
    assert [leaders[name] for name in who] == [disruption_listed[name] for name in who], "the live page says the same"
    (shown,) = Container(document(RunView.open(RecordedRun(run)))).head["disruptions"]
    assert {name: shown[name] for name in ("reason", "process", "process_known")}.items() <= disruption_listed.items()
    trace: list[bytes] = []
    perfetto.export(RecordedRun(run), [0], trace.append)
    assert b"said_by" not in b"".join(trace), "nobody corrected it"
    assert report.to_json()["disruption_reasons"] == {disruption_listed["reason"]: 1}
    return {**disruption_listed, "text": str(report)}


@pytest.mark.parametrize(("how", "rank"), [("kill", 1), ("raise", 1), ("kill", 0)])
def test_the_launcher_ends_the_others_when_one_crashes(how: str, rank: int, tmp_path: Path) -> None:
    hows = ["wait", "wait"]
    hows[rank] = how
    processes = start(tmp_path, hows)
    for process in processes:
        go_on(process)
    processes[rank].wait(60)
    other = processes[1 - rank]
    other.send_signal(signal.SIGTERM)  # as torchrun does
    for process in processes:
        process.communicate(timeout=60)
    assert other.returncode == -signal.SIGTERM
    entry = disruption(tmp_path)
    assert (entry["reason"], entry["process"], entry["said_by"]) == ("crash", rank, None)
    assert f"crash (process {rank})" in entry["text"]


@pytest.mark.parametrize("first", [0, 1])
def test_who_failed_first_is_known_on_hosts_whose_clocks_differ(first: int, tmp_path: Path) -> None:
    """The clock of rank 1 is ten minutes ahead, or behind, so that by their own clocks the other one was first."""
    ahead = (600 if first else -600) * NS
    processes = start(tmp_path, ["raise", "raise"], AHEAD=f"0,{ahead}")
    go_on(processes[first])
    processes[first].communicate(timeout=60)
    time.sleep(RAISED_NS / NS)  # until the other one fails, because of that
    go_on(processes[1 - first])
    processes[1 - first].communicate(timeout=60)
    write_offsets(RunDirectory(tmp_path / "goodput" / "run"), 0, [KnownOffset(1, 0, 0, ahead, 1000)])
    entry = disruption(tmp_path)
    assert (entry["reason"], entry["process"]) == ("crash", first)


def test_the_scheduler_ends_all_at_its_time_limit(tmp_path: Path) -> None:
    processes = start(tmp_path, ["wait", "wait"], SLURM_JOB_END_TIME=str(int(time.time()) + 100))
    for process in processes:
        go_on(process)
        process.send_signal(signal.SIGTERM)
    for process in processes:
        process.communicate(timeout=60)
    entry = disruption(tmp_path)
    assert (entry["reason"], entry["process"]) == ("signal", None)
    assert entry["ended_by"] == "SIGTERM at the time limit of slurm"


def test_nobody_knows_who_was_first(tmp_path: Path) -> None:
    """Both are killed at once, as where a node is lost."""
    processes = start(tmp_path, ["wait", "wait"])
    for process in processes:
        process.kill()
        process.communicate(timeout=60)
    entry = disruption(tmp_path)
    assert (entry["reason"], entry["process"]) == ("crash", None)
    assert not entry["process_known"] and "crash (process not known)" in entry["text"]


def death(process: int, sign: int, *, announced: bool = False, clean: bool = False, failed: bool = False) -> Death:
    return Death(process, 10**18 + sign, announced, clean, failed)


def late(
    process: int, step: int | None, reached: int, *, since: int = 0, failed: bool = False, begun: int | None = None
) -> Death:
    """How a process ended at a moment when it had last done something `since` ns after a wait began."""
    end = 10**18 + WAITED_NS
    return Death(process, end, False, False, failed, step, reached, 10**18 + since, begun=begun)


def in_first(step: int | None, begun: int) -> list[Death]:
    """Two are in a step, the third one has begun so many."""
    return [*(late(rank, 3, 3, begun=1) for rank in (0, 1)), late(2, step, step or NO_STEP, begun=begun)]


@pytest.mark.parametrize(
    ("deaths", "expected"),
    [
        # Those that wait in a collective operation fail; the one that hangs in its loader is only killed.
        ([late(0, 7, 7, failed=True), late(1, 7, 7), late(2, None, 6)], Culprit("crash", 2)),
        ([late(0, 7, 7, failed=True), late(1, 7, 7, failed=True), late(2, None, 6)], Culprit("crash", 2)),
        ([late(0, 7, 7, failed=True), late(1, 7, 7), late(2, None, 6, since=1)], Culprit("crash", 0)),
        ([late(0, 7, 7, failed=True), late(1, None, 6), late(2, None, 6)], Culprit("crash", 0)),
        ([late(0, 7, 7, failed=True), late(1, 7, 7), late(2, None, 7)], Culprit("crash", 0)),
        ([late(0, 7, 7), late(1, 7, 7), late(2, None, NO_STEP)], Culprit("crash", None, known=False)),
        # The first step of all is expected of each; later, one that has begun none may only evaluate.
        (in_first(None, 0), Culprit("crash", 2)),
        (in_first(3, 1), Culprit("crash", None, known=False)),
        (
            [late(0, 7, 7, begun=5), late(1, 7, 7, begun=5), late(2, None, NO_STEP, begun=0)],
            Culprit("crash", None, known=False),
        ),
    ],
)
def test_the_one_that_all_others_waited_for_is_named(deaths: list[Death], expected: Culprit) -> None:
    assert culprit(deaths, "signal") == expected


@pytest.mark.parametrize(
    ("deaths", "expected"),
    [
        ([death(0, 9, announced=True), death(1, 8, announced=True)], Culprit("signal", None)),
        ([death(0, 9, announced=True), death(1, 8)], Culprit("crash", 1)),
        ([death(0, 9, announced=True), death(1, 8, clean=True)], Culprit("signal", None)),
        ([death(0, 9), death(1, 8)], Culprit("crash", None, known=False)),
        ([death(0, 9 + APART_NS), death(1, 8), death(2, 9 + APART_NS)], Culprit("crash", 1)),
        ([death(0, 9, failed=True), death(1, 8)], Culprit("crash", 0)),
        # One is killed, and collective operations of the others fail; their launcher ends those that have not failed.
        ([death(0, 9, announced=True), death(1, 9, failed=True), death(2, 8)], Culprit("crash", 2)),
        ([death(0, 9 + APART_NS, failed=True), death(1, 8)], Culprit("crash", 1)),
        ([death(0, 9 + APART_NS, failed=True), death(1, 8), death(2, 7)], Culprit("crash", None, known=False)),
        ([death(0, 9, announced=True), death(1, 7, failed=True), death(2, 8)], Culprit("crash", 1)),
        ([death(0, 9, failed=True), death(1, 8, failed=True)], Culprit("crash", None, known=False)),
        ([death(0, 9 + RAISED_NS, failed=True), death(1, 8, failed=True)], Culprit("crash", 1)),
        ([death(0, 9, announced=True), death(1, 8), death(2, 9)], Culprit("crash", None, known=False)),
    ],
)
def test_what_the_order_of_deaths_tells(deaths: list[Death], expected: Culprit) -> None:
    assert culprit(deaths, "signal") == expected


@pytest.mark.parametrize(
    ("error", "culprit"),
    [
        ("JaxRuntimeError: UNKNOWN: Gloo all-reduce failed: Read error [127.0.0.1]:910: Connection reset by peer", 1),
        ("DistBackendError: NCCL error: remote process exited or there was a network error", 1),
        ("ValueError: the loss is not a number", 0),
    ],
)
def test_an_exception_may_say_that_another_process_is_gone(error: str, culprit: int, tmp_path: Path) -> None:
    """Rank 1 is killed by nobody who announces it, and rank 0 fails, both within less than signs of life tell apart."""
    processes = start(tmp_path, ["raise", "wait"], ERROR=error)
    processes[1].kill()
    processes[1].communicate(timeout=60)
    go_on(processes[0])
    processes[0].communicate(timeout=60)
    entry = disruption(tmp_path)
    assert (entry["reason"], entry["process"]) == ("crash", culprit)


def test_the_order_of_deaths_is_not_known_more_exactly_than_their_clocks() -> None:
    deaths = [death(0, 9 + 2 * RAISED_NS, failed=True), death(1, 8, failed=True)]
    assert culprit(deaths, "signal", RAISED_NS) == Culprit("crash", 1)
    assert culprit(deaths, "signal", 2 * RAISED_NS) == Culprit("crash", None, known=False)

"""Jobs whose ranks wait for each other while one of them stands still: the right rank, the right line, in time."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path

import pytest
import warm
from waits import until

from otel_goodput._journal.incidents import incidents_of
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._journal.stacks import read_stacks
from otel_goodput.reports.run import RecordedRun
from otel_goodput.reports.stacks import Standstill, standstill

from . import rank

KINDS = ("sleep", "deadlock", "stop", "gil", "worker", "queue")
LIMIT_S, LATEST_S = 1.0, 5.0  # after the limit, stacks are there
TRIALS, AT_ONCE = 50, 2
LINES = Path(rank.__file__).read_text(encoding="utf-8").splitlines()


def line_of(mark: str) -> str:
    """The line of the program that has this mark."""
    [number] = [at for at, line in enumerate(LINES, 1) if line.endswith(f"  # {mark}")]
    return f"rank.py:{number}"


class Job:
    """The ranks of a job, one of which stands still in the way of `kind`."""

    def __init__(self, folder: Path, kind: str, count: int, culprit: int) -> None:
        self.folder, self.kind, self.count, self.culprit = folder, kind, count, culprit
        tests = Path(__file__).parents[1]
        often = {"OTEL_GOODPUT_INCIDENTS": f"{LIMIT_S / 6:.2f}s"}
        environment = {**os.environ, **often, "PYTHONPATH": os.pathsep.join([str(tests), str(tests.parent)])}
        words = [str(count), str(folder), kind, str(culprit), f"{LIMIT_S}s,gil"]
        command = [sys.executable, "-m", "incidents.rank"]
        self.ranks = [warm.Process([*command, str(index), *words], env=environment) for index in range(count)]

    def standstill(self) -> Standstill:
        return standstill(RecordedRun(RunDirectory(self.folder / "runs" / self.kind)))

    def settled(self) -> Standstill:
        """What is known once all ranks that can have left stacks."""
        left = self.count - (self.kind == "stop")
        until(lambda: len(self.standstill().dumps) >= left, 60, lambda: [*self.standstill().lines()])
        return self.standstill()

    def first_stacks(self) -> float:
        """When the first stacks of the rank that stands still were written, s."""
        dumps = read_stacks(RunDirectory(self.folder / "runs" / self.kind), 0, self.culprit)
        return min(dump.time for dump in dumps) / 1e9

    def stood_still(self) -> float:
        return (self.folder / f"stands-{self.kind}").stat().st_mtime

    def end(self) -> None:
        for process in self.ranks:
            process.kill()
        for process in self.ranks:
            process.wait(30)


def wrong(job: Job) -> str:
    """What is not as it is, once all ranks that can have left stacks; empty if all is right."""
    kind, culprit = job.kind, job.culprit
    still = job.settled()
    seen = "\n".join([f"{kind}:", *still.lines()])
    if list(still.waits_for) != [culprit] or still.moved_on is not None:
        return f"another rank: {seen}"
    others = [group for group in still.groups if culprit not in group.ranks]
    wait = all(any(frame.function == "wait_for_all" for frame in group.frames) for group in others)
    if sum(len(group.ranks) for group in others) != job.count - 1 or not wait:
        return f"the others are elsewhere: {seen}"
    if kind == "stop":
        right = [(one.rank, one.state) for one in still.missing] == [(culprit, "stopped")]
        return "" if right and "SIGSTOP" in still.verdict() else f"it is not stopped: {seen}"
    [group] = [one for one in still.groups if culprit in one.ranks]
    if group.place.line != line_of(kind) or group.dump.by_timer is not (kind == "gil"):
        return f"another line than {line_of(kind)}: {seen}"
    if not still.verdict().endswith(f"at {group.place.line}"):
        return f"another verdict: {seen}"
    late = job.first_stacks() - job.stood_still()
    return "" if late < LIMIT_S + LATEST_S else f"{late:.1f} s late: {seen}"


def incident(job: Job) -> str:
    """What is not as it is in the incident that the leader notices; empty if all is right."""
    line = "" if job.kind == "stop" else line_of(job.kind)

    def known() -> list[tuple[str, str, int, str]]:
        run = RunDirectory(job.folder / "runs" / job.kind)
        return [(one.kind, one.source.category, one.source.rank, one.line) for _, one in incidents_of(run, {})]

    # A rank whose threads cannot run may not have published that its load had begun; who it is and where, stacks say.
    categories = ("data_loading", "step", "other") if job.kind in ("stop", "gil") else ("data_loading",)
    wanted = [[("hang", category, job.culprit, line)] for category in categories]
    until(lambda: known() in wanted, 60, known)
    evidence = [one.evidence for _, one in incidents_of(RunDirectory(job.folder / "runs" / job.kind), {})]
    return "" if any(f"rank {job.culprit}" in text for text in evidence[0]) else f"{job.kind}: {evidence}"


def of_kinds(folder: Path, kinds: Sequence[tuple[str, int]], count: int, noticed: Sequence[str] = KINDS) -> list[str]:
    """What is wrong with jobs that run at the same time, each with the rank that stands still.

    The incidents are looked at of these kinds.
    """
    jobs = []
    for number, (kind, culprit) in enumerate(kinds):
        (place := folder / f"{number}-{kind}").mkdir()
        jobs.append(Job(place, kind, count, culprit))
    try:
        bad = [text for job in jobs if (text := wrong(job))]
        # A leader that is stopped, or whose threads cannot run, notices nothing.
        watched = [job for job in jobs if job.kind in noticed and (job.culprit or job.kind not in ("stop", "gil"))]
        return bad + [text for job in watched if (text := incident(job))]
    finally:
        for job in jobs:
            job.end()


def test_the_rank_and_the_line_are_named(tmp_path: Path) -> None:
    assert not of_kinds(tmp_path, [("queue", 1), ("stop", 0), ("gil", 1)], 2, ["queue"])


@pytest.mark.release
@pytest.mark.timeout(1200)
def test_fifty_of_fifty(tmp_path: Path) -> None:
    """Eight ranks, each kind of standstill, one rank after another."""
    trials = [(kind, number % 8) for number, kind in enumerate(islice(cycle(KINDS), TRIALS))]
    failures = []
    for first in range(0, TRIALS, AT_ONCE):
        (folder := tmp_path / str(first)).mkdir()
        failures += of_kinds(folder, trials[first : first + AT_ONCE], 8)
    assert not failures, f"{len(failures)} of {TRIALS}: {failures}"

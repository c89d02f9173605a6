"""Jobs whose ranks wait for each other while one of them stands still: the right rank, the right line, in time."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import warm
from waits import until

from otel_goodput._journal.rundir import RunDirectory
from otel_goodput.reports.run import RecordedRun
from otel_goodput.reports.stacks import Standstill, standstill

from . import rank

KINDS = ("sleep", "deadlock", "stop", "gil", "worker", "queue")
COUNT, CULPRIT = 3, 1
LIMIT_S, LATEST_S = 1.0, 6.0  # stacks are there 5 s after the limit, at the latest
LINES = Path(rank.__file__).read_text(encoding="utf-8").splitlines()


def line_of(mark: str) -> str:
    """The line of the program that has this mark."""
    [number] = [at for at, line in enumerate(LINES, 1) if line.endswith(f"  # {mark}")]
    return f"rank.py:{number}"


class Job:
    """The ranks of a job, one of which stands still in the way of `kind`."""

    def __init__(self, folder: Path, kind: str, count: int = COUNT, culprit: int = CULPRIT) -> None:
        self.folder, self.kind, self.count = folder, kind, count
        tests = Path(__file__).parents[1]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tests), str(tests.parent)])}
        words = [str(count), str(folder), kind, str(culprit), f"{LIMIT_S}s"]
        command = [sys.executable, "-m", "incidents.rank"]
        self.ranks = [warm.Process([*command, str(index), *words], env=environment) for index in range(count)]

    def standstill(self) -> Standstill:
        return standstill(RecordedRun(RunDirectory(self.folder / "runs" / self.kind)))

    def settled(self) -> Standstill:
        """What is known once all ranks that can have left stacks."""
        left = self.count - (self.kind == "stop")
        until(lambda: len(self.standstill().dumps) >= left, 60, lambda: [*self.standstill().lines()])
        return self.standstill()

    def end(self) -> None:
        for process in self.ranks:
            process.kill()
        for process in self.ranks:
            process.wait(30)


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Job]]:
    started = {kind: Job(tmp_path_factory.mktemp(kind), kind) for kind in KINDS}
    yield started
    for job in started.values():
        job.end()


@pytest.mark.parametrize("kind", KINDS)
def test_the_rank_and_the_line_are_named(jobs: dict[str, Job], kind: str) -> None:
    job = jobs[kind]
    still = job.settled()
    began = (job.folder / f"stands-{kind}").stat().st_mtime
    assert list(still.waits_for) == [CULPRIT], [*still.lines()]
    others = still.groups[0]
    assert (list(others.ranks), others.place.function) == ([0, 2], "wait_for_all")
    if kind == "stop":
        [missing] = still.missing
        assert (missing.rank, missing.state) == (CULPRIT, "stopped")
        assert "SIGSTOP" in still.verdict()
    else:
        [group] = [one for one in still.groups if CULPRIT in one.ranks]
        assert group.place.line == line_of(kind)
        assert group.dump.by_timer is (kind == "gil")
        assert still.verdict().endswith(f"at {group.place.line}")
    assert still.moved_on is None
    first = min(file.stat().st_mtime for file in (job.folder / "runs").glob("*/journal/*.stacks"))
    assert first and still.at / 1e9 - began < 4 * LIMIT_S + LATEST_S
    assert time.time() > began

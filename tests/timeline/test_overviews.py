"""The overview of a process's run comes from the cheapest file that tells all, and is the one of its account."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import warm
from recorded import NS, Recording
from waits import until

import otel_goodput as goodput
from otel_goodput._accounting import overview as ov
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._live import keeper
from otel_goodput._timeline.overviews import DIGEST, SNAPSHOT, overview_of, read_digest
from otel_goodput._timeline.recovery import restore


def steps(first: int, count: int, base: int) -> None:
    for number in range(first, first + count):
        with goodput.step(number, start_time=base + number * NS, end_time=base + number * NS + NS // 2):
            pass


def added_up(overview: ov.Overview) -> int:
    return sum(ns for one in overview.bins for ns in one.values())


def elapsed(run: RunDirectory, at: int, *, dead: bool = False) -> int:
    return restore(run).ledger.totals(at, dead=dead).run.elapsed


def test_one_that_has_ended_is_read_from_its_digest(record: Callable[..., Recording]) -> None:
    recording = record(process_index=2, process_count=4)  # no leader: every process has one
    run = RunDirectory(recording.folder)
    with goodput.job():
        for number in range(20):
            with goodput.step(number):
                pass
        with goodput.custom("evaluation"):
            pass
    goodput.shutdown()
    overview = overview_of(run, 2)
    assert overview is not None and overview.source == DIGEST and overview.attempt == 0
    restored = restore(run, 2)
    assert added_up(overview.overview) == restored.ledger.totals(overview.at).run.elapsed
    assert overview.overview.last_step == 19 and list(overview.overview.names) == ["evaluation"]
    run.file("digest", 2).unlink()
    again = overview_of(run, 2)
    assert again is not None and again.source == SNAPSHOT
    assert added_up(again.overview) == added_up(overview.overview)
    run.file("snapshot", 2).unlink()
    last = overview_of(run, 2)
    assert last is not None and added_up(last.overview) == added_up(overview.overview)


def test_a_damaged_one_is_not_believed(record: Callable[..., Recording], base: int) -> None:
    recording = record()
    run = RunDirectory(recording.folder)
    with goodput.job(start_time=base):
        steps(0, 5, base)
    goodput.shutdown()
    path = run.file("digest", 0)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    overview = overview_of(run)
    assert overview is not None and overview.source == SNAPSHOT and overview.overview.last_step == 4


def test_no_journal_at_all(tmp_path: Path) -> None:
    assert overview_of(RunDirectory(tmp_path)) is None


def test_one_that_lives_has_one_every_half_minute(
    record: Callable[..., Recording], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "DIGEST_S", 0.05)
    recording = record()
    run = RunDirectory(recording.folder)
    with goodput.job():
        with goodput.step(1):
            pass
        until(lambda: run.file("digest", 0).exists() and read_digest(run, 0).overview.last_step == 1)
        written = run.file("digest", 0).stat().st_mtime_ns
        overview = overview_of(run, within_s=60)
        assert overview is not None and overview.source == DIGEST
        now = overview_of(run)
        assert now is not None and now.source == SNAPSHOT and now.at >= overview.at
        time.sleep(0.3)  # a heartbeat is nothing that happens
        assert run.file("digest", 0).stat().st_mtime_ns == written
        with goodput.step(2):
            pass
        until(lambda: read_digest(run, 0).overview.last_step == 2)
    assert os.stat(run.file("digest", 0)).st_mode & 0o777 == 0o600  # noqa: PTH116


KILLED = """
import os, signal, sys
import otel_goodput as goodput
from otel_goodput._live import keeper
keeper.DIGEST_S = 0.01
goodput.configure("killed", directory=sys.argv[1], exporters="none", run_id="run")
goodput.job().__enter__()
for number in range(100):
    with goodput.step(number):
        pass
while not os.path.exists(sys.argv[1] + "/run/journal/p0000.digest"):
    pass
goodput.step(100).__enter__()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_one_that_has_died_has_nothing_in_flight(tmp_path: Path) -> None:
    environment = {**os.environ, "OTEL_GOODPUT_STRICT": ""}
    done = warm.run([sys.executable, "-c", KILLED, str(tmp_path)], env=environment, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    run = RunDirectory(tmp_path / "run")
    overview = overview_of(run)
    assert overview is not None and overview.source == SNAPSHOT
    assert added_up(overview.overview) == elapsed(run, overview.at, dead=True)
    assert overview.overview.steps == [] or overview.overview.steps[-1].fate != ov.IN_FLIGHT


def test_the_account_is_locked_for_a_moment(record: Callable[..., Recording], base: int) -> None:
    """The overview is made under the lock that totals() takes; the file is packed and written outside of it."""
    recording = record()
    account = recording.recorder._account
    with goodput.job(start_time=base):
        steps(0, 3000, base)
        account.refresh()
        times = []
        for _ in range(5):
            began = time.perf_counter()
            with account.lock:
                account.ledger.overview(account.clock())
            times.append(time.perf_counter() - began)
    assert min(times) < 0.5

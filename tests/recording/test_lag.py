"""A loop that runs ahead of its ledger: bounded memory, bounded answers, nothing lost, and the lag is reported."""

from __future__ import annotations

import errno
import itertools
import json
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import warm
from recorded import Recording, sum_ns
from waits import until

import otel_goodput as goodput
from otel_goodput._journal.records import CAPACITY
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput.reports.run import RecordedRun


def test_an_account_that_is_behind_says_so(recording: Recording) -> None:
    """It is the account of the moment that it has reached, not a guess at what came after."""
    account = recording.recorder._account
    with goodput.job():
        for number in range(100):
            with goodput.step(number):
                pass
        goodput.flush()
        with account.lock:  # whoever feeds the ledger waits
            for number in range(100, 12_000):
                with goodput.step(number):
                    pass
            middle = account.clock()
            late = account.totals(patience=0.0)
            again = account.totals(patience=0.0)
        assert 100 < late.kept <= again.kept < 12_000
        assert late.behind > 0 and late.at < middle and again.at >= late.at
        assert sum(late.run.categories.values()) + sum(late.run.custom.values()) == late.run.elapsed
        assert late.to_json()["behind_s"] == late.behind / 1e9
        until(lambda: not recording.recorder.totals().behind, lacking=recording.recorder.totals)
        caught_up = recording.recorder.totals()
        assert caught_up.kept == 12_000 and caught_up.at >= middle


def test_the_ledger_is_not_held_for_long(recording: Recording) -> None:
    """However much there is to follow."""
    account = recording.recorder._account
    with goodput.job(), account.lock:  # whoever else feeds the ledger waits
        for number in range(12_000):
            with goodput.step(number):
                pass
        began = time.thread_time()
        assert not account.refresh(0.0)
        held = time.thread_time() - began
        assert account.refresh(60.0)
        assert held < (time.thread_time() - began) / 25


def mapped_segments() -> int:
    """Bytes of segments that are in the memory of this process."""
    held, counted = 0, False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        name, *values = line.split()
        if not name.endswith(":"):
            counted = line.endswith(".segment")
        elif counted and name == "Rss:":
            held += int(values[0]) << 10
    return held


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="memory is read from /proc")
def test_segments_that_wait_for_the_ledger_take_no_memory(recording: Recording) -> None:
    """Whatever the keeper waits for meanwhile, such as a slow disk."""
    account, steps = recording.recorder._account, 2 * CAPACITY
    with goodput.job(), account.lock:  # the keeper waits
        for _ in goodput.steps(range(steps)):
            pass
        assert account.journal.current.number >= 2
        until(lambda: mapped_segments() < 2 << 20, lacking=lambda: f"{mapped_segments()} bytes")
    goodput.shutdown()
    report = recording.report_on_disk()
    assert report["steps"]["kept"] == steps and not report["damage"]


def test_a_report_that_is_behind_says_so(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    account = recording.recorder._account
    with goodput.job():
        with account.lock:
            for number in range(12_000):
                with goodput.step(number):
                    pass
            monkeypatch.setattr("otel_goodput._runtime.recorder.PATIENCE_S", 0.0)
            report = recording.recorder.report()
            monkeypatch.undo()
        (note,) = [note for note in report.notes if note.kind == "behind"]
        assert "s old" in note.text and "Nothing is lost" in note.text
        assert "Nothing is lost" in " ".join(str(report).split())
        goodput.flush()
        assert not [note for note in recording.recorder.report().notes if note.kind == "behind"]


HOT = """
import json, os, signal, sys, time
from pathlib import Path
import otel_goodput as goodput
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

directory, steps, ending = sys.argv[1], int(sys.argv[2]), sys.argv[3]
goodput.configure("hot", run_id="run", directory=directory, exporters="none", integrations="none",
                  metric_readers=[InMemoryMetricReader()])
with goodput.job():
    for number in range(steps):
        with goodput.step(number):
            pass
        if number == 20_000:
            before = resident()
    grown = resident() - before
    if ending == "die":
        while not (Path(directory) / "run/journal/p0000.snapshot").exists():  # the keeper may be slow
            number += 1
            with goodput.step(number):
                pass
        print(json.dumps({"steps": number + 1}), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.perf_counter()
    goodput.totals()
    totals_s = time.perf_counter() - began
began = time.perf_counter()
goodput.shutdown(2.0)
ended = time.perf_counter() - began
print(json.dumps({"grown": grown, "totals_s": totals_s, "ended": ended, "kept": goodput.totals().kept}))
"""
STEPS = {"end": 60_000, "die": 40_000}  # it is what is left behind that matters to one that dies


def hot(directory: Path, steps: int, ending: str) -> dict[str, float]:
    done = warm.run(
        [sys.executable, "-c", HOT, str(directory), str(steps), ending],
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == (-signal.SIGKILL if ending == "die" else 0), done.stderr
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


@pytest.mark.crash
@pytest.mark.parametrize("ending", ["end", "die"])
def test_a_hot_loop(ending: str, tmp_path: Path) -> None:
    """What the ledger has not followed by the end is in the journal, whichever way the process ends."""
    steps = STEPS[ending]
    figures = hot(tmp_path, steps, ending)
    if ending == "die":
        steps = int(figures["steps"])
    else:
        assert figures["grown"] < 8 * 1024**2, "of 200 bytes a step"
        assert figures["totals_s"] < 3.0 and figures["ended"] < 5.0
        assert figures["kept"] == steps, "what was not followed by the end is read from the journal"
    run = RunDirectory(tmp_path / "run")
    report = RecordedRun(run).report().to_json()
    assert report["steps"]["executed"] == report["steps"]["kept"] == steps
    assert sum_ns(report) == round(report["elapsed_s"] * 1e9)
    # The same without a snapshot, which may stand for a place in the midst of the journal.
    assert run.file("snapshot", 0).exists()
    run.file("snapshot", 0).unlink()
    assert RecordedRun(run).report().to_json() == report


@pytest.mark.slow
def test_a_disk_that_is_slow_to_take_a_snapshot(
    record: Callable[..., Recording], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Segments are laid ready meanwhile: what stands in memory only would not survive a SIGKILL."""
    begun, over = threading.Event(), threading.Event()

    def write(*_: object) -> None:
        begun.set()
        over.wait(60)
        raise OSError(errno.ENOSPC, "in vain")

    monkeypatch.setattr("otel_goodput._live.keeper.write_snapshot", write)
    monkeypatch.setattr("otel_goodput._live.keeper.SNAPSHOT_RECORDS", CAPACITY // 8)
    monkeypatch.setattr("otel_goodput._live.spares.MOST_SPARES", 1)  # with more it takes many times as long
    recording = record()
    with goodput.job():
        step = itertools.count()
        while not begun.is_set():
            with goodput.step(next(step)):
                pass
        for _ in range(2 * (1 + 3)):  # more than can have been laid ready before
            time.sleep(0.05)  # of a loop that leaves the thread its turn
            for _ in range(CAPACITY // 4):  # half a segment
                with goodput.step(next(step)):
                    pass
        kept = RecordedRun(RunDirectory(recording.folder)).report().to_json()["steps"]["kept"]
        over.set()
        assert kept == next(step), "what a SIGKILL would leave"


def test_a_snapshot_of_a_ledger_that_is_behind(record: Callable[..., Recording]) -> None:
    """It stands for what the ledger has got to; a restart reads the rest."""
    recording = record()
    account = recording.recorder._account
    keeper = recording.recorder._keeper
    steps = CAPACITY  # three segments, of the last one little
    with goodput.job():
        with account.lock:
            for number in range(steps):
                with goodput.step(number):
                    pass
            for _ in range(10):
                account.take_some(4096)
            keeper._snapshot()  # in the second one
        assert account.ledger.totals().kept < steps
        report = RecordedRun(RunDirectory(recording.folder)).report().to_json()
        assert report["steps"]["kept"] == steps


def test_what_was_dumped_does_not_change_while_it_is_written(recording: Recording) -> None:
    """Whoever asks for totals meanwhile feeds the ledger."""
    account = recording.recorder._account
    with goodput.job():
        for number in range(50):
            with goodput.step(number), goodput.custom("eval"):
                pass
        goodput.totals()
        with account.lock:
            head, _ = account.ledger.dump()
            before = json.dumps(head)
            with goodput.step(50), goodput.custom("tidy"), goodput.checkpoint_save(50):
                pass
            goodput.totals()
            assert json.dumps(head) == before


@pytest.mark.slow
def test_a_question_after_an_end_that_came_too_early(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger had no time to follow, and the journal is closed: the disk is asked."""
    account = recording.recorder._account
    with goodput.job():
        with account.lock:
            for number in range(CAPACITY // 4):
                with goodput.step(number):
                    pass
            monkeypatch.setattr(account, "take_some", lambda *_: True)
        goodput.shutdown()
        monkeypatch.undo()
    assert recording.recorder.totals().kept == CAPACITY // 4
    assert recording.report()["seconds"] == recording.report_on_disk()["seconds"]

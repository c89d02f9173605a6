"""A restart goes on with the run: attempt after attempt, whatever the length, with or without a snapshot."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import warm
from recorded import NS, Recording, sum_ns

import otel_goodput as goodput
from otel_goodput import Recorder
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._timeline.reader import all_events
from otel_goodput.reports.run import RecordedRun


def test_attempts_go_on(record: Callable[..., Recording], base: int) -> None:
    for attempt in range(6):
        recording = record()
        assert recording.recorder.attempt == attempt
        start = base + attempt * 100 * NS
        with goodput.job(start_time=start, end_time=start + 50 * NS):
            for number in range(10):
                first = start + number * NS
                with goodput.step(attempt * 8 + number, start_time=first, end_time=first + NS):
                    pass
        report = recording.report()
        goodput.shutdown()
        assert report["attempts"] == attempt + 1
        assert report["disruption_reasons"] == ({"restart": attempt} if attempt else {})
        assert report["steps"] == {"executed": (attempt + 1) * 10, "kept": attempt * 8 + 10, "lost": attempt * 2}
        assert report["seconds"] == {
            "productive": attempt * 8.0 + 10,
            "other": (attempt + 1) * 40.0,
            **({"wasted_progress": attempt * 2.0, "infrastructure_recovery": attempt * 50.0} if attempt else {}),
        }
        assert recording.report_on_disk() == report


def test_custom_names_of_every_attempt_stay_their_own(record: Callable[..., Recording], base: int) -> None:
    """Each attempt numbers its names anew."""
    for attempt, names in enumerate((["eval", "tidy"], ["tidy", "eval"], ["third"])):
        recording = record()
        start = base + attempt * 10 * NS
        with goodput.job(start_time=start, end_time=start + 10 * NS):
            for number, name in enumerate(names):
                with goodput.custom(
                    name, start_time=start + number * 2 * NS, end_time=start + (number * 2 + 1 + (name == "eval")) * NS
                ):
                    pass
        goodput.shutdown()
    assert recording.report_on_disk()["seconds"]["custom"] == {"eval": 4.0, "tidy": 2.0, "third": 1.0}


def test_a_run_that_had_ended_continues_with_a_warning(
    record: Callable[..., Recording], caplog: pytest.LogCaptureFixture
) -> None:
    record()
    with goodput.job(), goodput.step(0):
        pass
    goodput.shutdown()
    assert not caplog.records
    recording = record()
    (text,) = [line.getMessage() for line in caplog.records]
    for words in ("'run'", "ended", "another", "OTEL_GOODPUT_RUN_ID", "recovery", "run_id="):
        assert words in text
    with goodput.job():
        pass
    assert recording.report()["disruption_reasons"] == {"restart": 1}


def test_a_new_run_id_begins_anew(record: Callable[..., Recording], caplog: pytest.LogCaptureFixture) -> None:
    for run in ("one", "two"):
        recording = record(run_id=run)
        with goodput.job(), goodput.step(0):
            pass
        assert recording.recorder.attempt == 0 and recording.report()["attempts"] == 1
        goodput.shutdown()
    assert not caplog.records


def test_a_run_that_never_began_its_job(record: Callable[..., Recording], caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        recording = record()
        goodput.shutdown()
    assert RecordedRun(RunDirectory(recording.folder)).report().to_json()["elapsed_s"] == 0.0
    recording = record()
    with goodput.job(), goodput.step(0):
        pass
    report = recording.report()
    assert report["attempts"] == 1 and report["disruptions"] == 0
    assert not [line for line in caplog.records if "ended" in line.getMessage()]


def test_clocks_of_two_machines(record: Callable[..., Recording], base: int) -> None:
    """The next attempt's clock is behind: no gap, nothing negative, and it is flagged."""
    record()
    with goodput.job(start_time=base, end_time=base + 10 * NS):
        pass
    goodput.shutdown()
    recording = record()
    with (
        goodput.job(start_time=base + 4 * NS, end_time=base + 16 * NS),
        goodput.step(0, start_time=base + 5 * NS, end_time=base + 15 * NS),
    ):
        pass
    report = recording.report()
    # It goes on from there: none of its 12 s are missing.
    assert report["skewed_clocks"] is True and report["elapsed_s"] == 22.0
    assert report["seconds"] == {"other": 12.0, "productive": 10.0}
    assert sum_ns(report) == 22 * NS


def test_windows_that_change_over_a_restart(record: Callable[..., Recording]) -> None:
    for windows in (["1h"], ["1h", "10m"], ["5m"], []):
        recording = record(windows=windows)
        with goodput.job(), goodput.step(0):
            pass
        names = {
            str((point.attributes or {})["goodput.window"])
            for point in recording.metrics()["goodput.ratio"].data.data_points
        }
        assert names == {"run", *windows}
        goodput.shutdown()


LONG = """
import os, signal, sys
import otel_goodput as goodput
goodput.configure("long", run_id="run", directory=sys.argv[1], exporters=sys.argv[4])
with goodput.job():
    with goodput.checkpoint_save(0):
        pass
    for step, _ in goodput.steps(range(int(sys.argv[2])), start=int(sys.argv[3])):
        if step % 5000 == 0:
            with goodput.custom(f"eval {step % 3}"):
                pass
            goodput.flush()
    goodput.flush()  # the keeper has caught up and written its snapshot
    print("trained", flush=True)
    if sys.argv[5] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
"""


def run_long(directory: Path, steps: int, start: int, ending: str, exporters: str = "none") -> None:
    done = warm.run(
        [sys.executable, "-c", LONG, str(directory), str(steps), str(start), exporters, ending],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "trained" in done.stdout, done.stderr
    assert done.returncode == (-signal.SIGKILL if ending == "die" else 0)


@pytest.mark.crash
def test_a_long_run_is_restored_from_its_snapshot(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Killed after segments were sealed and a snapshot stood for them: the account is that of the whole journal."""
    run = RunDirectory(tmp_path / "runs" / "run")
    executed = 0
    for attempt, steps in enumerate((52_000, 30_000)):  # the second snapshot is beyond the first segment
        run_long(tmp_path / "runs", steps, attempt * 30_000, "die")
        executed += steps
        assert run.file("snapshot", 0).exists()
        sealed = list(run.journal.glob("*.gz"))
        assert sealed, "what the snapshot stands for is compressed"
        report = RecordedRun(run).report().to_json()
        assert not caplog.records, "it is sound"
        assert report["steps"]["executed"] == executed
    run.file("snapshot", 0).unlink()
    assert RecordedRun(run).report().to_json() == report, "the whole journal again"
    assert report["attempts"] == 2 and report["disruption_reasons"] == {"crash": 1}
    assert sum_ns(report) == round(report["elapsed_s"] * NS)


@pytest.mark.crash
def test_a_restart_reads_nothing_that_its_snapshot_stands_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """However long the run was: what is sealed may even be spoilt."""
    run_long(tmp_path / "runs", 120_000, 0, "end")
    run = RunDirectory(tmp_path / "runs" / "run")
    before = RecordedRun(run).report().to_json()
    assert before["steps"]["kept"] == 120_000
    sealed = sorted(run.journal.glob("*.gz"))
    assert len(sealed) >= 3
    for path in sealed:
        data = path.read_bytes()
        path.write_bytes(data[:200] + bytes(len(data) - 200))
    assert RecordedRun(run).report().to_json() == before
    assert not caplog.records
    list(all_events(run))
    assert caplog.records, "whoever reads it all is told"


def test_two_processes_on_one_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, record: Callable[..., Recording]
) -> None:
    """Both real, both alive: the second one gets a warning, records its own run, and neither harms the other."""
    code = """
import sys
import otel_goodput as goodput
recorder = goodput.configure("twin", run_id="run", directory=sys.argv[1], exporters="none")
with goodput.job():
    for number in range(50):
        with goodput.step(number):
            pass
    print("ready", recorder.run_id, flush=True)
    sys.stdin.readline()
"""
    with warm.Process(
        [sys.executable, "-c", code, str(tmp_path / "runs")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as twin:
        assert twin.stdout is not None and twin.stdin is not None
        assert twin.stdout.readline().split() == ["ready", "run"]
        recording = record()
        assert recording.recorder.run_id != "run" and recording.recorder.attempt == 0
        (text,) = [line.getMessage() for line in caplog.records]
        for words in (
            "'run'",
            "another running process",
            str(twin.pid),
            recording.recorder.run_id,
            "OTEL_GOODPUT_RUN_ID",
        ):
            assert words in text
        with goodput.job():
            for number in range(20):
                with goodput.step(number):
                    pass
        living = RecordedRun(RunDirectory(tmp_path / "runs" / "run")).report().to_json()
        assert living["steps"]["kept"] == 50 and not living["ended"]
        twin.stdin.write("\n")
        twin.stdin.close()
        assert twin.wait(60) == 0
    goodput.shutdown()
    assert RecordedRun(RunDirectory(tmp_path / "runs" / "run")).report().to_json()["steps"]["kept"] == 50
    assert recording.report_on_disk()["steps"]["kept"] == 20
    assert record().recorder.attempt == 1


def test_many_processes_start_at_the_same_time(tmp_path: Path) -> None:
    """A race for the run: exactly one gets it, nobody fails, everybody's steps are somewhere."""
    code = """
import sys
sys.stdin.readline()
import otel_goodput as goodput
recorder = goodput.configure("race", run_id="run", directory=sys.argv[1], exporters="none")
with goodput.job(), goodput.step(0):
    print(recorder.run_id, flush=True)
    sys.stdin.readline()
"""
    racers = [
        warm.Process(
            [sys.executable, "-c", code, str(tmp_path / "runs")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(5)
    ]
    try:
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write("\n")
            racer.stdin.flush()
        runs = [racer.stdout.readline().strip() for racer in racers if racer.stdout is not None]
        assert len(set(runs)) == 5 and runs.count("run") == 1, runs
        for racer in racers:
            racer.communicate("\n", timeout=60)
            assert racer.returncode == 0
        for run in runs:
            assert RecordedRun(RunDirectory(tmp_path / "runs" / run)).report().to_json()["steps"]["kept"] == 1
    finally:
        for racer in racers:
            racer.kill()
            racer.wait()
            for stream in (racer.stdin, racer.stdout, racer.stderr):
                if stream is not None:
                    stream.close()


def test_the_journal_is_private(record: Callable[..., Recording]) -> None:
    """Readable by its owner only."""
    before = os.umask(0)
    try:
        recording = record(exporters="file")
        with goodput.job(), goodput.step(0):
            pass
        goodput.shutdown()
    finally:
        os.umask(before)
    for path in (recording.folder, *recording.folder.rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path


def test_nothing_superfluous_is_left(record: Callable[..., Recording]) -> None:
    """After a clean end: no segment laid ready, no half-written part."""
    recording = record(make=Recorder)
    with recording.recorder.job(), recording.recorder.step(0):
        recording.recorder.flush()
    recording.recorder.shutdown()
    names = sorted(path.name for path in (recording.folder / "journal").iterdir())
    kept = ["a0000-p0000-000000.segment", "a0000-p0000.facts", "a0000-p0000.lock", "p0000.digest", "p0000.snapshot"]
    assert names == kept

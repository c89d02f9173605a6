"""Disks that are full, read-only, missing or come back: one warning, and training and live figures go on."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import warm
from recorded import Recording, sum_ns
from waits import until

import otel_goodput as goodput
from otel_goodput import JournalError
from otel_goodput._journal.records import CAPACITY
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput.reports.run import RecordedRun

Mount = Callable[[str], "Path | None"]
RECORDS_A_STEP = 2
MANY = CAPACITY // RECORDS_A_STEP + 2000  # more steps than a segment holds
MORE = 4 * MANY  # more than the first segment and all those laid ready hold


def warnings_about_disk(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def steps(first: int, count: int) -> None:
    for number in range(first, first + count):
        with goodput.step(number):
            pass


def check(report: dict[str, Any], kept: int) -> None:
    assert report["steps"]["kept"] == kept
    assert sum_ns(report) == round(report["elapsed_s"] * 1e9)


# As a process of its own: the limit on the size of files holds for the whole process.
LIMITED = """
import json, resource, signal, sys
size, directory, steps = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
import logging
logging.basicConfig(level=logging.WARNING, format="%(message)s")
import otel_goodput as goodput
first = sys.argv[4] == "from the start"
if first:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
goodput.configure("limited", run_id="run", directory=directory, exporters="none")
if not first:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
with goodput.job():
    for number in range(steps):
        with goodput.step(number):
            pass
    goodput.flush()
    if sys.argv[4] == "and back":
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        for _ in range(3):
            goodput.flush()
goodput.shutdown()
print(json.dumps(goodput.report().to_json()))
"""


@pytest.mark.parametrize("when", ["from the start", "later", "and back"])
def test_files_may_not_grow(when: str, tmp_path: Path) -> None:
    """The full disk of those who may not mount one: files can be no larger than half a segment."""
    done = warm.run(
        [sys.executable, "-W", "error", "-c", LIMITED, str(512 * 1024), str(tmp_path / "runs"), str(MORE), when],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    check(json.loads(done.stdout), MORE)
    assert "cannot be written" in done.stderr and str(tmp_path / "runs") in done.stderr
    assert done.stderr.count("cannot be written") == 1, "it is said once"
    assert "Traceback" not in done.stderr
    if when == "from the start":
        with pytest.raises(JournalError, match="no journal"):
            RecordedRun(RunDirectory(tmp_path / "runs" / "run")).report()
        return
    report = RecordedRun(RunDirectory(tmp_path / "runs" / "run")).report().to_json()
    report.pop("configurations", None)  # their file may be missing
    if when == "and back":
        assert "writable again" in done.stderr
        own = json.loads(done.stdout)
        assert own.pop("configurations") and report == own
    else:
        assert 0 < report["steps"]["kept"] < MORE, "what the segments laid ready hold"


def test_full_from_the_start(record: Callable[..., Recording], mount: Mount, caplog: pytest.LogCaptureFixture) -> None:
    disk = mount("size=64k")
    if disk is None:
        return  # test_files_may_not_grow[from the start] stands for it
    recording = record(directory=disk / "runs")
    assert any(
        "cannot be written" in text and str(disk) in text and "OTEL_GOODPUT_DIR" in text
        for text in warnings_about_disk(caplog)
    )
    with goodput.job():
        steps(0, 100)
        check(recording.report(), 100)
    goodput.shutdown()
    check(recording.report(), 100)
    again = record(directory=disk / "runs")
    with goodput.job():
        steps(0, 10)
    assert again.report()["attempts"] == 1, "nobody knows of the attempt before"


def test_full_later_and_free_again(
    record: Callable[..., Recording], mount: Mount, caplog: pytest.LogCaptureFixture
) -> None:
    disk = mount("size=24m")
    if disk is None:
        return  # test_files_may_not_grow[and back] stands for it
    ballast = disk / "ballast"
    ballast.write_bytes(bytes(21 << 20))
    recording = record(directory=disk / "runs")
    recording.folder = disk / "runs" / "run"
    with goodput.job():
        steps(0, 10)
        goodput.flush()
        fill(disk / "crumbs")
        steps(10, 2 * MANY)
        goodput.flush()
        assert sum("is full" in text for text in warnings_about_disk(caplog)) == 1
        check(recording.report(), 10 + 2 * MANY)
        ballast.unlink()
        goodput.flush()
        assert any("writable again" in text for text in warnings_about_disk(caplog))
        steps(10 + 2 * MANY, 10)

        def written() -> bool:
            goodput.flush()
            return bool(recording.report_on_disk()["steps"]["kept"] >= 20 + 2 * MANY)

        until(written, lacking=lambda: "records that waited in memory")
        check(recording.report_on_disk(), 20 + 2 * MANY)
    goodput.shutdown()
    check(recording.report_on_disk(), 20 + 2 * MANY)
    assert recording.report()["seconds"] == recording.report_on_disk()["seconds"]
    dropped = recording.metrics()["goodput.telemetry.dropped"].data.data_points
    assert {point.value for point in dropped} == {0}  # type: ignore[union-attr]


def test_records_come_before_spares(record: Callable[..., Recording], mount: Mount) -> None:
    """Full at the start; then there is room for little more than the records that wait."""
    disk = mount("size=3m")
    if disk is None:
        return  # test_files_may_not_grow[and back] stands for it
    fill(disk / "ballast")
    recording = record(directory=disk / "runs")
    recording.folder = disk / "runs" / "run"
    with goodput.job():
        steps(0, 700)
        (disk / "ballast").unlink()

        def written() -> bool:
            goodput.flush()
            try:
                return bool(recording.report_on_disk()["steps"]["kept"] == 700)
            except JournalError:
                return False

        until(written, lacking=lambda: "records that waited in memory")
        assert not recording.report_on_disk()["damage"]
    goodput.shutdown()
    assert recording.report_on_disk()["steps"]["kept"] == 700


# What the process has already taken, and less than half of what a snapshot may hold.
LITTLE_MEMORY = """
import pathlib, resource, sys
import otel_goodput as goodput
goodput.Recorder
if len(sys.argv) > 2:
    taken = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + (400 << 20),) * 2)
goodput.configure("job", run_id="run", directory=sys.argv[1], exporters="none", integrations="none")
with goodput.job(), goodput.step(len(sys.argv)):
    pass
goodput.shutdown()
"""


def test_a_limit_of_memory_is_no_damage(tmp_path: Path) -> None:
    """RLIMIT_AS, as Slurm's VSizeFactor sets it: a file takes the memory of its size, not that of its largest size."""
    for limited in ((), ("limited",)):
        done = subprocess.run(
            [sys.executable, "-c", LITTLE_MEMORY, str(tmp_path), *limited],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "snapshot" not in done.stderr and "damage" not in done.stderr
    assert not list(tmp_path.rglob("*damaged*"))
    report = RecordedRun(RunDirectory(tmp_path / "run")).report().to_json()
    assert (report["attempts"], report["steps"]["kept"]) == (2, 2) and not report["damage"]


def test_full_till_the_end(record: Callable[..., Recording], mount: Mount, caplog: pytest.LogCaptureFixture) -> None:
    disk = mount("size=3m")
    if disk is None:
        return  # test_files_may_not_grow[later] stands for it
    recording = record(directory=disk / "runs")
    recording.folder = disk / "runs" / "run"
    with goodput.job():
        fill(disk / "ballast")
        steps(0, 3 * MANY)  # more than the segment and the spares that may have been made before hold
    goodput.shutdown(60)  # on a busy machine the keeper may need longer than it is given by default
    check(recording.report(), 3 * MANY)
    left = recording.report_on_disk()
    assert CAPACITY // 3 < left["steps"]["kept"] < 3 * MANY
    (disk / "ballast").unlink()
    again = record(directory=disk / "runs")
    with goodput.job():
        steps(3 * MANY, 10)  # not below a number that is on the disk: some after those that were lost may be there
    assert again.report()["attempts"] == 2
    check(again.report(), left["steps"]["kept"] + 10)


def fill(ballast: Path) -> None:
    """Leave no room for even one more block."""
    try:
        with ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
    except OSError as error:
        assert error.errno == errno.ENOSPC


@pytest.mark.parametrize("how", ["mounted so", "no directory", "no right"])
def test_read_only(
    how: str, record: Callable[..., Recording], mount: Mount, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place: Path | None = tmp_path / "place"
    assert place is not None
    if how == "mounted so":
        place = mount("size=1m,ro")
        if place is None:
            return  # "no right" stands for it
    elif how == "no directory":
        place.write_text("a file")
    else:
        place.mkdir()
        place.chmod(0o500)
        if os.access(place, os.W_OK):  # the superuser may all the same
            place = Path("/proc/nothing")
    recording = record(directory=place / "runs")
    (text,) = warnings_about_disk(caplog)
    assert "cannot be written" in text and str(place) in text and "figures continue" in text and "restart" in text
    with goodput.job():
        steps(0, 200)
        goodput.flush()
        check(recording.report(), 200)
    goodput.shutdown()
    check(recording.report(), 200)
    assert len(warnings_about_disk(caplog)) == 1, "it is said once"


def test_a_place_that_becomes_writable(
    record: Callable[..., Recording], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As the message says: unless the place becomes writable."""
    place = tmp_path / "place"
    place.write_text("in the way")
    recording = record(directory=place / "runs")
    with goodput.job():
        steps(0, 50)
        place.unlink()
        for _ in range(3):
            goodput.flush()
        assert any("writable again" in text for text in warnings_about_disk(caplog))
        steps(50, 50)
    goodput.shutdown()
    folder = RunDirectory(place / "runs" / "run")
    check(RecordedRun(folder).report().to_json(), 100)
    assert RecordedRun(folder).report().to_json()["run_id"] == "run" and folder.identity()["job_name"] == "line"
    assert recording.recorder.report().to_json()["seconds"] == RecordedRun(folder).report().to_json()["seconds"]


def test_the_folder_is_deleted_while_it_is_written(
    record: Callable[..., Recording], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    import shutil

    recording = record(directory=tmp_path / "runs")
    with goodput.job():
        steps(0, 100)
        while (tmp_path / "runs").exists():  # the keeper may put a file where a folder is being removed
            shutil.rmtree(tmp_path / "runs", ignore_errors=True)
        steps(100, 2 * MANY)
        goodput.flush()
        check(recording.report(), 100 + 2 * MANY)
    goodput.shutdown()
    check(recording.report(), 100 + 2 * MANY)


FILED = """
import json, os, sys, time
from pathlib import Path
import otel_goodput as goodput
directory = Path(sys.argv[1])
place = directory if sys.argv[2] == "the directory" else directory / "run"
place.parent.mkdir(parents=True, exist_ok=True)
place.write_text("not a folder")
goodput.configure("filed", run_id="run", directory=directory, exporters="none")
with goodput.job():
    for number in range(50):
        with goodput.step(number):
            pass
began, worked = time.perf_counter(), time.process_time()
goodput.flush()
goodput.shutdown()
print(json.dumps([time.perf_counter() - began, time.process_time() - worked, goodput.report().to_json()]))
"""


@pytest.mark.parametrize("place", ["the run's folder", "the directory"])
def test_a_file_where_a_folder_should_be(place: str, tmp_path: Path) -> None:
    """One warning; nothing spins, and the end does not wait for it."""
    done = warm.run(
        [sys.executable, "-c", FILED, str(tmp_path / "runs"), place], capture_output=True, text=True, timeout=60
    )
    waited, worked, report = json.loads(done.stdout)
    check(report, 50)
    assert waited < 3.0 and worked < 1.0, "of ten seconds"
    assert done.stderr.count("cannot be written to") == 1 == len(done.stderr.splitlines()), done.stderr
    assert "OTEL_GOODPUT_DIR" in done.stderr

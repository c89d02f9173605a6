"""A journal at a URL: in real processes over file://, in memory otherwise; it survives the process and the machine."""

from __future__ import annotations

import gzip
import json
import os
import select
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
import warm
from fsspec.implementations.memory import MemoryFileSystem
from recorded import Recording, sum_ns
from waits import until

import otel_goodput as goodput
from otel_goodput._accounting import events as ev
from otel_goodput._accounting import rules
from otel_goodput._journal import records
from otel_goodput._journal.mirror import Mirror
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._runtime.installation import install_command
from otel_goodput.reports.run import RecordedRun, runs_at

TRAINER = """
import json, os, sys
import logging
logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
import otel_goodput as goodput
from otel_goodput._journal import records
from otel_goodput._accounting import events as ev
from otel_goodput._accounting import rules
recorder = goodput.configure("remote", run_id="run", directory=sys.argv[1], exporters="none")
with goodput.job():
    number = int(sys.argv[2])
    last = sys.argv[3]
    if last != "for ever":
        for number in range(number, number + int(last)):
            with goodput.step(number):
                pass
    else:
        import time
        while True:
            with goodput.step(number):
                time.sleep(0.0005)
            if number % 20 == 0:
                os.write(1, b"%d\\n" % number)
            number += 1
goodput.shutdown()
print(json.dumps([recorder.attempt, goodput.report().to_json()]))
"""


def train(url: str, first: int, steps: int, spool: Path) -> tuple[int, dict[str, Any], str]:
    """A process that trains and ends; returns its attempt, its report, its stderr."""
    spool.mkdir(exist_ok=True)
    done = warm.run(
        [sys.executable, "-W", "error", "-c", TRAINER, url, str(first), str(steps)],
        env={**os.environ, "TMPDIR": str(spool)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    attempt, report = json.loads(done.stdout.splitlines()[-1])
    return attempt, report, done.stderr


def train_until_killed(url: str, first: int, spool: Path, remote: Path, attempt: int = 0) -> int:
    """A process that is killed once some of its journal has been copied; the last step that it printed."""
    spool.mkdir(exist_ok=True)
    with warm.Process(
        [sys.executable, "-c", TRAINER, url, str(first), "for ever"],
        env={**os.environ, "TMPDIR": str(spool)},
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        output = b""
        deadline = time.monotonic() + 60

        def steps_copied() -> bool:
            segments = remote.glob(f"run/journal/a{attempt:04d}-*.segment")
            return any(records.used(path.read_bytes()) > 8 for path in segments)  # its attempt and job come first

        try:
            while not (steps_copied() and output.count(b"\n") > 1):
                assert time.monotonic() < deadline
                readable, _, _ = select.select([process.stdout], [], [], 0.05)
                if readable:
                    output += os.read(process.stdout.fileno(), 65536)
        finally:
            process.kill()
        output += process.stdout.read()
    return int(output.split(b"\n")[-2])


def command(*arguments: str) -> str:
    return warm.run(
        [sys.executable, "-m", "otel_goodput", *arguments], capture_output=True, text=True, timeout=60, check=True
    ).stdout


def test_restarts_on_the_same_and_on_another_machine(tmp_path: Path) -> None:
    remote = tmp_path / "bucket"
    url = f"file://{remote}"
    for attempt, machine in enumerate(("a", "a", "b", "a")):
        attempt_seen, report, errors = train(url, attempt * 10, 15, tmp_path / f"spool {machine}")
        assert attempt_seen == attempt
        assert report["attempts"] == attempt + 1
        assert report["steps"]["kept"] == attempt * 10 + 15 and report["steps"]["lost"] == attempt * 5
        assert ("had ended" in errors) == bool(attempt)
    on_command = json.loads(command("report", url, "--json"))
    assert on_command["seconds"] == report["seconds"] and on_command["steps"] == report["steps"]
    assert on_command["run_id"] == "run" and on_command["job_name"] == "remote"


@pytest.mark.crash
def test_killed_and_restarted_on_the_same_machine(tmp_path: Path) -> None:
    """The spool survives the process: nothing is lost, whatever had been copied."""
    remote = tmp_path / "bucket"
    last = train_until_killed(f"file://{remote}", 0, tmp_path / "spool", remote)
    attempt, report, _ = train(f"file://{remote}", last + 1, 5, tmp_path / "spool")
    assert attempt == 1 and report["attempts"] == 2
    assert report["disruption_reasons"] == {"crash": 1}
    assert report["steps"]["kept"] == last + 6
    assert sum_ns(report) == round(report["elapsed_s"] * 1e9)
    on_command = json.loads(command("report", f"file://{remote}", "--json"))
    assert on_command["steps"] == report["steps"]


@pytest.mark.crash
def test_killed_and_restarted_on_another_machine(tmp_path: Path) -> None:
    """What came after the last copy is lost with the machine, and no more than that."""
    remote = tmp_path / "bucket"
    url = f"file://{remote}"
    train(url, 0, 50, tmp_path / "spool a")
    last = train_until_killed(url, 50, tmp_path / "spool a", remote, attempt=1)
    copied = json.loads(command("report", url, "--json"))
    kept = copied["steps"]["kept"]
    assert 50 <= kept <= last + 22, "it tells of one step in 20"
    attempt, report, _ = train(url, kept, 5, tmp_path / "spool b")
    assert attempt == 2 and report["steps"]["kept"] == kept + 5
    assert report["attempts"] == copied["attempts"] + 1
    assert report["disruption_reasons"].get("restart", 0) == 1 or copied["attempts"] == 1
    assert sum_ns(report) == round(report["elapsed_s"] * 1e9)


def test_a_run_is_found_by_its_name(tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'bucket'}"
    train(url, 0, 3, tmp_path / "spool")
    assert json.loads(command("report", url, "--run", "run", "--json"))["steps"]["kept"] == 3
    done = warm.run(
        [sys.executable, "-m", "otel_goodput", "report", url, "--run", "walk"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1 and "walk" in done.stderr and "Traceback" not in done.stderr


# --- in memory --------------------------------------------------------------------------------------------------------


def steps(first: int, count: int) -> None:
    for number in range(first, first + count):
        with goodput.step(number):
            pass


def test_in_memory(record: Callable[..., Recording], bucket: str, spool: Path) -> None:
    for attempt in range(3):
        recording = record(directory=bucket)
        assert recording.recorder.attempt == attempt
        with goodput.job():
            steps(attempt * 10, 10)
        report = recording.recorder.report().to_json()
        goodput.shutdown()
        assert report["attempts"] == attempt + 1 and report["steps"]["kept"] == (attempt + 1) * 10
        for path in spool.iterdir():  # another machine every time
            shutil.rmtree(path)
        with runs_at(bucket) as (run,):
            answer = run.report().to_json()
            assert answer.pop("configurations")
            report.pop("configurations", None)  # not there until those of earlier attempts have been read
            assert answer == report
            assert run.folder.identity()["run_id"] == "run"


def test_what_is_left_at_the_url(record: Callable[..., Recording], bucket: str, spool: Path) -> None:
    """Sealed segments take the place of what they seal, spares and locks stay at home."""
    memory = fsspec.filesystem("memory")
    record(directory=bucket)
    with goodput.job():
        for first in range(0, 40_000, 4000):
            steps(first, 4000)
            goodput.flush()
    goodput.shutdown()
    names = sorted(path.rsplit("/", 1)[1] for path in memory.find(bucket))
    assert "run.json" in names and "p0000.snapshot" in names
    assert not [name for name in names if name.endswith((".lock", ".part"))]
    stems = [name.removesuffix(".gz") for name in names if ".segment" in name]
    assert len(stems) == len(set(stems)), f"a segment is there once: {names}"
    for path in spool.iterdir():
        shutil.rmtree(path)
    with runs_at(bucket) as (run,):
        assert run.report().to_json()["steps"]["kept"] == 40_000


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("carrier-pigeon://loft/runs", ("carrier-pigeon://loft/runs", "cannot be used")),
        ("file:///proc/self/nothing/runs", ("/proc/self/nothing", "copied", "retried")),
    ],
)
def test_a_url_that_does_not_work(
    url: str, words: tuple[str, ...], record: Callable[..., Recording], spool: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """There is one warning; the journal stays on this machine, and a restart on it goes on."""
    for attempt in range(2):
        caplog.clear()
        recording = record(directory=url)
        assert recording.recorder.attempt == attempt
        with goodput.job():
            steps(attempt * 10, 10)
            goodput.flush()
            goodput.flush()
        goodput.shutdown()
        messages = [line.getMessage() for line in caplog.records if "had ended" not in line.getMessage()]
        if not attempt:
            (text,) = messages
            assert all(word in text for word in words) and str(spool) in text
        assert recording.report()["steps"]["kept"] == (attempt + 1) * 10


def test_without_fsspec(
    record: Callable[..., Recording], spool: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    recording = record(directory="gs://bucket/runs")
    (text,) = [line.getMessage() for line in caplog.records]
    assert install_command("remote") in text and "gs://bucket/runs" in text
    with goodput.job():
        steps(0, 10)
    goodput.shutdown()
    assert recording.report()["steps"]["kept"] == 10


def test_the_url_fails_for_a_while(
    record: Callable[..., Recording], bucket: str, spool: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What could not be copied then is copied later."""
    memory = fsspec.filesystem("memory")
    memory.pipe_file(f"{bucket}/run", b"a file where the folder should be")
    record(directory=bucket)
    with goodput.job():
        steps(0, 10)
        goodput.flush()
        if memory.isfile(f"{bucket}/run"):
            memory.rm_file(f"{bucket}/run")
        steps(10, 10)
    goodput.shutdown()
    for path in spool.iterdir():
        shutil.rmtree(path)
    with runs_at(bucket) as (run,):
        assert run.report().to_json()["steps"]["kept"] == 20


def test_the_last_upload_has_the_segment_as_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another machine's spool may have an older snapshot, which stands for nothing in that segment."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    remote = tmp_path / "bucket"
    recorder = goodput.Recorder("remote", run_id="run", directory=f"file://{remote}", exporters="none")
    with recorder.job():
        until(lambda: any(remote.glob("run/journal/*.segment")))
        segments = list(remote.glob("run/journal/*.segment"))
        for number in range(7):
            with recorder.step(number):
                pass
    recorder.shutdown()
    decoded = records.decode_segment(segments[0].read_bytes(), records.Names())
    assert sum(record.kind == ev.START and record.phase == rules.STEP for record in decoded) == 7


class Stuck(MemoryFileSystem):
    """A storage that takes what it is given and never answers, until it is let go."""

    protocol = "stuck"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    released = threading.Event()

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        self.released.wait(60)
        super().pipe_file(path, value, mode)


def test_a_storage_that_hangs_holds_up_nobody(
    record: Callable[..., Recording], spool: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fsspec.register_implementation("stuck", Stuck, clobber=True)
    Stuck.released.clear()
    try:
        recording = record(directory="stuck://runs", grace_period=2.0)
        began = time.monotonic()
        with goodput.job():
            steps(0, 10)
            goodput.flush()
            assert recording.report()["steps"]["kept"] == 10
            steps(10, 10)
            goodput.flush()
        assert time.monotonic() - began < 1.5
        goodput.shutdown()
        assert time.monotonic() - began < 4.0
        assert [line for line in caplog.messages if "last upload of the journal did not finish" in line]
        (folder,) = [path.parent for path in spool.rglob("run.json")]
        assert RecordedRun(RunDirectory(folder)).report().to_json()["steps"]["kept"] == 20
    finally:
        Stuck.released.set()


def test_who_reads_has_what_has_grown_at_the_url(tmp_path: Path) -> None:
    """`refresh`, which `serve URL` stands on, brings a segment again that has grown, and removes what is gone."""
    there = tmp_path / "there"
    source, copy = RunDirectory(there / "run"), RunDirectory(tmp_path / "copy" / "run")
    source.make()
    segment = source.segment_path(0, 0, 0)
    mirror = Mirror(f"file://{there}", copy)
    for size in (1, 2, 3):
        segment.write_bytes(records.encode_header(0, 0, 0, 1) + bytes([size]) * size * records.SIZE)
        mirror.refresh()
        assert (copy.journal / segment.name).read_bytes() == segment.read_bytes()
    packed = segment.with_name(f"{segment.name}.gz")
    packed.write_bytes(gzip.compress(segment.read_bytes()))
    segment.unlink()
    mirror.refresh()
    assert [path.name for path in copy.journal.iterdir()] == [packed.name]

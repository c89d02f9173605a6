"""Restarts on a file system without locks: Lustre mounted without ``-o flock``, NFS without lockd.

What the file system does not have is taken from real processes of the job, and of the commands.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import warm

from otel_goodput._journal.rundir import runs

JOB = """
import os, signal, sys
import otel_goodput as goodput
recorder = goodput.configure("job", run_id="run", exporters="none", integrations="none")
first = 10 * recorder.attempt
with goodput.job():
    for step in range(first, first + 10):
        with goodput.step(step):
            pass
    print(recorder.run_id, recorder.attempt, flush=True)
    if sys.argv[1] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if sys.argv[1] == "wait":
        sys.stdin.readline()
"""
TAKEN_AWAY = """
import errno, fcntl
def missing(*_):
    raise OSError({number}, "not on this file system")
for name in {names}:
    setattr(fcntl, name, missing)
"""
LOCKS = {"no flock": ("flock",), "no locks at all": ("flock", "lockf")}


class Place:
    """A folder on such a file system."""

    def __init__(self, folder: Path, names: tuple[str, ...], number: int) -> None:
        self.folder = folder
        (folder / "site").mkdir()
        (folder / "site" / "sitecustomize.py").write_text(TAKEN_AWAY.format(names=names, number=number))
        paths = os.pathsep.join([str(folder / "site"), os.environ.get("PYTHONPATH", "")])
        self._environment = {**os.environ, "PYTHONPATH": paths, "OTEL_GOODPUT_STRICT": ""}

    def begin(self, *command: str) -> warm.Process:
        return warm.Process(
            [sys.executable, *command], cwd=self.folder, env=self._environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, ending: str) -> tuple[str, str]:
        """One attempt; returns its stdout and stderr."""
        out, errors = self.begin("-c", JOB, ending).communicate(timeout=60)
        return out.strip(), errors

    def states(self) -> dict[str, str]:
        out, errors = self.begin("-m", "otel_goodput", "runs", "goodput", "--json").communicate(timeout=60)
        assert out, errors
        return {each["run_id"]: each["state"] for each in json.loads(out)["runs"]}

    def report(self) -> Any:
        out, _ = self.begin("-m", "otel_goodput", "report", "goodput", "--run", "run", "--json").communicate(timeout=60)
        return json.loads(out)

    @property
    def lock(self) -> Path:
        """The lock file of the latest attempt."""
        return sorted((self.folder / "goodput" / "run" / "journal").glob("*.lock"))[-1]


@pytest.fixture(params=LOCKS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(tmp_path, LOCKS[request.param], errno.ENOSYS)


def test_a_run_goes_on_after_each_kill_and_is_known_to_be_dead(place: Place) -> None:
    for attempt in range(2):
        out, errors = place.run("kill")
        assert out == f"run {attempt}", errors
        assert "another running process" not in errors
        assert errors.count("does not support file locks") <= 1
    assert place.states() == {"run": "died"}
    assert place.run("end")[0] == "run 2"
    assert place.states() == {"run": "ended"}
    report = place.report()
    assert report["attempts"] == 3 and report["steps"]["kept"] == 30
    assert [run.path.name for run in runs(place.folder / "goodput")] == ["run"]


def test_a_living_writer_is_left_alone_and_known_to_live(place: Place) -> None:
    with place.begin("-c", JOB, "wait") as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "run 0\n"
        assert place.states() == {"run": "running"}
        out, errors = place.run("end")
        assert out.startswith("run~") and str(first.pid) in errors
        first.communicate("\n", timeout=60)
    assert place.run("end")[0] == "run 1"


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL])
def test_whatever_the_file_system_answers(number: int, tmp_path: Path) -> None:
    place = Place(tmp_path, LOCKS["no locks at all"], number)
    assert place.run("kill")[0] == "run 0"
    out, errors = place.run("end")
    assert out == "run 1" and errors.count("does not support file locks") == 1


@contextmanager
def renewed(path: Path) -> Iterator[None]:
    """What a living process on another machine does to its lock."""
    over = threading.Event()

    def renew() -> None:
        while not over.wait(0.3):
            os.utime(path)

    thread = threading.Thread(target=renew)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_writer_on_another_machine(tmp_path: Path) -> None:
    """Its pid means nothing here, where another process may have it: signs of life count."""
    place = Place(tmp_path, LOCKS["no locks at all"], errno.ENOSYS)
    place.run("kill")
    holder = f"{os.getpid()}\n1\n00000000-0000-0000-0000-000000000000 pid:[1]\n"
    place.lock.write_text(holder)
    with renewed(place.lock):
        assert place.states() == {"run": "running"}
        assert place.run("end")[0].startswith("run~")
    place.lock.write_text(holder)  # just now: the writer was killed, and is started again elsewhere at once
    assert place.run("end")[0] == "run 1"


def test_a_pid_that_another_process_has_now(tmp_path: Path) -> None:
    place = Place(tmp_path, LOCKS["no locks at all"], errno.ENOSYS)
    place.run("kill")
    lines = place.lock.read_text().split("\n")
    place.lock.write_text("\n".join([str(os.getpid()), *lines[1:]]))  # it lives, but began at another time
    assert place.run("end")[0] == "run 1"


@pytest.mark.parametrize("harm", ["", "x", "\0" * 64, "12\n", "9" * 400, "-1\n\n\n"])
def test_whatever_is_in_the_lock_file(harm: str, tmp_path: Path) -> None:
    place = Place(tmp_path, LOCKS["no locks at all"], errno.ENOSYS)
    place.run("kill")
    place.lock.write_text(harm)
    assert place.run("end")[0] == "run 1"

"""``otel-goodput doctor``: settings, broken places, real runs, and a terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import warm
from exporters.backends import silent_backend

from otel_goodput._runtime.installation import install_command
from otel_goodput._tools.doctor import settings
from otel_goodput._tools.doctor.settings import rows

from ..commands import PATIENCE_S, environment, finished, goodput, job, killed, succeeded
from .examined import doctor, doctor_without, findings

# --- settings ---------------------------------------------------------------------------------------------------------


WITHIN = {"RANK": "9", "WORLD_SIZE": "16"}  # eight processes of torchrun on each of two hosts
JOBSET = {"JOB_INDEX": "1", "REPLICATED_JOB_REPLICAS": "2", "JOB_COMPLETION_INDEX": "1"}


@pytest.mark.parametrize(
    ("variables", "about", "level", "problem"),
    [
        ({"OTEL_SDK_DISABLED": "true"}, "settings", "warning", "nothing is recorded"),
        ({"OTEL_GOODPUT_WINDOWS": "x"}, "settings", "problem", "OTEL_GOODPUT_WINDOWS is ignored; '1h,24h' is used"),
        ({"OTEL_GOODPUT_EXPORTER": "x"}, "settings", "warning", "did you mean OTEL_GOODPUT_EXPORTERS?"),
        ({"OTEL_GOODPUT_SUBMITTED_AT": "9e9"}, "settings", "warning", "in the future"),
        ({"RANK": "2", "WORLD_SIZE": "4"}, "processes", "ok", "process 2 of 4 (RANK, WORLD_SIZE)"),
        ({"RANK": "0", "WORLD_SIZE": "4"}, "processes", "ok", "its phases make up the run's figures"),
        ({"JOB_COMPLETION_INDEX": "1"}, "processes", "ok", "of an unknown number"),
        ({"RANK": "5", "WORLD_SIZE": "2"}, "processes", "problem", "process 5 (RANK) of 2 (WORLD_SIZE)"),
        ({"RANK": "first"}, "processes", "problem", "RANK='first' is not an integer"),
        ({"RANK": "²"}, "processes", "problem", "RANK='²' is not an integer"),
        ({"WORLD_SIZE": "4"}, "processes", "warning", "every process assumes it is 0"),
        ({"RANK": "1", "SLURM_PROCID": "3"}, "processes", "warning", "RANK=1, SLURM_PROCID=3: RANK counts"),
        (
            {**WITHIN, "SLURM_PROCID": "1", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2"},
            "processes",
            "ok",
            "process 9 of 16 (RANK, WORLD_SIZE)",
        ),
        ({**JOBSET, "JOB_COMPLETIONS": "2"}, "processes", "ok", "process 3 of 4 (JOB_INDEX × JOB_COMPLETIONS + JOB_C"),
        (JOBSET, "processes", "problem", "JOB_INDEX=1, but the number of pods per Job is not set; set JOB_COMPLETIONS"),
        ({**JOBSET, "JOB_COMPLETIONS": "x"}, "processes", "problem", "JOB_COMPLETIONS='x' is not an integer"),
        ({}, "processes", "ok", "one process (the environment"),
        ({"SLURM_JOB_ID": "17", "SLURM_RESTART_COUNT": "2"}, "launcher", "ok", "slurm started this job, 17 after 2 re"),
        ({"SLURM_JOB_ID": "17", "SLURM_JOB_END_TIME": "9"}, "launcher", "ok", "its time limit has passed"),
        (
            {"TORCHELASTIC_RESTART_COUNT": "1", "TORCHELASTIC_MAX_RESTARTS": "3"},
            "launcher",
            "ok",
            "torchrun started this job after 1 restarts of at most 3",
        ),
    ],
)
def test_settings(variables: dict[str, str], about: str, level: str, problem: str) -> None:
    checked = settings.check(variables, rows(variables), settings.in_force(variables)[0])
    about_it = [one for one in checked if one.about == about]
    assert any(one.level == level and problem in f"{one.what}; {one.do}" for one in about_it)
    assert level != "ok" or {one.level for one in about_it} == {"ok"}


def test_a_timeout_that_is_none(place: Path) -> None:
    for seconds in ("0", "nan"):
        done = goodput("doctor", "--timeout", seconds, cwd=place)
        assert done.returncode == 2
        assert "--timeout" in done.stderr


# --- the journal's place ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("below", ["", "deeper/still"])
def test_a_place_that_cannot_be_written(below: str, place: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    done = doctor(place, OTEL_GOODPUT_DIR=tmp_path / "file" / below)
    assert "cannot be written" in findings(done, "journal", "problem")
    assert doctor(place, OTEL_GOODPUT_DIR="/proc/goodput").returncode == 1


def test_a_disk_that_is_nearly_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    from otel_goodput._settings import config
    from otel_goodput._tools.doctor import journal

    configured = config.read("job", directory=tmp_path, environ={})
    for free, level in ((2**34, "ok"), (2**28, "warning"), (2**20, "problem")):
        monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: shutil._ntuple_diskusage(2**40, 0, free))  # type: ignore[attr-defined]
        [finding] = journal.check(configured, "", 1.0)
        assert finding.level == level


def test_a_run_where_the_runs_should_be(place: Path, tmp_path: Path) -> None:
    finished("job", tmp_path / "runs")
    done = doctor(place, OTEL_GOODPUT_DIR=tmp_path / "runs" / "job")
    assert "the folder of one run" in findings(done, "journal", "warning")


def test_urls(place: Path, tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    there = doctor(place, OTEL_GOODPUT_DIR=f"file://{tmp_path}/bucket")
    assert "can be read" in findings(there, "journal", "ok")
    assert "on this machine only" in findings(there, "exporter file", "warning")
    assert list((tmp_path / "bucket").iterdir()) == []
    finished("job", tmp_path / "bucket")
    again = doctor(place, OTEL_GOODPUT_DIR=f"file://{tmp_path}/bucket", OTEL_GOODPUT_RUN_ID="job")
    assert f"run 'job' is at file://{tmp_path}/bucket" in findings(again, "run", "ok")
    unknown = doctor(place, OTEL_GOODPUT_DIR="nosuch://me:swordfish@bucket/runs")
    assert "Protocol not known: nosuch" in findings(unknown, "journal", "problem")
    assert "swordfish" not in unknown.stdout
    bare = doctor_without("fsspec", place, OTEL_GOODPUT_DIR=f"file://{tmp_path}/bucket")
    assert install_command("remote") in findings(bare, "journal", "problem")


def test_a_filesystem_that_does_not_answer(place: Path) -> None:
    begun = time.monotonic()
    with silent_backend() as endpoint:
        done = doctor(place, "--timeout", "0.5", OTEL_GOODPUT_DIR=endpoint.replace("http", "ftp") + "/runs")
    assert time.monotonic() - begun < 25, "fsspec itself waits for 30 s"
    assert endpoint.rpartition("/")[2] in findings(done, "journal", "problem")


# --- runs -------------------------------------------------------------------------------------------------------------


def seen(folder: Path) -> list[Path]:
    """All that is there, but what the job itself may write meanwhile: a spare segment, and its facts."""
    return [path for path in sorted(folder.rglob("*")) if path.suffix != ".segment" and ".facts" not in path.suffixes]


def test_a_living_job_is_seen_and_not_disturbed(place: Path, tmp_path: Path) -> None:
    with job("job", tmp_path / "runs", 0, 10, "wait") as process:
        before = seen(tmp_path / "runs")
        done = doctor(place, OTEL_GOODPUT_DIR=tmp_path / "runs", OTEL_SERVICE_NAME="job")
        assert f"is being written by a living process (pid {process.pid}), attempt 1" in findings(
            done, "run", "warning"
        )
        assert seen(tmp_path / "runs") == before
        process.send_signal(signal.SIGKILL)
    report = json.loads(succeeded(goodput("report", tmp_path / "runs", "--json")))
    assert report["steps"]["kept"] == 10


def test_a_killed_and_an_ended_run(place: Path, tmp_path: Path) -> None:
    killed("dead", tmp_path / "runs")
    finished("over", tmp_path / "runs")
    both = doctor(place, OTEL_GOODPUT_DIR=tmp_path / "runs")
    assert re.search(r"run 'dead' stopped .* ago in attempt 1 without ending its job", findings(both, "run", "ok"))
    assert re.search(r"run 'over' ended .* ago after 1 attempt;", findings(both, "run", "ok"))
    assert findings(both, "run", "warning") == "", "runs that nobody named are no reason to warn"
    again = doctor(place, OTEL_GOODPUT_DIR=tmp_path / "runs", OTEL_GOODPUT_RUN_ID="over")
    assert re.search(r"run 'over' ended .* ago after 1 attempt;", findings(again, "run", "warning"))
    one = doctor(place, OTEL_GOODPUT_DIR=tmp_path / "runs", OTEL_GOODPUT_RUN_ID="dead")
    assert "'over'" not in one.stdout
    assert json.loads(one.stdout)["run_id"] == "dead"
    new = doctor(place, OTEL_GOODPUT_DIR=tmp_path / "runs", OTEL_GOODPUT_RUN_ID="new")
    assert "run 'new' has no journal on this machine yet" in findings(new, "run", "ok")
    other = doctor(place, OTEL_GOODPUT_DIR=tmp_path / "runs", OTEL_GOODPUT_RUN_ID="dead", RANK="1", WORLD_SIZE="2")
    assert "has no journal of process 1 yet" in findings(other, "run", "ok")


def test_a_journal_that_is_damaged(place: Path, tmp_path: Path) -> None:
    finished("job", tmp_path / "runs")
    (tmp_path / "runs" / "job" / "journal" / "p0000.snapshot").write_bytes(b"rubbish")
    done = doctor(place, OTEL_GOODPUT_DIR=tmp_path / "runs")
    assert "p0000.snapshot is not used" in findings(done, "run", "warning")


DISPATCH = """
import sys, time
import otel_goodput as goodput

directory, taken = sys.argv[1], float(sys.argv[2])
goodput.configure("job", directory=directory, exporters="none")
start, ns = time.time_ns() - 3600 * 10**9, 10**9
with goodput.job(start_time=start, end_time=start + 60 * ns):
    for number in range(40):
        began = start + number * ns
        with goodput.step(number, start_time=began, end_time=began + round(taken * ns)):
            pass
        with goodput.data_loading(start_time=began + round(taken * ns), end_time=began + ns):
            pass
"""


@pytest.mark.parametrize(("taken", "suspected"), [(0.001, True), (0.9, False)])
def test_steps_that_only_dispatch(taken: float, suspected: bool, place: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", DISPATCH, str(tmp_path / "runs"), str(taken)]
    warm.run(command, env=environment(), check=True, timeout=PATIENCE_S)
    done = doctor(place, OTEL_GOODPUT_DIR=tmp_path / "runs")
    finding = findings(done, "run", "warning")
    assert ("it is not known when the device was done" in finding) == suspected
    assert ("jax.block_until_ready" in finding) == suspected


# A runtime that nothing is known of but that it works asynchronously.
UNKNOWN = """
import sys
from types import SimpleNamespace

sys.modules["cupy"] = SimpleNamespace(get_default_memory_pool=lambda: SimpleNamespace(total_bytes=lambda: 1))
import otel_goodput as goodput

goodput.configure("job", directory=sys.argv[1], exporters="none")
with goodput.job():
    for number in range(3):
        with goodput.step(number):
            pass
"""
HOST = UNKNOWN.replace("total_bytes=lambda: 1", "total_bytes=lambda: 0")


@pytest.mark.parametrize(
    ("program", "level", "words"),
    [
        (UNKNOWN, "warning", "run 'job': the end of the latest steps on the device is not known"),
        (HOST, "ok", "timed on the host"),
    ],
)
def test_the_clock_of_the_latest_attempt(program: str, level: str, words: str, place: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", program, str(tmp_path / "runs")]
    job = environment(OTEL_GOODPUT_DEVICE_CLOCK="auto")
    warm.run(command, env=job, check=True, timeout=PATIENCE_S)
    finding = findings(doctor(place, OTEL_GOODPUT_DIR=tmp_path / "runs"), "run", level)
    assert words in finding
    assert ("OTEL_GOODPUT_DEVICE_CLOCK=host" in finding) == (program is UNKNOWN)


# --- while it waits ---------------------------------------------------------------------------------------------------


def test_on_a_terminal_it_says_what_it_waits_for(place: Path) -> None:
    ours, theirs = pty.openpty()
    try:
        with silent_backend() as endpoint:
            done = warm.run(
                [sys.executable, "-m", "otel_goodput", "doctor", "--timeout", "0.5"],
                stdout=subprocess.PIPE, stderr=theirs, stdin=subprocess.DEVNULL, text=True, cwd=place, check=False,
                env=environment(OTEL_EXPORTER_OTLP_ENDPOINT=endpoint), timeout=PATIENCE_S,
            )  # fmt: skip
        os.close(theirs)
        seen = b""
        while True:
            try:
                part = os.read(ours, 4096)
            except OSError:  # everything was read, and nobody writes any more
                break
            if not part:
                break
            seen += part
    finally:
        os.close(ours)
    text = seen.decode()
    assert "looking at exporter otlp" in text
    assert text.endswith("\r"), "the line is gone in the end"
    assert text.rstrip("\r").rpartition("\r")[2].strip() == ""
    assert "looking at" not in done.stdout


# --- places that are somebody else's ----------------------------------------------------------------------------------


def test_a_directory_in_which_everybody_may_replace_files(place: Path, tmp_path: Path) -> None:
    directory = tmp_path / "open"
    directory.mkdir()
    for mode, level in ((0o777, "warning"), (0o1777, "ok"), (0o755, "ok")):
        directory.chmod(mode)
        finding = findings(doctor(place, OTEL_GOODPUT_DIR=directory), "journal", level)
        assert str(directory) in finding and ("chmod +t" in finding) == (level == "warning")


def test_a_spool_that_others_may_write(place: Path, tmp_path: Path) -> None:
    spool = tmp_path / "tmp" / f"otel-goodput-{os.getuid()}"
    spool.mkdir()
    spool.chmod(0o777)
    try:
        finding = findings(doctor(place, OTEL_GOODPUT_DIR="memory://doctor"), "journal", "warning")
        assert "it is writable by other users" in finding and str(spool) in finding and "TMPDIR" in finding
    finally:
        spool.rmdir()


def test_a_disk_that_goes_with_the_pod(place: Path) -> None:
    pod = {"KUBERNETES_SERVICE_HOST": "127.0.0.1"}
    assert "which is lost with this pod" in findings(doctor(place, **pod), "journal", "warning")
    named = findings(doctor(place, OTEL_GOODPUT_DIR=place / "volume", **pod), "journal", "warning")
    assert "goes with this pod" not in named
    assert "goes with" not in findings(doctor(place), "journal", "warning")

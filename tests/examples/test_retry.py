"""``examples/retry.sh``: tries are attempts of one run, each of which learns how the one before ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tools.commands import environment
from waits import PATIENCE_S, until

from otel_goodput import open_run

RETRY = Path(__file__).parents[2] / "examples" / "retry.sh"
JOB = """
import os, signal, sys, time
import otel_goodput as goodput
place = sys.argv[1]
goodput.configure("retried", directory=place, exporters="none")
with open(place + "/tries", "r+") as file:
    tries = len(file.readlines())
    file.write(os.environ.get("OTEL_GOODPUT_EXIT_CODE", "none") + "\\n")
with goodput.job():
    for number, _ in goodput.steps(range(5), start=5 * tries):
        time.sleep(0.005)
        if number == 7:
            sys.exit(3)
        if number == 12:
            os.kill(os.getpid(), signal.SIGKILL)
        if len(sys.argv) > 2:
            open(place + "/begun", "w").close()
            time.sleep(60)
"""


def retry(place: Path, *words: str, job: tuple[str, ...] = ()) -> list[str]:
    place.mkdir(exist_ok=True)
    (place / "tries").touch()
    return ["sh", str(RETRY), *words, "--", sys.executable, "-c", JOB, str(place), *job]


def test_what_goes_well_is_done_once(tmp_path: Path) -> None:
    done = subprocess.run(
        retry(tmp_path, "-w", "0"), env=environment(), capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "tries").read_text() == "none\n"


def test_the_next_try_learns_how_the_last_one_ended(tmp_path: Path) -> None:
    (tmp_path / "tries").write_text("none\n")  # so that the first try does the steps 5 to 9, and fails in 7
    done = subprocess.run(
        retry(tmp_path, "-w", "0"), env=environment(), capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "tries").read_text().split() == ["none", "none", "3", "137"]
    assert [line for line in done.stderr.splitlines() if line.startswith("retry.sh")] == [
        "retry.sh: try 1 of 10 ended with status 3; the next one begins in 0 s",
        "retry.sh: try 2 of 10 ended with status 137; the next one begins in 0 s",
    ]
    report = open_run(tmp_path).report().to_json()
    assert report["attempts"] == 3 and report["state"] == "ended"
    assert report["disruption_reasons"] == {"crash": 2}


def test_it_gives_up_with_the_last_status(tmp_path: Path) -> None:
    (tmp_path / "tries").write_text("none\n")
    done = subprocess.run(
        retry(tmp_path, "-n", "1"), env=environment(), capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 3
    assert "try 1 of 1 ended with status 3; that was the last" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_goes_to_the_job_and_ends_the_loop(tmp_path: Path, number: signal.Signals) -> None:
    with subprocess.Popen(
        retry(tmp_path, "-w", "0", job=("sleeps",)), env=environment(), stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            until((tmp_path / "begun").exists)
            os.kill(process.pid, number)
            assert process.wait(PATIENCE_S) == 128 + signal.SIGTERM
            assert process.stderr is not None and "next one" not in process.stderr.read()
        finally:
            process.kill()
    report = open_run(tmp_path).report().to_json()
    assert report["attempts"] == 1 and report["state"] in ("failed", "died")


@pytest.mark.parametrize("words", [("-n", "many"), ("-w", "1.5"), ("-q",), ()])
def test_wrong_use_prints_the_usage(words: tuple[str, ...]) -> None:
    done = subprocess.run(["sh", str(RETRY), *words], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 64
    assert "retry.sh" in done.stderr and "Traceback" not in done.stderr
    if words[:1] in ((), ("-q",)):
        assert "COMMAND" in done.stderr and "-w SECONDS" in done.stderr

"""From a signal or the metadata server to the account, the job's span and the user's callback, in real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import warm
from crash.exported import read_spans

from .metadata_server import PREEMPTED, metadata_server

JOB = """
import os, sys, time
import otel_goodput as goodput
goodput.configure("told", run_id="run", directory=sys.argv[1], exporters="file")

@goodput.on_preemption
def save_now():
    open(sys.argv[1] + "/saved", "a").write("x")

with goodput.job():
    for step, _ in goodput.steps(range(10**9 if sys.argv[2] == "on" else 5)):
        if step == 3:
            print("going", flush=True)
        time.sleep(0.002)
        if sys.argv[2] == "on" and os.path.exists(sys.argv[1] + "/saved") and sys.argv[3] == "leave":
            break
"""


def start(directory: Path, how: str, then: str = "", **environment: str) -> warm.Process:
    return warm.Process(
        [sys.executable, "-W", "error", "-c", JOB, str(directory), how, then],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def going(process: warm.Process) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "going\n"


def report(directory: Path) -> dict[str, Any]:
    done = warm.run(
        [sys.executable, "-m", "otel_goodput", "report", str(directory), "--json"],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_signal_is_the_reason_and_still_ends_the_process(tmp_path: Path, number: signal.Signals) -> None:
    process = start(tmp_path, "on")
    going(process)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -number, errors
    assert "otel_goodput" not in errors.partition("Traceback")[0]
    assert (tmp_path / "saved").read_text() == "x"
    _, errors = start(tmp_path, "off").communicate(timeout=60)
    answer = report(tmp_path)
    assert answer["attempts"] == 2 and answer["disruption_reasons"] == {"signal": 1}


def test_a_preemption_is_noted_before_the_signal_that_follows(tmp_path: Path) -> None:
    with metadata_server() as server:
        process = start(tmp_path, "on", "leave", GCE_METADATA_HOST=server.host)
        going(process)
        server.set(PREEMPTED, "TRUE")
        assert process.wait(60) == 0
        process.communicate()
    (job,) = [span for span in read_spans(tmp_path / "run") if span.name == "job"]
    assert job.attributes["goodput.phase"] == "job"
    start(tmp_path, "off").communicate(timeout=60)
    assert report(tmp_path)["disruption_reasons"] == {"preemption": 1}


def test_the_exit_status_tells_what_the_journal_cannot(tmp_path: Path) -> None:
    process = start(tmp_path, "on")
    going(process)
    process.kill()
    process.communicate()
    start(tmp_path, "off", OTEL_GOODPUT_EXIT_CODE="143").communicate(timeout=60)
    assert report(tmp_path)["disruption_reasons"] == {"signal": 1}


def test_none_of_it(tmp_path: Path) -> None:
    process = start(tmp_path, "on", OTEL_GOODPUT_INTEGRATIONS="none")
    going(process)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM and not (tmp_path / "saved").exists()
    start(tmp_path, "off", OTEL_GOODPUT_INTEGRATIONS="none").communicate(timeout=60)
    assert report(tmp_path)["disruption_reasons"] == {"crash": 1}

"""What a report says about each disruption: when, why, and what it cost. Real processes that end in each way."""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import warm

import otel_goodput as goodput
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput.reports.run import RecordedRun
from otel_goodput.reports.run_view import RunView

from .commands import environment, succeeded
from .commands import goodput as command

PROGRAM = """
import os, signal, sys, time
import otel_goodput as goodput

folder, how, job = sys.argv[1:4]
goodput.configure("ends", run_id="ends", exporters="none", directory=folder)

def train():
    with goodput.training_prep():
        time.sleep(0.02)
    with goodput.checkpoint_restore(2):
        time.sleep(0.01)
    for step, _ in goodput.steps(range(3, 9), start=3):
        time.sleep(0.002)
        if step == 6 and how == "raise":
            raise RuntimeError("CUDA out of memory at https://user:hunter2@host/")
        if step == 6 and how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if step == 6 and how == "term":
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)

if job == "job":
    with goodput.job():
        train()
else:
    train()
"""


def end(folder: Path, how: str, status: int, *, job: str = "job", **variables: str) -> None:
    """Run the program until it ends with `status`."""
    arguments = [sys.executable, "-c", PROGRAM, str(folder), how, job]
    done = warm.run(arguments, env=environment(**variables), capture_output=True, text=True, timeout=120)
    assert done.returncode == status, done.stderr


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose attempts ended by an exception, by SIGTERM, by SIGKILL, and well."""
    folder = tmp_path_factory.mktemp("ends")
    end(folder, "raise", 1)
    end(folder, "term", -signal.SIGTERM, OTEL_GOODPUT_EXIT_CODE="1")
    end(folder, "kill", -signal.SIGKILL)
    end(folder, "no", 0, OTEL_GOODPUT_EXIT_CODE="137")
    return folder


def disruptions(folder: Path) -> list[dict[str, Any]]:
    with goodput.open_run(folder) as opened:
        return [dict(one) for one in opened.report().to_json()["disruption_list"]]


def test_why_each_attempt_ended(run: Path) -> None:
    endings = [(one["reason"], one["error_type"], one["error_message"], one["ended_by"]) for one in disruptions(run)]
    assert endings == [
        ("crash", "RuntimeError", "CUDA out of memory at https://***@host/", "exit status 1"),
        ("signal", None, None, "SIGTERM"),
        ("crash", None, None, "exit status 137"),
    ]


def test_when_and_what_each_cost(run: Path) -> None:
    before = 0.0
    for one in disruptions(run):
        assert before < one["died_at"] <= one["time"] < time.time()
        assert one["time"] - one["died_at"] == pytest.approx(one["recovery_s"], abs=1e-5)
        before = one["time"]
        assert 0.02 <= one["startup_s"] <= one["first_step_s"] and 0.01 <= one["restored_s"] <= one["first_step_s"]
        parts = [one[name] for name in ("recovery_s", "wasted_s", "startup_s", "restored_s")]
        assert one["cost_s"] == pytest.approx(sum(parts), abs=1e-9) and one["wasted_s"] > 0


def test_the_page_tells_how_each_attempt_ended(run: Path) -> None:
    states = [attempt.state for attempt in RunView.open(RecordedRun(RunDirectory(run / "ends"))).attempts]
    assert states == ["failed", "died", "died", "ended"]


def test_the_text_tells_it(run: Path) -> None:
    text = succeeded(command("report", run))
    moment = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"
    why = r"RuntimeError: CUDA out of memory .*; exit status 1"
    assert re.search(rf"^    crash at {moment} \(attempt 2\): {why}$", text, re.M)
    assert re.search(rf"^    signal at {moment} \(attempt 3\): SIGTERM$", text, re.M)
    shares = "down, [\\d.]+ m?s in lost steps, [\\d.]+ m?s start-up, [\\d.]+ m?s restoring; "
    cost = rf"^      cost [\d.]+ m?s: [\d.]+ m?s {shares}"
    assert len(re.findall(cost + "went back from step 6 to 3$", text, re.M)) == 3
    assert "hunter2" not in text


@pytest.mark.parametrize("job", ["job", "none"])
def test_a_run_that_an_exception_ended_has_failed(job: str, tmp_path: Path) -> None:
    end(tmp_path, "raise", 1, job=job)
    with goodput.open_run(tmp_path) as opened:
        report = opened.report().to_json()
        early = opened.report(at=report["started_at"] + report["elapsed_s"] / 2).to_json()
    assert (report["state"], report["ended"], report["error_type"]) == ("failed", True, "RuntimeError")
    assert (early["state"], early["error_type"]) == ("running", None)
    lines = succeeded(command("report", tmp_path)).splitlines()
    assert lines[0].endswith(", failed") and lines[1].startswith("  the job failed: RuntimeError: CUDA out of memory")
    [listed] = json.loads(succeeded(command("runs", tmp_path, "--json")))["runs"]
    assert listed["state"] == "failed"

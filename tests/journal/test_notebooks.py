"""Notebooks, tests and interrupted loops: the same code again in one process gives the figures of what was done."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import warm
from recorded import sum_ns

from otel_goodput._journal.rundir import runs
from otel_goodput.reports.run import RecordedRun

# A kernel: it executes cells in one namespace, and an interrupted or failed cell ends only itself.
KERNEL = """
import code, sys
kernel = code.InteractiveInterpreter()
for cell in sys.stdin.read().split("# ---\\n"):
    kernel.runcode(compile(cell, "cell", "exec"))
"""
CONFIGURE = """
import json, os, signal, time
import otel_goodput as goodput
goodput.configure("notebook", exporters="none", integrations="signals")
"""
TRAIN = """
with goodput.job():
    for step, batch in goodput.steps(range(10)):
        time.sleep(0.002)
"""
INTERRUPTED = """
with goodput.job():
    for step, batch in goodput.steps(range(10)):
        time.sleep(0.002)
        if step == 5:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(30)
"""
FAILED = """
with goodput.job():
    for step, batch in goodput.steps(range(10)):
        if step == 5:
            undefined
"""
REPORT = """
print(json.dumps(goodput.report().to_json()), flush=True)
"""


def execute(folder: Path, *cells: str) -> tuple[list[dict[str, Any]], str]:
    """Run the cells one after the other in one process; the reports that they print, and stderr."""
    done = warm.run(
        [sys.executable, "-c", KERNEL],
        input="# ---\n".join(cells), cwd=folder, capture_output=True, text=True, timeout=60, check=True,
        env={**os.environ, "OTEL_GOODPUT_STRICT": ""},
    )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def on_disk(folder: Path) -> dict[str, dict[str, Any]]:
    return {run.path.name: RecordedRun(run).report().to_json() for run in runs(folder / "goodput")}


def check(report: dict[str, Any], **steps: int) -> None:
    assert report["steps"] == steps
    assert sum_ns(report) == round(report["elapsed_s"] * 1e9)


def test_the_training_cell_twice(tmp_path: Path) -> None:
    """It trains on: one run, twenty steps, none of them lost."""
    (first, second), errors = execute(tmp_path, CONFIGURE, TRAIN, REPORT, TRAIN, REPORT)
    check(first, executed=10, kept=10, lost=0)
    check(second, executed=20, kept=20, lost=0)
    assert second["last_step"] == 19 and second["seconds"]["wasted_progress"] == 0
    assert 0.04 <= second["seconds"]["productive"] + second["seconds"]["program_startup"] <= second["elapsed_s"]
    assert "Traceback" not in errors
    assert list(on_disk(tmp_path)) == ["notebook"]


def test_the_whole_notebook_twice(tmp_path: Path) -> None:
    """Its first cell configures: what had finished stays as it was, and another run begins."""
    outputs, errors = execute(tmp_path, CONFIGURE, TRAIN, REPORT, CONFIGURE, TRAIN, REPORT)
    for report, run_id in zip(outputs, ("notebook", "notebook-2"), strict=True):
        assert report["run_id"] == run_id and report["attempts"] == 1 and not report["warnings"]
        check(report, executed=10, kept=10, lost=0)
    assert "had not finished" not in errors
    execute(tmp_path, CONFIGURE, TRAIN)
    reports = on_disk(tmp_path)
    assert list(reports) == ["notebook", "notebook-2", "notebook-3"]
    for report in reports.values():
        check(report, executed=10, kept=10, lost=0)


def test_an_interrupted_cell_and_the_same_cell_again(tmp_path: Path) -> None:
    (report,), errors = execute(tmp_path, CONFIGURE, INTERRUPTED, TRAIN, REPORT)
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert report["attempts"] == 2 and report["disruption_reasons"] == {"signal": 1}
    check(report, executed=15, kept=15, lost=1)
    assert report["seconds"]["wasted_progress"] > 0
    # In a new kernel: the second job had finished, so this is a new run.
    execute(tmp_path, CONFIGURE, TRAIN)
    assert list(on_disk(tmp_path)) == ["notebook", "notebook-2"]


def test_an_interrupted_cell_and_the_whole_notebook_again(tmp_path: Path) -> None:
    """It had not finished: it goes on, in the same kernel and in another one."""
    for number in range(2):
        cells = (CONFIGURE, INTERRUPTED, CONFIGURE, INTERRUPTED)
        _, errors = execute(tmp_path, *cells)
        assert errors.count("had not finished") == 1 + number
        assert "OTEL_GOODPUT_RUN_ID=notebook-2" in errors
    (report,) = on_disk(tmp_path).values()
    assert report["attempts"] == 4 and report["disruption_reasons"] == {"signal": 3}


def test_a_failed_cell(tmp_path: Path) -> None:
    (report,), errors = execute(tmp_path, CONFIGURE, FAILED, TRAIN, REPORT)
    assert "NameError" in errors
    assert report["disruption_reasons"] == {"crash": 1}
    check(report, executed=15, kept=15, lost=1)


TESTS = """
import otel_goodput as goodput
import pytest

def train(**options):
    goodput.configure("tested", exporters="none", integrations="none", **options)
    with goodput.job():
        for step, _ in goodput.steps(range(10)):
            pass
    return goodput.report().to_json()

@pytest.mark.parametrize("time", range(3))
def test_in_the_default_directory(time):
    report = train()
    assert report["run_id"] == ("tested" if time == 0 else f"tested-{time + 1}")
    assert report["attempts"] == 1 and report["steps"] == {"executed": 10, "kept": 10, "lost": 0}

@pytest.mark.parametrize("time", range(2))
def test_in_a_directory_of_its_own(time, tmp_path):
    report = train(directory=tmp_path)
    assert report["run_id"] == "tested" and report["attempts"] == 1
    assert report["steps"] == {"executed": 10, "kept": 10, "lost": 0}
"""


def test_somebodys_tests(tmp_path: Path) -> None:
    (tmp_path / "test_training.py").write_text(TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_training.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert "5 passed" in done.stdout, done.stdout
    assert list(on_disk(tmp_path)) == ["tested", "tested-2", "tested-3"]

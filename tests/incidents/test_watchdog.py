"""What programs do to the watchdog, and what it does to them, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import warm

TESTS = Path(__file__).parents[1]
PROGRAMS = (
    "own_timer",
    "replaced",
    "forks",
    "closed_descriptors",
    "at_rest",
    "no_timer",
    "two_jobs",
    "full_disk",
    "resumed",
)
PATIENCE_S = 100.0


@pytest.mark.release
def test_programs(tmp_path: Path) -> None:
    """All at once: they wait most of the time."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)])}
    started = {}
    for name in PROGRAMS:
        (tmp_path / name).mkdir()
        command = [sys.executable, "-m", "incidents.programs", name, str(tmp_path / name)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started[name] = warm.Process(command, text=True, env=environment, cwd=tmp_path / name, **pipes)
    failures = {}
    for name, process in started.items():
        try:
            output, errors = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            output, errors = "", "it does not end"
        if output.splitlines()[-1:] != ["done"] or process.wait(30):
            failures[name] = errors
    assert not failures

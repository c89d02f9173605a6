"""What `make demo-gcp` runs, with few steps; the classic exporter runs in `tests/examples/test_examples.py`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]


@pytest.mark.jax
@pytest.mark.crash
@pytest.mark.release
def test_what_arrives_agrees_with_the_report(tmp_path: Path, compiled: dict[str, str]) -> None:
    pytest.importorskip("optax")
    command = [sys.executable, "-m", "emulators.demonstration", "--api", "otlp", "--steps", "30"]
    environ = {**os.environ, **compiled, "PYTHONPATH": f"{TESTS}{os.pathsep}{os.environ['PYTHONPATH']}"}
    done = subprocess.run(
        [*command, "--directory", str(tmp_path)], env=environ, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "checkpoint_save" in done.stdout and "workload/goodput_time" in done.stdout
    assert "FAIL" not in done.stdout and done.stdout.count("\nok  ") > 20

"""A library that is imported after ``configure()`` is seen from the start of the job on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
import jax.numpy as jnp
import otel_goodput as goodput
state = {"weights": jnp.ones(4)}
recorder = goodput.configure("job", directory=sys.argv[1], run_id="run", exporters="none", integrations="orbax")
import orbax.checkpoint as ocp
with ocp.CheckpointManager(sys.argv[1] + "/checkpoints") as manager:
    if len(sys.argv) > 2:
        with goodput.job():
            manager.restore(3, args=ocp.args.StandardRestore(state))
        (phase,) = (one for one in goodput.open_run(sys.argv[1], "run").phases() if one.phase == "checkpoint_restore")
        print(phase.step)
    else:
        manager.save(3, args=ocp.args.StandardSave(state))
"""


def ran(*arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_restore_is_the_first_thing_in_the_job(tmp_path: Path) -> None:
    pytest.importorskip("orbax.checkpoint")
    ran(tmp_path)
    assert ran(tmp_path, "again") == "3"

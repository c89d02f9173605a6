"""A library that is imported after ``configure()`` is seen from the start of the job on."""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType

import pytest
import warm

from otel_goodput import Recorder

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
    command = [sys.executable, "-c", PROGRAM, *map(str, arguments)]
    if len(arguments) == 1:  # it only saves what the other restores
        done = warm.run(command, capture_output=True, text=True, timeout=100, jax=True)
    else:
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_restore_is_the_first_thing_in_the_job(tmp_path: Path) -> None:
    pytest.importorskip("orbax.checkpoint")
    ran(tmp_path)
    assert ran(tmp_path, "again") == "3"


class Manager:
    """Orbax's, as far as it is wrapped."""

    def save(self) -> None: ...

    def restore(self) -> None: ...

    def wait_until_finished(self) -> None: ...


class InterruptedOnce(ModuleType):
    """Orbax, with a user who presses Ctrl-C when the training thread first looks into it, once it is `imported`."""

    imported = pressed = False
    AsyncCheckpointer = type("AsyncCheckpointer", (Manager,), {})

    @property
    def CheckpointManager(self) -> type[Manager] | None:
        if not self.pressed:
            if not self.imported or threading.current_thread() is not threading.main_thread():
                return None
            self.pressed = True
            raise KeyboardInterrupt
        return Manager


def test_an_interrupted_installation_is_made_up_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a notebook, where the process goes on after Ctrl-C."""
    orbax = InterruptedOnce("orbax.checkpoint")
    monkeypatch.setitem(sys.modules, "orbax.checkpoint", orbax)
    recorder = Recorder("job", directory=tmp_path, exporters="none", integrations="orbax")
    with ExitStack() as stack, recorder.job():
        stack.callback(recorder.shutdown)
        orbax.imported = True
        with pytest.raises(KeyboardInterrupt), recorder.training_prep():
            pass
        with recorder.training_prep():
            pass
        assert hasattr(Manager.save, "__wrapped__"), "what Orbax saves is recorded"
    assert not hasattr(Manager.save, "__wrapped__")

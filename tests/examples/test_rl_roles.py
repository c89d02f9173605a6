"""The example of two roles, run as a user runs it: real processes, and figures that are checked by their own clocks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from otel_goodput._tools.cli import main

EXAMPLE = Path(__file__).parents[2] / "examples" / "rl_roles.py"


def test_actors_and_learners_are_accounted_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, str(EXAMPLE), "--directory", "run"]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok  ") == 4 and "role actor: goodput" in done.stdout
    answer = subprocess.run(
        [sys.executable, "-m", "otel_goodput", "report", "run", "--json"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    report = json.loads(answer.stdout)
    ranks, steps = report["ranks"], report["steps"]
    assert list(ranks["roles"]) == ["actor", "learner"] and steps == {"executed": 60, "kept": 60, "lost": 0}
    # The number of steps is that of the first role. The learners wait for the rollouts of the slow actor, and the fast
    # actor for new weights.
    actor, learner = ranks["roles"]["actor"]["seconds"], ranks["roles"]["learner"]["seconds"]
    assert learner["data_loading"] > 0.2 > actor.get("data_loading", 0) and actor["custom"]["weight_sync"] > 0.2
    assert max(ranks["waits"], key=lambda wait: wait["seconds"])["rank"] == 3

    def answered(*arguments: str) -> Any:
        assert main([*arguments, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    run = str(tmp_path / "run" / "rl_roles")
    [listed] = answered("runs", str(tmp_path / "run"))["runs"]
    compared = answered("compare", run, run)
    assert listed["goodput"] == report["goodput"] == compared["a"]["goodput"] and "process" not in listed
    assert main(["export", run, "--perfetto", str(tmp_path / "trace.json")]) == 0
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    groups = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert {"attempt 1, process 0 (actor)", "attempt 1, process 3 (learner)"} < groups
    counters = {event["name"] for event in events if event["ph"] == "C"}
    assert "goodput of process 0" in counters and "goodput of the run" not in counters

"""A restart on a machine whose clock is behind: its time counts, live, after the end and while it is still running."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import warm
from recorded import sum_ns

from otel_goodput._journal.rundir import RunDirectory
from otel_goodput.reports.run import RecordedRun

# Read at the start of every Python process that finds it: another wall clock, the same monotonic one.
SHIFTED = """
import os, time
_real, _shift = time.time_ns, int(os.environ.get("SHIFT_S", "0")) * 10**9
time.time_ns = lambda: _real() + _shift
time.time = lambda: time.time_ns() / 1e9
"""
TRAIN = """
import json, os, signal, sys, time
import otel_goodput as goodput
goodput.configure("clocks", run_id="run", directory=sys.argv[1], exporters="none", integrations="none")
elapsed = []
with goodput.job():
    began = time.monotonic()
    for step, _ in goodput.steps(range(10), start=int(sys.argv[3])):
        time.sleep(0.01)
        elapsed.append(goodput.totals().run.elapsed / 1e9)
    trained = time.monotonic() - began
    if sys.argv[2] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
print(json.dumps([trained, elapsed, goodput.report().to_json()]), flush=True)
"""


def train(folder: Path, ending: str, shift_s: int, start: int) -> Any:
    (folder / "sitecustomize.py").write_text(SHIFTED)
    paths = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    done = warm.run(
        [sys.executable, "-c", TRAIN, str(folder / "runs"), ending, str(start)],
        env={**os.environ, "PYTHONPATH": paths, "SHIFT_S": str(shift_s)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return json.loads(done.stdout) if done.stdout else None


@pytest.mark.parametrize("ending", ["die", "end"])
@pytest.mark.parametrize("shift_s", [-3600, -20])
def test_a_restart_whose_clock_is_behind(ending: str, shift_s: int, tmp_path: Path) -> None:
    train(tmp_path, ending, 0, 0)
    before = RecordedRun(RunDirectory(tmp_path / "runs" / "run")).report().to_json()
    trained, elapsed, live = train(tmp_path, "end", shift_s, 10)
    assert elapsed == sorted(elapsed)
    assert elapsed[-1] - elapsed[0] == pytest.approx(trained, rel=0.5), "the account does not stand still"
    assert live["skewed_clocks"] and live["elapsed_s"] >= before["elapsed_s"] + trained
    disk = RecordedRun(RunDirectory(tmp_path / "runs" / "run")).report().to_json()
    for report in (live, disk):
        assert report["steps"]["kept"] == 20 and report["attempts"] == 2
        assert report["elapsed_s"] == live["elapsed_s"]
        assert sum_ns(report) == round(report["elapsed_s"] * 1e9)
        assert report["seconds"]["infrastructure_recovery"] == 0
    # And the attempt after that, on the first machine again.
    _, _, third = train(tmp_path, "end", 0, 20)
    assert third["attempts"] == 3 and third["elapsed_s"] > live["elapsed_s"]
    assert sum_ns(third) == round(third["elapsed_s"] * 1e9)

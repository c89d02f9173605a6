"""A training program as people write it, started again and again in a folder of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import warm

from otel_goodput._journal.rundir import runs
from otel_goodput.reports.run import RecordedRun

# Restores the checkpoint that there is, trains some steps, saves, and ends as the test wants.
PROGRAM = """
import json, os, signal, sys, time
from pathlib import Path
import otel_goodput as goodput

ending, restoring, steps = sys.argv[1], "restore" in sys.argv, 10
goodput.configure("train", exporters="none", **json.loads(os.environ.get("OPTIONS", "{}")))
saved = Path("checkpoint")
with goodput.job():
    start = 0
    if restoring and saved.exists():
        with goodput.checkpoint_restore():
            start = int(saved.read_text())
    for step, _ in goodput.steps(range(steps), start=start):
        if step == start + 5:
            if ending == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if ending == "interrupt":
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(30)
            if ending == "notice":
                goodput.on_preemption(lambda: Path("told").touch())
                os.kill(os.getpid(), signal.SIGTERM)
                while not Path("told").exists():
                    time.sleep(0.001)
            if ending == "error":
                raise RuntimeError("diverged")
    with goodput.checkpoint_save(step):
        saved.write_text(str(step + 1))
    if ending == "exit in the job":
        sys.exit(0)
if ending == "interrupt afterwards":
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(30)
    except KeyboardInterrupt:
        pass
"""
# Left by what ends it: a handler of the program's own, so that SIGTERM is no end.
OWN_HANDLER = "import signal\nsignal.signal(signal.SIGTERM, lambda *_: None)\n"


class Training:
    """The program's starts in one folder."""

    def __init__(self, folder: Path, program: str = OWN_HANDLER + PROGRAM) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        (folder / "train.py").write_text(program)

    def start(self, *arguments: str, **variables: str) -> str:
        """One start; returns its stderr."""
        environment = {**os.environ, "OTEL_GOODPUT_STRICT": "", "OTEL_GOODPUT_INTEGRATIONS": "signals", **variables}
        return warm.run(
            [sys.executable, "train.py", *(arguments or ("end",))],
            cwd=self.folder, env=environment, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        ).stderr  # fmt: skip

    def reports(self) -> dict[str, dict[str, Any]]:
        """What the disk says of each run, by its id."""
        recorded = (RecordedRun(run).report() for run in runs(self.folder / "goodput"))
        return {report.about["run_id"]: report.to_json() for report in recorded}


def lines_about_runs(errors: str) -> list[str]:
    """The lines that are ours."""
    return [line for line in errors.splitlines() if "run '" in line]

"""Two attempts alive at once: the launcher took a process for dead that went on, on a machine out of reach."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import warm

from otel_goodput._accounting import events as ev
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._timeline.damage import Damages
from otel_goodput._timeline.reader import Reader
from otel_goodput._timeline.recovery import Follower
from otel_goodput._timeline.time_index import TimeIndex
from otel_goodput.reports.run import FollowedRun, RecordedRun

# Steps until a test stops it; says when its job began and ended, by the clock that all share.
JOB = """
import sys, threading, time
import otel_goodput as goodput
goodput.configure("job", run_id="run", directory=sys.argv[1], exporters="none", integrations="none")
over = threading.Event()
with goodput.job():
    print(time.time(), flush=True)
    threading.Thread(target=lambda: (sys.stdin.readline(), over.set()), daemon=True).start()
    step = int(sys.argv[2])
    while not over.is_set():
        with goodput.step(step):
            time.sleep(0.01)
        step += 1
    with goodput.custom("last"):
        pass
print(time.time(), flush=True)
"""


def begin(folder: Path, first: int) -> tuple[warm.Process, float]:
    process = warm.Process(
        [sys.executable, "-c", JOB, str(folder), str(first)], env={**os.environ, "OTEL_GOODPUT_STRICT": ""},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    return process, float(process.stdout.readline())


def stop(process: warm.Process) -> float:
    out, _ = process.communicate("\n", timeout=60)
    return float(out.splitlines()[-1])


def bring(source: Path, to: Path) -> None:
    """What a machine's journal has by now is copied to another place, as to a URL; its own lock stays there."""
    for path in sorted((source / "run").rglob("*")):
        target = to / "run" / path.relative_to(source / "run")
        if path.is_dir():
            target.mkdir(parents=True, exist_ok=True)
        elif path.suffix != ".lock":
            shutil.copy(path, target)


@pytest.mark.parametrize("snapshot", ["of the second", "of the first", "none"])
def test_no_second_counts_twice_and_the_overlap_is_reported(snapshot: str, tmp_path: Path) -> None:
    one, other, whole = (tmp_path / name for name in ("one", "other", "whole"))
    first, began = begin(one, 0)
    time.sleep(0.6)  # an outage that the launcher sees, and the process does not
    bring(one, other)
    second, again = begin(other, 5)
    time.sleep(1.5)
    if snapshot == "of the first":
        ended = stop(second)
        late = stop(first)
        bring(other, whole)
        bring(one, whole)  # it wrote its snapshot last
        for path in sorted((other / "run" / "journal").glob("a0001-*")):
            shutil.copy(path, whole / "run" / "journal")
    else:
        late = stop(first)
        ended = stop(second)
        bring(one, whole)
        bring(other, whole)
        if snapshot == "none":
            (whole / "run" / "journal" / "p0000.snapshot").unlink()
        for path in sorted((one / "run" / "journal").glob("a0000-*.segment*")):
            shutil.copy(path, whole / "run" / "journal")
    run = RunDirectory(whole / "run")
    follower = Follower(run)
    follower.poll()
    followed = follower.state.ledger.totals().run.elapsed / 1e9
    reports: list[dict[str, Any]] = [
        RecordedRun(run).report().to_json(),
        RecordedRun(run).report(at=int(ended * 1e9)).to_json(),
    ]
    for report in (*reports, {**reports[0], "elapsed_s": followed}):
        assert report["elapsed_s"] == pytest.approx(ended - began, abs=0.1 * (late - again))
        assert report["attempts"] == 2 and not report["skewed_clocks"]
    page = FollowedRun(run)
    assert page.report().to_json()["warnings"] == reports[0]["warnings"]
    assert "last" in reports[0]["seconds"].get("custom", {}), "of the second"
    # The page's steps and phases, and its windows, are those of the account.
    detail = RecordedRun(run).detail()
    assert sum(end - begin for begin, end, _ in detail.owners) == round(reports[0]["elapsed_s"] * 1e9)
    parts = {part.attempt: part.records for part in TimeIndex(run).between(0, time.time_ns()).parts}
    kinds = (ev.START, ev.END)
    for part in Reader(run).records(Damages()):
        assert [one for one in part.entries if one.kind in kinds] == [
            one for one in parts[part.attempt] if one.kind in kinds
        ]
    if snapshot != "of the second":
        (note,) = (each for each in reports[0]["warnings"] if each["kind"] == "attempts at once")
        assert "attempts 1 and 2 for " in note["text"]


def test_one_after_the_other_is_no_overlap(tmp_path: Path) -> None:
    for first in (0, 10):
        process, _ = begin(tmp_path, first)
        process.kill()
        process.communicate(timeout=60)
    report = RecordedRun(RunDirectory(tmp_path / "run")).report().to_json()
    assert report["attempts"] == 2
    assert not [note for note in report["warnings"] if note["kind"] == "attempts at once"]

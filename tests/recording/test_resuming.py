"""Runs that are killed and resumed, as programs do it: no step is lost that was not done again (rule R4)."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import warm

from otel_goodput import open_run
from otel_goodput._accounting.overview import KEPT, LOST, NET
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput.reports import text as report_text
from otel_goodput.reports.records import slowest
from otel_goodput.reports.run import RecordedRun
from otel_goodput.reports.run_view import RunView

# argv: directory, "first" or "second". `body` ends the first attempt. Work takes ten seconds of a clock that it sets
# forward, so that a batch that is skipped is short beside it on a busy machine, too.
FRAME = """
import json, os, sys
import otel_goodput as goodput
from otel_goodput._runtime import host
now, leap = host.leaping()
host.current = host.Host(clock=lambda: (now, leap))
second = sys.argv[2] == "second"
if second: leap(1000 * 10**9)
goodput.configure("job", run_id="run", exporters="none", directory=sys.argv[1])
def work(): leap(10 * 10**9)
def restore(label):
    with goodput.checkpoint_restore(label): pass
def save(label):
    with goodput.checkpoint_save(label): pass
with goodput.job():
{body}
print(json.dumps(goodput.report().to_json()))
"""

# Gradient accumulation: checkpoints are numbered by optimizer steps.
ACCUMULATED = """
    optimizer = 0
    if second:
        restore(2)
        optimizer = 2
    for step, batch in goodput.steps(range(optimizer * 4, 14)):
        assert step == batch
        work()
        if batch % 4 == 3:
            optimizer += 1
            save(optimizer)
            assert goodput.totals().at_risk == 0
        if not second and batch == 9: os._exit(9)
"""
# A base model is restored in each attempt, and numbers of its own go on from it.
BASE = """
    restore(100_000)
    if second: restore(2)
    for count, (step, _) in enumerate(goodput.steps(range(4 if second else 14)), 3 if second else 0):
        work()
        assert step == 100_001 + count
        if count == 2: save(count)
        if not second and count == 4: os._exit(9)
"""
# The loop walks through its loader again and skips what was done.
WALKED = """
    done = -1
    if second:
        restore(7)
        done = 7
    for step, batch in goodput.steps(range(14){start}):
        if batch <= done: continue
        work()
        if batch == 7: save(batch)
        if not second and batch == 9: os._exit(9)
"""
# Nothing tells that it resumes.
UNTOLD = """
    for step, batch in goodput.steps(range(8 if second else 0, 14)):
        work()
        if batch == 7: save(None)
        if not second and batch == 9: os._exit(9)
"""


def run_twice(directory: Path, body: str) -> tuple[dict[str, Any], str]:
    """The report of the second attempt, and what it logged."""
    for attempt, status in (("first", 9), ("second", 0)):
        command = [sys.executable, "-c", FRAME.format(body=body.strip("\n")), str(directory), attempt]
        environment = {**os.environ, "OTEL_GOODPUT_USAGE_INTERVAL": "0"}
        done = warm.run(command, capture_output=True, text=True, timeout=120, env=environment)
        assert done.returncode == status, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report, done.stderr


def fates(report: dict[str, Any]) -> tuple[int, int, int]:
    return report["steps"]["kept"], report["steps"]["lost"], report["last_step"]


def test_checkpoints_numbered_by_optimizer_steps(tmp_path: Path) -> None:
    report, log = run_twice(tmp_path, ACCUMULATED)
    assert fates(report) == (14, 2, 13)
    assert "write" not in log


def test_a_base_model_moves_nothing_once_the_run_has_a_checkpoint(tmp_path: Path) -> None:
    report, _ = run_twice(tmp_path, BASE)
    assert fates(report) == (7, 2, 100_007)


@pytest.mark.parametrize(("start", "given"), [(", start=0", 13), ("", 21)])
def test_a_loop_that_skips_what_was_done(tmp_path: Path, start: str, given: int) -> None:
    report, _ = run_twice(tmp_path, WALKED.format(start=start))
    assert fates(report) == (14, 2, 13)
    assert (report["last_step_given"], report["skipped_batches"]) == (given, 8)
    text = "\n".join(report_text.steps(report))
    assert "batches skipped after a restore: 8" in text
    assert ("the loop numbers the latest step 21; this report counts it as step 13" in text) is (given == 21)
    run = open_run(tmp_path)
    assert Counter(one.fate for one in run.steps()) == {"kept": 14, "lost": 2, "skipped": 8}
    longest = slowest(RecordedRun(RunDirectory(tmp_path / "run")).detail(0), 100)
    assert Counter(one.fate for one in longest.steps) == {"kept": 14, "lost": 2}
    overview = RunView.open(RecordedRun(RunDirectory(tmp_path / "run"))).overview
    counts: Counter[int] = Counter()
    for (measure, _, fate, _), count in overview.histogram.items():
        counts[fate] += count * (measure == NET)
    assert +counts == {KEPT: 14, LOST: 2}
    assert sum(one.count for one in overview.step_bins) == 16


def test_an_attempt_that_starts_from_scratch_gets_the_line_to_write(tmp_path: Path) -> None:
    report, log = run_twice(tmp_path, UNTOLD)
    line = "`goodput.steps(batches, start=8)`"
    assert line in log
    assert any(line in warning["text"] for warning in report["warnings"])
    report, log = run_twice(tmp_path / "told", UNTOLD.replace("0, 14)", "0, 14), start=8 if second else 0"))
    assert fates(report) == (14, 2, 13)
    assert "start=" not in log


# Between epochs the best checkpoint is evaluated; training goes on with the weights that it had.
EVALUATED = """
    done = 0
    if second:
        restore(7)
        done = 8
    for epoch in range(done, 16, 4):
        for step, batch in goodput.steps(range(epoch, epoch + 4)):
            assert step == batch
            work()
            if not second and batch == 9: os._exit(9)
        save(batch)
        with goodput.custom("eval"): restore(3)
"""


def test_a_checkpoint_that_an_evaluation_restores_moves_nothing(tmp_path: Path) -> None:
    report, _ = run_twice(tmp_path, EVALUATED)
    assert fates(report) == (16, 2, 15)
    assert [one["reason"] for one in report["disruption_list"]] == ["crash"]

"""Killed at random moments, a run loses nothing: its account is that of the jobs' own diaries."""

from __future__ import annotations

import random
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
import warm

from otel_goodput._journal.rundir import RunDirectory
from otel_goodput.reports.run import RecordedRun

from .runner import Run, delays
from .witness import NS

pytestmark = pytest.mark.crash

GROUPS = 5
USUAL = 3  # of them, in every run
RUNS_AT_ONCE = 4


class Plan(NamedTuple):
    """What happens to one run."""

    style: str
    ids: bool
    export_delay_ms: str
    kills: list[float]  # s from each job's start


def plan(seed: int) -> Plan:
    source = random.Random(seed)
    return Plan(
        source.choice(["iterator", "with"]),
        source.random() < 0.5,
        source.choice(["20", "200", "5000"]),
        delays(seed, source.randint(1, 5)),
    )


def tell(base: Path, seed: int) -> None:
    """One run: killed one to five times, looked at each time, then let finish."""
    scenario = plan(seed)
    base.mkdir()
    run = Run(base, f"run {seed}", environment={"OTEL_BSP_SCHEDULE_DELAY": scenario.export_delay_ms})
    for number, delay in enumerate(scenario.kills):
        run.live_and_die(delay, seed=seed * 10 + number, style=scenario.style, ids=scenario.ids)
        run.check(run.report())
    run.live(seed=seed * 10 + 9, style=scenario.style, ids=scenario.ids, steps=30)
    report = run.report_of_command()
    run.check(report)
    assert report["ended"]
    assert report["attempts"] == len(scenario.kills) + 1


@pytest.mark.parametrize(
    "group", [*range(USUAL), *(pytest.param(group, marks=pytest.mark.release) for group in range(USUAL, GROUPS))]
)
def test_nothing_is_lost(group: int, tmp_path: Path) -> None:
    seeds = range(group * RUNS_AT_ONCE, (group + 1) * RUNS_AT_ONCE)
    with ThreadPoolExecutor(RUNS_AT_ONCE) as pool:
        list(pool.map(lambda seed: tell(tmp_path / str(seed), seed), seeds))


def test_the_witness_would_object(tmp_path: Path) -> None:
    """A step too many or too few, time in the wrong place, a disruption nobody had: each is noticed."""
    run = Run(tmp_path)
    run.live_and_die(0.3, seed=1, style="with")
    run.live(seed=2, style="with", steps=30, unit=0.004)  # long compared to the error of the diary
    account = run.check(run.report())
    for path, factor in (
        ("steps executed", 1.01),
        ("steps kept", 0.9),
        ("steps lost", 1.5),
        ("seconds productive", 0.7),
        ("seconds wasted_progress", 3.0),
        ("seconds infrastructure_recovery", 1.3),
        ("elapsed_s", 1.3),
        ("attempts", 2.0),
        ("last_step", 2.0),
        ("max_productive_step", 0.5),
    ):
        report = run.report()
        *outer, name = path.split()
        within = report[outer[0]] if outer else report
        more = 1 if factor > 1 else -1
        if isinstance(within[name], float):  # on a busy machine, the witness knows some times less exactly
            share = account.elapsed if name == "elapsed_s" else account.shares[name]
            within[name] += more * max(abs(factor - 1) * within[name], 3 * account.tolerance(share) / NS)
        else:
            within[name] = int(within[name] * factor) + more
        assert list(account.differences(report)), path


def test_the_plans_are_many() -> None:
    plans = [plan(seed) for seed in range(GROUPS * RUNS_AT_ONCE)]
    assert sum(len(plan_of_run.kills) for plan_of_run in plans) >= 50
    assert {plan_of_run.style for plan_of_run in plans} == {"iterator", "with"}


BURST = """
import os, signal, sys
import otel_goodput as goodput
goodput.configure("burst", run_id="run", directory=sys.argv[1], exporters="none")
with goodput.job():
    for number in range(40_000):
        with goodput.step(number):
            pass
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_burst_of_steps_is_not_lost(tmp_path: Path) -> None:
    """Steps that come faster than a disk could take them one by one, several segments in a fraction of a second."""
    done = warm.run([sys.executable, "-c", BURST, str(tmp_path)], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    report = RecordedRun(RunDirectory(tmp_path / "run")).report().to_json()
    assert report["steps"]["kept"] == 40_000

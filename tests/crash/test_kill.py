"""Killed at random moments, a run loses nothing: its account is that of the jobs' own diaries."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from .runner import Run, delays

pytestmark = pytest.mark.crash

GROUPS = 5
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
    told = plan(seed)
    base.mkdir()
    run = Run(base, f"run {seed}", environment={"OTEL_BSP_SCHEDULE_DELAY": told.export_delay_ms})
    for number, delay in enumerate(told.kills):
        run.live_and_die(delay, seed=seed * 10 + number, style=told.style, ids=told.ids)
        run.check(run.report())
    run.live(seed=seed * 10 + 9, style=told.style, ids=told.ids, steps=30)
    report = run.report_of_command()
    run.check(report)
    assert report["ended"]
    assert report["attempts"] == len(told.kills) + 1


@pytest.mark.parametrize("group", range(GROUPS))
def test_nothing_is_lost(group: int, tmp_path: Path) -> None:
    seeds = range(group * RUNS_AT_ONCE, (group + 1) * RUNS_AT_ONCE)
    with ThreadPoolExecutor(RUNS_AT_ONCE) as pool:
        list(pool.map(lambda seed: tell(tmp_path / str(seed), seed), seeds))


def test_the_plans_are_many() -> None:
    plans = [plan(seed) for seed in range(GROUPS * RUNS_AT_ONCE)]
    assert sum(len(told.kills) for told in plans) >= 50
    assert {told.style for told in plans} == {"iterator", "with"}

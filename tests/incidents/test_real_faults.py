"""Twelve faults in jobs that run, each three times: the incident has the right kind, cause and rank."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
import warm
from accounting.incident_scenarios import FAULTS

from otel_goodput._accounting.incidents import STEP, Incident
from otel_goodput._accounting.ranks import NOBODY
from otel_goodput._journal.incidents import incidents_of
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput.semconv import Category, IncidentKind

from .faulty_job import WELL_S

RANKS = 3
ATTEMPTS = 5
TIMES = 3
LATEST_S = 25.0  # after the fault has begun, on a machine that is busy


def first_incident(folder: Path, fault: str) -> Incident | None:
    """Run a job with a fault until it has an incident; None: it had none in time."""
    tests = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tests), str(tests.parent)])}
    count = RANKS if FAULTS[fault].of_rank or "all ranks" in fault else 1
    command = [sys.executable, "-m", "incidents.faulty_job"]
    run = RunDirectory(folder / "runs" / "job")

    def incidents() -> list[Incident]:
        return [one for _, one in incidents_of(run, {})]

    for _ in range(ATTEMPTS if FAULTS[fault].kind == IncidentKind.RESTART_LOOP else 1):
        words = [str(count), str(folder), fault]
        ranks = [
            warm.Process([*command, str(rank), *words], env=environment, jax="compiled" in fault)
            for rank in range(count)
        ]
        until = time.monotonic() + WELL_S + LATEST_S
        while not incidents() and time.monotonic() < until and any(rank.poll() is None for rank in ranks):
            time.sleep(0.1)
        for rank in ranks:
            rank.kill()
            rank.wait(30)
    return next(iter(incidents()), None)


@pytest.mark.release
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_named_three_times(fault: str, tmp_path: Path) -> None:
    wanted, wrong = FAULTS[fault], []
    for at in range(TIMES):
        (folder := tmp_path / str(at)).mkdir()
        one = first_incident(folder, fault)
        category = None if one is None else STEP if one.source.category == Category.IN_FLIGHT else one.source.category
        whose = RANKS - 1 if wanted.of_rank and "stopped" not in fault else NOBODY
        if one is None or (one.kind, category, one.source.name, one.source.rank) != (
            wanted.kind,
            wanted.category,
            wanted.name,
            whose,
        ):
            wrong.append(one)
    assert not wrong, wrong

"""Hostile files and variables by the thousand: nothing raises, nothing hangs, nothing grows (see ``fuzz``)."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import warm

from . import fuzz

PROGRAM = Path(__file__).with_name("fuzz.py")


def run(first: int, cases: int) -> None:
    command = [sys.executable, str(PROGRAM), "--first", str(first), "--cases", str(cases)]
    done = warm.run(command, capture_output=True, text=True)
    assert done.stdout, done.stderr
    answer = json.loads(done.stdout)
    assert not answer["failures"], json.dumps(answer["failures"][:5], indent=1)
    assert answer["cases"] == cases
    assert answer["peak_bytes"] < fuzz.MEMORY
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.release) for part in range(1, 16))])
def test_some_cases(part: int) -> None:
    run(part * 20, 20)


@pytest.mark.parametrize("case", [2229, 4342, 4890, 5658, 8202, 9503])
def test_cases_that_have_raised(case: int) -> None:
    """Times that are infinite or long before the job, steps as long as a number can be, a sampling that no record
    holds, names that only the journal has.
    """
    run(case, 1)


@pytest.mark.attack
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(4))
def test_many_cases(part: int) -> None:
    """10,000 together, others than those of every run."""
    run(1000 + part * 2500, 2500)

"""The scenarios of ``make attack`` are there, by the names that its table gives them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
import attack


@pytest.mark.parametrize("scenario", attack.SCENARIOS, ids=lambda scenario: scenario.name)
def test_every_file_is_there(scenario: attack.Scenario) -> None:
    tests = attack.ROOT / "tests"
    assert all(any(path.name.startswith("test_") for path in tests.glob(form)) for form in scenario.files)
    assert attack.paths_of(scenario)

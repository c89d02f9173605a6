"""Programs as people write them, with nothing added: their figures are those of a witness that uses nothing of ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from everyday.catalogue import PROGRAMS
from everyday.trial import patiently

WITHOUT_OTHERS = sorted(name for name, program in PROGRAMS.items() if not program.needs)


@pytest.mark.parametrize("name", WITHOUT_OTHERS)
def test_the_figures_are_right(name: str, tmp_path: Path) -> None:
    results = patiently(PROGRAMS[name], tmp_path)
    assert [f"{result.run}: {each}" for result in results for each in result.wrong()] == []

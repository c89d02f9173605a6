"""Programs as people write them, with nothing added: their figures are those of a witness that uses nothing of ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from everyday.catalogue import PROGRAMS
from everyday.trial import perform

# Right as soon as what they need is there.
NOT_YET = {
    "max steps", "notebook", "donated, loss never read", "donated, loss read each step", "donated, loss read every 50",
    "one behind", "dispatched evaluation", "slow loader", "changed in place",
}  # fmt: skip
WITHOUT_OTHERS = sorted(name for name, program in PROGRAMS.items() if not program.needs and name not in NOT_YET)


@pytest.mark.parametrize("name", WITHOUT_OTHERS)
def test_the_figures_are_right(name: str, tmp_path: Path) -> None:
    found = []
    for attempt in range(3):  # a busy machine may put the witness aside, or us
        results = perform(PROGRAMS[name], tmp_path / str(attempt))
        wrong = [f"{result.run}: {each}" for result in results for each in result.wrong()]
        if not wrong:
            return
        found.append(wrong)
    pytest.fail(f"{found}")

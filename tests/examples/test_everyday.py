"""Programs as people write them, with nothing added: their figures are those of a witness that uses nothing of ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from everyday.catalogue import PROGRAMS
from everyday.trial import TOLERANCE, Program, perform

WITHOUT_OTHERS = sorted(name for name, program in PROGRAMS.items() if not program.needs)
EVERY_TIME = {"epochs", "killed and resumed"}  # the others before a release


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in EVERY_TIME else [pytest.mark.release]) for name in WITHOUT_OTHERS]
)
def test_the_figures_are_right(name: str, tmp_path: Path) -> None:
    """Where the machine was measured to stall in the very same run, the program is run once more; otherwise not."""
    for attempt in ("first", "second"):
        results = perform(PROGRAMS[name], tmp_path / attempt)
        wrong = [f"{result.run}: {each}; {result.late:.3f} s late" for result in results for each in result.wrong()]
        if not wrong:
            return
        if all(result.late < TOLERANCE * result.truth.elapsed for result in results):
            break
    pytest.fail(f"{attempt} run: {wrong}")


def test_those_of_every_time_are_there() -> None:
    assert set(WITHOUT_OTHERS) > EVERY_TIME


def test_restarting_step_numbers_are_warned_about(tmp_path: Path) -> None:
    """`enumerate` in each epoch: rollbacks by rule; the report says so, with the line to write, and advises nothing."""
    (result,) = perform(Program("programs/enumerated.py"), tmp_path)
    assert result.report["disruption_reasons"] == {"rollback": 2}
    on_steps = result.spent["productive"] + result.spent["wasted_progress"] + result.spent["program_startup"]
    really = result.truth.seconds["productive"]
    assert abs(on_steps - really) <= 0.05 * really + result.late
    assert any("goodput.steps(loader)" in str(warning) for warning in result.report["warnings"])
    assert "goodput.steps(loader)" in (tmp_path / "output").read_text()

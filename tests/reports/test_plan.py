"""The plan's formulas against a simulation that knows none of them, and its figures against runs.

Longer than other files: the simulation is in one file with the formulas that it judges.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
import warm
from accounting.stories import story
from hypothesis import given, settings
from hypothesis import strategies as st
from timelines import replay

from otel_goodput._tools.plan import add_plan_arguments, run_plan
from otel_goodput.errors import ConfigurationError, JournalError
from otel_goodput.reports.plan import Figures, best_interval, daly, expected_goodput, from_report, make_plan, young

ROOT = Path(__file__).parents[2]
HOUR = 3600.0


# --- simulation -------------------------------------------------------------------------------------------------------


class Life:
    """A job that trains, saves, fails, waits and restores, second by second of a clock of its own."""

    def __init__(self, chance: random.Random, mtbf: float) -> None:
        self.chance = chance
        self.mtbf = mtbf
        self.now = 0.0
        self.failure = chance.expovariate(1 / mtbf)

    def survives(self, length: float) -> bool:
        """Be up for `length` seconds; False if a failure strikes first."""
        if self.now + length <= self.failure:
            self.now += length
            return True
        self.now = self.failure
        return False

    def comes_back(self, restore: float, reschedule: float) -> None:
        while True:
            self.now += reschedule
            self.failure = self.now + self.chance.expovariate(1 / self.mtbf)
            if self.survives(restore):
                return

    def goodput(self, saves: int, interval: float, save: float, restore: float, reschedule: float) -> float:
        """Of as much of this life as stores `saves` checkpoints."""
        begin, stored = self.now, 0
        while stored < saves:
            if self.survives(interval) and self.survives(save):
                stored += 1
            else:
                self.comes_back(restore, reschedule)
        return saves * interval / (self.now - begin)


CASES = {
    "rare failures": (1000.0, 24 * HOUR, 30.0, 120.0, 300.0),
    "at Young's interval": (young(6 * HOUR, 60), 6 * HOUR, 60.0, 300.0, 600.0),
    "often": (600.0, HOUR, 60.0, 300.0, 300.0),
    "hardly ever through": (HOUR, HOUR / 2, 120.0, 600.0, 60.0),
    "a save longer than the training": (60.0, HOUR, 300.0, 0.0, 0.0),
    "a long restore": (900.0, HOUR, 10.0, HOUR, 0.0),
    "a long queue": (900.0, 2 * HOUR, 10.0, 60.0, 5 * HOUR),
    "a save that costs nothing": (900.0, HOUR, 0.0, 60.0, 60.0),
}


@pytest.mark.parametrize("case", CASES)
def test_the_formula_is_what_happens(case: str) -> None:
    """Within 4 standard errors of the mean of 100 stretches of a simulated life, which are 2 % at most."""
    interval, mtbf, save, restore, reschedule = CASES[case]
    life = Life(random.Random(case), mtbf)
    stretches = [1 / life.goodput(400, interval, save, restore, reschedule) for _ in range(100)]
    error = stdev(stretches) / math.sqrt(len(stretches))
    expected = 1 / expected_goodput(interval, mtbf=mtbf, save=save, restore=restore, reschedule=reschedule)
    assert abs(fmean(stretches) - expected) < 4 * error < 0.02 * 4 * expected


def test_in_the_simulation_too_the_best_interval_is_best() -> None:
    """The same failures for all three."""
    mtbf, save = 2 * HOUR, 60.0
    best = best_interval(mtbf, save)

    def goodput_at(interval: float) -> float:
        return Life(random.Random(7), mtbf).goodput(round(4e7 / interval), interval, save, 60, 60)

    assert goodput_at(best) > max(goodput_at(best / 2), goodput_at(best * 2))


# --- formulas ---------------------------------------------------------------------------------------------------------

times = st.floats(1, 1e6)
waits = st.floats(0, 1e5)


@given(mtbf=st.floats(60, 1e8), save=st.floats(1e-3, 1e5))
def test_the_best_interval_beats_its_neighbours(mtbf: float, save: float) -> None:
    best = best_interval(mtbf, save)
    assert 0 < best < mtbf

    def loss(interval: float) -> float:
        """The logarithm of what is proportional to the time that training takes."""
        length = (interval + save) / mtbf
        return length + math.log1p(-math.exp(-length)) - math.log(interval)

    for factor in (0.5, 0.9, 0.99, 1.01, 1.1, 2.0):
        assert loss(best) <= loss(best * factor) + 1e-12
    # The optimum as Lambert's function has it: 1 - W/M = exp(-(W + C)/M).
    assert 1 - best / mtbf == pytest.approx(math.exp(-(best + save) / mtbf), rel=1e-6, abs=1e-12)


@given(interval=times, mtbf=st.floats(1e3, 1e9), save=times, restore=waits, reschedule=waits)
def test_goodput_is_a_share(interval: float, mtbf: float, save: float, restore: float, reschedule: float) -> None:
    whole = expected_goodput(interval, mtbf=mtbf, save=save, restore=restore, reschedule=reschedule)
    if interval + save + restore < 500 * mtbf:
        assert 0 < whole < 1
    assert 0 <= whole < 1
    assert whole <= interval / (interval + save)
    for worse in ({"restore": restore + 1}, {"reschedule": reschedule + 1}, {"save": save + 1}, {"mtbf": mtbf / 2}):
        figures = {"mtbf": mtbf, "save": save, "restore": restore, "reschedule": reschedule, **worse}
        assert expected_goodput(interval, **figures) <= whole * (1 + 1e-12)


@given(interval=times, save=times, restore=st.floats(0, 1e4), reschedule=st.floats(0, 1e4))
def test_without_failures_only_saves_cost(interval: float, save: float, restore: float, reschedule: float) -> None:
    whole = expected_goodput(interval, mtbf=1e15, save=save, restore=restore, reschedule=reschedule)
    assert whole == pytest.approx(interval / (interval + save), rel=1e-6)


@given(mtbf=st.floats(1e4, 1e9), share=st.floats(1e-9, 1e-4))
def test_with_short_saves_all_three_agree(mtbf: float, share: float) -> None:
    save = mtbf * share
    best = best_interval(mtbf, save)
    assert daly(mtbf, save) == pytest.approx(best, rel=1e-4)
    assert young(mtbf, save) == pytest.approx(best, rel=0.02)
    assert young(mtbf, save) == pytest.approx(daly(mtbf, save) + save, rel=0.02)


def test_daly_holds_where_young_does_not() -> None:
    """The values that the paper's figures 3 to 5 give: M of 24 h, 6 h and 15 min, saves of 5 min."""
    assert [round(daly(mtbf * 60, 300) / 60) for mtbf in (24 * 60, 6 * 60)] == [117, 57]
    assert daly(15 * 60, 300) / 60 == pytest.approx(9.1, abs=0.05)
    best = best_interval(15 * 60, 300)
    assert abs(daly(15 * 60, 300) - best) < abs(young(15 * 60, 300) - best)
    assert daly(100, 1000) == 100  # a save that hardly ever succeeds


def test_goodput_rises_with_the_time_between_failures() -> None:
    goodputs = [
        expected_goodput(1000, mtbf=10.0**power, save=10, restore=100, reschedule=100) for power in range(2, 12)
    ]
    assert goodputs == sorted(goodputs)
    assert goodputs[-1] == pytest.approx(1000 / 1010, rel=1e-6)
    intervals = [best_interval(10.0**power, 10) for power in range(2, 12)]
    assert intervals == sorted(intervals)


def test_a_save_that_costs_nothing() -> None:
    assert best_interval(HOUR, 0) == young(HOUR, 0) == daly(HOUR, 0) == 0
    assert expected_goodput(0, mtbf=HOUR, save=0, reschedule=HOUR) == 0.5
    assert expected_goodput(0, mtbf=HOUR, save=1) == 0
    assert expected_goodput(5e-324, mtbf=HOUR, save=0) == 1


def test_absurd_figures_underflow_and_do_not_raise() -> None:
    assert expected_goodput(1e9, mtbf=1, save=1e9, restore=1e9, reschedule=1e9) == 0


# --- plans ------------------------------------------------------------------------------------------------------------


def test_a_plan_by_hand() -> None:
    plan = make_plan(Figures().given(mtbf=6 * HOUR, save=30.0, restore=120.0, reschedule=300.0, interval=HOUR))
    assert plan.choices["young"].interval == pytest.approx(1138.42, abs=0.01)
    assert plan.choices["now"].goodput == pytest.approx(0.8933, abs=1e-4)
    assert plan.best.goodput == max(choice.goodput for choice in plan.choices.values())
    assert plan.best.steps is None
    text = str(plan)
    assert "6 h 00 min  (given)" in text and "current" in text
    assert "Saving every 18 min 38 s instead of every 1 h 00 min would gain 3.68 % of the time." in text
    answer = json.loads(json.dumps(plan.to_json()))
    assert answer["mtbf_s"] == 6 * HOUR and answer["step_s"] is None
    assert answer["choices"]["best"] == {
        "interval_s": plan.best.interval,
        "steps": None,
        "goodput": plan.best.goodput,
    }


@given(step=st.floats(0.01, 2e4), between=st.floats(0, 2), mtbf=st.floats(1e3, 1e7), save=st.floats(0, 1e3))
@settings(max_examples=50)
def test_the_best_interval_in_whole_steps(step: float, between: float, mtbf: float, save: float) -> None:
    plan = make_plan(Figures(mtbf=mtbf, save=save, step=step, between=between))
    best = plan.best
    assert best.steps is not None and best.steps >= 1
    assert best.interval == pytest.approx(best.steps * step * (1 + between))
    for steps in {max(1, best.steps - 1), best.steps + 1}:
        other = expected_goodput(steps * step * (1 + between), mtbf=mtbf, save=save) / (1 + between)
        assert other <= best.goodput * (1 + 1e-12)
    assert "nan" not in str(plan)


def test_what_is_not_known_is_assumed_and_stated() -> None:
    plan = make_plan(Figures().given(mtbf=HOUR, save=10.0))
    assert (plan.figures.restore, plan.figures.reschedule) == (0, 0)
    assert str(plan).count("(assumed)") == 2


@pytest.mark.parametrize(
    ("figures", "message"),
    [
        ({"save": 1.0}, "--mtbf"),
        ({"mtbf": 1.0}, "--save"),
        ({"mtbf": 0.0, "save": 1.0}, "mtbf"),
        ({"mtbf": math.inf, "save": 1.0}, "mtbf"),
        ({"mtbf": 1.0, "save": -1.0}, "save"),
        ({"mtbf": 1.0, "save": 1.0, "step": 0.0}, "step"),
        ({"mtbf": 1.0, "save": 1.0, "restore": math.nan}, "restore"),
    ],
)
def test_figures_that_cannot_be(figures: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make_plan(Figures().given(**figures))


# --- from a run -------------------------------------------------------------------------------------------------------

STORY = """
job 0-
init 0-10 / prep 10-30
steps 0..9 @30 every 4 for 3      # and 1 s of loading between them
load 33-34 / load 37-38 / load 41-42 / load 45-46 / load 49-50
load 53-54 / load 57-58 / load 61-62 / load 65-66 / load 69-70
save 9 70-75
steps 10..13 @75 every 3          # lost
heartbeat @87
attempt 2
job 117-
init 117-127 / prep 127-137
restore 9 137-145
steps 10..19 @145 every 3
save 19 175-180
custom eval 180-190
"""


def test_figures_of_a_report() -> None:
    figures = from_report(replay(story(STORY)), saves=2, restores=1)
    assert figures.mtbf == 190 - 30  # one failure while it was up
    assert figures.reschedule == 30
    assert figures.restore == (10 + 20 + 10 + 10) / 2 + 8
    assert figures.save == 5
    assert figures.step == 3
    trained, between = 10 * 3 + 4 * 3 + 10 * 3, 10 + 10
    assert figures.between == pytest.approx(between / trained)
    assert figures.interval == (trained + between) / 2
    assert figures.goodput == pytest.approx(60 / 190)
    assert figures.origins["mtbf"] == "1 failure in 2 min 40 s of uptime"
    plan = make_plan(figures)
    assert plan.choices["now"].goodput < 1 / (1 + figures.between)
    assert "measured" in str(plan)


def test_a_report_alone_knows_of_no_saves() -> None:
    figures = from_report(replay(story(STORY)))
    assert figures.save is None and figures.interval is None
    assert figures.restore == 25 + 8  # one restore for the one restart
    with pytest.raises(ConfigurationError, match="--save"):
        make_plan(figures)
    assert make_plan(figures.given(save=5.0)).figures.origins["save"] == "given"


def test_a_run_without_failures_needs_them_by_hand() -> None:
    figures = from_report(replay(story("job 0-100 / steps 0..9 @0 every 9 / save 9 90-95")), saves=1, restores=0)
    assert figures.mtbf is None and figures.reschedule is None
    assert "no restore was recorded" in figures.origins["restore"]
    with pytest.raises(ConfigurationError, match="--mtbf"):
        make_plan(figures)
    assert make_plan(figures.given(mtbf=HOUR)).best.steps is not None


def test_planned_restarts_are_no_failures() -> None:
    clean = "job 0-50 / steps 0..9 @0 every 5 / attempt 2 / job 60-100 / steps 10..15 @60 every 5"
    assert from_report(replay(story(clean.replace(" / ", "\n")))).mtbf is None


@pytest.mark.parametrize("report", [{}, [], {"elapsed_s": "x"}, {"elapsed_s": 0, "attempts": 0, "seconds": None}])
def test_what_is_no_report(report: Any) -> None:
    with pytest.raises(ConfigurationError, match="not a report"):
        from_report(report)


def test_a_run_that_has_not_started() -> None:
    with pytest.raises(ConfigurationError, match="no time"):
        from_report(replay([]))


JOB = """
import os, sys, threading, time
import otel_goodput as goodput
start, crash = int(sys.argv[1]), sys.argv[2] == "crash"
goodput.configure("planned", directory=sys.argv[3], exporters="none")
with goodput.job():
    with goodput.training_prep():
        time.sleep(0.01)
    if start:
        with goodput.checkpoint_restore(start - 1):
            time.sleep(0.01)
    for number in range(start, start + 20):
        with goodput.step(number):
            time.sleep(0.002)
        if number % 5 == 4:
            with goodput.checkpoint_save(number):
                time.sleep(0.004)
    def alongside():
        with goodput.checkpoint_save(number):
            pass
    thread = threading.Thread(target=alongside)
    thread.start()
    thread.join()
    try:
        with goodput.checkpoint_save(number):
            raise OSError("disk full")
    except OSError:
        pass
    if crash:
        with goodput.step(start + 20):
            goodput.flush()
            os._exit(1)
"""


def attempt(directory: Path, *arguments: str) -> int:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    return warm.run(
        [sys.executable, "-W", "error", "-c", JOB, *arguments, str(directory)],
        env={**variables, "PYTHONPATH": str(ROOT)},
        timeout=60,
        check=False,
    ).returncode


def ask(*arguments: str | Path) -> int:
    parser = argparse.ArgumentParser()
    add_plan_arguments(parser)
    return run_plan(parser.parse_args(list(map(str, arguments))))


def test_the_command_reads_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A crashed attempt, and another: saves of other threads and failed ones do not count."""
    assert attempt(tmp_path, "0", "crash") == 1
    assert attempt(tmp_path, "20", "end") == 0
    assert ask(tmp_path, "--json") == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["name"] == "planned"
    assert plan["origins"]["save"].startswith("mean of 8 saves,")
    assert plan["origins"]["restore"] == "start-up, mean of 2 starts, and restore, mean of 1"
    assert plan["origins"]["mtbf"].startswith("1 failure in ")
    assert plan["save_s"] >= 0.004 and plan["restore_s"] >= 0.02 and plan["step_s"] >= 0.002
    assert 0 < plan["choices"]["now"]["goodput"] <= plan["choices"]["best"]["goodput"] * 1.01 < 1
    assert ask(tmp_path, "--mtbf", "3600", "--save", "0.5") == 0
    text = capsys.readouterr().out
    assert text.startswith("Plan for planned\n") and "1 h 00 min  (given)" in text and "500 ms  (given)" in text
    with pytest.raises(JournalError):
        ask(tmp_path / "nowhere")


def test_the_command_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without looking for any run."""
    monkeypatch.chdir(tmp_path)
    assert ask("--mtbf", "21600", "--save", "30", "--step", "1.2") == 0
    assert "Saving every 18 min 38 s of training (932 steps) is best" in capsys.readouterr().out
    assert ask("--mtbf", "21600", "--save", "0") == 0
    assert "A save costs nothing" in capsys.readouterr().out
    with pytest.raises(JournalError):
        ask("--mtbf", "21600")


def test_the_command_reads_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "report.json"
    path.write_text(json.dumps(replay(story(STORY))))
    assert ask(path, "--save", "5") == 0
    assert "(1 failure in 2 min 40 s" in capsys.readouterr().out


@pytest.mark.parametrize("bad", ["-1", "nan", "inf", "1e10", "x"])
def test_wrong_figures_are_wrong_use(bad: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        ask("--mtbf", bad)
    assert end.value.code == 2
    assert "length of time" in capsys.readouterr().err

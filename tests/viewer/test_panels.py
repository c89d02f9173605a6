"""The figures that the page's panels work out for a part of a run, by the page's own modules, run in a browser."""

from __future__ import annotations

import base64
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recording.test_resuming import WALKED, run_twice

from benchmarks.container import Container
from otel_goodput._accounting.overview import LOST, NET
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._viewer.document import document
from otel_goodput.reports.run import RecordedRun
from otel_goodput.reports.run_view import RunView
from otel_goodput.semconv import Phase

from .browser import evaluated
from .conftest import NS, live

SHOWS = Path(__file__).with_name("panels.js")


class Panels:
    """What the panels show of a run that is cut at some moments."""

    def __init__(self, browser: Any, run: RunDirectory | RunView, cuts: int = 6, **how: Any) -> None:
        content = document(run if isinstance(run, RunView) else RunView.open(RecordedRun(run), **how))
        self.head = Container(content).head
        chosen = random.Random(7)
        edges = sorted(chosen.sample(range(1, self.head["end"]), cuts))
        given = [base64.b64encode(content).decode(), edges]
        self.shown = evaluated(browser, SHOWS, "shows.panels(given[0], given[1])", given)

    @property
    def report(self) -> dict[str, Any]:
        """The report of the leader by itself."""
        report: dict[str, Any] = (self.head["job"] or {"leader": self.head})["leader"]["report"]
        return report

    def seconds(self, pieces: dict[str, int]) -> dict[str, Any]:
        """The form of a report's `seconds`, without zeros."""
        by_name: dict[str, Any] = {}
        for number, ns in pieces.items():
            category = self.head["categories"][int(number)]
            if category["custom"]:
                by_name.setdefault("custom", {})[category["custom"]] = ns / NS
            else:
                by_name[category["name"]] = ns / NS
        return by_name


@pytest.fixture(scope="module")
def panels(chromium: Any, lived: RunDirectory) -> Panels:
    return Panels(chromium, lived)


def without_zeros(seconds: dict[str, Any]) -> dict[str, Any]:
    return {name: held for name, held in seconds.items() if held}


def added(parts: list[dict[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return total


def test_the_bar_of_the_run_and_of_each_attempt_is_the_report(panels: Panels) -> None:
    report, run = panels.report, panels.shown["run"]
    assert panels.seconds(run["pieces"]) == without_zeros(report["seconds"])
    assert run["elapsed"] / NS == report["elapsed_s"]
    for attempt, shown in zip(panels.head["attempts"], panels.shown["attempts"], strict=True):
        assert panels.seconds(shown["pieces"]) == without_zeros(attempt["seconds"])
        assert shown["elapsed"] / NS == attempt["elapsed_s"]


def test_a_stretch_of_time_is_exact_and_stretches_add_up_to_the_run(panels: Panels) -> None:
    for shown in panels.shown["ranges"]:
        assert shown["exact"]
        assert shown["elapsed"] == shown["length"]
        assert shown["bins"] == shown["pieces"]  # what is drawn over time is what the bar holds
    assert added([shown["pieces"] for shown in panels.shown["ranges"]]) == Counter(panels.shown["run"]["pieces"])
    assert panels.shown["run"]["bins"] == panels.shown["run"]["pieces"]


def test_a_histogram_counts_every_step_once(panels: Panels) -> None:
    steps, started = panels.report["steps"], panels.report["started_steps"]
    fates: Counter[int] = Counter()
    for counts in panels.shown["fates"].values():
        fates.update(dict(enumerate(counts)))
    assert (fates[0], fates[1]) == (steps["kept"], steps["lost"])
    for name, histogram in panels.shown["run"]["histograms"].items():
        assert histogram["exact"] and histogram["kept"]
        assert sum(histogram["counts"]) == histogram["listed"], name
        assert sum(histogram["counts"]) + histogram["missing"] >= started
        if name.startswith("net"):
            assert histogram["counts"][0] == steps["kept"]
        parts = [one["histograms"][name] for one in panels.shown["ranges"]]
        assert [sum(column) for column in zip(*(part["counts"] for part in parts), strict=True)] == histogram["counts"]


def test_batches_that_a_loop_skipped_are_no_steps(chromium: Any, tmp_path: Path) -> None:
    run_twice(tmp_path, WALKED.format(start=", start=0"))
    shown = Panels(chromium, RunDirectory(tmp_path / "run")).shown
    assert shown["fates"] == {"1": [8, 2, 0, 0], "2": [6, 0, 0, 0]}
    for name, histogram in shown["run"]["histograms"].items():
        if not name.startswith("device"):
            # The step in which the first attempt died has no length.
            assert (histogram["counts"], histogram["missing"], histogram["listed"]) == ([14, 1, 0, 0], 1, 15), name
    assert shown["run"]["cadence"]["steps"] == 14  # from each step to the next one of its attempt


def test_the_parts_of_the_cadence_add_up_to_it(panels: Panels) -> None:
    for shown in (panels.shown["run"], *panels.shown["attempts"], *panels.shown["ranges"]):
        cadence = shown["cadence"]
        assert sum(ns for _, ns, _ in cadence["parts"]) == cadence["total"]
    whole = panels.shown["run"]["cadence"]
    attempts = [shown["cadence"] for shown in panels.shown["attempts"]]
    assert whole["steps"] == sum(one["steps"] for one in attempts) > 0
    assert whole["total"] == sum(one["total"] for one in attempts)


def test_the_use_of_the_device_adds_up_to_the_time(panels: Panels) -> None:
    for shown in panels.shown["ranges"]:
        if shown["device"] is not None:
            assert sum(ns for _, ns in shown["device"]["pieces"]) == shown["length"]


def test_groups_counted_by_the_page_are_those_of_the_journal(panels: Panels) -> None:
    def group_totals(groups: list[dict[str, Any]]) -> dict[tuple[int, str, bool], tuple[int, int, int]]:
        names, job = panels.head["names"], panels.head["phase_names"].index(Phase.JOB)
        return {
            (one["phase"], name if isinstance(name := one["name"], str) else names[name], one["background"]): (
                one["count"],
                one["sum_ns"],
                one["failed"],
            )
            for one in groups
            if one["phase"] != job
        }

    by_group = group_totals(panels.head["groups"])
    assert group_totals(panels.shown["all"]["groups"]) == group_totals(panels.shown["run"]["groups"]) == by_group


def test_without_owners_a_stretch_is_about_right_and_says_so(chromium: Any, tmp_path: Path) -> None:
    live(tmp_path, "long", 0, 1200)
    panels = Panels(chromium, RunDirectory(tmp_path / "long"), spans=100)
    assert not panels.head["detail"]["complete"]
    for shown in panels.shown["ranges"]:
        assert not shown["exact"]
        assert shown["elapsed"] == pytest.approx(shown["length"], abs=2 * len(shown["pieces"]))
    run = panels.shown["run"]
    assert panels.seconds(run["pieces"]) == without_zeros(panels.report["seconds"])
    steps = panels.report["steps"]
    assert run["histograms"]["net log"]["counts"][:2] == [steps["kept"], steps["lost"]]
    assert run["cadence"]["steps"] > 0


def test_steps_without_a_time_are_counted_next_to_the_histogram(chromium: Any, story: RunDirectory) -> None:
    session = RunView.open(RecordedRun(story), spans=60)
    usual = Panels(chromium, session).shown["run"]["histograms"]["net log"]
    held = {**session.overview.histogram, (NET, 1, LOST, 0): 9}  # cut off as soon as they had begun
    session.overview = replace(session.overview, histogram=held)
    long = Panels(chromium, session).shown["run"]["histograms"]["net log"]
    assert not long["exact"] and usual["missing"] == 1
    assert long == {**usual, "missing": 9}

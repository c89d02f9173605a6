"""What the dashboards of Cloud Monitoring ask in PromQL is answered as they say, of runs that go on, ended or died."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from .lives import lives, stairs
from .stories import Story, ask, in_prometheus, series
from .written import FILES, load, selections

DASHBOARDS = [name for name in FILES if name.endswith(".cloud-monitoring.json")]
# By the place, in the stories, that they read.
GOODPUT = {
    "cloud": "dashboards/goodput.cloud-monitoring.json",
    "otlp": "dashboards/goodput-otlp.cloud-monitoring.json",
}
RUNS = {"cloud": "dashboards/runs.cloud-monitoring.json", "otlp": "dashboards/runs-otlp.cloud-monitoring.json"}
RUN = {"cloud": 'job="llama", namespace="run-7"', "otlp": 'job="llama", goodput_run_id="run-7"'}
LAST = 59  # the last minute of which a run tells
ENDED = Story(lives(range(60), ended=(LAST,)), {})
DIED = Story(lives(range(60)), {})
MOVED = Story(
    lives(range(60), range(70, 180), whole=lambda minute: 0.9 if minute < 60 else 0.7), {}, (0, 70), moves=True
)
TABLES = ("Running: elapsed time", "Ended: elapsed time", "Gone: elapsed time")


class Shown(NamedTuple):
    """A widget that shows one value of each of its series, or a chart."""

    title: str
    kind: str
    query: Mapping[str, Any]


def shown(name: str) -> Iterator[Shown]:
    for one in load(name)["mosaicLayout"]["tiles"]:
        widget = one["widget"]
        for kind in {*widget} & {"scorecard", "timeSeriesTable", "xyChart"}:
            for each in widget[kind].get("dataSets", [widget[kind]]):
                yield Shown(widget["title"], kind, each["timeSeriesQuery"])


def queries(name: str) -> dict[str, str]:
    """What is asked in PromQL, where one value is shown."""
    single = [one for one in shown(name) if one.kind != "xyChart" and "prometheusQuery" in one.query]
    return {one.title: in_prometheus(one.query["prometheusQuery"]) for one in single}


def answered(
    names: Mapping[str, str],
    place: str,
    story: Story,
    minute: int,
    expected: Mapping[str, Mapping[str, float]],
    path: Path,
) -> None:
    """At that minute, by titles: the values by their labels other than those of the run, which are run-7's."""
    query_of = queries(names[place])
    questions = [
        {
            "expr": query_of[title],
            "eval_time": f"{minute}m",
            "exp_samples": [{"labels": f"{{{RUN[place]}{more}}}", "value": value} for more, value in figures.items()],
        }
        for title, figures in expected.items()
    ]
    ask({"groups": []}, path, {"input_series": series(place, story), "promql_expr_test": questions})


def one(value: float) -> dict[str, float]:
    return {"": value}


@pytest.mark.parametrize(
    ("story", "minute", "table", "elapsed"),
    [
        (ENDED, LAST - 1, 0, 3487), (ENDED, LAST, 1, 3547), (ENDED, 179, 1, 3547),
        (DIED, LAST, 0, 3547), (DIED, 63, 0, 3547), (DIED, 66, 2, 3547), (DIED, 179, 2, 3547),
        (MOVED, 66, 2, 3547), (MOVED, 70, 0, 4207), (MOVED, 179, 0, 10747),
    ],
)  # fmt: skip
@pytest.mark.parametrize("place", RUN)
def test_a_run_is_in_the_table_of_its_state(
    place: str, story: Story, minute: int, table: int, elapsed: float, tmp_path: Path
) -> None:
    expected = {title: one(elapsed) if number == table else {} for number, title in enumerate(TABLES)}
    answered(RUNS, place, story, minute, expected, tmp_path)


@pytest.mark.parametrize("place", RUN)
def test_the_figures_of_a_run_that_is_over_are_its_last(place: str, tmp_path: Path) -> None:
    minute = 179
    common = {"Goodput, whole run": one(0.9), "Highest step": one(LAST), "Last sign of life, ago": one(60 * 120)}
    common["Goodput, last 1h"] = one(0.95)
    of_runs = {"Disruptions": one(1), "At risk": one(60 * 19)}
    answered(RUNS, place, ENDED, minute, {**common, **of_runs}, tmp_path)
    of_one = {"Since a step was completed": one(7), "Elapsed": one(3547), "At risk": one(60 * 19)}
    (state,) = (title for title in queries(GOODPUT[place]) if title.startswith("Has it ended?"))
    assert state.endswith("0 running, 1 ended, 2 gone")
    answered(GOODPUT, place, ENDED, minute, {**common, **of_one, state: one(1)}, tmp_path)
    answered(GOODPUT, place, DIED, minute, {state: one(2)}, tmp_path)


@pytest.mark.parametrize("place", RUN)
def test_they_are_those_of_the_newest_attempt_wherever_it_runs(place: str, tmp_path: Path) -> None:
    expected = {"Goodput, whole run": one(0.7), "Elapsed": one(60 * 75 + 7)}
    answered(GOODPUT, place, MOVED, 75, expected, tmp_path)  # what the attempt before it told is still there


@pytest.mark.parametrize("place", RUN)
def test_what_is_zero_is_left_out_where_there_are_many(place: str, tmp_path: Path) -> None:
    times = {', goodput_category="productive"': 3540.0, ', goodput_category="in_flight"': 7.0}
    answered(GOODPUT, place, ENDED, 179, {"Where did the whole run go?": times}, tmp_path)
    hidden = {one.title for one in shown(GOODPUT[place]) if one.query.get("prometheusQuery", "").endswith(" > 0")}
    assert hidden == {
        "Where did the last 1h go?", "Where did the whole run go?", "What share of the run is lost?",
        "Which incidents are open?", "How many incidents were there?", "What did they cost?",
        "Is it running, or has it ended?", "Why was it disrupted?", "How often was it disrupted in the last 24h?",
        "Is telemetry lost?", "By which clock are steps measured?", "Does it make progress?",
        "Which rank does it wait for?",
        "Do steps stall?", "Does the compilation cache hit?", "What did an attempt wait for?",
            "Are their clocks held down?",
    }  # fmt: skip


@pytest.mark.parametrize("name", DASHBOARDS)
def test_one_value_is_the_last_of_all_the_time_that_is_shown(name: str) -> None:
    """At its end a run that is over has none."""
    looked_back = 0
    for each in shown(name):
        single = each.kind != "xyChart"
        assert each.query.get("outputFullDuration", False) == single, each.title
        if single and "prometheusQuery" in each.query:
            query = each.query["prometheusQuery"]
            windows = len(list(selections(each.query)))
            assert query.count("last_over_time(") == query.count("[7d]") == windows, query
            looked_back += 1
    assert looked_back > 7 or name.startswith("dashboards/workload")


@pytest.mark.parametrize("name", DASHBOARDS)
def test_prometheus_takes_all_queries(name: str, tmp_path: Path) -> None:
    shown_queries = [one.query["prometheusQuery"] for one in shown(name) if "prometheusQuery" in one.query]
    assert shown_queries or name.startswith("dashboards/workload")
    rules = [{"record": f"query_{number}", "expr": in_prometheus(query)} for number, query in enumerate(shown_queries)]
    there = {"expr": "vector(1)", "eval_time": "30m", "exp_samples": [{"labels": "{}", "value": 1}]}
    test = {"input_series": series("otlp" if "-otlp" in name else "cloud", MOVED), "promql_expr_test": [there]}
    ask({"groups": [{"name": "dashboard", "rules": rules}]}, tmp_path, test)


@pytest.mark.parametrize("name", [*GOODPUT.values(), *RUNS.values()])
def test_the_traces_of_a_run_are_linked(name: str) -> None:
    text = json.dumps(load(name))
    assert "(https://console.cloud.google.com/traces/explorer)" in text
    assert "`goodput.run.id`" in text and "`goodput.step.outlier`" in text


def test_a_line_is_the_newest_attempt_s_also_while_the_one_before_it_is_still_there(tmp_path: Path) -> None:
    """By OTLP each attempt has series of its own, and no filter could tell the newest."""
    lines = {
        one.title: in_prometheus(one.query["prometheusQuery"])
        for one in shown(GOODPUT["otlp"])
        if one.kind == "xyChart" and "prometheusQuery" in one.query
    }
    story = Story(lives(range(60), range(61, 180), crashes=stairs(61)), {}, (0, 61))
    of_run = {"What would a crash cost?": {"": 60.0 * (62 % 20)}, "What share of the run is lost?": {}}
    of_run["Why was it disrupted?"] = {
        ', goodput_disruption_reason="crash"': 1,
        ', goodput_disruption_reason="rollback"': 1,
    }
    questions = [
        {
            "expr": lines[title],
            "eval_time": "62m",
            "exp_samples": [{"labels": f"{{{RUN['otlp']}{more}}}", "value": value} for more, value in figures.items()],
        }
        for title, figures in of_run.items()
    ]
    ask({"groups": []}, tmp_path, {"input_series": series("otlp", story), "promql_expr_test": questions})


def test_series_of_one_label_and_several_texts_can_be_told_apart() -> None:
    """What comes by OTLP has labels with dots: no legend is made of them, and a text of ours is one more label."""
    charts = [one for one in shown(GOODPUT["otlp"]) if one.title == "What share of the slices is in use?"]
    texts = [one.query["prometheusQuery"].rpartition('"series", ')[2] for one in charts]
    assert texts == ['"now", "", "")', '"whole run", "", "")', '"last 1h", "", "")']

"""Alerts about an objective fire as the error budget burns, on the series of real accounts over simulated time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest

from boards import naming
from otel_goodput import semconv, testing
from otel_goodput._accounting import Ledger, Totals, rules
from otel_goodput._accounting import events as ev
from otel_goodput._accounting.events import Event
from otel_goodput._metrics import instruments
from otel_goodput._metrics.productivity import Inputs
from otel_goodput._settings.options import OBJECTIVE_WINDOWS, parse_windows
from otel_goodput._text.durations import window_name

from .stories import ask
from .written import load

NS = 10**9
MINUTE = 60 * NS
FAST, SLOW = "ErrorBudgetBurnsFast", "ErrorBudgetBurns"
QUERIED = (semconv.OBJECTIVE, semconv.RATIO, semconv.TIME)
Point = tuple[str, str, float]  # labels, metric, value


def rows(totals: Totals) -> Iterator[tuple[semconv.Metric, float, Mapping[str, str]]]:
    """What the metrics that the rules ask for are at one moment of an account."""
    for metric, make in instruments.ROWS:
        if metric in QUERIED:
            for value, attributes in instruments.attributed(metric, make(totals)):
                yield metric, value, attributes


class Series:
    """Series of a run in those minutes in which it is `firing` these alerts, or none."""

    def __init__(self, firing: Mapping[int, set[str]]) -> None:
        self.firing = firing
        self.values: dict[str, list[str]] = {}

    def minute(self, minute: int, totals: Callable[[], Totals], attempt: int = 0) -> None:
        """Take what the metrics are in this minute; the rules ask for no time before it."""
        for metric, value, attributes in rows(totals()) if minute in self.firing else ():
            labels = {"job": "llama", "instance": f"run-7/{attempt}/0@host", **attributes}
            text = ", ".join(f"{naming.label(key)}={json.dumps(held)}" for key, held in labels.items())
            name = f"{naming.prometheus_metric(metric)}{{{text}}}"
            values = self.values.setdefault(name, [])
            values += ["_"] * (minute - len(values)) + [f"{value:.9g}"]

    def judge(self, path: Path) -> None:
        """Fails if other alerts fire."""
        severities = {"ErrorBudgetBurnsFast": "critical", "ErrorBudgetBurns": "warning"}
        samples = {
            name: f'ALERTS{{alertname="{name}", alertstate="firing", job="llama", goodput_run_id="run-7", '
            f'severity="{severity}"}}'
            for name, severity in severities.items()
        }
        questions = [
            {
                "expr": 'ALERTS{alertname=~"ErrorBudget.*", alertstate="firing"}',
                "eval_time": f"{minute}m",
                "exp_samples": [{"labels": samples[name], "value": 1} for name in names],
            }
            for minute, names in self.firing.items()
        ]
        series = [{"series": name, "values": " ".join(values)} for name, values in self.values.items()]
        wanted = load("alerts/prometheus.yaml")
        for group in wanted["groups"]:
            group["rules"] = [rule for rule in group["rules"] if rule["alert"] in samples]
        assert len(wanted["groups"][0]["rules"]) == 2
        ask(wanted, path, {"input_series": series, "promql_expr_test": questions})


def lived(firing: Mapping[int, set[str]], lost: Callable[[int], float], objective: str | None = "95%") -> Series:
    """A job whose minutes are a step, but for the share of each that an evaluation takes."""
    series = Series(firing)
    with testing.run(objective=objective) as run, run.recorder.job():
        for minute in range(max(firing) + 1):
            share = lost(minute)
            if share < 1:
                with run.recorder.step(minute):
                    run.advance(60 * (1 - share))
            if share:
                with run.recorder.custom("evaluation"):
                    run.advance(60 * share)
            series.minute(minute, run.totals)
    return series


def test_a_total_loss_fires_within_the_hour_and_ends_soon(tmp_path: Path) -> None:
    """72 % of an hour is 14.4 times what 95 % allow: 43.2 minutes; the last five minutes say that it is over."""
    firing = {59: set(), 101: set(), 103: {FAST}, 109: {FAST}, 113: set(), 119: set()}
    lived(firing, lambda minute: float(60 <= minute < 110)).judge(tmp_path)


def test_a_third_lost_fires_after_hours(tmp_path: Path) -> None:
    """30 % of six hours are 108 minutes: the run is younger, so time that it has not had counts as good."""
    lived({60: set(), 305: set(), 311: {FAST}}, lambda minute: 0.35).judge(tmp_path)


SILENT: dict[str, tuple[Callable[[int], float], str | None]] = {
    "keeps its objective": (lambda minute: 0.04, "95%"),
    "has no objective": (lambda minute: 1.0, None),
    # All of its first time is lost, which is little of an hour.
    "starts up slowly": (lambda minute: float(minute < 30), "95%"),
}


@pytest.mark.parametrize("name", SILENT)
def test_a_run_is_silent_that(name: str, tmp_path: Path) -> None:
    lost, objective = SILENT[name]
    lived({minute: set() for minute in (1, 5, 29, 39, 70)}, lost, objective).judge(tmp_path)


@pytest.mark.release
def test_restarts_burn_the_budget_over_attempts(tmp_path: Path) -> None:
    """Each attempt of 20 minutes waits 10 for its restart and repeats 5 steps: half of the time is lost.

    An attempt knows the time before it. While nobody runs, the account says nothing, nor do these alerts.
    """
    # 108 minutes of loss are 30 % of six hours, and 216 are 5 % of three days.
    series = Series({19: set(), 100: set(), 402: {FAST}, 700: {FAST, SLOW}, 709: {FAST, SLOW}, 716: set()})

    def at_end(end: int) -> Totals:
        return Inputs(objective=0.95).complete(ledger.totals(end))

    ledger, key, begin = Ledger((*parse_windows("1h,24h"), *OBJECTIVE_WINDOWS)), 1, 1_767_225_600 * NS
    for attempt in range(24):
        at = begin + attempt * 30 * MINUTE
        ledger.feed([Event(at, ev.ATTEMPT, step=attempt), Event(at, ev.START, rules.JOB, key)])
        first = max(0, attempt * 15 - 5 * (attempt > 0))
        for minute in range(20):
            key, began, end = key + 1, at + minute * MINUTE, at + (minute + 1) * MINUTE - 1
            ledger.feed([Event(began, ev.START, rules.STEP, key, first + minute)])
            ledger.feed([Event(end, ev.END, rules.STEP, key, first + minute)])
            series.minute(attempt * 30 + minute, partial(at_end, end), attempt)
        key += 1
    series.judge(tmp_path)


def test_the_windows_of_the_rules_are_those_that_an_objective_adds() -> None:
    names = {window_name(span) for span in OBJECTIVE_WINDOWS}
    for alert in (FAST, SLOW):
        (rule,) = [one for one in load("alerts/prometheus.yaml")["groups"][0]["rules"] if one["alert"] == alert]
        windows = {part.split('"')[0] for part in rule["expr"].split('goodput_window="')[1:]}
        assert windows <= names
        names -= windows if alert == SLOW else set()
    assert names <= {"1h", "5m", "30m"}


def test_the_objective_is_a_metric_and_adds_its_windows() -> None:
    with testing.run(objective=0.9, windows="10m,1h") as run:
        with run.recorder.job(), run.recorder.step(0):
            run.advance(60)
        metrics = run.metrics()
        (point,) = metrics["goodput.objective"].data.data_points
        assert vars(point)["value"] == 0.9 and not point.attributes
        windows = {(one.attributes or {})["goodput.window"] for one in metrics["goodput.ratio"].data.data_points}
        assert windows == {"run", "10m", "1h", "5m", "30m", "6h", "72h"}
    with testing.run() as run:
        with run.recorder.job(), run.recorder.step(0):
            run.advance(60)
        assert "goodput.objective" not in run.metrics()


@pytest.mark.parametrize("wrong", ["0", "1", "100%", "95", "-3%", "nan", "much"])
def test_what_is_no_share_is_no_objective(wrong: str) -> None:
    from otel_goodput.errors import ConfigurationError

    with pytest.raises(ConfigurationError), testing.run(objective=wrong):
        pass

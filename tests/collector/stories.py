"""Runs as their metrics tell of them, minute by minute, and what Prometheus' own evaluator says of the alerts.

Cloud Monitoring's policies are judged by the same evaluator: their metrics go by the names that Google maps them to.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from programs import located

from boards import naming
from otel_goodput import semconv
from otel_goodput.semconv import METRICS, IncidentKind, Metric

from .written import ABSENCE, OTLP_POLICIES, POLICIES, load, selections

MINUTES = 180
_RUN_LABELS = {
    "prometheus": "goodput_run_id", "grafana": "goodput_run_id", "cloud": "namespace", "otlp": "goodput_run_id",
}  # fmt: skip
PLACES = tuple(_RUN_LABELS)
# Alerts that have the labels of incidents of these kinds.
INCIDENTS = {
    "JobIncident": (IncidentKind.HANG, IncidentKind.RESTART_LOOP),
    "JobSlowdown": (IncidentKind.SLOWDOWN,),
}
IN_THE_SAME_WORDS = ("grafana", "otlp")  # as Prometheus' rules
_QUOTED = re.compile(r'\{"([\w./]+)"(?:, )?')
_KEY = re.compile(r'"([a-z]+\.[\w.]+)"(?=[!=,)])')  # of an attribute that keeps its dots


Figure = Callable[[int], float | None]  # of a minute; None where there is none


class RunMetric(NamedTuple):
    """One metric of a run."""

    run: str
    metric: Metric
    figure: Figure
    attributes: Mapping[str, str] = {}


class Story(NamedTuple):
    """The metrics of some runs, and which alerts must fire, by minute: ``ALERT of RUN`` each, or
    ``ALERT of RUN, rank RANK``.

    `begin` has the minutes in which the run's attempts begin; in Prometheus each has series of its own, and in Cloud
    Monitoring where each `moves` to another zone.
    """

    metrics: Sequence[RunMetric]
    firing: Mapping[int, set[str]]
    begin: Sequence[int] = (0,)
    moves: bool = False

    def attempt(self, minute: int) -> int:
        return sum(minute >= start for start in self.begin) - 1


def _labels(place: str, run_metric: RunMetric, attempt: int) -> dict[str, str]:
    attributes = {naming.label(key): value for key, value in run_metric.attributes.items()}
    if place != "cloud":
        return {"job": "llama", "instance": f"{run_metric.run}/{attempt}/0@host-{attempt}", **attributes}
    resource = {"job": "llama", "namespace": run_metric.run, "location": f"us-east{attempt + 1}-b", "task_id": "0"}
    return {"monitored_resource": naming.CLOUD_RESOURCE, **resource, **attributes}


def _name(place: str, metric: Metric) -> str:
    names = {"cloud": mapped(naming.cloud_metric(metric)), "otlp": mapped(metric.name)}
    return names.get(place) or naming.prometheus_metric(metric)


def mapped(name: str) -> str:
    """Google's mapping: the first slash becomes a colon, whatever else PromQL's names cannot hold an underscore."""
    return ":".join(re.sub(r"[^a-zA-Z0-9_]", "_", part) for part in name.split("/", 1))


def in_prometheus(query: str) -> str:
    """A query of Cloud Monitoring's with the names that metrics are mapped to, which every Prometheus can read."""
    named = _QUOTED.sub(lambda match: f"{mapped(match[1])}{{", query)
    return _KEY.sub(lambda match: naming.label(match[1]), named)


def series(place: str, story: Story) -> list[dict[str, str]]:
    entries = []
    apart = story.moves or place != "cloud"
    for run_metric in story.metrics:
        for attempt in range(len(story.begin)) if apart else [0]:
            labels = ", ".join(
                f"{key}={json.dumps(value)}" for key, value in _labels(place, run_metric, attempt).items()
            )
            mine = [not apart or story.attempt(minute) == attempt for minute in range(MINUTES)]
            figures = [run_metric.figure(minute) if mine[minute] else None for minute in range(MINUTES)]
            values = " ".join("_" if figure is None else f"{figure:g}" for figure in figures)
            entries.append({"series": f"{_name(place, run_metric.metric)}{{{labels}}}", "values": values})
    return entries


def _rules(place: str) -> dict[str, Any]:
    if place == "prometheus":
        group_rules: dict[str, Any] = load("alerts/prometheus.yaml")
        return group_rules
    if place == "grafana":
        return {"groups": [_of_grafana(group) for group in load("alerts/grafana.yaml")["groups"]]}
    rules = []
    for name in OTLP_POLICIES if place == "otlp" else POLICIES:
        condition = load(name)["conditions"][0]["conditionPrometheusQueryLanguage"]
        query = in_prometheus(condition["query"])
        rules.append({"alert": condition["alertRule"], "expr": query, "for": condition["duration"]})
    return {"groups": [{"name": "policies", "interval": "60s", "rules": rules}]}


def rules_in(place: str) -> dict[str, dict[str, Any]]:
    """The rules of a place by the name of the alert, with how often they are evaluated."""
    groups = _rules(place)["groups"]
    return {rule["alert"]: {"interval": "1m", **group, **rule} for group in groups for rule in group["rules"]}


def worded(rules: Mapping[str, dict[str, Any]], place: str) -> dict[str, tuple[str, float, float]]:
    """What each rule asks, with OpenTelemetry's names of our metrics, for how long it must hold, and how often (s)."""
    names = {_name(place, metric): metric.name for metric in METRICS}
    asks = {}

    def seconds(text: str) -> float:
        return float(text[:-1]) * {"s": 1, "m": 60}[text[-1]]

    for alert, rule in rules.items():
        query = re.sub(r"\b[a-z_:]+\b(?=[{\[,])", lambda match: names.get(match[0], match[0]), rule["expr"])
        asks[alert] = (query.replace("{}", ""), seconds(rule["for"]), seconds(rule["interval"]))
    return asks


def _of_grafana(group: Mapping[str, Any]) -> dict[str, Any]:
    """As Prometheus would have it: the condition is true of every series of the query."""
    by_uid = {f"otel-goodput-{Path(name).stem}": name for name in POLICIES}
    rules = [
        {
            "alert": load(by_uid[rule["uid"]])["conditions"][0]["conditionPrometheusQueryLanguage"]["alertRule"],
            "expr": rule["data"][0]["model"]["expr"],
            "for": rule["for"],
            "labels": rule["labels"],
        }
        for rule in group["rules"]
    ]
    return {"name": group["name"], "interval": group["interval"], "rules": rules}


def judge(place: str, stories: Mapping[str, Story], path: Path) -> None:
    """Let promtool say whether just the alerts of each story fire; fails where it disagrees, with the story's name.

    All stories are told at the same time, each of runs of its own: to judge each alone takes three times as long.
    """
    rules = _rules(place)
    try:
        ask(
            rules, path, _examination(place, [_of_its_own(each, at) for at, each in enumerate(stories.values())], rules)
        )
    except AssertionError:  # promtool 2 does not say of which
        for name, story in stories.items():
            try:
                ask(rules, path, _examination(place, [story], rules))
            except AssertionError as error:
                raise AssertionError(f"{name}: {error}") from None
        raise


def _of_its_own(story: Story, number: int) -> Story:
    """The same story of runs that no other story has."""

    def renamed(entry: str) -> str:
        alert, _, run = entry.partition(" of ")
        run, comma, rank = run.partition(",")
        return f"{alert} of {run}.{number}{comma}{rank}"

    metrics = [each._replace(run=f"{each.run}.{number}") for each in story.metrics]
    return story._replace(
        metrics=metrics, firing={minute: set(map(renamed, entries)) for minute, entries in story.firing.items()}
    )


def _examination(place: str, stories: Sequence[Story], rules: Mapping[str, Any]) -> dict[str, Any]:
    """The series of stories in `place`, and which alerts fire then: of their runs, and of no others."""
    severities = {rule["alert"]: rule.get("labels", {}) for rule in rules["groups"][0]["rules"]}
    firing, run_label = 'ALERTS{alertstate="firing", ', _RUN_LABELS[place]
    known = set[str]()

    def sample(entry: str) -> dict[str, Any]:
        alert, _, run = entry.partition(" of ")
        run, _, rank = run.partition(", rank ")
        labels = {"alertname": alert, "alertstate": "firing", "job": "llama", run_label: run}
        if rank:
            labels[naming.label(semconv.GOODPUT_RANK)] = rank
        for run_metric in (one for story in stories for one in story.metrics if one.run == run):
            kind = run_metric.attributes.get(semconv.GOODPUT_INCIDENT_KIND)
            if kind in INCIDENTS.get(alert, ()) and run_metric.metric == semconv.INCIDENT_ACTIVE:
                labels |= {naming.label(key): value for key, value in run_metric.attributes.items()}
        text = ", ".join(f"{key}={json.dumps(value)}" for key, value in {**labels, **severities[alert]}.items())
        return {"labels": f"ALERTS{{{text}}}", "value": 1}

    questions = []
    for story in stories:
        runs = "|".join(sorted({re.escape(each.run) for each in story.metrics}))
        known.add(runs)
        questions += [
            {
                "expr": f"{firing}{run_label}=~{json.dumps(runs)}}}",
                "eval_time": f"{minute}m",
                "exp_samples": list(map(sample, entries)),
            }
            for minute, entries in story.firing.items()
        ]
    others = f"{firing}{run_label}!~{json.dumps('|'.join(sorted(known)))}}}"
    minutes = sorted({minute for story in stories for minute in story.firing})
    questions += [{"expr": others, "eval_time": f"{minute}m", "exp_samples": []} for minute in minutes]
    return {
        "input_series": [one for story in stories for one in series(place, story)],
        "promql_expr_test": questions,
    }


def gone(story: Story) -> list[set[str]]:
    """For each minute, the runs that the policy by absence tells of, as Cloud Monitoring documents its conditions.

    An absence holds once there has been something, and then nothing for longer than its duration; a threshold as long
    as its figure is above it, and where there is none and nothing is to be evaluated, as it did before
    (https://cloud.google.com/monitoring/alerts/concepts-indepth). Both must hold of the same resource.
    """
    policy = load(ABSENCE)
    absence, threshold = policy["conditions"][0]["conditionAbsent"], policy["conditions"][1]["conditionThreshold"]
    assert policy["combiner"] == "AND_WITH_MATCHING_RESOURCE"
    assert threshold["evaluationMissingData"] == "EVALUATION_MISSING_DATA_NO_OP"
    above: dict[str, bool] = {}
    stalled = []
    for minute, silences in enumerate(_silences(absence, story)):
        for run_metric in _selected(threshold, story):
            figure = run_metric.figure(minute)
            if figure is not None:
                above[run_metric.run] = figure > threshold["thresholdValue"]
        long = {run for run, silence in silences.items() if silence > float(absence["duration"].removesuffix("s"))}
        stalled.append({run for run in long if above[run]})
    return stalled


def _silences(condition: Mapping[str, Any], story: Story) -> Iterator[dict[str, float]]:
    """For each minute, how long ago the last sample of each run was, in seconds."""
    last: dict[str, int] = {}
    for minute in range(MINUTES):
        last |= {
            run_metric.run: minute
            for run_metric in _selected(condition, story)
            if run_metric.figure(minute) is not None
        }
        yield {run: 60.0 * (minute - latest) for run, latest in last.items()}


def _selected(condition: Mapping[str, Any], story: Story) -> list[RunMetric]:
    """What the filter of a condition selects of the metrics; it must keep just the runs apart."""
    (selection,) = selections(condition)
    (aggregation,) = condition["aggregations"]
    assert aggregation["groupByFields"] == ['resource.label."job"', 'resource.label."namespace"']
    samples = []
    for run_metric in story.metrics:
        attributes = {naming.label(key): value for key, value in run_metric.attributes.items()}
        if (
            naming.cloud_metric(run_metric.metric) == selection.metric
            and selection.wanted.items() <= attributes.items()
        ):
            samples.append(run_metric)
    assert samples
    return samples


def ask(rules: Mapping[str, Any], path: Path, *tests: Mapping[str, Any]) -> None:
    """Run ``promtool test rules``; JSON is YAML too."""
    (path / "rules.yaml").write_text(json.dumps(rules))
    several = [{"interval": "1m", **test} for test in tests]
    whole = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": several}
    (path / "tests.yaml").write_text(json.dumps(whole))
    done = subprocess.run(
        [promtool(), "test", "rules", "tests.yaml"],
        env={**os.environ, "GOGC": "800"},  # a quarter of its time goes to collecting garbage otherwise
        cwd=path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def promtool() -> str:
    """Prometheus' tool: next to this interpreter or on the path."""
    executable = located("promtool")
    if executable is None:
        pytest.skip("promtool is not here; Debian's package prometheus has it")
    return executable

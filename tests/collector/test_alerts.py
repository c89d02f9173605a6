"""Each alert fires when it should and only then, in Prometheus and as a policy of Cloud Monitoring alike."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from .lives import flat, growing, lives, run, sawtooth, stairs
from .stories import IN_THE_SAME_WORDS, MINUTES, PLACES, Figure, Story, ask, gone, judge, promtool, rules_in, worded
from .written import COLLECTOR, load


def never(*minutes: int) -> dict[int, set[str]]:
    return {minute: set() for minute in minutes or (1, 60, 120, 179)}


def fires(alert: str, begin: int, end: int | None = None) -> dict[int, set[str]]:
    """From `begin` on, until before `end`."""
    return {begin - 1: set(), begin: {alert}, (end or MINUTES) - 1: {alert}, **({end: set()} if end else {})}


def between(begin: int, end: int) -> dict[str, Figure]:
    """The clock is unknown from one minute until another; before and after it is the device's."""
    return {
        "unknown": lambda minute: 1.0 if begin <= minute < end else None,
        "device": lambda minute: None if begin <= minute < end else 1.0,
    }


RULES = 13
GOODPUT, HANG, LOOP = "GoodputBelowTarget of run-7", "TrainingHang of run-7", "RestartLoop of run-7"
SLOW = "JobWaitsForRank of run-7, rank 5"
STRAGGLER = "SlowRank of run-7, rank 5"
WRONG, SLOWER = "JobIncident of run-7, rank 5", "JobSlowdown of run-7, rank 5"
CLOCK, GONE = "ClockUnknown of run-7", "RunGone of run-7"
REPEATED = "died, and its last values stay a while"  # as a collector that is scraped has them
LOOPING = stairs(30, 45, 60)
STORIES = {
    "healthy": Story(run(), never()),
    # Goodput must be below the target for a quarter of an hour, of a run that is older than the window.
    "slow": Story(run(ratio=flat(0.79)), fires(GOODPUT, 75)),
    "just enough": Story(run(ratio=flat(0.8)), never()),
    "slow for a while": Story(
        run(ratio=lambda minute: 0.5 if 100 <= minute < 130 else 0.9), fires(GOODPUT, 115, 130)
    ),
    # The alert is the run's, so the time that it has held for outlives an attempt.
    "slow over restarts": Story(run(ratio=flat(0.5)), {179: {GOODPUT}}, range(0, MINUTES, 6)),
    "hang in a step": Story(run(in_step=growing(10)), fires(HANG, 17)),
    "long steps": Story(run(in_step=sawtooth(15), ideal=flat(90)), never(*range(30))),
    "hang in a long step": Story(run(in_step=growing(0), ideal=flat(90)), fires(HANG, 17)),
    "hang in the first step": Story(run(in_step=growing(0), ideal=lambda minute: None), fires(HANG, 32)),
    # In loads, saves, evaluations, between steps and before the first step.
    "long evaluations": Story(run(in_step=flat(0), elsewhere=sawtooth(30)), never(*range(40))),
    "hang in an evaluation": Story(run(in_step=flat(0), elsewhere=growing(10)), fires(HANG, 42)),
    "hang before the first step": Story(
        run(in_step=flat(0), elsewhere=growing(0), ideal=lambda minute: None), fires(HANG, 32)
    ),
    # Whether the first restart still counts after exactly an hour depends on the version of Prometheus.
    "restart loop": Story(
        run(crashes=LOOPING), {59: set(), 60: {LOOP}, 88: {LOOP}, 92: set()}, (0, 30, 45, 60)
    ),
    "two restarts": Story(run(crashes=stairs(30, 45)), never(45, 60, 89), (0, 30, 45)),
    "restarts far apart": Story(
        run(crashes=stairs(30, 70, 110, 150)), never(110, 150, 160), (0, 30, 70, 110, 150)
    ),
    "no durable checkpoint": Story(run(at_risk=growing(0)), fires("ProgressAtRisk of run-7", 71)),
    "slow loader": Story(run(loading=flat(0.11)), fires("ExposedDataLoading of run-7", 15)),
    # In a minute 1.6 s of loading and as much of something else; the other rank has a little less than 5 %.
    "a slow rank": Story(run(waited=lambda minute: 1.6 * minute), fires(SLOW, 15)),
    "a slow rank, almost": Story(run(waited=lambda minute: 1.4 * minute), never()),
    # Whether it still counts after exactly ten minutes depends on the version of Prometheus.
    "a rank that is slow for a while": Story(
        run(waited=lambda minute: 30.0 * min(max(0, minute - 60), 2)), {65: set(), 66: {SLOW}, 70: {SLOW}, 73: set()}
    ),
    "an incident": Story(
        run(incident=lambda minute: float(60 <= minute < 90), cost=flat(125)), {59: set(), 60: {WRONG}, 90: set()}
    ),
    "an incident whose cost is not known": Story(run(incident=flat(1)), {0: {WRONG}, 179: {WRONG}}),
    "an incident in an attempt that died": Story(
        run(incident=lambda minute: 1.0 if minute < 60 else None), {59: {WRONG}, 65: set()}, (0, 60)
    ),
    "a slowdown": Story(run(slowdown=lambda minute: float(minute >= 30), cost=flat(0)), fires(SLOWER, 30)),
    "a rank that is slow in steps": Story(
        run(gain=lambda minute: 0.2 * (60 <= minute < 90)), {61: set(), 62: {STRAGGLER}, 89: {STRAGGLER}, 90: set()}
    ),
    "a rank that is slow in steps for a minute": Story(
        run(gain=lambda minute: 0.2 * (minute in (60, 61))), never(61, 62)
    ),
    "a rank that is hardly slow": Story(run(gain=flat(0.04)), never()),
    "no clock": Story(run(**between(0, MINUTES)), fires(CLOCK, 15)),
    # The last value of the device's clock is there for five minutes more.
    "a clock that is lost and found": Story(run(**between(60, 90)), fires(CLOCK, 80, 90)),
    "a clock that is lost for a while": Story(run(**between(60, 78)), never(*range(60, 100))),
    "no clock over restarts": Story(run(**between(0, MINUTES)), {179: {CLOCK}}, range(0, MINUTES, 6)),
    # The series of both stop. Of the one that died, the collector goes on for five minutes with its last values.
    "ended": Story(lives(range(60), ended=(59,)), never(59, 60, 64, 65, 120, 179)),
    "died": Story(lives(range(60)), fires(GONE, 65)),
    REPEATED: Story(
        lives(range(65), heard=lambda minute: 60.0 * min(minute, 59)), fires(GONE, 65)
    ),
    "died and went on": Story(lives(range(60), range(70, MINUTES)), fires(GONE, 65, 70), (0, 70)),
    "died and went on elsewhere": Story(
        lives(range(60), range(70, MINUTES)), fires(GONE, 65, 70), (0, 70), moves=True
    ),
    "died and went on at once": Story(lives(range(60), range(61, MINUTES)), never(*range(60, 80)), (0, 61)),
    "died, and the next attempt ended": Story(
        lives(range(60), range(61, 90), ended=(89,)), never(61, 70, 90, 95, 120, 179), (0, 61)
    ),
    "ended, was continued, and died": Story(
        lives(range(60), range(63, 100), ended=(59,)), fires(GONE, 105), (0, 63), moves=True
    ),
    "ended, was continued, and ended": Story(
        lives(range(60), range(90, 120), ended=(59, 119)), never(65, 89, 90, 120, 125, 179), (0, 90)
    ),
    "a restart loop that ended": Story(
        lives(range(70), ended=(69,), crashes=LOOPING), {60: {LOOP}, 68: {LOOP}, 69: set(), 75: set(), 90: set()},
        (0, 30, 45, 60),
    ),
    "a restart loop that died": Story(
        lives(range(70), crashes=LOOPING), {60: {LOOP}, 74: {LOOP}, 75: {LOOP, GONE}, 95: {GONE}}, (0, 30, 45, 60)
    ),
    "one of two": Story([*run(), *run("run-8", in_step=growing(10))], {60: {"TrainingHang of run-8"}}),
}  # fmt: skip


@pytest.mark.parametrize(
    "place",
    [pytest.param(place, marks=[pytest.mark.release] * (place in IN_THE_SAME_WORDS)) for place in PLACES],
)
def test_alerts_fire_when_they_should(place: str, tmp_path: Path) -> None:
    judge(place, STORIES, tmp_path)


@pytest.mark.parametrize("place", IN_THE_SAME_WORDS)
def test_the_same_words_mean_the_same_alerts(place: str) -> None:
    """What is judged in Prometheus holds there too: its rules are those, but for the names of metrics."""
    rules = rules_in(place)
    assert worded(rules, place) == worded(rules_in("prometheus"), "prometheus") and len(rules) == RULES


@pytest.mark.parametrize("name", sorted(STORIES.keys() - {REPEATED}))  # nobody repeats a point to Cloud Monitoring
def test_the_policy_by_absence_tells_of_the_same_runs(name: str) -> None:
    runs_by_minute = gone(STORIES[name])
    for minute, alerts in STORIES[name].firing.items():
        assert {f"RunGone of {run}" for run in runs_by_minute[minute]} == {
            one for one in alerts if one.startswith("RunGone")
        }


def test_a_story_with_a_wrong_alert_is_noticed(tmp_path: Path) -> None:
    promtool()
    with pytest.raises(AssertionError, match=r"(?s)a wrong one: .*TrainingHang"):
        judge("prometheus", {"a wrong one": Story(run(in_step=growing(10)), never())}, tmp_path)


def test_prometheus_takes_the_rules_and_fills_in_their_texts(tmp_path: Path) -> None:
    path = COLLECTOR / "alerts" / "prometheus.yaml"
    done = subprocess.run(
        [promtool(), "check", "rules", str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0 and f"{RULES} rules found" in done.stdout, done.stdout + done.stderr
    rules = load("alerts/prometheus.yaml")
    descriptions = {rule["alert"]: rule["annotations"]["description"] for rule in rules["groups"][0]["rules"]}
    labels = 'job="llama", instance="run-7/3/0@host"'
    of = {"goodput_incident_kind": "hang", "goodput_incident_cause": "custom"}
    where = {"goodput_incident_phase": "eval", "goodput_rank": "5", "goodput_incident_line": "dataset.py:41"}

    def series(name: str, value: str, attributes: dict[str, str]) -> dict[str, str]:
        more = ", ".join(f'{key}="{text}"' for key, text in attributes.items())
        return {"series": f"{name}{{{more}, {labels}}}", "values": f"{value}x9"}

    def fires_so(alert: str, severity: str, attributes: dict[str, str], summary: str) -> dict[str, Any]:
        exp_labels = {"job": "llama", "goodput_run_id": "run-7", "severity": severity, **attributes}
        exp_annotations = {"summary": summary, "description": descriptions[alert]}
        exp_alerts = [{"exp_labels": exp_labels, "exp_annotations": exp_annotations}]
        return {"eval_time": "4m", "alertname": alert, "exp_alerts": exp_alerts}

    test = {
        "input_series": [
            series("goodput_step_age_seconds", "1925", {"goodput_activity": "step"}),
            series("goodput_incident_active", "1", {**of, **where}),
            series("goodput_incident_cost_time_seconds", "125", of),
            series("goodput_rank_gain_ratio", "0.2", {"goodput_rank": "7"}),
        ],
        "alert_rule_test": [
            fires_so(
                "TrainingHang", "critical", {}, "Training hangs: llama, run run-7: no step was completed for 32m 5s"
            ),
            fires_so(
                "JobIncident",
                "critical",
                {**of, **where},
                "Incident: llama, run run-7: hang, custom eval of rank 5 at dataset.py:41; such incidents have cost "
                "2m 5s in this attempt",
            ),
            fires_so(
                "SlowRank",
                "warning",
                {"goodput_rank": "7"},
                "A rank is slow in steps: llama, run run-7: without rank 7, the job would be 20% faster",
            ),
        ],
    }
    ask(rules, tmp_path, test)


# Alerts that name a place, and the labels with which they do.
NAMING = {
    "job-incident": ("kind", "cause", "phase", "rank", "line"),
    "job-slowdown": ("kind", "cause", "phase", "rank", "line"),
    "slow-rank": ("rank",),
    "job-waits-for-rank": ("rank",),
}


@pytest.mark.parametrize("alert", NAMING)
def test_texts_name_the_rank_and_the_line_everywhere(alert: str) -> None:
    keys = [f"goodput_{'' if name == 'rank' else 'incident_'}{name}" for name in NAMING[alert]]
    (rule,) = [
        one for one in load("alerts/grafana.yaml")["groups"][0]["rules"] if one["uid"] == f"otel-goodput-{alert}"
    ]
    summary = rule["annotations"]["summary"]
    assert all(f"$labels.{key} " in summary for key in keys) and "$values.A.Value" in summary
    subjects = [key for key in keys if key.rpartition("_")[2] in ("kind", "cause", "rank")]
    for name, query_keys in ((f"alerts/{alert}.json", subjects), (f"alerts/otlp/{alert}.json", [])):
        policy = load(name)
        text = policy["documentation"]
        assert text["content"].startswith("Of: ${metric_or_resource.labels}\n\nValue: ${metric.label.value}\n")
        query = policy["conditions"][0]["conditionPrometheusQueryLanguage"]["query"]
        subject = text.get("subject", "")
        assert len(subject) < 256 and subject.count("${") == (1 + len(query_keys) if query_keys else 0)
        for key in query_keys:
            assert f"${{metric_or_resource.label.{key}}}" in subject
        assert all(key in query.replace(".", "_") for key in keys)

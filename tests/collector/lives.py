"""What runs tell of themselves, minute by minute: healthy ones, but for what is given."""

from __future__ import annotations

from otel_goodput import semconv
from otel_goodput.semconv import Category, ClockState, IncidentKind, JobState, Reason

from .stories import Figure, RunMetric

HOUR = {semconv.GOODPUT_WINDOW: "1h"}
ACTIVITIES = {"in_step": semconv.IN_STEP, "elsewhere": semconv.BETWEEN_STEPS}
LOADING = {**HOUR, semconv.GOODPUT_CATEGORY: Category.DATA_LOADING}
LOADS_LATE = {semconv.GOODPUT_RANK: "5", semconv.GOODPUT_CATEGORY: Category.DATA_LOADING}
INCIDENT = {
    semconv.GOODPUT_INCIDENT_KIND: IncidentKind.HANG,
    semconv.GOODPUT_INCIDENT_CAUSE: Category.CUSTOM,
    semconv.GOODPUT_INCIDENT_PHASE: "eval",
    semconv.GOODPUT_RANK: "5",
    semconv.GOODPUT_INCIDENT_LINE: "dataset.py:41",
}
SLOWDOWN = {**INCIDENT, semconv.GOODPUT_INCIDENT_KIND: IncidentKind.SLOWDOWN}
INCIDENT_COST = (semconv.GOODPUT_INCIDENT_KIND, semconv.GOODPUT_INCIDENT_CAUSE)
SHOWN_CLOCKS = (ClockState.DEVICE, ClockState.UNKNOWN)
SHOWN_STATES = (JobState.RUNNING, JobState.ENDED)


def flat(value: float) -> Figure:
    return lambda minute: value


def growing(since: int) -> Figure:
    """Seconds since a minute."""
    return lambda minute: 60.0 * max(0, minute - since)


def stairs(*steps: int) -> Figure:
    """How many of `steps` have been taken."""
    return lambda minute: float(sum(minute >= step for step in steps))


def sawtooth(minutes: int) -> Figure:
    return lambda minute: 60.0 * (minute % minutes)


HEALTHY: dict[str, Figure] = {
    "elapsed": growing(0), "ratio": flat(0.95), "in_step": flat(7), "elsewhere": flat(0),
    "ideal": flat(20), "at_risk": sawtooth(20),
    "loading": flat(0.01), "crashes": flat(0), "device": flat(1), "unknown": lambda minute: None,
    "waited": flat(0), "running": flat(1), "ended": flat(0), "heard": growing(0), "whole": flat(0.9), "highest": float,
    "incident": lambda minute: None, "slowdown": lambda minute: None, "cost": lambda minute: None,
    "gain": lambda minute: None,
}  # fmt: skip


def run(name: str = "run-7", **figures: Figure) -> list[RunMetric]:
    """What a run tells; a healthy one, but for what is given."""
    figure = {**HEALTHY, **figures}
    productive = {semconv.GOODPUT_CATEGORY: Category.PRODUCTIVE}
    crash, rollback = ({semconv.GOODPUT_DISRUPTION_REASON: reason} for reason in (Reason.CRASH, Reason.ROLLBACK))
    return [
        RunMetric(name, semconv.TIME, figure["elapsed"], productive),
        *(
            RunMetric(name, semconv.STEP_AGE, figure[place], {semconv.GOODPUT_ACTIVITY: activity})
            for place, activity in ACTIVITIES.items()
        ),
        RunMetric(name, semconv.TIME, flat(7), {semconv.GOODPUT_CATEGORY: Category.IN_FLIGHT}),
        RunMetric(name, semconv.TIME, flat(0), {semconv.GOODPUT_CATEGORY: Category.WASTED_PROGRESS}),
        RunMetric(name, semconv.RATIO, figure["whole"], {semconv.GOODPUT_WINDOW: semconv.WINDOW_RUN}),
        RunMetric(name, semconv.STEP_MAX, figure["highest"]),
        RunMetric(name, semconv.RATIO, figure["ratio"], HOUR),
        RunMetric(name, semconv.RATIO, flat(0.1), {semconv.GOODPUT_WINDOW: "24h"}),
        RunMetric(name, semconv.STEP_IDEAL, figure["ideal"]),
        RunMetric(name, semconv.AT_RISK, figure["at_risk"]),
        RunMetric(name, semconv.BADPUT_RATIO, figure["loading"], LOADING),
        RunMetric(name, semconv.BADPUT_RATIO, flat(0.5), {**LOADING, semconv.GOODPUT_CATEGORY: Category.OTHER}),
        RunMetric(name, semconv.DISRUPTIONS, figure["crashes"], crash),
        RunMetric(name, semconv.DISRUPTIONS, flat(1), rollback),
        *(
            RunMetric(name, semconv.CLOCK, figure[state], {semconv.GOODPUT_CLOCK_STATE: state})
            for state in SHOWN_CLOCKS
        ),
        *(
            RunMetric(name, semconv.JOB_STATE, figure[state], {semconv.GOODPUT_JOB_STATE: state})
            for state in SHOWN_STATES
        ),
        RunMetric(name, semconv.RANK_WAIT, figure["waited"], LOADS_LATE),
        RunMetric(name, semconv.RANK_WAIT, figure["waited"], {**LOADS_LATE, semconv.GOODPUT_CATEGORY: Category.OTHER}),
        RunMetric(name, semconv.RANK_WAIT, lambda minute: 2.9 * minute, {**LOADS_LATE, semconv.GOODPUT_RANK: "6"}),
        # Of hundreds of ranks, each of which is the last one now and then.
        RunMetric(name, semconv.RANK_WAIT, growing(0), {**LOADS_LATE, semconv.GOODPUT_RANK: semconv.OTHER_RANKS}),
        RunMetric(name, semconv.RANK_GAIN, figure["gain"], {semconv.GOODPUT_RANK: "5"}),
        RunMetric(name, semconv.LAST_SIGN, figure["heard"]),
        RunMetric(name, semconv.INCIDENT_ACTIVE, figure["incident"], INCIDENT),
        RunMetric(name, semconv.INCIDENT_ACTIVE, figure["slowdown"], SLOWDOWN),
        *(
            RunMetric(name, semconv.INCIDENT_COST, figure["cost"], {key: attributes[key] for key in INCIDENT_COST})
            for attributes in (INCIDENT, SLOWDOWN)
        ),
    ]


def lives(*times: range, ended: tuple[int, ...] = (), **figures: Figure) -> list[RunMetric]:
    """A run that tells of itself at these times only; in the minutes `ended` its last metrics say so."""
    known: dict[str, Figure] = {
        "running": lambda minute: float(minute not in ended),
        "ended": lambda minute: float(minute in ended),
    }
    present = {minute for time in times for minute in time}
    return [
        one._replace(figure=lambda minute, figure=one.figure: figure(minute) if minute in present else None)
        for one in run(**{**known, **figures})
    ]

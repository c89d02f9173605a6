"""The alerts: one table, from which the rules of Prometheus and Cloud Monitoring's policies come.

A rule is one expression in PromQL, which both understand; only the names and the labels of a run differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from otel_goodput import semconv
from otel_goodput.dashboards.promql import Dialect
from otel_goodput.dashboards.thresholds import Thresholds, window_seconds
from otel_goodput.semconv import Category, ClockState, JobState, Phase, Reason

CRITICAL: Final = "critical"
WARNING: Final = "warning"

GONE: Final = "RunGone"

LOOP_WINDOW: Final = "1h"  # in which disruptions are counted for a restart loop
GONE_WINDOW: Final = "6h"  # for how long a run that is gone is remembered


@dataclass(frozen=True)
class Rule:
    """One alert.

    Attributes:
        name: as an identifier; `title` is for people.
        hold_min: minutes for which the expression must hold.
        expression: PromQL, with a series for each run that is in trouble.
        value: how Prometheus' templates tell of the expression's value.
        means: what has happened, in a sentence or two.
        look: what to look at, first things first.
    """

    name: str
    title: str
    severity: str
    hold_min: int
    expression: Callable[[Dialect], str]
    value: str
    means: str
    look: Sequence[str]


def _below_target(window: str, limits: Thresholds, words: Dialect) -> str:
    ratio = words.of_run("max", words.select(semconv.RATIO, {semconv.GOODPUT_WINDOW: window}))
    elapsed = words.of_run("sum", words.select(semconv.TIME, {}))
    # Before a window has passed, what a run needs to start weighs too much.
    return f"{ratio} < {limits.goodput_target:g}\nand\n{elapsed} > {window_seconds(window)}"


def _hang(limits: Thresholds, words: Dialect) -> str:
    in_step, elsewhere = (
        words.of_run("max", words.select(semconv.STEP_AGE, {semconv.GOODPUT_ACTIVITY: activity}))
        for activity in (semconv.IN_STEP, semconv.BETWEEN_STEPS)
    )
    ideal = words.of_run("max", words.select(semconv.STEP_IDEAL, {}))
    known = f"{in_step} > clamp_min({limits.hang_multiple:g} * {ideal}, {limits.hang_least:g})"
    return f"{known}\nor\n({in_step} unless {ideal}) > {limits.hang_other:g}\nor\n{elsewhere} > {limits.hang_other:g}"


def _restart_loop(limits: Thresholds, words: Dialect) -> str:
    # Not increase(): in Prometheus each attempt has a series of its own, which begins where the last one ended.
    most, least = (
        words.of_run(
            edge,
            words.select(semconv.DISRUPTIONS, {}, f"{edge}_over_time({{}}[{LOOP_WINDOW}])"),
            [semconv.GOODPUT_DISRUPTION_REASON],
        )
        for edge in ("max", "min")
    )
    disrupted = words.of_run("sum", f"{most} - {least}")
    # The last hour of a run that has ended is still there for an hour.
    return f"{disrupted} >= {limits.restarts:g}\nunless\n{_last_word(JobState.ENDED, LOOP_WINDOW, words)}"


def _last_word(state: str, window: str, words: Dialect) -> str:
    """When a run was last heard of, of those whose last word within `window` was that they are in `state`.

    Each attempt has series of its own: the one that was heard of last has the last word, so an attempt that ended hides
    none that went on after it, and one that died is forgotten once another goes on. What is no longer told is asked for
    by ``last_over_time``: the question is about those who are silent.
    """
    heard = words.select(semconv.LAST_SIGN, {}, f"last_over_time({{}}[{window}])")
    told = words.select(semconv.JOB_STATE, {semconv.GOODPUT_JOB_STATE: state}, f"last_over_time({{}}[{window}])")
    of_state = f"{heard}\nand on ({', '.join(words.writer)})\n{told} == 1"
    return f"({words.of_run('max', of_state)} >= {words.of_run('max', heard)})"


def _gone(limits: Thresholds, words: Dialect) -> str:
    return f"time() - {_last_word(JobState.RUNNING, GONE_WINDOW, words)} > {limits.gone:g}"


def _at_risk(limits: Thresholds, words: Dialect) -> str:
    return f"{words.of_run('max', words.select(semconv.AT_RISK, {}))} > {limits.at_risk:g}"


def _exposed_loading(window: str, limits: Thresholds, words: Dialect) -> str:
    loading = {semconv.GOODPUT_WINDOW: window, semconv.GOODPUT_CATEGORY: Category.DATA_LOADING}
    return f"{words.of_run('max', words.select(semconv.BADPUT_RATIO, loading))} > {limits.data_loading:g}"


def _clock_unknown(words: Dialect) -> str:
    unknown, *others = (
        words.of_run("max", words.select(semconv.CLOCK, {semconv.GOODPUT_CLOCK_STATE: state}))
        for state in (ClockState.UNKNOWN, ClockState.DEVICE, ClockState.HOST)
    )
    # A state that has passed is still there for some minutes, so another one tells that it has passed.
    return f"{unknown} > 0\nunless\n({' or '.join(others)})"


def rules(window: str, limits: Thresholds) -> list[Rule]:
    """The alerts; `window` is the rolling window that they go by."""
    share, seconds = "{{ $value | humanizePercentage }}", "{{ $value | humanizeDuration }}"
    return [
        Rule(
            name="GoodputBelowTarget",
            title="Goodput below target",
            severity=WARNING,
            hold_min=15,
            expression=partial(_below_target, window, limits),
            value=f"goodput is {share}",
            means=f"Less than {limits.goodput_target:.0%} of the last {window} made progress. Runs younger than that "
            "are not judged.",
            look=(
                "The dashboard's stack of shares: which category has grown?",
                f"`{Category.WASTED_PROGRESS}`, `{Category.INFRASTRUCTURE_RECOVERY}`: it restarts. Why? Is there room?",
                f"`{Category.DATA_LOADING}`, `{Category.CHECKPOINT_SAVE}`, custom phases: which has become slow (p99)?",
                f"`{Category.PROGRAM_STARTUP}`: it compiles again and again. Look for recompilations in the traces.",
            ),
        ),
        Rule(
            name="TrainingHang",
            title="Training hangs",
            severity=CRITICAL,
            hold_min=1,
            expression=partial(_hang, limits),
            value=f"no step was completed for {seconds}",
            means=f"In a step, no step was completed for more than {limits.hang_multiple:g} ideal step times (and at "
            f"least {limits.hang_least:g} s). In a load, a save or an evaluation, between steps, and before step times "
            f"are known, none was for {limits.hang_other:g} s.",
            look=(
                "Which phase is open, in which process? The last spans of the trace say so.",
                "`py-spy dump --pid PID` on each host: who does not wait in a collective operation, as the rest do?",
                "Accelerators and network of the hosts: errors, a host that cannot be reached, maintenance.",
                "At risk, on the dashboard, is what a restart costs.",
            ),
        ),
        Rule(
            name=GONE,
            title="Run gone without having ended",
            severity=CRITICAL,
            hold_min=0,
            expression=partial(_gone, limits),
            value=f"silent for {seconds}",
            means=f"The run last reported `{JobState.RUNNING}` and has been silent for {limits.gone:g} s: it died, "
            "failed or was preempted, and nobody has started it again; or its metrics do not arrive. The alert fires "
            f"for up to {GONE_WINDOW}, or until the run resumes. Runs that end normally do not trigger it.",
            look=(
                "Does the scheduler still want to run it? Out of retries, no room, deleted, queued?",
                "`otel-goodput report`, on its journal: how it ended, and in which phase. The end of its log.",
                "If it runs all the same, its metrics do not arrive: the collector, the network, the credentials.",
                "Several runs at once: look at what they share first, the collector above all.",
            ),
        ),
        Rule(
            name="RestartLoop",
            title="Restart loop",
            severity=CRITICAL,
            hold_min=0,
            expression=partial(_restart_loop, limits),
            value=f"{{{{ $value }}}} disruptions within {LOOP_WINDOW}",
            means=f"The run was disrupted {limits.restarts:g} times or more within {LOOP_WINDOW}: it restarts or rolls "
            "back again and again. Attempts that die before their first export of metrics are not counted; runs "
            "that have ended do not trigger it.",
            look=(
                f"The reasons: `{Reason.CRASH}` and `{Reason.ROLLBACK}` are the job's own, most others the platform's.",
                "The log of the last attempt and its interrupted spans: does it always end at the same step?",
                "Does the highest step kept rise? If not, stop the job: it only burns time.",
            ),
        ),
        Rule(
            name="ProgressAtRisk",
            title="Too much progress at risk",
            severity=WARNING,
            hold_min=10,
            expression=partial(_at_risk, limits),
            value=f"{seconds} of progress is not durable",
            means=f"A crash right now would cost more than {limits.at_risk:g} s of progress: so much has been made "
            "since the last checkpoint that is known to be durable.",
            look=(
                f"Do saves still happen? Look at `{Phase.CHECKPOINT_SAVE}` among the phases, and for errors there.",
                "Do they become durable? An asynchronous save counts when it is committed.",
                "The storage that they go to: quota, permissions, throughput.",
                "If all is as it is meant to be, save more often, or raise this threshold.",
            ),
        ),
        Rule(
            name="ExposedDataLoading",
            title="Training waits for data",
            severity=WARNING,
            hold_min=15,
            expression=partial(_exposed_loading, window, limits),
            value=f"{share} of the time goes by waiting for data",
            means=f"More than {limits.data_loading:.0%} of the last {window} went by waiting for data while nothing "
            "was computed. Loading that overlaps with steps is not counted.",
            look=(
                "Since when? If step times changed at the same moment, look at the hosts: CPU, memory, page cache.",
                "The storage that the data comes from: throughput, throttling, another region.",
                "Prefetch more batches, or give the input pipeline more workers.",
            ),
        ),
        Rule(
            name="ClockUnknown",
            title="Clock unknown",
            severity=WARNING,
            hold_min=15,
            expression=_clock_unknown,
            value="nothing tells when the device is done with a step",
            means="The job hands its steps' work to a device, and nothing tells when that is done. Goodput, shares, "
            "step times and what is at risk are not known and have no points, so the alerts that go by them are "
            f"silent, and a hang is noticed after {limits.hang_other:g} s only. The times by category are exact.",
            look=(
                "`otel-goodput doctor`, with the job's environment: it says what is known, and what to do.",
                "Hand an output of each step over, one that is not donated: `goodput.observe(loss)`.",
                "Or wait for it inside of the step (`jax.block_until_ready(loss)`, `loss.item()`).",
            ),
        ),
    ]

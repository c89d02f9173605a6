"""The alerts: one table, from which the rules of Prometheus and Cloud Monitoring's policies come.

A rule is one expression in PromQL, which both understand; only the names and the labels of a run differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from boards.naming import label
from boards.promql import Dialect, Except, grouped
from boards.slots import (
    AT_RISK,
    DATA_LOADING,
    HANG_LEAST,
    HANG_MULTIPLE,
    HANG_OTHER,
    RANK_WAIT,
    RESTARTS,
    SILENCE,
    TARGET,
    WINDOW,
    WINDOW_S,
)
from otel_goodput import semconv
from otel_goodput._settings.options import Settings
from otel_goodput._text.durations import NS, parse_duration, window_name
from otel_goodput.semconv import Category, ClockState, IncidentKind, JobState, Phase, Reason

CRITICAL: Final = "critical"
WARNING: Final = "warning"

GONE: Final = "RunGone"

RANK_WINDOW: Final = "10m"  # in which waits for a rank are counted
RANK_HOLD_MIN: Final = 5  # by then it is known what is wrong with that rank, if an incident or SlowRank tells of it
LOOP_WINDOW: Final = "1h"  # in which disruptions are counted for a restart loop
GONE_WINDOW: Final = "6h"  # for how long a run that is gone is remembered

# How many times as fast as the objective allows the error budget is used, over a long window and still over a short
# one: https://sre.google/workbook/alerting-on-slos/, table 5-8.
BURNS_FAST: Final = ((14.4, "1h", "5m"), (6, "6h", "30m"))
BURNS: Final = ((1, "3d", "6h"),)

_SLOW: Final = ("JobWaitsForRank", "ExposedDataLoading", "GoodputBelowTarget", "ErrorBudgetBurns")
# Alerts, and those of the same run that need not be reported while they fire, because they say why.
EXPLAINS: Final[Mapping[str, Sequence[str]]] = {
    GONE: (
        "JobIncident",
        "JobSlowdown",
        "SlowRank",
        "RestartLoop",
        "ProgressAtRisk",
        *_SLOW,
        "ErrorBudgetBurnsFast",
        "ClockUnknown",
    ),
    "JobIncident": (
        "TrainingHang",
        "RestartLoop",
        "JobSlowdown",
        "SlowRank",
        "ProgressAtRisk",
        *_SLOW,
        "ErrorBudgetBurnsFast",
    ),
    "JobSlowdown": _SLOW,
    "SlowRank": _SLOW,
    "TrainingHang": ("ProgressAtRisk", *_SLOW, "ErrorBudgetBurnsFast"),
    "RestartLoop": ("GoodputBelowTarget", "ErrorBudgetBurns", "ErrorBudgetBurnsFast"),
    "JobWaitsForRank": ("ExposedDataLoading", "GoodputBelowTarget", "ErrorBudgetBurns"),
    "ExposedDataLoading": ("GoodputBelowTarget", "ErrorBudgetBurns"),
    "ErrorBudgetBurnsFast": ("ErrorBudgetBurns", "GoodputBelowTarget"),
    "ErrorBudgetBurns": ("GoodputBelowTarget",),
}


@dataclass(frozen=True)
class Rule:
    """One alert.

    Attributes:
        name: as an identifier; `title` is for people.
        hold_min: minutes for which the expression must hold.
        expression: PromQL, with a series for each run that is in trouble.
        value: how Prometheus' templates tell of the expression's value.
        labels: attributes that its series have beyond those of a run, by what they are for people.
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
    labels: Mapping[str, str] = field(default_factory=dict)


def _below_target(words: Dialect) -> str:
    ratio = words.of_run("max", words.select(semconv.RATIO, {semconv.GOODPUT_WINDOW: WINDOW}))
    elapsed = words.of_run("sum", words.select(semconv.TIME, {}))
    # Before a window has passed, what a run needs to start weighs too much.
    return f"{ratio} < {TARGET:g}\nand\n{elapsed} > {WINDOW_S}"


def _hang(words: Dialect) -> str:
    in_step, elsewhere = (
        words.of_run("max", words.select(semconv.STEP_AGE, {semconv.GOODPUT_ACTIVITY: activity}))
        for activity in (semconv.IN_STEP, semconv.BETWEEN_STEPS)
    )
    ideal = words.of_run("max", words.select(semconv.STEP_IDEAL, {}))
    known = f"{in_step} > clamp_min({HANG_MULTIPLE:g} * {ideal}, {HANG_LEAST:g})"
    return f"{known}\nor\n({in_step} unless {ideal}) > {HANG_OTHER:g}\nor\n{elsewhere} > {HANG_OTHER:g}"


def _restart_loop(words: Dialect) -> str:
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
    return f"{disrupted} >= {RESTARTS:g}\nunless\n{_last_report(JobState.ENDED, LOOP_WINDOW, words)}"


def _last_report(state: str, window: str, words: Dialect) -> str:
    """The last sign of life of each run whose last report within `window` was `state`.

    Each attempt has its own series, and the one with the latest report counts: an attempt that ended does not hide a
    later one, and an attempt that died is forgotten once another one runs. ``last_over_time`` also selects series that
    have stopped, because the alert is about silent runs.
    """
    last_sign = words.select(semconv.LAST_SIGN, {}, f"last_over_time({{}}[{window}])")
    in_state = words.select(semconv.JOB_STATE, {semconv.GOODPUT_JOB_STATE: state}, f"last_over_time({{}}[{window}])")
    of_state = f"{last_sign}\nand on ({', '.join(words.writer)})\n{in_state} == 1"
    return f"({words.of_run('max', of_state)} >= {words.of_run('max', last_sign)})"


def _gone(words: Dialect) -> str:
    return f"time() - {_last_report(JobState.RUNNING, GONE_WINDOW, words)} > {SILENCE:g}"


def _at_risk(words: Dialect) -> str:
    return f"{words.of_run('max', words.select(semconv.AT_RISK, {}))} > {AT_RISK:g}"


def _exposed_loading(words: Dialect) -> str:
    loading = {semconv.GOODPUT_WINDOW: WINDOW, semconv.GOODPUT_CATEGORY: Category.DATA_LOADING}
    return f"{words.of_run('max', words.select(semconv.BADPUT_RATIO, loading))} > {DATA_LOADING:g}"


def _waits_for_rank(words: Dialect) -> str:
    # Ranks that have no series of their own are many, each of which costs little.
    single = {semconv.GOODPUT_RANK: Except(semconv.OTHER_RANKS)}
    waited = words.select(semconv.RANK_WAIT, single, f"rate({{}}[{RANK_WINDOW}])")
    return f"{words.of_run('sum', waited, [semconv.GOODPUT_RANK])} > {RANK_WAIT:g}"


def _slow_rank(words: Dialect) -> str:
    gain = words.of_run("max", words.select(semconv.RANK_GAIN, {}), [semconv.GOODPUT_RANK])
    return f"{gain} > {RANK_WAIT:g}"


def _clock_unknown(words: Dialect) -> str:
    unknown, *others = (
        words.of_run("max", words.select(semconv.CLOCK, {semconv.GOODPUT_CLOCK_STATE: state}))
        for state in (ClockState.UNKNOWN, ClockState.DEVICE, ClockState.HOST)
    )
    # The series of a past state stays for some minutes, so the series of another state shows that it has passed.
    return f"{unknown} > 0\nunless\n({' or '.join(others)})"


_OF_INCIDENT: Final = {
    "kind": semconv.GOODPUT_INCIDENT_KIND,
    "cause": semconv.GOODPUT_INCIDENT_CAUSE,
    "phase": semconv.GOODPUT_INCIDENT_PHASE,
    "rank": semconv.GOODPUT_RANK,
    "line": semconv.GOODPUT_INCIDENT_LINE,
}
_OF_RANK: Final = {"rank": semconv.GOODPUT_RANK}


def _incident(kind: str) -> Callable[[Dialect], str]:
    """An expression: open incidents of a kind, with the time that such ones have cost."""

    def expression(words: Dialect) -> str:
        only, of = (
            {semconv.GOODPUT_INCIDENT_KIND: kind},
            (semconv.GOODPUT_INCIDENT_KIND, semconv.GOODPUT_INCIDENT_CAUSE),
        )
        active = f"{words.of_run('max', words.select(semconv.INCIDENT_ACTIVE, only), _OF_INCIDENT.values())} > 0"
        cost = words.of_run("max", words.select(semconv.INCIDENT_COST, only), of)
        same = ", ".join([*words.run, *map(words.key, of)])
        return f"({active}) * on ({same}) group_left () {cost}\nor\n({active}) * 0"

    return expression


def _burns(*pairs: tuple[float, str, str]) -> Callable[[Dialect], str]:
    """An expression: both windows of one of the `pairs` (factor, long one, short one) burn the budget so fast."""

    def expression(words: Dialect) -> str:
        objective = words.of_run("max", words.select(semconv.OBJECTIVE, {}))
        # Of each attempt: the series of one that died stays for some minutes.
        writers = [*words.run, *(one for one in words.writer if one not in words.run)]
        elapsed = words.of_run("max", grouped("sum", writers, words.select(semconv.TIME, {})))

        def burn(window: str) -> str:
            seconds = parse_duration(window) // NS
            # Windows have names as ``window_name`` gives them, and a young run has not spent a window's time yet.
            name = window_name(seconds * NS)
            ratio = words.of_run("max", words.select(semconv.RATIO, {semconv.GOODPUT_WINDOW: name}))
            return f"(1 - {ratio}) * clamp_max({elapsed} / {seconds}, 1) / (1 - {objective})"

        return "\nor\n".join(
            f"({burn(long)} > {factor:g}\nand\n{burn(short)} > {factor:g})" for factor, long, short in pairs
        )

    return expression


def _in_words(pairs: Sequence[tuple[float, str, str]]) -> str:
    return "; or ".join(
        f"more than {f'{factor:g} times ' if factor != 1 else ''}what is allowed, over {long} and still over {short}"
        for factor, long, short in pairs
    )


def rules() -> list[Rule]:
    share, seconds = "{{ $value | humanizePercentage }}", "{{ $value | humanizeDuration }}"
    times = '{{ $value | printf "%.1f" }}'
    kind, cause, phase, rank, line = (f"$labels.{label(key)}" for key in _OF_INCIDENT.values())
    where = "".join(
        f"{{{{ with {known} }}}}{words}{{{{ . }}}}{{{{ end }}}}"
        for words, known in ((" ", phase), (" of rank ", rank), (" at ", line))
    )
    wrong = f"{{{{ {kind} }}}}, {{{{ {cause} }}}}{where}; such incidents have cost {seconds} in this attempt"
    return [
        Rule(
            name="JobIncident",
            title="Incident",
            severity=CRITICAL,
            hold_min=0,
            expression=_incident(Except(IncidentKind.SLOWDOWN)),
            value=wrong,
            means="The job itself has noticed that something is wrong: no step is completed, or attempt after attempt "
            "ends without progress. The labels say what most of the lost time goes to, and, if they are known, the "
            "rank and the line. There is one alert for each incident; if more becomes known, it is another one.",
            look=(
                "`otel-goodput stacks`: where does each rank stand, and which one do the others wait for?",
                "`otel-goodput report`: since when, what it costs, and what speaks for the cause.",
            ),
            labels=_OF_INCIDENT,
        ),
        Rule(
            name="JobSlowdown",
            title="Training has become slower",
            severity=WARNING,
            hold_min=0,
            expression=_incident(IncidentKind.SLOWDOWN),
            value=wrong,
            means="Steps, or what is between them, take longer than they did before in the same attempt. The labels "
            "say what takes longer, and, if they are known, the rank and the line.",
            look=(
                "`otel-goodput report`: since when, how much longer, and what speaks for the cause.",
                "`otel-goodput profile`: which function has become slow?",
            ),
            labels=_OF_INCIDENT,
        ),
        Rule(
            name="SlowRank",
            title="A rank is slow in steps",
            severity=WARNING,
            hold_min=2,
            expression=_slow_rank,
            value=f"without rank {{{{ {rank} }}}}, the job would be {share} faster",
            means="One rank takes longer than the others for its own work inside of steps, where all wait for it "
            f"(`{semconv.GOODPUT_RANK}`): without it, the job would be more than {RANK_WAIT:.0%} faster. It may have "
            "been so from the start. There is one alert for each such rank.",
            look=(
                "`otel-goodput report`: since when, how often, its own time and that of the others.",
                "`otel-goodput profile`: what does it do that the others do not?",
                "Its host's CPU, memory and temperature; who else runs there?",
                "Is it always the same host, whichever rank runs there? Replace the host.",
            ),
            labels=_OF_RANK,
        ),
        Rule(
            name="GoodputBelowTarget",
            title="Goodput below target",
            severity=WARNING,
            hold_min=15,
            expression=_below_target,
            value=f"goodput is {share}",
            means=f"Less than {TARGET:.0%} of the last {WINDOW} made progress. Younger runs are not evaluated.",
            look=(
                "On the dashboard, which category's share has grown?",
                f"`{Category.WASTED_PROGRESS}`, `{Category.INFRASTRUCTURE_RECOVERY}`: the job restarts. Why?",
                f"`{Category.DATA_LOADING}`, `{Category.CHECKPOINT_SAVE}`, custom phases: which has become slow (p99)?",
                f"`{Category.PROGRAM_STARTUP}`: the job recompiles repeatedly. Look for recompilations in the traces.",
            ),
        ),
        Rule(
            name="TrainingHang",
            title="Training hangs",
            severity=CRITICAL,
            hold_min=1,
            expression=_hang,
            value=f"no step was completed for {seconds}",
            means=f"A step is open, and none has completed for more than {HANG_MULTIPLE:g} ideal step times "
            f"(and at least {HANG_LEAST:g} s). In a load, a save or an evaluation, between steps, and before "
            f"step times are known, the limit is {HANG_OTHER:g} s.",
            look=(
                "Which phase is open, in which process? See the last spans of the trace.",
                "`otel-goodput stacks`: which rank do the others wait for, and at which line does it stand?",
                "The hosts' accelerators and network: errors, an unreachable host, maintenance.",
                "The dashboard's *At risk* panel: it shows what a restart would lose.",
            ),
        ),
        Rule(
            name=GONE,
            title="Run gone without having ended",
            severity=CRITICAL,
            hold_min=0,
            expression=_gone,
            value=f"silent for {seconds}",
            means=f"The run last reported `{JobState.RUNNING}` and has been silent for {SILENCE:g} s: it died, "
            "failed or was preempted and has not been restarted, or its metrics do not arrive. The alert fires "
            f"for up to {GONE_WINDOW}, or until the run resumes. Runs that end normally do not trigger it.",
            look=(
                "Will the scheduler restart it? Or is it out of retries or capacity, deleted, or queued?",
                "`otel-goodput report` on its journal: how and in which phase did it end? Also read its log.",
                "If it is running, its metrics do not arrive: check the collector, the network and the credentials.",
                "If several runs are gone, first check what they share, above all the collector.",
            ),
        ),
        Rule(
            name="RestartLoop",
            title="Restart loop",
            severity=CRITICAL,
            hold_min=0,
            expression=_restart_loop,
            value=f"{{{{ $value }}}} disruptions within {LOOP_WINDOW}",
            means=f"The run was disrupted {RESTARTS:g} times or more within {LOOP_WINDOW}: it restarts or rolls "
            "back again and again. Attempts that die before their first export of metrics are not counted; runs "
            "that have ended do not trigger it.",
            look=(
                f"The reasons: `{Reason.CRASH}` and `{Reason.ROLLBACK}` are the job's own, most others the platform's.",
                "The last attempt's log and interrupted spans: does the run always end at the same step?",
                "Does the highest kept step increase? If not, stop the job: it makes no progress.",
            ),
        ),
        Rule(
            name="ProgressAtRisk",
            title="Too much progress at risk",
            severity=WARNING,
            hold_min=10,
            expression=_at_risk,
            value=f"{seconds} of progress is not durable",
            means=f"A crash right now would cost more than {AT_RISK:g} s of progress, "
            "because that much was made since the last checkpoint known to be durable.",
            look=(
                f"Do saves still happen? Check the phase `{Phase.CHECKPOINT_SAVE}` and its errors.",
                "Do they become durable? An asynchronous save counts once it is committed.",
                "The checkpoint storage: quota, permissions, throughput.",
                "If everything works as intended, save more often or raise this threshold.",
            ),
        ),
        Rule(
            name="ExposedDataLoading",
            title="Training waits for data",
            severity=WARNING,
            hold_min=15,
            expression=_exposed_loading,
            value=f"{share} of the time is spent waiting for data",
            means=f"More than {DATA_LOADING:.0%} of the last {WINDOW} was spent waiting for data without "
            "computing. Loading that overlaps with steps does not count.",
            look=(
                "Since when? If step times changed at the same time, check the hosts: CPU, memory, page cache.",
                "The data's storage: throughput, throttling, a remote region.",
                "Prefetch more batches, or give the input pipeline more workers.",
            ),
        ),
        Rule(
            name="JobWaitsForRank",
            title="The job waits for a rank",
            severity=WARNING,
            hold_min=RANK_HOLD_MIN,
            expression=_waits_for_rank,
            value=f"{share} of the time it waits for rank {{{{ $labels.{label(semconv.GOODPUT_RANK)} }}}}",
            means=f"In more than {RANK_WAIT:.0%} of the last {RANK_WINDOW}, most other ranks waited for the same one "
            f"(`{semconv.GOODPUT_RANK}`). There is one alert for each such rank.",
            look=(
                f"What does it do meanwhile (`{semconv.GOODPUT_CATEGORY}`), and since when? See the dashboard.",
                f"`{Category.DATA_LOADING}`: its data, and its host's CPU, memory and disk.",
                f"`{Category.STALLED}`, `{Category.OTHER}`: `otel-goodput stacks --now` says at which line it stands.",
                "Is it always the same host, whichever rank runs there? Replace the host.",
            ),
            labels=_OF_RANK,
        ),
        Rule(
            name="ErrorBudgetBurnsFast",
            title="The error budget burns fast",
            severity=CRITICAL,
            hold_min=0,
            expression=_burns(*BURNS_FAST),
            value=f"it is used {times} times as fast as the objective allows",
            means=f"The run has an objective (`{Settings.objective.variable}`), and loses so much time that it is "
            f"missed soon: {_in_words(BURNS_FAST)}. At this rate, 2 % of the error budget of 30 days are used in an "
            "hour, or 5 % in six hours. Time that a younger run has not had yet counts as good.",
            look=(
                "Is there another alert about this run? It is probably the cause.",
                "On the dashboard, which category has grown since then?",
            ),
        ),
        Rule(
            name="ErrorBudgetBurns",
            title="The error budget burns",
            severity=WARNING,
            hold_min=0,
            expression=_burns(*BURNS),
            value=f"it is used {times} times as fast as the objective allows",
            means=f"The run has an objective (`{Settings.objective.variable}`), and misses it: it loses "
            f"{_in_words(BURNS)}. Time that a younger run has not had yet counts as good.",
            look=(
                "Which categories lost most in the last days? See the dashboard, or `otel-goodput report`.",
                "If nothing can be gained there, the objective is too high for this job.",
            ),
        ),
        Rule(
            name="ClockUnknown",
            title="Clock unknown",
            severity=WARNING,
            hold_min=15,
            expression=_clock_unknown,
            value="nothing reports when the device finishes a step",
            means="The job dispatches its steps to a device, and nothing reports when they are done. Goodput, shares, "
            "step times and progress at risk are unknown and have no points, so alerts based on them cannot fire, and "
            f"a hang is detected only after {HANG_OTHER:g} s. The times by category are exact.",
            look=(
                "`otel-goodput doctor` in the job's environment: it says what is known and what to do.",
                "Pass a non-donated output of each step to `goodput.observe(loss)`.",
                "Or wait for it inside the step (`jax.block_until_ready(loss)`, `loss.item()`).",
            ),
        ),
    ]

"""How often to save, and the runtime goodput to expect. All times in seconds.

The figures come from a finished run or the command line. Time between the steps, spent in loading or evaluation, counts
as training between saves, and its share is deducted from the goodput.

**The model.** Failures strike at random, during saves and restores too; the times between them are exponentially
distributed with mean M. After every W seconds of training a save blocks it for C. A failure loses the work since the
last save. Then it takes D until the job runs again, in which nothing can fail; then R until it trains again. A failure
in R costs D and R again.

**The expected time** E(L) to complete L = W + C seconds without a failure, retries included: with probability exp(-L/M)
it takes L; else a failure strikes after X, and D, a restore and another try follow::

    E(L) = exp(-L/M) L + (1 - exp(-L/M)) (E[X | X < L] + D + E(restore) + E(L)),  E[X | X < L] = M - L / (exp(L/M) - 1)

With R in place of L the same gives E(restore) = (exp(R/M) - 1) (M + D). The terms with L cancel, which leaves

    E(L) = exp(R/M) (M + D) (exp((W + C)/M) - 1)

Each save is a renewal, so the share of the time spent in training, the expected goodput, is exactly W / E(W + C).
(Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22, 2006, derives it for
D = 0; Bougeret et al., "Checkpointing strategies for parallel jobs", SC 2011, for any D.) The best W does not depend on
D and R.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from otel_goodput._accounting import events as ev
from otel_goodput._accounting import rules
from otel_goodput._accounting.events import Event
from otel_goodput._accounting.phase_history import COMPLETED, paired
from otel_goodput._text.quantities import format_duration, plural
from otel_goodput._text.redact import shown
from otel_goodput.errors import ConfigurationError
from otel_goodput.semconv import Category, Phase, Reason

# What the formulas take, and what is shown with it, in s.
QUANTITIES: Final[Mapping[str, str]] = {
    "mtbf": "mean time between failures",
    "save": "time a save blocks training",
    "restore": "start-up and restore after a restart",
    "reschedule": "downtime before a restart",
    "step": "step time",
    "interval": "training time between saves",
}


def expected_goodput(
    interval: float, *, mtbf: float, save: float, restore: float = 0.0, reschedule: float = 0.0
) -> float:
    """Return the share of the time spent in training with a save after each `interval` of training; see the module."""
    length = interval + save
    if not length / mtbf:  # the limit for a length of 0: only the failures cost time
        return math.exp(-restore / mtbf) * mtbf / (mtbf + reschedule)
    return interval * math.exp(-(restore + length) / mtbf) / ((mtbf + reschedule) * -math.expm1(-length / mtbf))


def young(mtbf: float, save: float) -> float:
    """Return Young's first-order interval (CACM 17, 1974): accurate if `save` is much shorter than `mtbf`."""
    return math.sqrt(2 * save * mtbf)


def daly(mtbf: float, save: float) -> float:
    """Return Daly's higher-order interval (FGCS 22, 2006)."""
    if save >= 2 * mtbf:
        return mtbf
    ratio = save / (2 * mtbf)
    return math.sqrt(2 * save * mtbf) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save


def best_interval(mtbf: float, save: float) -> float:
    """Return the interval with the highest :func:`expected_goodput`; 0 if a save costs nothing.

    There is exactly one: goodput rises up to it and falls after it.
    """
    if not save:
        return 0.0
    # The derivative is 0 where 1 - W/M = exp(-(W + C)/M), between 0 and M. Its sign changes only there, from + to -, so
    # bisection finds W to the last digit. Goodput itself is too flat near its maximum for that.
    low, high = 0.0, mtbf
    while low < (middle := (low + high) / 2) < high:
        if -math.expm1(-(middle + save) / mtbf) > middle / mtbf:
            low = middle
        else:
            high = middle
    return low


# --- the figures: of a finished run, or given on the command line -----------------------------------------------------


@dataclass(frozen=True)
class Figures:
    """The figures that a plan is computed from, times in seconds; None: not known."""

    mtbf: float | None = None  # mean time between failures, counting only the time in which the job is up
    save: float | None = None  # how long a save blocks training
    # From the start of the job until it trains again after a failure: start-up, compilation and restore.
    restore: float | None = None
    reschedule: float | None = None  # from a failure to the start of the job
    step: float | None = None  # net time of a step
    interval: float | None = None  # present time of training between two saves
    between: float = 0.0  # seconds spent between steps (loading, evaluation and the like) per second of steps
    goodput: float | None = None  # the measured goodput (1 = all)
    name: str = ""  # of the job or the run
    origins: Mapping[str, str] = field(default_factory=dict)  # by figure, where its value comes from, for people

    def given(self, **by_hand: float | None) -> Figures:
        """Return a copy in which the given values that are not None replace the present ones."""
        known = {name: value for name, value in by_hand.items() if value is not None}
        return replace(self, **known, origins={**self.origins, **dict.fromkeys(known, "given")})  # type: ignore[arg-type]


_NO_FAILURES: Final = frozenset({Reason.RESTART, Reason.ROLLBACK})  # nothing failed, and nothing had to be rescheduled
_START_UP: Final = (Category.ACCELERATOR_INIT, Category.TRAINING_PREP, Category.PROGRAM_STARTUP)


def from_report(report: Mapping[str, Any], *, saves: int | None = None, restores: int | None = None) -> Figures:
    """Return the figures of a run from its report as ``otel-goodput report --json`` prints it.

    `saves` and `restores`: how many blocked training, see :func:`completed`, which a report does not have. Without them
    `save` and `interval` are None, and one restore for each restart is assumed.

    Raises:
        ConfigurationError: `report` is not a report of a run, or no time has passed in the run.
    """
    try:
        elapsed, attempts = float(report["elapsed_s"]), int(report["attempts"])
        seconds: Counter[str] = Counter(dict(report["seconds"]))
        custom: Any = seconds.pop(Category.CUSTOM, {})
        evaluated = sum(custom.values())
        reasons = dict(report["disruption_reasons"])
        failures = sum(count for reason, count in reasons.items() if reason not in _NO_FAILURES)
        step = (report.get("step_time") or {}).get("mean_s")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigurationError(f"this is not a report of a run: {error!r}") from error
    if not elapsed:
        raise ConfigurationError("no time has passed in this run: there is nothing to plan from")
    known: dict[str, tuple[float, str]] = {}  # with where it comes from
    lost = seconds[Category.INFRASTRUCTURE_RECOVERY]
    if failures:
        up = elapsed - lost
        known["mtbf"] = up / failures, f"{plural(failures, 'failure')} in {format_duration(up)} of uptime"
    restarts = attempts - 1
    if restarts > 0:
        known["reschedule"] = lost / restarts, f"mean of {plural(restarts, 'restart')}"
    start_up = sum(seconds[category] for category in _START_UP) / max(1, attempts)
    times = restarts if restores is None else restores
    restore = seconds[Category.CHECKPOINT_RESTORE] / times if times > 0 else 0.0
    origin = f"restore, mean of {times}" if times > 0 else "no restore was recorded"
    known["restore"] = start_up + restore, f"start-up, mean of {plural(attempts, 'start')}, and {origin}"
    trained = seconds[Category.PRODUCTIVE] + seconds[Category.WASTED_PROGRESS]
    between = seconds[Category.DATA_LOADING] + seconds[Category.OTHER] + evaluated
    if saves:
        mean = f"mean of {plural(saves, 'save')}, blocking time only"
        known["save"] = seconds[Category.CHECKPOINT_SAVE] / saves, mean
        known["interval"] = (trained + between) / saves, "average of this run"
    if step:
        known["step"] = float(step), "mean of this run's latest steps"
    return Figures(
        **{name: value for name, (value, _) in known.items()},
        # If only the dispatch of the steps is known, the time spent between them is not.
        between=between / trained if trained and not report.get("reason") else 0.0,
        goodput=report.get("goodput"),
        name=str(report.get("job_name") or report.get("run_id") or ""),
        origins={name: origin for name, (_, origin) in known.items()},
    )


def completed(events: Iterable[Event]) -> tuple[int, int]:
    """Return how many saves and how many restores that blocked training a run completed."""
    restore = rules.PHASE_INDEX[Phase.CHECKPOINT_RESTORE]
    done = Counter(one.phase for one in paired(events) if one.fate == COMPLETED and not one.flags & ev.NONBLOCKING)
    return done[rules.SAVE], done[restore]


# --- the plan ---------------------------------------------------------------------------------------------------------


class Choice(NamedTuple):
    """An interval (s of training between saves), the same in steps (None: not known), and the goodput to expect."""

    interval: float
    steps: int | None
    goodput: float


@dataclass(frozen=True)
class Plan:
    """Intervals to choose from, and the goodput to expect of each."""

    figures: Figures  # that it was computed from; those that the formulas need are not None
    choices: Mapping[str, Choice]  # by name: ``best``, ``daly``, ``young``, and ``now`` if the present one is known

    @property
    def best(self) -> Choice:
        return self.choices["best"]

    def to_json(self) -> dict[str, Any]:
        """Return the plan as a JSON object: times in seconds, shares as fractions of 1."""
        figures = self.figures
        return {
            "name": figures.name,
            **{f"{name}_s": getattr(figures, name) for name in QUANTITIES},
            "between": figures.between,
            "measured_goodput": figures.goodput,
            "origins": dict(figures.origins),
            "choices": {
                name: {"interval_s": choice.interval, "steps": choice.steps, "goodput": choice.goodput}
                for name, choice in self.choices.items()
            },
        }

    def __str__(self) -> str:
        return "".join(f"{shown(line)}\n" for line in _lines(self))


def make_plan(figures: Figures) -> Plan:
    """Return the plan for `figures`. A restore or reschedule time that is not known is assumed to be 0.

    Raises:
        ConfigurationError: `mtbf` or `save` is not known, or a figure is out of range.
    """
    for name, missing in (("mtbf", "this run had no failure"), ("save", "this run saved no checkpoint")):
        if getattr(figures, name) is None:
            example = " (mean time between failures, such as 6h)" if name == "mtbf" else ""
            raise ConfigurationError(f"{missing}: pass --{name} T{example}")
    assumed = {name: "assumed" for name in ("restore", "reschedule") if getattr(figures, name) is None}
    restore, reschedule = figures.restore or 0.0, figures.reschedule or 0.0
    figures = replace(figures, restore=restore, reschedule=reschedule, origins={**figures.origins, **assumed})
    for name in QUANTITIES:
        value = getattr(figures, name)
        positive = name in ("mtbf", "step", "interval")
        if value is not None and not (0 < value < math.inf or (value == 0 and not positive)):
            raise ConfigurationError(f"{name} must be a positive number of seconds, not {value!r}")
    mtbf, save = figures.mtbf, figures.save
    assert mtbf is not None and save is not None
    period = None if figures.step is None else figures.step * (1 + figures.between)

    def choice(interval: float) -> Choice:
        whole = expected_goodput(interval, mtbf=mtbf, save=save, restore=restore, reschedule=reschedule)
        steps = None if period is None else max(1, round(interval / period))
        return Choice(interval, steps, whole / (1 + figures.between))

    best = best_interval(mtbf, save)
    if period is not None:  # in whole steps, at least one
        below = max(1, math.floor(best / period))
        best = max((below * period, (below + 1) * period), key=lambda interval: choice(interval).goodput)
    intervals = {"best": best, "daly": daly(mtbf, save), "young": young(mtbf, save), "now": figures.interval}
    return Plan(figures, {name: choice(interval) for name, interval in intervals.items() if interval is not None})


# --- for people -------------------------------------------------------------------------------------------------------

_CHOICES: Final = {"now": "current", "young": "Young", "daly": "Daly", "best": "best (exact)"}


def _lines(plan: Plan) -> Iterator[str]:
    figures = plan.figures
    yield f"Plan for {figures.name}" if figures.name else "Plan"
    yield ""
    for name, words in QUANTITIES.items():
        if (value := getattr(figures, name)) is not None:
            origin = f"  ({figures.origins[name]})" if figures.origins.get(name) else ""
            yield f"  {words:<38} {format_duration(value):>12}{origin}"
    if figures.between:
        yield f"  {'loading, evaluation, other':<38} {100 * figures.between:>10.2f} %  (on top of the steps' time)"
    yield ""
    yield f"  {'save every':<14} {'training time':>14} {'steps':>10} {'goodput':>10}"
    for name, words in _CHOICES.items():
        if name in plan.choices:
            choice = plan.choices[name]
            steps = "" if choice.steps is None else f"{choice.steps}"
            yield f"  {words:<14} {format_duration(choice.interval):>14} {steps:>10} {100 * choice.goodput:>8.2f} %"
    if figures.goodput is not None:
        yield f"  {'measured':<14} {'':>14} {'':>10} {100 * figures.goodput:>8.2f} %"
    yield ""
    yield f"  {_sentence(plan)}"


def _sentence(plan: Plan) -> str:
    if not plan.figures.save:
        return "A save costs nothing: save after every step."
    best, now = plan.best, plan.choices.get("now")
    every = format_duration(best.interval) + ("" if best.steps is None else f" of training ({best.steps} steps)")
    if now is None:
        return f"Saving every {every} is best: the expected goodput is {100 * best.goodput:.2f} %."
    gain = 100 * (best.goodput - now.goodput)
    if gain < 0.05:
        return f"Saving every {format_duration(now.interval)}, as this run does, is as good as the best interval."
    return f"Saving every {every} instead of every {format_duration(now.interval)} would gain {gain:.2f} % of the time."

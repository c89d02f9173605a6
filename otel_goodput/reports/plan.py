"""``otel-goodput plan``: how often to save, and the runtime goodput to expect of it.

The formulas are those of ``renewal``, the figures those of a finished run or given by hand. Time that goes by beside
the steps, in loading or evaluation, counts as training between saves; its share comes off the goodput.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from otel_goodput.accounting import events as ev
from otel_goodput.accounting import rules
from otel_goodput.accounting.events import Event
from otel_goodput.envvars import OTEL_GOODPUT_DIR
from otel_goodput.errors import ConfigurationError
from otel_goodput.printable import printable
from otel_goodput.reports.renewal import best_interval, daly, expected_goodput, young
from otel_goodput.reports.text import duration
from otel_goodput.semconv import Category, Phase, Reason

# --- figures ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Figures:
    """What a plan is made of, seconds; None: not known.

    Attributes:
        mtbf: mean time between failures, while the job is up.
        save: how long a save holds up training.
        restore: from the start of the job until it trains again after a failure: start-up, compilation and restore.
        reschedule: from a failure to the start of the job.
        step: net time of a step.
        interval: training between two saves, as it is now.
        beside: seconds of loading, evaluation and the like for each second of steps.
        goodput: what was measured.
        name: whose figures they are.
        origins: where each is from, in words.
    """

    mtbf: float | None = None
    save: float | None = None
    restore: float | None = None
    reschedule: float | None = None
    step: float | None = None
    interval: float | None = None
    beside: float = 0.0
    goodput: float | None = None
    name: str = ""
    origins: Mapping[str, str] = field(default_factory=dict)

    def given(self, **by_hand: float | None) -> Figures:
        """With those that are not None in the place of its own."""
        known = {name: value for name, value in by_hand.items() if value is not None}
        return replace(self, **known, origins={**self.origins, **dict.fromkeys(known, "given")})  # type: ignore[arg-type]


_NO_FAILURES: Final = frozenset({Reason.RESTART, Reason.ROLLBACK})  # nothing broke, and nobody had to be rescheduled
_START_UP: Final = (Category.ACCELERATOR_INIT, Category.TRAINING_PREP, Category.PROGRAM_STARTUP)


def from_report(report: Mapping[str, Any], *, saves: int | None = None, restores: int | None = None) -> Figures:
    """Figures of a run from its report, and what was assumed in them.

    Args:
        report: as ``otel-goodput report --json`` prints it.
        saves, restores: how many held up training, see :func:`completed`; a report alone does not tell, so without
            them there is neither `save` nor `interval`, and one restore for each restart is assumed.

    Raises:
        ConfigurationError: the report is none, or of a run in which no time has passed.
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
        raise ConfigurationError(f"this is no report of a run: {error!r}") from error
    if not elapsed:
        raise ConfigurationError("no time has passed in this run: there is nothing to plan from")
    known: dict[str, float] = {}
    origins: dict[str, str] = {}
    lost = seconds[Category.INFRASTRUCTURE_RECOVERY]
    if failures:
        known["mtbf"] = (elapsed - lost) / failures
        origins["mtbf"] = f"{failures} failure{'s' * (failures > 1)} in {duration(elapsed - lost)} of the job being up"
    restarts = attempts - 1
    if restarts > 0:
        known["reschedule"] = lost / restarts
        origins["reschedule"] = f"mean of {restarts} restart{'s' * (restarts > 1)}"
    start_up = sum(seconds[category] for category in _START_UP) / max(1, attempts)
    times = restarts if restores is None else restores
    known["restore"] = start_up + (seconds[Category.CHECKPOINT_RESTORE] / times if times > 0 else 0.0)
    origins["restore"] = f"start-up, mean of {attempts}, and " + (
        f"restore, mean of {times}" if times > 0 else "nothing for the restore: none was seen"
    )
    trained = seconds[Category.PRODUCTIVE] + seconds[Category.WASTED_PROGRESS]
    beside = seconds[Category.DATA_LOADING] + seconds[Category.OTHER] + evaluated
    if saves:
        known["save"], known["interval"] = seconds[Category.CHECKPOINT_SAVE] / saves, (trained + beside) / saves
        origins["save"] = f"mean of {saves}, as far as they held up training"
        origins["interval"] = "as this run saved, on average"
    if step:
        known["step"], origins["step"] = float(step), "mean of this run's latest"
    return Figures(
        **known,
        beside=beside / trained if trained else 0.0,
        goodput=report.get("goodput"),
        name=str(report.get("job_name") or report.get("run_id") or ""),
        origins=origins,
    )


def completed(events: Iterable[Event]) -> tuple[int, int]:
    """How many saves and restores that held up training a run completed."""
    restore = rules.PHASE_INDEX[Phase.CHECKPOINT_RESTORE]
    open_phases: dict[int, int] = {}
    done: Counter[int] = Counter()
    for event in events:
        if event.kind == ev.ATTEMPT:
            open_phases.clear()
        elif event.kind == ev.START and event.phase in (rules.SAVE, restore) and not event.flags & ev.NONBLOCKING:
            open_phases[event.key] = event.phase
        elif event.kind == ev.END and event.key in open_phases:
            phase = open_phases.pop(event.key)
            done[phase] += not event.flags & ev.FAILED
    return done[rules.SAVE], done[restore]


# --- the plan ---------------------------------------------------------------------------------------------------------


class Choice(NamedTuple):
    """An interval (s of training between saves), the same in steps where their time is known, and what to expect."""

    interval: float
    steps: int | None
    goodput: float


@dataclass(frozen=True)
class Plan:
    """What to expect of which interval.

    Attributes:
        figures: what it was made of; none that the formulas need is None.
        choices: by name: ``best``, ``daly``, ``young``, and ``now`` where today's interval is known.
    """

    figures: Figures
    choices: Mapping[str, Choice]

    @property
    def best(self) -> Choice:
        return self.choices["best"]

    def to_json(self) -> dict[str, Any]:
        """Seconds and shares of 1."""
        figures = self.figures
        return {
            "name": figures.name,
            **{f"{name}_s": getattr(figures, name) for name in _SHOWN},
            "beside": figures.beside,
            "measured_goodput": figures.goodput,
            "origins": dict(figures.origins),
            "choices": {
                name: {"interval_s": choice.interval, "steps": choice.steps, "goodput": choice.goodput}
                for name, choice in self.choices.items()
            },
        }

    def __str__(self) -> str:
        return "".join(f"{printable(line)}\n" for line in _lines(self))


def make_plan(figures: Figures) -> Plan:
    """The plan for `figures`. Where it is not known how long a restore or a reschedule takes, none is assumed.

    Raises:
        ConfigurationError: `mtbf` or `save` is not known, or a figure cannot be.
    """
    for name, missing in (("mtbf", "no failure was seen"), ("save", "no save was seen")):
        if getattr(figures, name) is None:
            raise ConfigurationError(f"{missing}: give --{name} S" + " (mean time between failures)" * (name == "mtbf"))
    assumed = {name: "assumed" for name in ("restore", "reschedule") if getattr(figures, name) is None}
    figures = replace(
        figures,
        restore=figures.restore or 0.0,
        reschedule=figures.reschedule or 0.0,
        origins={**figures.origins, **assumed},
    )
    for name in _SHOWN:
        value = getattr(figures, name)
        positive = name in ("mtbf", "step", "interval")
        if value is not None and not (0 < value < math.inf or (value == 0 and not positive)):
            raise ConfigurationError(f"{name}: {value!r} seconds cannot be")
    mtbf, save = figures.mtbf, figures.save
    assert mtbf is not None and save is not None
    choices = {
        "best": _best(figures, best_interval(mtbf, save)),
        "daly": _choice(figures, daly(mtbf, save)),
        "young": _choice(figures, young(mtbf, save)),
    }
    if figures.interval is not None:
        choices["now"] = _choice(figures, figures.interval)
    return Plan(figures, choices)


def _choice(figures: Figures, interval: float) -> Choice:
    period = _period(figures)
    return Choice(interval, None if period is None else max(1, round(interval / period)), _expected(figures, interval))


def _best(figures: Figures, interval: float) -> Choice:
    """The best interval in whole steps, of at least one, where the time of a step is known."""
    period = _period(figures)
    if period is None:
        return _choice(figures, interval)
    below = max(1, math.floor(interval / period))
    return max((_choice(figures, steps * period) for steps in (below, below + 1)), key=lambda choice: choice.goodput)


def _period(figures: Figures) -> float | None:
    return None if figures.step is None else figures.step * (1 + figures.beside)


def _expected(figures: Figures, interval: float) -> float:
    mtbf, save, restore, reschedule = (getattr(figures, name) for name in ("mtbf", "save", "restore", "reschedule"))
    whole = expected_goodput(interval, mtbf=mtbf, save=save, restore=restore, reschedule=reschedule)
    return whole / (1 + figures.beside)


# --- for people -------------------------------------------------------------------------------------------------------

_SHOWN: Final = {
    "mtbf": "mean time between failures",
    "save": "a save holds training up for",
    "restore": "from the start to training again",
    "reschedule": "from a failure to the start",
    "step": "a step",
    "interval": "training between two saves",
}
_CHOICES: Final = {"now": "as it is", "young": "Young", "daly": "Daly", "best": "best (exactly)"}


def _lines(plan: Plan) -> Iterator[str]:
    figures = plan.figures
    yield f"Plan for {figures.name}" if figures.name else "Plan"
    yield ""
    for name, words in _SHOWN.items():
        value = getattr(figures, name)
        if value is not None:
            origin = figures.origins.get(name)
            yield f"  {words:<34} {duration(value):>12}" + (f"  ({origin})" if origin else "")
    if figures.beside:
        yield f"  {'loading, evaluation, other':<34} {100 * figures.beside:>10.2f} %  (beside the steps' time)"
    yield ""
    yield f"  {'save after':<14} {'training for':>14} {'steps':>10} {'goodput':>10}"
    for name, words in _CHOICES.items():
        if name in plan.choices:
            choice = plan.choices[name]
            steps = "" if choice.steps is None else f"{choice.steps}"
            yield f"  {words:<14} {duration(choice.interval):>14} {steps:>10} {100 * choice.goodput:>8.2f} %"
    if figures.goodput is not None:
        yield f"  {'measured':<14} {'':>14} {'':>10} {100 * figures.goodput:>8.2f} %"
    yield ""
    yield f"  {_sentence(plan)}"


def _sentence(plan: Plan) -> str:
    if not plan.figures.save:
        return "A save costs nothing: save after every step."
    best, now = plan.best, plan.choices.get("now")
    every = duration(best.interval) + ("" if best.steps is None else f" of training ({best.steps} steps)")
    if now is None:
        return f"Saving every {every} is best: {100 * best.goodput:.2f} % goodput is to be expected."
    gain = 100 * (best.goodput - now.goodput)
    if gain < 0.05:
        return f"Saving every {duration(now.interval)}, as it is, is as good as the best."
    return f"Saving every {every} instead of every {duration(now.interval)} would gain {gain:.2f} % of the time."


# --- the command ------------------------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``otel-goodput plan``."""
    parser.add_argument(
        "directory",
        nargs="?",
        default=None,
        help="a run's folder, the folder or URL that holds the runs, or a report in a .json file; "
        "not needed with --mtbf and --save (default: OTEL_GOODPUT_DIR, else ./goodput)",
    )
    parser.add_argument("--run", dest="run_id", default=None, metavar="ID", help="which run, where there are several")
    parser.add_argument("--process", type=int, default=0, metavar="K", help="whose journal (default: 0, the leader's)")
    for name, words in _SHOWN.items():
        parser.add_argument(f"--{name}", type=_seconds, default=None, metavar="S", help=f"seconds: {words}")
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(options: argparse.Namespace) -> int:
    """The command ``otel-goodput plan``; returns its exit status.

    Raises:
        ConfigurationError, JournalError: a figure is missing, or there is no run.
    """
    by_hand = {name: getattr(options, name) for name in _SHOWN}
    for number, figures in enumerate(_found(options)):
        plan = make_plan(figures.given(**by_hand))
        if options.json:
            sys.stdout.write(json.dumps(plan.to_json()) + "\n")
        else:
            sys.stdout.write("\n" * (number > 0) + str(plan))
    return 0


def _found(options: argparse.Namespace) -> Sequence[Figures]:
    """Figures of the runs asked for."""
    if options.directory is None and options.mtbf is not None and options.save is not None:
        return [Figures()]
    if options.directory is not None and options.directory.endswith(".json"):
        return [from_report(json.loads(Path(options.directory).read_text(encoding="utf-8")))]
    from otel_goodput.journal.finding import found_runs
    from otel_goodput.journal.recovery import all_events
    from otel_goodput.reports.journalled import of_run

    figures = []
    with found_runs(options.directory or os.environ.get(OTEL_GOODPUT_DIR.name) or "goodput", options.run_id) as found:
        for one, _ in found:
            saves, restores = completed(all_events(one, options.process))
            report = of_run(one, process=options.process).to_json()
            figures.append(from_report(report, saves=saves, restores=restores))
    return figures


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds < 9e9:
        raise ValueError(text)
    return seconds


_seconds.__name__ = "number of seconds"  # as argparse names it

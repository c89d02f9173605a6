"""``otel-goodput plan``: how often to save, and the runtime goodput to expect.

The formulas are in ``renewal``; the figures come from a finished run or the command line. Time between the steps, spent
in loading or evaluation, counts as training between saves, and its share is deducted from the goodput.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from otel_goodput import files
from otel_goodput.envvars import OTEL_GOODPUT_DIR
from otel_goodput.errors import ConfigurationError
from otel_goodput.journal.damage import STATUS
from otel_goodput.journal.notes import DAMAGED
from otel_goodput.reports.figures import Figures, completed, from_report
from otel_goodput.reports.renewal import best_interval, daly, expected_goodput, young
from otel_goodput.text.durations import NS, parse_duration
from otel_goodput.text.quantities import format_duration
from otel_goodput.text.redact import redacting_logger, shown

logger = redacting_logger(__name__)

# --- the plan ---------------------------------------------------------------------------------------------------------


class Choice(NamedTuple):
    """An interval (s of training between saves), the same in steps (None: not known), and the goodput to expect."""

    interval: float
    steps: int | None
    goodput: float


@dataclass(frozen=True)
class Plan:
    """Intervals to choose from, and the goodput to expect of each.

    Attributes:
        figures: the figures that it was computed from; those that the formulas need are not None.
        choices: by name: ``best``, ``daly``, ``young``, and ``now`` if the present interval is known.
    """

    figures: Figures
    choices: Mapping[str, Choice]

    @property
    def best(self) -> Choice:
        return self.choices["best"]

    def to_json(self) -> dict[str, Any]:
        """Return the plan as a JSON object: times in seconds, shares as fractions of 1."""
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
        return "".join(f"{shown(line)}\n" for line in _lines(self))


def make_plan(figures: Figures) -> Plan:
    """Return the plan for `figures`. A restore or reschedule time that is not known is assumed to be 0.

    Raises:
        ConfigurationError: `mtbf` or `save` is not known, or a figure is out of range.
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
            raise ConfigurationError(f"{name}: {value!r} is not a possible number of seconds")
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
    """Return the best interval, in whole steps (at least one) if the time of a step is known."""
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

_REPORT: Final = 16 * files.MIB  # bytes; a larger report file is refused
_SHOWN: Final = {
    "mtbf": "mean time between failures",
    "save": "a save holds training up for",
    "restore": "from the start to training again",
    "reschedule": "from a failure to the start",
    "step": "a step",
    "interval": "training between two saves",
}
_CHOICES: Final = {"now": "at present", "young": "Young", "daly": "Daly", "best": "best (exactly)"}


def _lines(plan: Plan) -> Iterator[str]:
    figures = plan.figures
    yield f"Plan for {figures.name}" if figures.name else "Plan"
    yield ""
    for name, words in _SHOWN.items():
        value = getattr(figures, name)
        if value is not None:
            origin = figures.origins.get(name)
            yield f"  {words:<34} {format_duration(value):>12}" + (f"  ({origin})" if origin else "")
    if figures.beside:
        yield f"  {'loading, evaluation, other':<34} {100 * figures.beside:>10.2f} %  (beside the steps' time)"
    yield ""
    yield f"  {'save after':<14} {'training for':>14} {'steps':>10} {'goodput':>10}"
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
        return f"Saving every {format_duration(now.interval)}, as at present, is as good as the best."
    return f"Saving every {every} instead of every {format_duration(now.interval)} would gain {gain:.2f} % of the time."


# --- the command ------------------------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``otel-goodput plan`` to `parser`."""
    parser.add_argument(
        "directory",
        nargs="?",
        default=None,
        help="a run's folder, the folder or URL that holds the runs, or a report in a .json file; "
        "not needed with --mtbf and --save (default: OTEL_GOODPUT_DIR, else ./goodput)",
    )
    parser.add_argument("--run", dest="run_id", default=None, metavar="ID", help="which run, if there are several")
    parser.add_argument("--process", type=int, default=0, metavar="K", help="whose journal (default: 0, the leader's)")
    for name, words in _SHOWN.items():
        parser.add_argument(f"--{name}", type=_seconds, default=None, metavar="T", help=f"{words}")
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(options: argparse.Namespace) -> int:
    """Run the command ``otel-goodput plan`` and return its exit status.

    Raises:
        ConfigurationError, JournalError: a figure is missing or out of range, or there is no run.
    """
    by_hand = {name: getattr(options, name) for name in _SHOWN}
    damaged: list[str] = []
    for number, figures in enumerate(_found(options, damaged)):
        plan = make_plan(figures.given(**by_hand))
        if options.json:
            sys.stdout.write(json.dumps(plan.to_json()) + "\n")
        else:
            sys.stdout.write("\n" * (number > 0) + str(plan))
    for text in damaged:
        logger.warning("%s", text)
    return STATUS if damaged else 0


def _found(options: argparse.Namespace, damaged: list[str]) -> Sequence[Figures]:
    """Return the figures of the requested runs; append to `damaged` what is wrong with their journals."""
    if options.directory is None and options.mtbf is not None and options.save is not None:
        return [Figures()]
    if options.directory is not None and options.directory.endswith(".json"):
        return [from_report(json.loads(files.read_named(Path(options.directory), _REPORT)))]
    from otel_goodput.journal.damage import Damages
    from otel_goodput.journal.finding import found_runs
    from otel_goodput.journal.history import all_events
    from otel_goodput.reports.journalled import of_run

    figures = []
    with found_runs(options.directory or os.environ.get(OTEL_GOODPUT_DIR.name) or "goodput", options.run_id) as found:
        for one, _ in found:
            saves, restores = completed(all_events(one, options.process, Damages()))  # the report notes the damages too
            report = of_run(one, process=options.process, ranks=False)
            damaged += [note.text for note in report.notes if note.kind.startswith(DAMAGED)]
            figures.append(from_report(report.to_json(), saves=saves, restores=restores))
    return figures


def _seconds(text: str) -> float:
    return 0.0 if text.strip() == "0" else parse_duration(text) / NS


_seconds.__name__ = "length of time"  # the name of the type in argparse's errors

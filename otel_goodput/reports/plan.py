"""How often to save, and the runtime goodput to expect.

The formulas are in ``renewal``; the figures come from a finished run or the command line. Time between the steps, spent
in loading or evaluation, counts as training between saves, and its share is deducted from the goodput.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from otel_goodput.errors import ConfigurationError
from otel_goodput.reports.figures import Figures
from otel_goodput.reports.renewal import QUANTITIES, best_interval, daly, expected_goodput, young
from otel_goodput.text.quantities import format_duration
from otel_goodput.text.redact import shown

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
            **{f"{name}_s": getattr(figures, name) for name in QUANTITIES},
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
    for name, missing in (("mtbf", "this run had no failure"), ("save", "this run saved no checkpoint")):
        if getattr(figures, name) is None:
            raise ConfigurationError(
                f"{missing}: pass --{name} T" + " (mean time between failures, such as 6h)" * (name == "mtbf")
            )
    assumed = {name: "assumed" for name in ("restore", "reschedule") if getattr(figures, name) is None}
    figures = replace(
        figures,
        restore=figures.restore or 0.0,
        reschedule=figures.reschedule or 0.0,
        origins={**figures.origins, **assumed},
    )
    for name in QUANTITIES:
        value = getattr(figures, name)
        positive = name in ("mtbf", "step", "interval")
        if value is not None and not (0 < value < math.inf or (value == 0 and not positive)):
            raise ConfigurationError(f"{name} must be a positive number of seconds, not {value!r}")
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

_CHOICES: Final = {"now": "current", "young": "Young", "daly": "Daly", "best": "best (exact)"}


def _lines(plan: Plan) -> Iterator[str]:
    figures = plan.figures
    yield f"Plan for {figures.name}" if figures.name else "Plan"
    yield ""
    for name, words in QUANTITIES.items():
        value = getattr(figures, name)
        if value is not None:
            origin = figures.origins.get(name)
            yield f"  {words:<38} {format_duration(value):>12}" + (f"  ({origin})" if origin else "")
    if figures.beside:
        yield f"  {'loading, evaluation, other':<38} {100 * figures.beside:>10.2f} %  (on top of the steps' time)"
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

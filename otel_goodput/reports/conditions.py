"""Conditions on a comparison, for CI: ``goodput < -2 %``."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from math import inf
from typing import Final, NamedTuple

from otel_goodput._text.quantities import format_duration
from otel_goodput.semconv import CATEGORIES

# What kind of figure it is: which units a difference of it may have.
SHARE: Final = "share"  # of the elapsed time; 1 is all
TIME: Final = "time"  # in seconds
COUNT: Final = "count"

PER_STEP: Final = "_per_step"  # category + this: seconds per kept step
KINDS: Final[Mapping[str, str]] = {
    "goodput": SHARE,
    "badput": SHARE,
    **dict.fromkeys(CATEGORIES, SHARE),
    **{name + PER_STEP: TIME for name in CATEGORIES},
    "step_time": TIME,
    "p90": TIME,
    "step_time_mean": TIME,
    "ideal_step_time": TIME,
    "at_risk": TIME,
    "elapsed": TIME,
    "scheduling_goodput": SHARE,
    "program_goodput": SHARE,
    "productivity_goodput": SHARE,
    "disruptions": COUNT,
    "attempts": COUNT,
    "recompilations": COUNT,
    "kept_steps": COUNT,
    "lost_steps": COUNT,
}

_OPERATORS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge
}  # fmt: skip
_LENGTHS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_PERCENT: Final = "%"
_POINTS: Final = "pp"
_FORM: Final = re.compile(r"\s*([a-z0-9_]+)\s*(<=|>=|<|>)\s*([+-]?(?:\d+\.?\d*|\.\d+))\s*(%|pp|[a-z]+)?\s*")
_UNITS: Final = {
    SHARE: f"{_PERCENT} or {_POINTS}",
    TIME: f"{_PERCENT} or one of {', '.join(_LENGTHS)}",
    COUNT: f"{_PERCENT} or no unit",
}
NAMES: Final = ", ".join(name for name in KINDS if not name.endswith(PER_STEP))
GRAMMAR: Final = """\
COND is FIGURE OPERATOR NUMBER UNIT, such as 'goodput < -2 %'. It applies to the change from A to B:
  %    B minus A in percent of A (any figure; a change from 0 counts as infinite)
  pp   B minus A in percentage points (goodput, badput and shares of the time)
  us, ms, s, min, h   B minus A as a duration (times)
  no unit   B minus A (counts)
OPERATOR is <, <=, > or >=. If a figure is unknown in one of the runs, the status is 4.
"""


class Figure(NamedTuple):
    """One figure of both runs; None where it is not known. A time is in seconds."""

    kind: str
    a: float | None
    b: float | None


class Outcome(NamedTuple):
    """Whether a condition holds (None: not known), and a line that says why."""

    holds: bool | None
    text: str


class Condition(NamedTuple):
    """`figure` changed from A to B by less or more than `bound` (seconds, shares, counts; with ``%``: a ratio)."""

    text: str
    figure: str
    sign: str
    bound: float
    unit: str

    def check(self, figures: Mapping[str, Figure]) -> Outcome:
        """Hold the condition against the figures of a comparison."""
        figure = figures[self.figure]
        if figure.a is None or figure.b is None:
            where = " and ".join(name for name, value in (("A", figure.a), ("B", figure.b)) if value is None)
            return Outcome(None, f"not known: {self.text}: {self.figure} is not known in {where}")
        change = figure.b - figure.a
        if self.unit == _PERCENT:
            # A figure that is 0 twice has not changed; a change from 0 exceeds every percentage.
            change = change / figure.a if figure.a else (inf if change > 0 else -inf if change < 0 else 0.0)
        holds = _OPERATORS[self.sign](change, self.bound)
        values = f"{self.figure} {_text(figure.kind, figure.a)} in A, {_text(figure.kind, figure.b)} in B"
        return Outcome(holds, f"{'holds' if holds else 'does not hold'}: {self.text}: {values}")


def parse(text: str) -> Condition:
    """Parse a condition.

    Raises:
        ValueError: it has another form, no such figure is known, or the unit is not one of the figure's.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise ValueError(f"not a condition: {text!r} (expected FIGURE OPERATOR NUMBER UNIT, such as 'goodput < -2 %')")
    figure, sign, number, unit = match[1], match[2], float(match[3]), match[4] or ""
    if figure not in KINDS:
        near = get_close_matches(figure, KINDS, 1)
        hint = f"did you mean {near[0]}?" if near else f"known are {NAMES}"
        raise ValueError(f"no figure is called {figure!r}: {hint}")
    kind = KINDS[figure]
    if unit == _PERCENT or (unit == _POINTS and kind == SHARE):
        return Condition(text.strip(), figure, sign, number / 100, unit)
    if unit in _LENGTHS and kind == TIME:
        return Condition(text.strip(), figure, sign, number * _LENGTHS[unit], unit)
    if not unit and kind == COUNT:
        return Condition(text.strip(), figure, sign, number, unit)
    raise ValueError(f"{figure} is a {kind}: a difference of it is in {_UNITS[kind]}, not {unit!r}")


def _text(kind: str, value: float) -> str:
    if kind == SHARE:
        return f"{100 * value:.2f} %"
    return format_duration(value) if kind == TIME else f"{value:g}"

"""What a comparison of two runs says: as text for a terminal, and to conditions for CI such as ``goodput < -2 %``."""

from __future__ import annotations

import operator
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from math import inf
from typing import Final, NamedTuple

from otel_goodput._text.quantities import aligned, format_duration, plural
from otel_goodput._text.redact import shown
from otel_goodput.reports.comparison import COUNT, FIGURES, PER_STEP, SHARE, STATISTICS, TIME, Comparison, Figure, Side
from otel_goodput.reports.text import noted

_UNKNOWN: Final = "-"
_LONGEST: Final = 40  # characters of a value of a configuration
_Row = tuple[str, ...]


def render(comparison: Comparison) -> str:
    """Return the text."""
    return "".join(f"{shown(line)}\n" for line in _lines(comparison))


def _about(side: Side) -> str:
    """Return what a run is, in one line."""
    answer = side.answer
    job = "" if answer["job_name"] in ("", answer["run_id"]) else f" of job {answer['job_name']}"
    return f"run {answer['run_id']}{job}, {plural(answer['attempts'], 'attempt')}, {answer['state']}"


def _remarks(comparison: Comparison) -> Iterator[str]:
    """Yield remarks that qualify the figures."""
    if comparison.same_run:
        yield "A and B are the same run."
    for name, side in comparison.sides.items():
        if side.left_out:
            yield f"{name}: the step times are those of the latest {len(side.nets):,} steps."
        for warning in side.answer["warnings"]:
            yield f"{name}: {warning['text']}"


_MAIN: Final = ("goodput", "elapsed", "at_risk", "recompilations", "attempts", "disruptions")


def _main_rows(comparison: Comparison) -> Iterator[_Row]:
    a, b = comparison.a.answer, comparison.b.answer
    for name in _MAIN:
        yield name.replace("_", " "), *_cells(comparison.figures[name])
    first, second = a["disruption_reasons"], b["disruption_reasons"]
    for reason in sorted({*first, *second}):
        yield f"  {reason}", *_cells(Figure(COUNT, first.get(reason, 0), second.get(reason, 0)))
    for fate in ("kept", "lost"):
        yield f"steps {fate}", *_cells(Figure(COUNT, a["steps"][fate], b["steps"][fate]))


def _step_rows(comparison: Comparison) -> Iterator[_Row]:
    for name, figure, _ in STATISTICS:
        a, b, _ = _cells(comparison.figures[figure])
        change = interval = _UNKNOWN
        if (ratio := comparison.ratios.get(name)) is not None:
            change = f"{100 * (ratio.value - 1):+.2f} %"
            if ratio.low is not None and ratio.high is not None:
                interval = f"{100 * (ratio.low - 1):+.2f} to {100 * (ratio.high - 1):+.2f} %"
        yield name, a, b, change, interval


def _source_rows(comparison: Comparison) -> Iterator[_Row]:
    for source in comparison.sources:
        yield source.name, *_cells(source.share), *_cells(source.per_step)


def _configuration_rows(comparison: Comparison) -> Iterator[_Row]:
    for one in comparison.differences or ():
        values = (_UNKNOWN if value is None else str(value)[:_LONGEST] for value in (one.a, one.b))
        yield f"{one.kind[:-1]} {one.name}", *values


_TABLES: Final[tuple[tuple[_Row, Callable[[Comparison], Iterator[_Row]]], ...]] = (
    (("", "A", "B", "B - A"), _main_rows),
    (("net step time", "A", "B", "B to A", "95 % interval"), _step_rows),
    (("where the time went", "A", "B", "B - A", "A per step", "B per step", "B - A"), _source_rows),
    (("what they ran with", "A", "B"), _configuration_rows),
)


def _lines(comparison: Comparison) -> Iterator[str]:
    yield f"A: {_about(comparison.a)}"
    yield f"B: {_about(comparison.b)}"
    yield ""
    yield from textwrap.wrap(shown(comparison.verdict), 100, break_on_hyphens=False)
    yield from noted(_remarks(comparison))
    for titles, rows_of in _TABLES:
        if rows := list(rows_of(comparison)):
            yield ""
            cells = [tuple(map(shown, row)) for row in (titles, *rows)]
            yield from (f"  {line}" for line in aligned(cells, range(1, len(titles))))


def _value(kind: str, value: float | None) -> str:
    if value is None:
        return _UNKNOWN
    if kind == SHARE:
        return f"{100 * value:.2f} %"
    return format_duration(value) if kind == TIME else f"{value}"


def _cells(figure: Figure) -> tuple[str, str, str]:
    """Return the figure in both runs, and how it changed."""
    kind, a, b = figure
    change = _UNKNOWN
    if a is not None and b is not None:
        sign = "-" if b < a else "+"
        changes = {SHARE: f"{100 * (b - a):+.2f} pp", TIME: f"{sign}{format_duration(abs(b - a))}", COUNT: f"{b - a:+}"}
        change = changes[kind]
    return _value(kind, a), _value(kind, b), change


# --- conditions -------------------------------------------------------------------------------------------------------

_SIGNS: Final = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_LENGTHS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_PERCENT: Final = "%"
_POINTS: Final = "pp"
_FORM: Final = re.compile(r"\s*([a-z0-9_]+)\s*(<=|>=|<|>)\s*([+-]?(?:\d+\.?\d*|\.\d+))\s*(%|pp|[a-z]+)?\s*")
_UNITS: Final = {
    SHARE: f"{_PERCENT} or {_POINTS}",
    TIME: f"{_PERCENT} or one of {', '.join(_LENGTHS)}",
    COUNT: f"{_PERCENT} or no unit",
}
NAMES: Final = ", ".join(name for name in FIGURES if not name.endswith(PER_STEP))
GRAMMAR: Final = """\
COND is FIGURE OPERATOR NUMBER UNIT, such as 'goodput < -2 %'. It applies to the change from A to B:
  %    B minus A in percent of A (any figure; a change from 0 counts as infinite)
  pp   B minus A in percentage points (goodput, badput and shares of the time)
  us, ms, s, min, h   B minus A as a duration (times)
  no unit   B minus A (counts)
OPERATOR is <, <=, > or >=. If a figure is unknown in one of the runs, the status is 4.
"""


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
        holds = bool(_SIGNS[self.sign](change, self.bound))
        values = f"{self.figure} {_value(figure.kind, figure.a)} in A, {_value(figure.kind, figure.b)} in B"
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
    if figure not in FIGURES:
        near = get_close_matches(figure, FIGURES, 1)
        hint = f"did you mean {near[0]}?" if near else f"known are {NAMES}"
        raise ValueError(f"no figure is called {figure!r}: {hint}")
    kind = FIGURES[figure]
    if unit == _PERCENT or (unit == _POINTS and kind == SHARE):
        return Condition(text.strip(), figure, sign, number / 100, unit)
    if unit in _LENGTHS and kind == TIME:
        return Condition(text.strip(), figure, sign, number * _LENGTHS[unit], unit)
    if not unit and kind == COUNT:
        return Condition(text.strip(), figure, sign, number, unit)
    raise ValueError(f"{figure} is a {kind}: a difference of it is in {_UNITS[kind]}, not {unit!r}")

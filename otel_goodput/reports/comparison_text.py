"""A comparison of two runs as text for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Final

from otel_goodput._text.quantities import aligned, format_duration, plural
from otel_goodput._text.redact import shown
from otel_goodput.reports.comparison import STEP_STATISTICS, Comparison, Side, same_run

_COLUMNS: Final = 100
_UNKNOWN: Final = "-"
_LONGEST: Final = 40  # characters of a value of a configuration
Row = tuple[str, ...]


def render(comparison: Comparison) -> str:
    """Return the text."""
    return "".join(f"{shown(line)}\n" for line in _lines(comparison))


def about(side: Side) -> str:
    """Return what a run is, in one line."""
    answer = side.answer
    job = "" if answer["job_name"] in ("", answer["run_id"]) else f" of job {answer['job_name']}"
    return f"run {answer['run_id']}{job}, {plural(answer['attempts'], 'attempt')}, {answer['state']}"


def remarks(comparison: Comparison) -> Iterator[str]:
    """Yield remarks that qualify the figures."""
    if same_run(comparison.a, comparison.b):
        yield "A and B are the same run."
    for name, side in (("A", comparison.a), ("B", comparison.b)):
        if side.times.left_out:
            yield f"{name}: the step times are those of the latest {len(side.times.nets):,} steps."
        for warning in side.answer["warnings"]:
            yield f"{name}: {warning['text']}"


def main_rows(comparison: Comparison) -> Iterator[Row]:
    """Yield (figure, in A, in B, difference) of the main figures."""
    a, b = comparison.a.answer, comparison.b.answer
    yield "goodput", percentage(a["goodput"]), percentage(b["goodput"]), points(a["goodput"], b["goodput"])
    for name, key in (("elapsed", "elapsed_s"), ("at risk", "at_risk_s")):
        yield name, length(a[key]), length(b[key]), longer(a[key], b[key])
    for name in ("recompilations", "attempts", "disruptions"):
        yield name, str(a[name]), str(b[name]), f"{b[name] - a[name]:+d}"
    reasons = sorted({*a["disruption_reasons"], *b["disruption_reasons"]})
    for reason in reasons:
        one, other = a["disruption_reasons"].get(reason, 0), b["disruption_reasons"].get(reason, 0)
        yield f"  {reason}", str(one), str(other), f"{other - one:+d}"
    for key in ("kept", "lost"):
        counts = [side.answer["steps"][key] for side in (comparison.a, comparison.b)]
        yield f"steps {key}", *(f"{count}" for count in counts), f"{counts[1] - counts[0]:+d}"


def step_rows(comparison: Comparison) -> Iterator[Row]:
    """Yield (statistic, in A, in B, difference, its interval) of the net step times."""
    for name, _, _ in STEP_STATISTICS:
        a, b = (None if one is None else one.value / 1e9 for one in comparison.estimates[name])
        ratio = comparison.ratios.get(name)
        change = interval = _UNKNOWN
        if ratio is not None:
            change = f"{100 * (ratio.value - 1):+.2f} %"
            if ratio.low is not None and ratio.high is not None:
                interval = f"{100 * (ratio.low - 1):+.2f} to {100 * (ratio.high - 1):+.2f} %"
        yield name, length(a), length(b), change, interval


def source_rows(comparison: Comparison) -> Iterator[Row]:
    """Yield (source, share in A, in B, difference, per kept step in A, in B, difference), the largest first."""
    for source in comparison.sources:
        shares = comparison.a.share(source.a), comparison.b.share(source.b)
        each = comparison.a.per_step(source.a), comparison.b.per_step(source.b)
        yield (
            f"{source.category} {source.custom}".strip(),
            percentage(shares[0]),
            percentage(shares[1]),
            points(*shares),
            length(each[0]),
            length(each[1]),
            longer(*each),
        )


def configuration_rows(comparison: Comparison) -> Iterator[Row]:
    """Yield (what, in A, in B) of all settings, versions and hyperparameters that are not the same."""
    for one in comparison.differences or ():
        yield f"{one.kind[:-1]} {one.name}", _value(one.a), _value(one.b)


def _value(value: str | bool | int | float | None) -> str:
    return _UNKNOWN if value is None else str(value)[:_LONGEST]


CONFIGURATIONS: Final[Row] = ("what they ran with", "A", "B")
MAIN: Final[Row] = ("", "A", "B", "B - A")
STEPS: Final[Row] = ("net step time", "A", "B", "B to A", "95 % interval")
SOURCES: Final[Row] = ("where the time went", "A", "B", "B - A", "A per step", "B per step", "B - A")


def _lines(comparison: Comparison) -> Iterator[str]:
    yield f"A: {about(comparison.a)}"
    yield f"B: {about(comparison.b)}"
    yield ""
    yield from textwrap.wrap(shown(comparison.verdict), _COLUMNS, break_on_hyphens=False)
    for remark in remarks(comparison):
        yield ""
        yield from textwrap.wrap(
            shown(remark), _COLUMNS, initial_indent="  note: ", subsequent_indent="        ", break_on_hyphens=False
        )
    for titles, rows in (
        (MAIN, main_rows(comparison)),
        (STEPS, step_rows(comparison)),
        (SOURCES, source_rows(comparison)),
    ):
        yield ""
        yield from _table([titles, *rows])
    if different := list(configuration_rows(comparison)):
        yield ""
        yield from _table([CONFIGURATIONS, *different])


def _table(rows: list[Row]) -> Iterator[str]:
    for line in aligned([tuple(map(shown, row)) for row in rows], range(1, len(rows[0]))):
        yield f"  {line}"


def percentage(share: float | None) -> str:
    return _UNKNOWN if share is None else f"{100 * share:.2f} %"


def points(a: float | None, b: float | None) -> str:
    return _UNKNOWN if a is None or b is None else f"{100 * (b - a):+.2f} pp"


def length(seconds: float | None) -> str:
    return _UNKNOWN if seconds is None else format_duration(seconds)


def longer(a: float | None, b: float | None) -> str:
    if a is None or b is None:
        return _UNKNOWN
    return f"{'-' if b < a else '+'}{format_duration(abs(b - a))}"

"""The account of a timeline whose times are seconds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from otel_goodput._accounting.totals import Totals
from otel_goodput._text.durations import NS
from otel_goodput.reports.timeline import Row, Timeline, account_timeline

Window = tuple[float, float]


def replay(
    rows: Iterable[Row],
    *,
    at: float | None = None,
    windows: Sequence[Window] = (),
    exclusions: Sequence[Window] = (),
    ideal_step_time: float | None = None,
) -> dict[str, Any]:
    """Account for a timeline in the neutral form.

    Args:
        rows: phases in any order.
        at: time of the question, in seconds as in the rows; by default the latest time of all rows, or of the latest
            attempt if its clock was behind.
        windows: (start, end) pairs in seconds to account for separately (rule R8).
        exclusions: (start, end) pairs in seconds to cut out (rule R7).
        ideal_step_time: seconds; by default it is estimated.

    Returns:
        the JSON answer of docs/accounting.md.

    Raises:
        ValueError: a window or an exclusion ends before it starts.
    """
    return timeline_totals(
        rows, at=at, windows=windows, exclusions=exclusions, ideal_step_time=ideal_step_time
    ).to_json()


def timeline_totals(
    rows: Iterable[Row],
    *,
    at: float | None = None,
    windows: Sequence[Window] = (),
    exclusions: Sequence[Window] = (),
    ideal_step_time: float | None = None,
) -> Totals:
    """Do as :func:`replay` does, but return the totals in integer ns."""
    return account_timeline(
        Timeline(rows),
        at=None if at is None else _ns(at),
        windows=[(_ns(a), _ns(b)) for a, b in windows],
        exclusions=[(_ns(a), _ns(b)) for a, b in exclusions],
        ideal_step_time=None if ideal_step_time is None else ideal_step_time * NS,
    )


def _ns(seconds: float) -> int:
    return round(seconds * NS)

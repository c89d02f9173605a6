"""Account for a timeline in the neutral form, or for a journal, offline, by the same rules as the live job."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, Final

from otel_goodput._accounting import balance
from otel_goodput._accounting.checkpoints import Stages
from otel_goodput._accounting.cursor import Cursor
from otel_goodput._accounting.events import Event
from otel_goodput._accounting.totals import Totals
from otel_goodput._text.durations import NS
from otel_goodput.reports.timeline import Row, Timeline

Window = tuple[float, float]
_BATCH: Final = 4096  # events applied at a time


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


def account_timeline(
    timeline: Timeline,
    *,
    at: int | None,
    windows: Sequence[tuple[int, int]] = (),
    exclusions: Sequence[tuple[int, int]] = (),
    ideal_step_time: float | None = None,
) -> Totals:
    """Do as :func:`replay` does, for a timeline, but with all times in ns."""
    return account(
        timeline.events(at),
        at=at,
        latest=lambda behind: timeline.last if behind else timeline.latest,
        windows=windows,
        exclusions=[*exclusions, *timeline.exclusions],
        ideal_step_time=ideal_step_time,
    )


def account(
    events: Iterable[Event],
    *,
    at: int | None,
    latest: Callable[[bool], int | None] = lambda _: None,
    windows: Sequence[tuple[int, int]] = (),
    exclusions: Sequence[tuple[int, int]] = (),
    ideal_step_time: float | None = None,
) -> Totals:
    """Account for events that are ordered by attempt and time, with exact windows and exclusions; all times in ns.

    If `at` is None, the time of the question is what `latest` returns, given whether the latest attempt's clock was
    behind; if that is None too (the default), it is the time of the last event.

    Raises:
        ValueError: a window or an exclusion ends before it starts.
    """
    for start, end in (*windows, *exclusions):
        if end < start:
            raise ValueError(f"a window must not end before it starts: {start / NS} .. {end / NS}")
    edges = [
        edge
        for window, (start, end) in (*((0, one) for one in exclusions), *enumerate(windows, 1))
        if start < end
        for edge in ((start, window, True), (end, window, False))
    ]
    cursor = Cursor(edges=sorted(edges), windows=1 + len(windows))
    stages = Stages()
    rest = iter(events)
    while batch := list(islice(rest, _BATCH)):
        cursor.apply_all(batch)
        stages.apply_all(batch)
    asked = latest(cursor.shift > 0) if at is None else at
    if asked is None:
        cursor.drain()
    else:
        cursor.reach(asked)
    cursor.close()
    return balance.draw(cursor, windows, ideal_step_time, asked, stages.sums)


def _ns(seconds: float) -> int:
    return round(seconds * NS)

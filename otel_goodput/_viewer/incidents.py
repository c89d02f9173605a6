"""What the page shows of incidents beside the report: where ranks stood still, profiles, and ranks' own times.

A page is for reading, so all of it is bounded: what does not fit is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from otel_goodput._accounting.own_time import BANDS, OwnTimes, OwnWindow
from otel_goodput._journal import profiles as taken
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._runtime import files
from otel_goodput.reports import profiles, stacks
from otel_goodput.reports.incidents import sentence
from otel_goodput.reports.run import RecordedRun

ATTEMPTS: Final = 4  # whose stacks are shown, the latest
GROUPS: Final = 32
FRAMES: Final = 64  # of a group; the innermost and the outermost half
MISSING: Final = 64
PROFILES: Final = 20  # the latest
_WINDOW: Final = (
    *("begin", "end", "steps", "turn", "usual", "waiting", "without", "compared"),
    *("most", "nearly_all"),  # ``BANDS``
)
_SIGNS: Final = 64  # files that are looked at for news


def sentences(report: Mapping[str, Any]) -> list[str]:
    """Return what was wrong, in one sentence for each incident of a report as JSON."""
    return [sentence(one) for one in report.get("incidents") or ()]


def standstills(run: RecordedRun) -> list[dict[str, Any]]:
    """Return the latest standstill of each of the latest attempts that left stacks, the latest first."""
    attempts = sorted({attempt for attempt, _ in run.folder.stacks()}, reverse=True)[:ATTEMPTS]
    shown = []
    for attempt in attempts:
        with suppress(OSError, ValueError):
            if (still := stacks.standstill(run, attempt)).dumps:
                shown.append(short(still.to_json()))
    return shown


def short(still: dict[str, Any]) -> dict[str, Any]:
    """Return a standstill as JSON with at most so many groups, frames and ranks as a reader can take in."""
    groups, missing = still["groups"], still["missing"]
    return {
        **still,
        "groups": [_short_group(one) for one in groups[:GROUPS]],
        "more_groups": max(0, len(groups) - GROUPS),
        "missing": missing[:MISSING],
        "more_missing": max(0, len(missing) - MISSING),
        "waits_for": still["waits_for"][:MISSING],
    }


def _short_group(group: dict[str, Any]) -> dict[str, Any]:
    frames, ranks = group["frames"], group["ranks"]
    left_out = max(0, len(frames) - FRAMES)
    half = FRAMES // 2
    return {
        **group,
        "ranks": ranks[:MISSING],
        "rank_count": len(ranks),
        "frames": [*frames[:half], *frames[half + left_out :]],
        "left_out": left_out,
    }


def profiles_of(run: RunDirectory) -> list[dict[str, Any]]:
    """Return the latest profiles of a run, the latest first, each with a sentence on what grew."""
    latest = sorted(taken.profiles(run), key=lambda one: -one.profile.began)[:PROFILES]
    return [{**profiles.to_json(*one), "growth": profiles.growth(one.profile)} for one in latest]


def signs(run: RunDirectory) -> tuple[Any, ...]:
    """Return something that differs once there are other stacks or profiles than before."""
    left, made = run.stacks(), run.profiles()
    latest = [files.version(run.file("stacks", *owner)) for owner in left[-_SIGNS:]]
    return (len(left), tuple(latest), len(made), max(made, default=None))


def own_times(
    own: OwnTimes, table: Callable[[Sequence[str], Iterable[Sequence[int]]], Any], at: Callable[[int], int]
) -> dict[str, Any] | None:
    """Return the own times of ranks inside of steps, in thousandths of a turn of the loop; None if nothing is known.

    Samples are not more exact than that, and small numbers keep the page small.

    Args:
        own: what is known.
        table: adds a table to the document, given its names of columns and its rows.
        at: makes ns from the document's origin of a moment.
    """
    if not own.windows:
        return None
    return {
        "bands": list(BANDS),
        "windows": table(
            _WINDOW,
            [_window(one, at) for one in own.windows],
        ),
        "times": table(
            ("window", "rank", "own", "waiting", "slow"),
            [
                (number, time.rank, _part(time.own, one), _part(time.waiting, one), time.rank in one.slow)
                for number, one in enumerate(own.windows)
                for time in one.ranks
            ],
        ),
    }


def own_latest(own: OwnTimes) -> dict[str, Any] | None:
    """Return the latest window of own times, with moments in ns since the epoch as text; None if there is none.

    It is sent every second, so that the page need not wait for another document.
    """
    if not own.windows:
        return None
    one = own.windows[-1]
    numbers = dict(zip(_WINDOW, _window(one, int), strict=True))
    ranks = [
        [time.rank, _part(time.own, one), _part(time.waiting, one), int(time.rank in one.slow)] for time in one.ranks
    ]
    return {**numbers, "begin": str(one.begin), "end": str(one.end), "ranks": ranks}


def _window(one: OwnWindow, at: Callable[[int], int]) -> tuple[int, ...]:
    times = one.usual, one.waiting, one.without
    bands = one.bands or (one.usual,) * len(BANDS)
    parts = [_part(time, one) for time in times], [_part(time, one) for time in bands]
    return (at(one.begin), at(one.end), one.steps, one.turn, *parts[0], one.compared, *parts[1])


def _part(time: int, window: OwnWindow) -> int:
    return round(1000 * time / max(1, window.turn))

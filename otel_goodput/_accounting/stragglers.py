"""Who is slow inside the steps of a job, of which all ranks' steps take equally long: since when, and how often.

The culprit is the rank whose own time is certainly longer than that of the others, while they wait longer than it does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from math import ceil, hypot, log, sqrt
from statistics import median, median_low
from typing import Final

from otel_goodput._accounting.own_time import (
    BANDS,
    CHRONIC,
    ONCE,
    RECURRING,
    WANDERING,
    OwnTime,
    OwnTimes,
    OwnWindow,
    RankTime,
    SlowRank,
)
from otel_goodput._accounting.rules import NS

INTERVALS: Final = 6  # of a window
SAMPLES: Final = 60  # of a rank in a window, at least
STEPS: Final = 5  # in a window, at least
LONGEST: Final = 20  # a window that has too few after so many times its length is given up
LEAST: Final = 0.04  # of the time: a rank that is slower by less is not slow;
CERTAIN: Final = 2.5  # nor if that is not so many statistical errors, and more with many ranks;
APART: Final = 4.0  # nor if ranks usually differ so that this is not so many of their deviations
_NORMAL: Final = 1.4826  # of the median deviation of a normal distribution, its standard deviation
IN_A_STEP: Final = 8  # samples of one step are alike: no more of them count
WAITS: Final = 0.5  # the others wait longer than a slow rank, by so much of what it is slower
TOGETHER: Final = (1, 2, 4, 8)  # windows, the latest ones, that are looked at together: then less is certain
STILL: Final = 0.5  # of what it is slower in these: so much it must be slower in the latest one,
MOSTLY: Final = 0.7  # and in so many of them
ALWAYS: Final = 0.6  # of the windows since it was slow for the first time: a rank that is in so many is chronic,
OFTEN: Final = 3  # and in so many
SINGLE: Final = 0.5  # of the windows with a slow rank: if none is in so many, they wander
ALL: Final = 64  # ranks whose times are held in each window; of more, those that are slow, and
HIGHEST: Final = 8  # so many with the longest own times
NAMED: Final = 16  # slow ranks of a window
KEPT: Final = 120  # windows; of more, each two are merged
REMEMBERED: Final = 256  # ranks that were slow


@dataclass
class _Memory:
    """What is remembered of a rank that was slow."""

    first: int  # number of its first window
    since: int
    until: int = 0
    windows: int = 0
    turns: int = 0
    own: int = 0  # ns, in all turns of these windows
    usual: int = 0
    lost: int = 0
    lasted: int = 0  # ns


class Stragglers:
    """Compares the own times of ranks, window after window.

    Args:
        window: its length, ns.
    """

    def __init__(self, window: int = 30 * NS) -> None:
        self._window = window
        self._start: tuple[int, int, Mapping[int, OwnTime]] | None = None  # moment, steps, own times
        self._latest = deque[Mapping[int, OwnTime]](maxlen=max(TOGETHER) - 1)  # what each window added, by rank
        self._steps = deque[int](maxlen=max(TOGETHER) - 1)
        self._windows: list[OwnWindow] = []
        self._number = 0  # of windows so far
        self._troubled = 0  # of these, with a slow rank
        self._memory: dict[int, _Memory] = {}
        self._known: OwnTimes | None = None

    @classmethod
    def every(cls, interval: int | None) -> Stragglers:
        """Return one whose windows are so many intervals long (ns), in which the account is searched for incidents."""
        return cls() if interval is None else cls(INTERVALS * interval)

    def due(self, at: int) -> bool:
        """Whether a window may end at a moment (ns)."""
        return self._start is None or at - self._start[0] >= self._window

    def look(self, at: int, steps: int, own: Mapping[int, OwnTime], *, last: bool = False) -> OwnWindow | None:
        """Take what the ranks' samples say `at` a moment (ns), by which so many `steps` were completed.

        `last`: the job is over, so that a shorter window counts. Returns the window that ends, if one does.
        """
        if self._start is None or steps < self._start[1]:
            self._start = at, steps, own
            return None
        began, before, earlier = self._start
        if at - began < self._window and not last:
            return None
        added = {rank: now.since(earlier[rank]) for rank, now in own.items() if rank in earlier}
        added = {rank: one for rank, one in added.items() if one.samples >= SAMPLES}
        if len(added) < 2 or steps - before < STEPS:
            if at - began >= LONGEST * self._window:
                self._start = at, steps, own
            return None
        self._start = at, steps, own
        window = self._compare(began, at, steps - before, added)
        self._latest.append(added)
        self._steps.append(steps - before)
        self._remember(window)
        return window

    def _compare(self, begin: int, end: int, steps: int, added: Mapping[int, OwnTime]) -> OwnWindow:
        turn = (end - begin) / steps
        shares = {rank: one.shares() for rank, one in added.items()}
        usual = median_low([own for own, _ in shares.values()])
        slow = dict[int, float]()
        for count in TOGETHER:
            if count > len(self._latest) + 1:
                break
            earlier = [*self._latest][len(self._latest) - count + 1 :]
            number = steps + sum([*self._steps][len(self._steps) - count + 1 :])
            for rank, excess in slow_ranks(_together(added, earlier), number).items():
                still = shares[rank][0] - usual
                if rank not in slow and still >= STILL * excess and _lasting(rank, STILL * excess, earlier):
                    slow[rank] = still
        others = [waiting for rank, (_, waiting) in shares.items() if rank not in slow]
        waiting = median_low(others) if others else 0.0
        named = sorted(slow, key=lambda rank: (-slow[rank], rank))[:NAMED]
        saved = min(max(slow.values()), waiting) if slow else 0.0
        return OwnWindow(
            begin,
            end,
            steps,
            round(turn),
            round(usual * turn),
            round(waiting * turn),
            round((1.0 - saved) * turn),
            tuple(named),
            tuple(
                RankTime(rank, round(shares[rank][0] * turn), round(shares[rank][1] * turn))
                for rank in _shown(shares, named)
            ),
            len(shares),
            _bands([round(own * turn) for own, _ in shares.values()]),
        )

    def _remember(self, window: OwnWindow) -> None:
        self._known = None
        self._number += 1
        self._troubled += bool(window.slow)
        times = window.of
        for rank in window.slow:
            if rank not in self._memory and len(self._memory) >= REMEMBERED:
                continue
            one = self._memory.setdefault(rank, _Memory(self._number, window.begin))
            one.until, one.windows = window.end, one.windows + 1
            one.turns, one.lasted = one.turns + window.steps, one.lasted + window.end - window.begin
            one.own += times[rank].own * window.steps
            one.usual += window.usual * window.steps
            one.lost += window.saved(rank) * window.steps
        self._windows.append(window)
        if len(self._windows) > KEPT:
            self._windows = merged(self._windows)

    def times(self) -> OwnTimes:
        """Return who was slow, and all windows."""
        if self._known is None:
            chronic = {rank for rank, one in self._memory.items() if self._always(one)}
            most = max((one.windows for one in self._memory.values()), default=0)
            wander = not chronic and len(self._memory) >= OFTEN and most <= SINGLE * self._troubled
            pattern = ""
            if self._memory:
                pattern = CHRONIC if chronic else WANDERING if wander else ONCE if self._troubled == 1 else RECURRING
            slow = [
                SlowRank(
                    rank,
                    one.windows,
                    self._number - one.first + 1,
                    CHRONIC if rank in chronic else WANDERING if wander else ONCE if one.windows == 1 else RECURRING,
                    one.since,
                    one.until,
                    one.own // one.turns,
                    one.usual // one.turns,
                    one.lost,
                    one.lost / max(1, one.lasted - one.lost),
                )
                for rank, one in self._memory.items()
            ]
            slow.sort(key=lambda one: (-one.lost, one.rank))
            self._known = OwnTimes(pattern, tuple(slow), tuple(self._windows))
        return self._known

    def _always(self, one: _Memory) -> bool:
        often = max(ALWAYS * (self._number - one.first + 1), SINGLE * self._troubled)
        return one.windows >= OFTEN and one.windows >= often


def slow_ranks(added: Mapping[int, OwnTime], steps: int) -> dict[int, float]:
    """Return the ranks that are certainly slow in so many `steps`, and by which share of the time."""
    if len(added) < 2:
        return {}
    shares = {rank: one.shares() for rank, one in added.items()}
    usual = median_low([own for own, _ in shares.values()])
    apart = _NORMAL * median(sorted(abs(own - usual) for own, _ in shares.values())[:-1])  # but for the slowest
    certain, rest = CERTAIN + sqrt(2 * log(len(added))), 1 / sqrt(len(added) - 1)
    slow = dict[int, float]()
    for rank, (own, _) in shares.items():
        excess = own - usual
        if excess < max(LEAST, APART * apart):
            continue
        count = min(added[rank].samples, IN_A_STEP * steps)
        error = sqrt(max(0.01, own * (1 - own), usual * (1 - usual)) / count)
        if excess >= certain * hypot(error, error * rest):
            slow[rank] = excess
    waiting = median_low([waits for rank, (_, waits) in shares.items() if rank not in slow])
    return {rank: excess for rank, excess in slow.items() if waiting - shares[rank][1] >= WAITS * excess}


def _together(added: Mapping[int, OwnTime], earlier: Iterable[Mapping[int, OwnTime]]) -> Mapping[int, OwnTime]:
    """Return what several windows added."""
    windows = [added, *earlier]
    if len(windows) == 1:
        return added
    return {
        rank: OwnTime(*map(sum, zip(*(one[rank] for one in windows), strict=True)))
        for rank in added
        if all(rank in one for one in windows)
    }


def _lasting(rank: int, excess: float, windows: Sequence[Mapping[int, OwnTime]]) -> bool:
    """Whether a rank was slower by so much in most of these windows and the present one."""
    hits = 1
    for window in windows:
        some = [one.shares()[0] for one in islice(window.values(), ALL)]  # that is enough to know what is usual
        hits += window[rank].shares()[0] - median_low(some) >= excess
    return hits >= MOSTLY * (len(windows) + 1)


def _shown(shares: Mapping[int, tuple[float, float]], named: Sequence[int]) -> list[int]:
    """Return the ranks whose times are held."""
    if len(shares) <= ALL:
        return sorted(shares)
    return sorted({*named, *sorted(shares, key=lambda rank: (-shares[rank][0], rank))[:HIGHEST]})


def _bands(own: Sequence[int]) -> tuple[int, ...]:
    """Return the times that so many of them (``BANDS``) do not exceed."""
    ordered = sorted(own)
    return tuple(ordered[ceil(share * len(ordered)) - 1] for share in BANDS)


def merged(windows: Sequence[OwnWindow]) -> list[OwnWindow]:
    """Merge each two windows in a row into one."""
    pairs = [windows[at : at + 2] for at in range(0, len(windows), 2)]
    return [_merged(*pair) if len(pair) == 2 else pair[0] for pair in pairs]


def _merged(one: OwnWindow, other: OwnWindow) -> OwnWindow:
    steps = one.steps + other.steps

    def mean(first: int, second: int) -> int:
        return round((first * one.steps + second * other.steps) / steps)

    times, of_one, of_other = [], one.of, other.of
    for rank in sorted(of_one.keys() | of_other.keys()):
        first = of_one.get(rank) or of_other[rank]
        second = of_other.get(rank) or first
        times.append(RankTime(rank, mean(first.own, second.own), mean(first.waiting, second.waiting)))
    slow = [*dict.fromkeys(chain(one.slow, other.slow))][:NAMED]
    if len(times) > ALL:
        highest = {time.rank for time in sorted(times, key=lambda time: -time.own)[:HIGHEST]}
        times = [time for time in times if time.rank in highest or time.rank in slow]
    return OwnWindow(
        one.begin,
        other.end,
        steps,
        mean(one.turn, other.turn),
        mean(one.usual, other.usual),
        mean(one.waiting, other.waiting),
        mean(one.without, other.without),
        tuple(slow),
        tuple(times),
        max(one.compared, other.compared),
        tuple(map(mean, one.bands, other.bands)),
    )

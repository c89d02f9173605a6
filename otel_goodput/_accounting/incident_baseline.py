"""What is usual in an attempt: how long turns of the loop take, and saves, evaluations and other phases now and then.

The unit is a window: some seconds that begin and end with the end of a step.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from math import sqrt
from statistics import median
from typing import Final, NamedTuple

from otel_goodput._accounting.incidents import SINGLE, STEP, Observation, Source
from otel_goodput.semconv import Category

# What is no part of a turn of the loop, and is not compared.
_APART: Final = frozenset({Category.IN_FLIGHT, Category.INFRASTRUCTURE_RECOVERY})
# What goes on in each turn, of whatever kind the loop is.
LOOPING: Final = tuple(Source(one) for one in (STEP, Category.DATA_LOADING, Category.OTHER))
REFERENCE: Final = 12  # windows, before anything is compared,
REMEMBERED: Final = 60  # and the most that what is usual is taken from
UNSURE: Final = 2.0  # by so much over the root of the number of windows, they may deviate more than it seems
LEAST_NOISE: Final = 0.02  # deviation as a share of the usual
HIGH: Final = 0.8  # the share of windows that are below what counts as more than usual,
HIGHER: Final = 0.9  # and below the median and so many deviations of a normal distribution:
_NORMAL: Final = 1.2816
OFTEN: Final = 0.75  # a phase that has time in so many windows is a part of the turns; others are compared one by one
SELDOM: Final = 0.1
# A phase that is no part of the turns takes too long if it takes so many times as long as the longest so far.
LONG: Final = 3.0
EPISODES: Final = 3  # that must be known for that
EPISODES_KEPT: Final = 32


class Window(NamedTuple):
    """A stretch of the attempt that begins and ends with the end of a step.

    Attributes:
        begin, end: ns.
        steps: how many were completed in it.
        times: ns by source; only sources that have any.
    """

    begin: int
    end: int
    steps: int
    times: Counter[Source]

    def phases(self) -> Counter[Source]:
        """Time by source, whichever rank's it is, ns."""
        phases = Counter[Source]()
        for source, spent in self.times.items():
            phases[source.phase] += spent
        return phases


class Sums:
    """Windows in a row, together."""

    def __init__(self, windows: Iterable[Window] = ()) -> None:
        self.begin = self.steps = 0  # ns
        self.times = Counter[Source]()
        for window in windows:
            self.add(window)

    def add(self, window: Window | Sums) -> None:
        """Take what follows."""
        self.begin = self.begin or window.begin
        self.steps += window.steps
        self.times.update(window.times)

    def each(self) -> dict[Source, float]:
        """Time of each source in one turn, ns."""
        return {source: spent / self.steps for source, spent in self.times.items()} if self.steps else {}


class Usual:
    """What is usual in this attempt.

    Attributes:
        known: enough windows were seen.
        parts: what a turn consists of.
        turn, each: what a turn takes, and each source in it, ns.
        high, deviation: most turns take less than that; their deviation, ns.
        noise: the deviation they may have, as far as is known, ns; `unsure`: and by how much `turn` may be too low.
    """

    def __init__(self) -> None:
        self.parts: frozenset[Source] = frozenset()
        self.turn = self.high = self.deviation = self.noise = self.unsure = 0.0
        self.each: dict[Source, float] = {}
        self._phases: deque[frozenset[Source]] = deque(maxlen=REMEMBERED)  # that windows of the shortest length had
        self._often = Counter[Source]()  # in how many of these a phase had time,
        self._early, self._counted = Counter[Source](), 0  # and in how many of the first so many
        self._first: list[Window] = []
        self._recent: deque[Window] = deque(maxlen=REMEMBERED)

    @property
    def known(self) -> bool:
        return len(self._first) >= REFERENCE

    def add(self, windows: Iterable[Window]) -> None:
        """Take windows in which nothing is wrong."""
        for window in windows:
            self._recent.append(window)
            if len(self._first) < REMEMBERED:
                self._first.append(window)
                if self.known:
                    self._learn()
        if not self.known:
            return
        turns = sorted(turn(one, self.parts) for one in self._recent)
        middle, high, higher = (turns[int(share * (len(turns) - 1))] for share in (0.5, HIGH, HIGHER))
        self.deviation = (higher - middle) / _NORMAL
        self.high = high
        self.noise = max(LEAST_NOISE * self.turn, (1 + UNSURE / sqrt(len(turns))) * self.deviation)
        self.unsure = UNSURE * (1 / sqrt(len(self._first)) - 1 / sqrt(REMEMBERED)) * self.noise
        # It has become faster for good: that is what is usual from now on.
        if len(self._first) == len(turns) == REMEMBERED and high < self.turn - self.noise:
            self._first = [*self._recent]
            self._learn()

    def count(self, window: Window) -> None:
        """Take a window of the shortest length, to see which phases are in most of them."""
        if len(self._phases) == REMEMBERED:
            self._often.subtract(self._phases[0])
        self._phases.append(frozenset(window.phases()))
        self._often.update(self._phases[-1])
        if self._counted < REMEMBERED:
            self._counted += 1
            self._early.update(self._phases[-1])
        if self.known:
            self._compose()

    def merge(self) -> None:
        """Go on with windows of twice the length."""
        self._first = _merged(self._first)
        self._recent = deque(_merged([*self._recent]), maxlen=REMEMBERED)

    def _learn(self) -> None:
        self.each = Sums(self._first).each()
        self._compose()

    def _compose(self) -> None:
        """See what a turn consists of."""
        self.parts = frozenset(one for one, count in self._often.items() if count >= OFTEN * len(self._phases))
        self.turn = sum(spent for source, spent in self.each.items() if source.phase in self.parts)

    def seldom(self, source: Source) -> bool:
        """Whether a phase had time in hardly any of the first windows."""
        return self._early[source] <= SELDOM * self._counted

    def more(self, parts: Iterable[Source]) -> float:
        """What phases take in a turn that are in only some of them, ns."""
        further = frozenset(parts) - self.parts
        return sum(spent for source, spent in self.each.items() if source.phase in further)


def _merged(windows: Sequence[Window]) -> list[Window]:
    """Merge each two windows in a row into one."""
    return [joined(two) for two in zip(windows[::2], windows[1::2], strict=False)]


def joined(windows: Sequence[Window]) -> Window:
    """Return windows in a row as one."""
    sums = Sums(windows)
    return Window(sums.begin, windows[-1].end, sums.steps, sums.times)


def turn(window: Window, parts: Iterable[Source]) -> float:
    """Time of these parts in a turn of a window, ns."""
    phases = window.phases()
    return sum(phases[one] for one in parts) / window.steps


class Episodes:
    """How long phases took that are no part of the turns, such as saves and evaluations.

    Attributes:
        open: when the present one of a phase began, and how long it takes so far, ns.
        slow: of phases whose latest one took too long: when that was over, and what they lost since they do, ns.
    """

    def __init__(self, slack: int) -> None:
        self.open: dict[Source, tuple[int, int]] = {}
        self.slow: dict[Source, tuple[int, int]] = {}
        self._slack = slack
        self._past: dict[Source, deque[int]] = {}  # ns; without those that took too long
        self._known: dict[Source, int] = {}  # since when, ns

    def add(self, window: Window) -> None:
        """Take the next window; a phase that has no time in it is over."""
        phases = window.phases()
        for source in self.open.keys() - phases.keys():
            begin, length = self.open.pop(source)
            if self.too_long(source, length):
                self.slow[source] = begin + length, self.lost(source, length)
            else:
                past = self._past.setdefault(source, deque(maxlen=EPISODES_KEPT))
                past.append(length)
                if len(past) >= EPISODES:
                    self._known.setdefault(source, window.begin)
                self.slow.pop(source, None)
        for source, spent in phases.items():
            begin, length = self.open.get(source, (window.begin, 0))
            self.open[source] = begin, length + spent

    def too_long(self, source: Source, length: int) -> bool:
        """Whether one of `length` (ns) takes too long; False while too few are known."""
        past = self._past.get(source, (0,))
        return self.known(source) and length > max(LONG * max(past), max(past) + self._slack)

    def known(self, source: Source, since: int | None = None) -> bool:
        """Whether it is known how long they usually take, and was known at the moment `since` (ns)."""
        return source in self._known and (since is None or self._known[source] <= since)

    def usual(self, source: Source) -> int:
        """What one usually takes, ns."""
        return int(median(self._past[source]))

    def lost(self, source: Source, length: int) -> int:
        """What those that took too long have lost with one of `length` (ns)."""
        return self.slow.get(source, (0, 0))[1] + length - self.usual(source)


def turns(start: Observation, end: Observation) -> Window:
    """Return the turns that were completed from one observation to another."""
    window = between(start, end)
    for category, spent in end.unfinished.items():
        _shift(window.times, Source(category), start.unfinished.get(category, 0) - spent)
    return window._replace(times=+window.times)  # what has none left was not there


def between(start: Observation, end: Observation) -> Window:
    """Return the window between two observations, with what was spent by then on the turn that is not over."""
    times = Counter[Source]()
    for source, spent in end.times.items():
        if spent > start.times.get(source, 0) and source.category not in _APART:
            times[source] = spent - start.times.get(source, 0)
    for category, excess in end.excess.items():
        _separate(times, Source(category), excess - start.excess.get(category, 0))
    return Window(start.at, end.at, end.steps - start.steps, +times)


def _shift(times: Counter[Source], phase: Source, more: int) -> None:
    """Give a phase so much more time, ns, or less."""
    for _, source in sorted(((spent, one) for one, spent in times.items() if one.phase == phase), reverse=True):
        part = max(more, -times[source])
        more -= part
        times[source] += part
    if more > 0:
        times[phase] += more


def _separate(times: Counter[Source], phase: Source, excess: float) -> None:
    """Make so much of the time of a phase, ns, that of single ones that take longer than usual."""
    for spent, source in sorted(((times[one], one) for one in times if one.phase == phase), reverse=True):
        part = max(0, min(round(excess), spent))
        if part:
            excess -= part
            times[source] -= part
            times[source._replace(name=SINGLE)] += part

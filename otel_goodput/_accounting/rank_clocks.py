"""The clocks of ranks: how far each is ahead, and whether the ends of common steps contradict that (rule R11).

Ends of steps never correct a clock: a rank that always ends late would vanish from its own evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from statistics import median
from typing import Final, NamedTuple

from otel_goodput._accounting.arithmetic import PLAIN, Arithmetic
from otel_goodput._accounting.events import ATTEMPT, MARK, NOT_KNOWN, START, Event, TurnColumns
from otel_goodput._accounting.rank_columns import RankParts
from otel_goodput._accounting.rank_updates import RankUpdate
from otel_goodput._accounting.ranks import NEVER, Piece, RankStep
from otel_goodput._accounting.rules import NS

TOO_FAR: Final = 10 * NS  # no rank of a pipeline is so far behind another one
FEWEST: Final = 4  # common steps that tell
_EVERY: Final = 8  # one step in so many is remembered,
_KEPT: Final = 64  # and so many of these
_CONSTANT: Final = 4  # clocks differ by the same all the time, give or take a quarter


class Offset(NamedTuple):
    """From the moment `since` of a clock on, ns, it is `ahead` by so many ns, give or take `bound`."""

    since: int
    ahead: int
    bound: int


def spread_of(offsets: Iterable[Offset]) -> int:
    """Return how far two clocks may be apart after they were corrected by these `offsets`, ns."""
    return sum(sorted(offset.bound for offset in offsets)[-2:])


class RankClock:
    """The clock of one process, of which one offset after the other is known; each holds until the next one.

    By the common clock, its times never go back: if an offset is larger than the one before, they stand for a moment.
    """

    def __init__(self, offsets: Iterable[Offset] = ()) -> None:
        self.offsets: list[Offset] = []
        self._floors: list[int] = []  # what no time from that offset on is before
        for offset in offsets:
            self.set(offset)

    def set(self, offset: Offset) -> None:
        """Note an offset. It begins after the others."""
        before = self.offsets[-1] if self.offsets else None
        self._floors.append(0 if before is None else max(self._floors[-1], offset.since - before.ahead))
        self.offsets.append(offset)

    def common(self, time: int) -> int:
        """Return a time (ns) by the common clock; ``NOT_KNOWN`` stays that."""
        if time == NOT_KNOWN:
            return time
        at = len(self.offsets) - 1
        while at > 0 and time < self.offsets[at].since:
            at -= 1
        return max(self._floors[at], time - self.offsets[at].ahead)

    def least_exact(self, since: int) -> Offset:
        """Return the offset with the largest bound of those in force `since` a moment of the common clock, ns."""
        until = [*self._floors[1:], NEVER]
        return max(
            (one for one, end in zip(self.offsets, until, strict=True) if end > since), key=lambda one: one.bound
        )

    def event(self, event: Event) -> Event:
        """Return an event by the common clock, with the device end that may be in it."""
        known = event.kind in (START, MARK) and 0 < event.arg < NEVER
        return event._replace(time=self.common(event.time), arg=self.common(event.arg) if known else event.arg)

    def turns(self, turns: TurnColumns, arithmetic: Arithmetic = PLAIN) -> TurnColumns:
        """Return turns by the common clock."""
        ahead, floor = self.offsets[-1].ahead, self._floors[-1]
        columns = turns.ended, turns.begun, turns.left
        as_first = turns.ended[0] >= max(self.offsets[-1].since, floor + ahead)  # as all that is later
        if as_first and max(abs(ahead), turns.time) < NEVER:
            return turns.moved(*(arithmetic.moved(column, -ahead) if column else () for column in columns))
        return turns.moved(*([*map(self.common, column)] for column in columns))


def by_common_clock(
    events: Iterable[Event | TurnColumns],
    clocks: Mapping[int, RankClock],
    arithmetic: Callable[[], Arithmetic] = lambda: PLAIN,
) -> Iterator[Event | TurnColumns]:
    """Yield the events of a rank by the common clock; `clocks` are those of its attempts, as far as they differ.

    `arithmetic` returns what to compute with.
    """
    clock: RankClock | None = None
    for event in events:
        if isinstance(event, TurnColumns):
            yield event if clock is None else clock.turns(event, arithmetic())
            continue
        if event.kind == ATTEMPT:
            clock = clocks.get(event.step)
        yield event if clock is None else clock.event(event)


class RankClocks:
    """Corrects the times of ranks by what is known of their clocks, and compares the ends of their steps."""

    def __init__(self) -> None:
        self._clocks: dict[int, RankClock] = {}
        self._ends: dict[int, dict[int, RankStep]] = {}

    def set(self, rank: int, offset: Offset) -> None:
        """Note how far the clock of `rank` is ahead of the common one, and since when; 0: its process is a new one."""
        if not offset.since:
            self._clocks[rank] = RankClock()
        elif rank not in self._clocks:  # so far it did not matter, or was not known
            self._clocks[rank] = RankClock([Offset(0, 0, 0)])
        self._clocks[rank].set(offset)

    @property
    def offsets(self) -> Mapping[int, Offset]:
        """The latest offset of each rank that has one."""
        return {rank: clock.offsets[-1] for rank, clock in sorted(self._clocks.items())}

    def spread(self, since: int) -> int:
        """Return how far two corrected clocks may be apart, in times of the common clock `since` a moment, ns."""
        return spread_of(clock.least_exact(since) for clock in self._clocks.values())

    def common(self, rank: int, time: int) -> int:
        """Return a time of `rank` (ns) by the common clock."""
        return time if rank not in self._clocks else self._clocks[rank].common(time)

    def corrected(self, rank: int, update: RankUpdate) -> RankUpdate:
        """Return an update of `rank` by the common clock."""
        if rank not in self._clocks:
            return update
        moved = self._clocks[rank].common
        opened = update.opened
        return RankUpdate(
            moved(update.joined),
            moved(update.known),
            moved(update.at),
            moved(update.left),
            [step._replace(begin=moved(step.begin), end=moved(step.end)) for step in update.steps],
            [Piece(moved(piece.begin), moved(piece.end), *piece[2:]) for piece in update.pieces],
            None if opened is None else opened._replace(since=moved(opened.since)),
            update.size,
        )

    def compare(self, rank: int, steps: Iterable[RankStep]) -> None:
        """Remember some of the steps of `rank`."""
        for step in steps:
            if not step.number % _EVERY and step.end != NOT_KNOWN:
                ends = self._ends.setdefault(rank, {})
                ends.pop(step.number, None)
                ends[step.number] = step
                if len(ends) > _KEPT:
                    del ends[next(iter(ends))]

    def compare_whole(self, rank: int, parts: RankParts) -> None:
        """The same of all that a rank did."""
        latest: dict[int, RankStep] = {}
        for step in parts.multiples(_EVERY):
            if step.end != NOT_KNOWN:
                latest.setdefault(step.number, step)
                if len(latest) == _KEPT:
                    break
        self.compare(rank, reversed(latest.values()))

    @property
    def disagree(self) -> Mapping[int, int]:
        """By how much (ns) the clocks of ranks are ahead of most others', if their steps cannot be explained otherwise.

        Then all of their steps begin or end at impossible times, and are off by about the same.
        """
        if len(self._ends) < 2:
            return {}
        numbers: dict[int, list[int]] = {}
        for ends in self._ends.values():
            for number, step in ends.items():
                numbers.setdefault(number, []).append(step.end)
        usual = {number: median(ends) for number, ends in numbers.items() if len(ends) > 1}
        off: dict[int, int] = {}
        for rank, ends in self._ends.items():
            apart = [step.end - round(usual[number]) for number, step in ends.items() if number in usual]
            if len(apart) < FEWEST:
                continue
            middle = round(median(apart))
            if abs(middle) > TOO_FAR and max(apart) - min(apart) <= abs(middle) // _CONSTANT:
                off[rank] = middle
        return dict(islice(sorted(off.items()), _KEPT))

"""The clocks of ranks: how far each is off, and whether the ends of common steps contradict that (rule R11).

Ends of steps never correct a clock: a rank that always ends late would vanish from its own evidence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from statistics import median
from typing import Final, NamedTuple

from otel_goodput._accounting.events import NOT_KNOWN
from otel_goodput._accounting.rank_updates import RankUpdate
from otel_goodput._accounting.ranks import Piece, RankStep
from otel_goodput._accounting.rules import NS

TOO_FAR: Final = 10 * NS  # no rank of a pipeline is so far behind another one
FEWEST: Final = 4  # common steps that tell
_EVERY: Final = 8  # one step in so many is remembered,
_KEPT: Final = 64  # and so many of these
_CONSTANT: Final = 4  # clocks differ by the same all the time, give or take a quarter


class _Offset(NamedTuple):
    """How far a clock is ahead, ns, and how wrong that may be."""

    ahead: int
    bound: int


class RankClocks:
    """Corrects the times of ranks by what is known of their clocks, and compares the ends of their steps."""

    def __init__(self) -> None:
        self._offsets: dict[int, _Offset] = {}
        self._ends: dict[int, dict[int, RankStep]] = {}

    def set(self, rank: int, ahead: int, bound: int) -> None:
        """Note that the clock of `rank` is `ahead` of the others' by so many ns, give or take `bound`."""
        self._offsets[rank] = _Offset(ahead, bound)

    @property
    def spread(self) -> int:
        """How far two corrected clocks may be apart, ns."""
        return sum(sorted(offset.bound for offset in self._offsets.values())[-2:])

    def corrected(self, rank: int, update: RankUpdate) -> RankUpdate:
        """Return an update of `rank` by the common clock."""
        ahead = self._offsets[rank].ahead if rank in self._offsets else 0
        if not ahead:
            return update

        def moved(time: int) -> int:
            return time if time == NOT_KNOWN else max(0, time - ahead)

        opened = update.opened
        return RankUpdate(
            moved(update.joined),
            moved(update.known),
            moved(update.at),
            moved(update.left),
            [RankStep(step.number, moved(step.begin), moved(step.end), step.flags) for step in update.steps],
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

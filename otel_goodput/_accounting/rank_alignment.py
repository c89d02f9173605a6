"""Steps that ranks report in groups of different sizes, as groups of the same steps (rule R11).

A rank makes its groups larger while it has many steps, and smaller while it has few (see ``rank_groups``). Not all do
that at the same step. So the steps of fast ranks wait here until it is known how the others have grouped them; those
that are in a larger group of another rank are put together.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

from otel_goodput._accounting.events import NO_STEP, NOT_KNOWN
from otel_goodput._accounting.rank_groups import one_group
from otel_goodput._accounting.ranks import NEVER, Piece, RankStep

FAST: Final = 256  # steps in one update; a rank that has fewer makes no groups soon
WAITING: Final = 16_384  # steps of one rank; if more wait, they go on as they are
CELLS: Final = 65_536  # groups that are remembered


@dataclass(slots=True)
class _Rank:
    """What a rank has reported."""

    steps: list[RankStep] = field(default_factory=list)  # that wait; the last one may be open
    pieces: list[Piece] = field(default_factory=list)
    known: int = NOT_KNOWN  # up to when it is known, ns
    given: int = NOT_KNOWN  # up to when that has been given on, ns
    top: int = NO_STEP  # number of its latest step that is over
    there: bool = True  # more is expected of it


class RankAlignment:
    """Gives what ranks report on, once it is known how others group the same steps.

    Args:
        feed: is given rank, steps, pieces, and up to when the rank is known, ns.
        waits: returns whether ranks are expected that have not joined yet.
    """

    def __init__(
        self, feed: Callable[[int, Sequence[RankStep], Sequence[Piece], int], None], waits: Callable[[], bool]
    ) -> None:
        self._feed, self._waits = feed, waits
        self._ranks: dict[int, _Rank] = {}
        self._leaving: dict[int, Callable[[], None]] = {}  # what is called once nothing waits of a rank that has left
        self._cells: dict[tuple[int, int], tuple[int, int]] = {}  # size and index of groups: steps after, up to
        self._sizes: set[int] = set()
        self._fast = False
        self.spread = 0  # how far clocks of two ranks may be apart, ns

    def join(self, rank: int) -> None:
        """Note that the job of `rank` begins, maybe again."""
        if (before := self._ranks.get(rank)) is not None:
            self._release(rank, before, whole=True)
        self._ranks[rank] = _Rank()

    def leave(self, rank: int, then: Callable[[], None]) -> None:
        """Note that nothing more is expected of `rank`; call `then` once what it reported has been given on."""
        one = self._ranks.get(rank)
        if one is None or not self._fast:
            self._ranks.pop(rank, None)
            then()
            return
        one.there, self._leaving[rank] = False, then
        self._go_on()

    def release(self) -> None:
        """Give on all that waits, as it is."""
        for rank, one in list(self._ranks.items()):
            self._release(rank, one, whole=True)

    def take(self, rank: int, steps: Sequence[RankStep], pieces: Sequence[Piece], known: int, size: int) -> None:
        """Take what `rank` did up to `known` (ns), in groups of `size`; 0: it is all of it, step by step."""
        self._fast = self._fast or size > 1 or len(steps) > FAST
        one = self._ranks.get(rank)
        if one is None or not self._fast:
            self._feed(rank, steps, pieces, known)
            return
        if not one.there:  # it was set aside
            self._release(rank, one, whole=True)
            one = self._ranks[rank] = _Rank()
        one.known = max(one.known, known)
        if one.steps and one.steps[-1].end == NOT_KNOWN:
            one.steps.pop()
        before = one.top
        for step in steps:
            if step.end != NOT_KNOWN:
                if size > 1 and not step.flags:
                    self._remember(step.number, before if before < step.number else NO_STEP, size)
                before = step.number
        one.top = before
        one.steps += steps
        one.pieces += pieces
        self._go_on()

    def _remember(self, number: int, before: int, size: int) -> None:
        """Note a group that ends with a step, of a rank whose step before that is given."""
        if NO_STEP < before < number - size and number - before <= 2 * size:
            size *= 2  # it was begun when groups were larger
        self._sizes.add(size)
        cell = size, -(-number // size)
        since, until = self._cells.get(cell, (number, number))
        self._cells[cell] = min(since, max(before, (cell[1] - 1) * size)), max(until, number)
        if len(self._cells) > CELLS:
            del self._cells[next(iter(self._cells))]

    def _inside(self, number: int) -> int:
        """Return the number with which a group ends that the step is in, but does not end; ``NO_STEP`` if in none."""
        end = NO_STEP
        while True:
            for size in self._sizes:
                since, until = self._cells.get((size, -(-number // size)), (number, number))
                if since < number < until:
                    end = max(end, until)
            if end <= number:
                return end
            number = end  # which another one may be in: groups become larger while one is begun

    def _go_on(self) -> None:
        there = sorted((one.top, one.known) for one in self._ranks.values() if one.there)
        tops = [top for top, _ in there]
        # Up to when all those are known whose latest step is one of the first so many.
        known = [NEVER, *accumulate((known for _, known in there), min)]
        late = self._waits()
        for rank, one in list(self._ranks.items()):
            if len(one.steps) > WAITING:
                self._release(rank, one, whole=True)
            elif not late and (one.steps or one.pieces or not one.there):
                count = next(
                    (
                        at
                        for at, step in enumerate(one.steps)
                        if step.end != NOT_KNOWN and known[bisect_left(tops, step.number)] < step.end + self.spread
                    ),
                    len(one.steps),
                )
                self._release(rank, one, count)

    def _release(self, rank: int, one: _Rank, count: int = 0, *, whole: bool = False) -> None:
        """Give on the first `count` steps of a rank, as far as the groups are complete that they are in."""
        every, pieces = one.steps, one.pieces
        count = len(every) if whole else count
        steps, parts = list[RankStep](), list[Piece]()
        first = taken = 0
        while first < count:
            behind = first + 1
            while behind < count and self._goes_on(every[behind - 1], every[behind]):
                behind += 1
            last = every[behind - 1]
            if behind == len(every):
                incomplete = last.end != NOT_KNOWN and not last.flags and self._inside(last.number) != NO_STEP
            else:
                incomplete = behind == count and self._goes_on(last, every[behind])
            if incomplete and not whole and (one.there or behind < len(every)):
                break
            until = taken
            if last.end != NOT_KNOWN:
                while until < len(pieces) and pieces[until].begin < last.end:
                    until += 1
                step, mine = one_group(every[first:behind], pieces[taken:until])
            else:
                until = len(pieces)
                step, mine = last, pieces[taken:]
            steps.append(step)
            parts += mine
            first, taken = behind, until
        one.steps, one.pieces, known = every[first:], pieces[taken:], one.known
        if not one.steps:
            parts += one.pieces
            one.pieces = []
        else:
            known = min(one.steps[0].begin, *(piece.begin for piece in one.pieces[:1]), known)
        if known > one.given or steps or parts:
            one.given = max(known, one.given)
            self._feed(rank, steps, parts, known)
        if not one.there and not one.steps:
            self._ranks.pop(rank, None)
            if (then := self._leaving.pop(rank, None)) is not None:
                then()

    def _goes_on(self, step: RankStep, following: RankStep) -> bool:
        """Whether two steps are in one group of another rank."""
        if step.flags or following.flags or NOT_KNOWN in (step.end, following.end):
            return False
        return step.number < following.number <= self._inside(step.number)

"""The time of ranks and of their job, in pieces, and how pieces of several ranks are put together (rule R11)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import pairwise
from typing import Final, NamedTuple

from otel_goodput._accounting.rules import OTHER

NOBODY: Final = -1  # in place of a rank
STEP_TIME: Final = -1  # in place of a category number
NEVER: Final = 1 << 62  # a moment that does not come, ns
ENDED: Final = "ended"  # in place of a custom name, of time in which a rank is away: its job before ended cleanly
# Flags of steps, besides those of END events:
DIED: Final = 1 << 16  # its process died
OPEN: Final = 1 << 17  # it is not over
# Those that take it were there when another one died, which is still away: they may not know it yet.
LEFT_BEHIND: Final = 1 << 18
_make: Final = tuple.__new__  # a third of the time of a named tuple's constructor


class RankStep(NamedTuple):
    """One execution of a step on one rank; ns.

    Attributes:
        number, begin: of the step; first moment that is its own (rule R3).
        end: when it was over, by the clock that counts; ``NOT_KNOWN`` while it is open.
        flags: of its END event.
        steps: how many it stands for, of which it is the last (see ``rank_groups``).
    """

    number: int
    begin: int
    end: int
    flags: int = 0
    steps: int = 1


class Piece(NamedTuple):
    """Time of one rank, from `begin` to `end` (ns), that is no step's own: a category number and a custom name.

    Time that is cut out (rule R7) has one of ``CUT_OUT`` in place of a category number.
    """

    begin: int
    end: int
    category: int
    name: str = ""


class Stretch(NamedTuple):
    """Time of the job, from `begin` to `end` (ns), of one category.

    Attributes:
        category, name: category number and custom name; ``STEP_TIME``: a step's own; one of ``CUT_OUT``.
        rank: whose time it is; ``NOBODY`` in a step's own, which is of all that take part.
        waits: at least half of the other ranks could work: the job waits for this one. Not if the time is cut out.
    """

    begin: int
    end: int
    category: int
    name: str
    rank: int
    waits: bool


class JobStep(NamedTuple):
    """One execution of a step by the ranks that took part, in whose time `stretches` are, from `begin` to `end` (ns).

    `flags` are of its END event: ``FAILED`` if it failed on any rank, or one of them died in it, then with ``DIED``.
    Besides them ``LEFT_BEHIND``. It stands for so many `steps`, of which it is the last; those before it did not fail.
    """

    number: int
    begin: int
    end: int
    flags: int
    stretches: tuple[Stretch, ...]
    steps: int = 1

    def singles(self) -> Iterator[JobStep]:
        """Yield the steps that it stands for, each of which takes the same time; of a group, without its own time."""
        if self.steps == 1:
            yield self
            return
        number, begin, end, flags, stretches, steps = self
        nested = [one for one in stretches if one.category != STEP_TIME]
        first, since, inside = number - steps + 1, begin, tuple[Stretch, ...]()
        for at in range(1, steps + 1):
            until = begin + (end - begin) * at // steps
            if nested:
                parts = (one._replace(begin=max(one.begin, since), end=min(one.end, until)) for one in nested)
                inside = tuple(one for one in parts if one.begin < one.end)
            yield _make(JobStep, (first, since, until, flags if at == steps else 0, inside, 1))
            first, since = first + 1, until


class Standing(NamedTuple):
    """Who waits: the ranks that are at work on step `number`, and the time for which they wait for one; None if not."""

    number: int
    waiting: Sequence[int]
    stretch: Stretch | None


def longest(
    pieces: Sequence[tuple[int, Piece]], edges: set[int]
) -> Iterator[tuple[int, int, int, tuple[int, Piece] | None]]:
    """Cut the time between the first and the last of `edges` (ns) where one of the `pieces` of ranks begins or ends.

    Yields begin and end of each part, how many of the pieces cover it, and of these the one that ends last.
    """
    if not pieces:
        for begin, end in pairwise(sorted(edges)):
            yield begin, end, 0, None
        return
    first, last = min(edges), max(edges)
    edges = edges | {min(max(edge, first), last) for _, piece in pieces for edge in piece[:2]}
    coming = sorted(pieces, key=lambda one: one[1].begin, reverse=True)
    open_: list[tuple[int, int, Piece]] = []  # heap: the one that ends last, and of several the lowest rank, is first
    ends: list[int] = []
    for begin, end in pairwise(sorted(edges)):
        while coming and coming[-1][1].begin <= begin:
            rank, piece = coming.pop()
            heappush(open_, (-piece.end, rank, piece))
            heappush(ends, piece.end)
        while open_ and -open_[0][0] <= begin:
            heappop(open_)
        while ends and ends[0] <= begin:
            heappop(ends)
        yield begin, end, len(ends), (open_[0][1], open_[0][2]) if open_ else None


def covering(pieces: Iterable[Piece], begin: int, end: int) -> Iterator[Piece]:
    """Yield the pieces of a rank, which begin before `end` (ns), from `begin` on; what is between them is ``OTHER``."""
    at = begin
    for piece in pieces:
        if piece.end <= at:
            continue
        if piece.begin > at:
            yield Piece(at, piece.begin, OTHER)
            at = piece.begin
        until = min(piece.end, end)
        yield piece._replace(begin=at, end=until)
        at = until
    if at < end:
        yield Piece(at, end, OTHER)

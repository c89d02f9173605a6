"""Steps of a rank in groups, where there are too many to be reported one by one.

With groups of `size` steps, a power of two, a group ends with a step whose number is a multiple of that. So the groups
of all ranks end with the same steps, and finer ones can be put together to coarser ones.

Exact are, in each group: its begin and its end, its time by category and name, and what is left for its steps. But it
is laid out anew: first what is nobody's, then each category, then the steps as one, with the number of the last and how
many they are. Where in the group something happened, is known within its length only. A step that failed is never in a
group.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from otel_goodput._accounting.ranks import Piece, RankStep

# Steps that wait for an update, which can hold them; if there are more, they are in groups, of which there are fewer:
# a leader has to decide each of them. Not all ranks change the size of their groups at the same step: see
# ``rank_alignment``.
MOST: Final = 1024
FEWER: Final = 4


def grouped(
    steps: Sequence[RankStep], pieces: Sequence[Piece], size: int
) -> tuple[list[RankStep], list[Piece], list[RankStep], list[Piece]]:
    """Put completed steps, and the pieces before and in them, together; some may be smaller groups already.

    Returns steps and pieces, and those of the last group, unless it is complete: they are as they were.
    """
    whole: list[RankStep] = []
    parts: list[Piece] = []
    taken = at = 0  # pieces, steps
    while at < len(steps):
        first = at
        index = -(-steps[at].number // size)
        while at < len(steps) and _goes_on(steps, first, at, index, size):
            at += 1
        end = steps[at - 1].end
        until = taken
        while until < len(pieces) and pieces[until].begin < end:
            until += 1
        if at == len(steps) and steps[-1].number % size and not steps[-1].flags:
            return whole, parts, list(steps[first:]), list(pieces[taken:])
        step, mine = one_group(steps[first:at], pieces[taken:until])
        whole.append(step)
        parts += mine
        taken = until
    return whole, parts, [], list(pieces[taken:])


def _goes_on(steps: Sequence[RankStep], first: int, at: int, index: int, size: int) -> bool:
    """Whether the step at this place belongs to the group that begins with the `first` one."""
    step, before = steps[at], steps[at - 1]
    return at == first or (
        -(-step.number // size) == index and step.number > before.number and not step.flags and not before.flags
    )


def one_group(steps: Sequence[RankStep], pieces: Sequence[Piece]) -> tuple[RankStep, Iterable[Piece]]:
    """Return successive completed steps, and the pieces before and in them, as one group; a single one as it is."""
    if len(steps) == 1:
        return steps[0], pieces
    end = steps[-1].end
    sums: dict[tuple[int, str], int] = {}
    for piece in pieces:
        sums[piece[2:]] = sums.get(piece[2:], 0) + min(piece.end, end) - piece.begin
    own = sum(step.end - step.begin for step in steps) - _inside(steps, pieces)
    at = end - own - sum(sums.values())
    mine: list[Piece] = []
    for (category, name), length in sums.items():
        mine.append(Piece(at, at + length, category, name))
        at += length
    return RankStep(steps[-1].number, at, end, steps=sum(step.steps for step in steps)), mine


def _inside(steps: Sequence[RankStep], pieces: Sequence[Piece]) -> int:
    """How much of the pieces is inside of steps, ns."""
    inside = at = 0
    for piece in pieces:
        while at < len(steps) and steps[at].end <= piece.begin:
            at += 1
        if at < len(steps) and steps[at].begin <= piece.begin:
            inside += min(piece.end, steps[at].end) - piece.begin
    return inside

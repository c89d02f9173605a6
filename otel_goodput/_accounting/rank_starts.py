"""Attempts of a job to come back that fail before all of its ranks are there (rule R11)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from otel_goodput._accounting.events import FAILED
from otel_goodput._accounting.rank_time import Piece, RankStep


class FailedStart(NamedTuple):
    """Time in which ranks were back, from `begin` to `end` (ns), until `rank` died again before all of them were."""

    begin: int
    end: int
    rank: int

    def has_done(self, step: RankStep | None) -> bool:
        """Whether its rank has completed `step` in it, so that it did not fail: it waited for no other rank."""
        return step is not None and not step.flags & FAILED and self.begin <= step.begin < self.end


def failed_starts(
    absences: Iterable[tuple[int, Piece]], tries: Callable[[int], Iterable[int]]
) -> Iterator[FailedStart]:
    """Yield the starts that failed while one of the ranks was still away.

    Those take part in a start that died since the one before and are back when the first of them dies again. It lasts
    from when the last of them is back until that death, or until that rank began a step: in it, it waited for those
    that were away.

    Args:
        absences: of ranks, and whose each is.
        tries: returns when a rank began steps that failed, ns.
    """
    backs: dict[int, int] = {}  # when those are back that have died since the start before
    latest: dict[int, Piece] = {}  # the latest absence of each rank
    until = 0  # when the last of those is over, ns
    for rank, piece in sorted(absences, key=lambda one: (one[1].begin, one[0])):
        death = piece.begin
        if until < death:  # all were there
            backs = {}
        if backs.get(rank, death) < death:
            since = max(back for back in backs.values() if back <= death)
            if any(one.begin <= since and death < one.end for one in latest.values()):
                end = min((begin for begin in tries(rank) if since <= begin < death), default=death)
                if since < end:
                    yield FailedStart(since, end, rank)
            backs = {}
        backs[rank] = piece.end
        latest[rank], until = piece, max(until, piece.end)


def outside(piece: Piece, starts: Sequence[FailedStart]) -> Iterator[Piece]:
    """Yield the parts of a piece that are in none of `starts`, which are in order."""
    at = bisect_right(starts, piece.begin, key=attrgetter("end"))
    while at < len(starts) and starts[at].begin < piece.end:
        if piece.begin < starts[at].begin:
            yield piece._replace(end=starts[at].begin)
        piece = piece._replace(begin=min(starts[at].end, piece.end))
        at += 1
    if piece.begin < piece.end:
        yield piece

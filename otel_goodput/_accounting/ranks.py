"""The partition of a job of several ranks, derived from the partitions of its ranks (rule R11).

Step `n` of the job is that of the ranks that took part in it: it begins when the last of them has begun it, and is over
when the last of them has ended it. Until it begins, the job waits for the rank that begins last, and its time is what
that rank was doing. So each moment of the job is a moment of one rank, and the categories add up exactly.

Ranks report in pieces, each up to a moment of its own; what all of them are known to have done is decided, once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from typing import Final, NamedTuple

from otel_goodput._accounting.events import FAILED, NO_STEP, NOT_KNOWN
from otel_goodput._accounting.rules import OTHER, RECOVERY

NOBODY: Final = -1  # in place of a rank
STEP_TIME: Final = -1  # in place of a category number
# Flags of steps, besides those of END events:
DIED: Final = 1 << 16  # its process died
OPEN: Final = 1 << 17  # it is not over
WAITING: Final = 4096  # steps of one rank that may wait for another rank's; beyond that, the job does not wait for it
TOGETHER: Final = 100  # the ranks step together if at most one in so many of their common steps says otherwise


class RankStep(NamedTuple):
    """One execution of a step on one rank; ns.

    Attributes:
        number, begin: of the step; first moment that is its own (rule R3).
        end: when it was over, by the clock that counts; ``NOT_KNOWN`` while it is open.
        flags: of its END event.
    """

    number: int
    begin: int
    end: int
    flags: int = 0


class Piece(NamedTuple):
    """Time of one rank, from `begin` to `end` (ns), that is no step's own: a category number and a custom name."""

    begin: int
    end: int
    category: int
    name: str = ""


class Stretch(NamedTuple):
    """Time of the job, from `begin` to `end` (ns), of one category.

    Attributes:
        category, name: category number and custom name; ``STEP_TIME``: a step's own.
        rank: whose time it is; ``NOBODY`` in a step's own, which is of all that take part.
        waits: at least half of the other ranks could work: the job waits for this one.
    """

    begin: int
    end: int
    category: int
    name: str
    rank: int
    waits: bool


class JobStep(NamedTuple):
    """One execution of a step by the ranks that took part, in whose time `stretches` are, from `begin` to `end` (ns).

    `flags` are of its END event: ``FAILED`` if it failed on any rank, or one of them died in it.
    """

    number: int
    begin: int
    end: int
    flags: int
    stretches: tuple[Stretch, ...]


@dataclass(slots=True)
class _Rank:
    """What one rank has reported and is not decided yet."""

    steps: deque[RankStep] = field(default_factory=deque)  # the last one may be open
    pieces: deque[Piece] = field(default_factory=deque)
    known: int = 0  # what it has done before this moment (ns) is known
    joined: int = NOT_KNOWN  # begin of its first job, ns
    left: int = NOT_KNOWN  # end of its job, or its last sign of life, ns; not known while it goes on
    latest: int = NO_STEP  # number of the step before the first of `steps`
    died: bool = False  # its process did not end by itself
    taken: bool = False  # it took part in the job's latest step

    @property
    def went_back(self) -> bool:
        return self.steps[0].number <= self.latest

    def pieces_until(self, until: int) -> Iterator[Piece]:
        """Yield the pieces that begin before `until` (ns); the last is its absence, if its process died."""
        yield from takewhile(lambda piece: piece.begin < until, self.pieces)
        if self.died and NOT_KNOWN < self.left < until:
            yield Piece(self.left, until, RECOVERY)

    def drop(self) -> None:
        self.latest = self.steps.popleft().number


class RankMerger:
    """Decides what the job did from what its ranks report.

    Args:
        spread: how far clocks of two ranks may be apart, ns.
        reached: what the job did before this moment has been decided already, ns.

    Attributes:
        reached: what the job did before this moment is decided, ns; ``NOT_KNOWN`` before its first step.
        common, apart: steps of at least two ranks; those of them that say that the ranks do not step together.
    """

    def __init__(self, spread: int = 0, reached: int = NOT_KNOWN) -> None:
        self.spread = spread
        self.reached = self._before = reached
        self.common = self.apart = 0
        self._ranks: dict[int, _Rank] = {}
        self._number = NO_STEP  # of the job's latest step that was completed
        self._decided: list[Stretch | JobStep] = []

    @property
    def together(self) -> bool:
        """Whether the ranks step together: no rank ends a step before the last of them has begun it."""
        return self.apart * TOGETHER <= self.common

    def join(self, rank: int, begin: int) -> None:
        """Note that the job of `rank` begins at `begin` (ns), maybe again."""
        one = self._ranks.setdefault(rank, _Rank())
        if one.joined == NOT_KNOWN:
            one.joined = one.known = begin
            if NOT_KNOWN < self.reached < begin and self.reached == self._before:  # it was there before, maybe
                one.pieces.append(Piece(self.reached, begin, RECOVERY))
        elif one.left != NOT_KNOWN and begin > one.left:
            one.pieces.append(Piece(one.left, begin, RECOVERY))
        one.known = max(one.known, begin)
        one.left, one.died = NOT_KNOWN, False

    def leave(self, rank: int, end: int, *, died: bool) -> None:
        """Note that the job of `rank` ended at `end` (ns), or that its process `died`, and gave its last sign then."""
        one = self._ranks[rank]
        one.left, one.died = max(end, one.known), died
        end = one.left
        one.known = end
        if one.steps and one.steps[-1].end == NOT_KNOWN:
            one.steps[-1] = one.steps[-1]._replace(end=end, flags=FAILED | (DIED if died else 0))
        self._decide()

    def feed(self, rank: int, steps: Iterable[RankStep], pieces: Iterable[Piece], known: int) -> None:
        """Take what `rank` did up to `known` (ns), in order. A step that was open the last time comes again, first."""
        one = self._ranks[rank]
        for step in steps:
            if one.steps and one.steps[-1].end == NOT_KNOWN:
                one.steps.pop()
            one.steps.append(step)
        for piece in pieces:
            before = one.pieces[-1] if one.pieces else None
            if before is not None and (before.end, *before[2:]) == (piece.begin, *piece[2:]):
                piece = one.pieces.pop()._replace(end=piece.end)  # it went on
            one.pieces.append(piece)
        one.known = max(one.known, known)
        self._decide()

    def take(self) -> list[Stretch | JobStep]:
        """Return what has been decided since the last call, in order and without gaps."""
        decided, self._decided = self._decided, []
        return decided

    @property
    def horizon(self) -> int:
        """The latest moment up to which it is known what all ranks did that are there, ns."""
        there = [one.known for one in self._ranks.values() if one.left == NOT_KNOWN]
        known = min(there) if there else max((one.known for one in self._ranks.values()), default=NOT_KNOWN)
        return max(known, self.reached)

    def undecided(self, at: int) -> Sequence[Stretch | JobStep]:
        """Return what the job does from `reached` up to `at` (ns, no later than the horizon), as far as known then.

        A step that is open ends at `at`, with the flag ``OPEN``.
        """
        if self.reached == NOT_KNOWN:
            begin = min((one.joined for one in self._ranks.values()), default=at)
        else:
            begin = self.reached
        expected = {
            rank: one
            for rank, one in self._ranks.items()
            if one.left == NOT_KNOWN and (one.taken or self.reached == NOT_KNOWN)
        }
        heads = {rank: one.steps[0] for rank, one in expected.items() if one.steps and one.steps[0].begin <= at}
        if begin >= at or not (expected or self._ranks):
            return []
        ended = [step for step in heads.values() if NOT_KNOWN < step.end <= at]
        if ended:
            number = min(ended, key=lambda step: step.end).number
        else:
            number = min((step.number for step in heads.values()), default=NO_STEP)
        members = {rank: step for rank, step in heads.items() if step.number == number}
        missing = [] if ended else sorted(rank for rank in expected if rank not in members)
        begins = sorted((step.begin, rank) for rank, step in members.items())
        away = any(one.left != NOT_KNOWN and one.taken for one in self._ranks.values())
        if members and not missing and not away:
            since = max(begin, begins[-1][0])
            others = [moment for moment, rank in begins[:-1]]
            ready = others[(len(others) - 1) // 2] if others else since
            gap = self._between(begins[-1][1], since, ready, begin) if since > begin else []
            return [*gap, JobStep(number, since, at, OPEN, self._within(members, since, at))]
        ready = begins[(len(expected) - 2) // 2][0] if len(missing) == 1 and begins else at
        return self._between(missing[0] if missing else self._lasting(), at, ready, begin)

    def _lasting(self) -> int:
        """Return the rank that is still there; the first of several, or the one that ended last."""
        ranks = self._ranks
        return max(ranks, key=lambda rank: (ranks[rank].left == NOT_KNOWN, ranks[rank].left, -rank))

    # --- steps --------------------------------------------------------------------------------------------------------

    def _decide(self) -> None:
        while self._decide_step():
            pass

    def _decide_step(self) -> bool:
        """Decide what the job did up to the end of its next step; return False if that is not known yet."""
        ranks = self._ranks.values()
        for one in ranks:
            while one.steps and one.steps[0].end != NOT_KNOWN and self._is_late(one):
                one.drop()
                self.apart += 1
        ended = [one.steps[0] for one in ranks if one.steps and one.steps[0].end != NOT_KNOWN]
        if not ended:
            return False
        first = min(ended, key=lambda step: step.end)
        if any(one.known < first.end and one.left == NOT_KNOWN for one in ranks):
            return False
        members = {
            rank: one.steps[0]
            for rank, one in self._ranks.items()
            if one.steps and one.steps[0].number == first.number and one.steps[0].begin <= first.end + self.spread
        }
        died = any(step.flags & DIED for step in members.values())
        if not died and any(step.end == NOT_KNOWN for step in members.values()):
            if max(len(self._ranks[rank].steps) for rank in members) <= WAITING:
                return False
            members = {rank: step for rank, step in members.items() if step.end != NOT_KNOWN}
            self.apart += 1
        if self.reached == NOT_KNOWN:
            self.reached = min(one.joined for one in ranks)
        if self._goes_on(first.number, members):
            self._conclude(first.number, members)
        self._take_part(members)
        return True

    def _is_late(self, one: _Rank) -> bool:
        """Whether a rank had not begun its first step here when the others had ended it."""
        return NO_STEP < one.latest < one.steps[0].number <= self._number

    def _goes_on(self, number: int, members: dict[int, RankStep]) -> bool:
        """Whether step `number` is the job's next one: it is above the latest, or most of the ranks went back to it."""
        died = {rank: step for rank, step in members.items() if step.flags & DIED}
        if all(step.flags & FAILED and self._hung(rank, step) for rank, step in (died or members).items()):
            return False
        before = sum(one.taken for one in self._ranks.values())
        return number > self._number or 2 * sum(self._ranks[rank].went_back for rank in members) >= max(1, before)

    def _hung(self, rank: int, step: RankStep) -> bool:
        """Whether another rank was away when `step` ended, so that it could not be completed."""
        return any(
            piece.category == RECOVERY and (piece.begin, other) < (step.end, rank) and step.end <= piece.end
            for other, one in self._ranks.items()
            for piece in one.pieces_until(step.end + 1)
        )

    def _conclude(self, number: int, members: dict[int, RankStep]) -> None:
        """Write down the time up to the end of step `number`, which is that of `members`."""
        begins = sorted((step.begin, rank) for rank, step in members.items())
        begin, last = max(self.reached, begins[-1][0]), begins[-1][1]
        deaths = [step.end for step in members.values() if step.flags & DIED]
        if deaths:
            end, flags = max(begin, min(deaths)), FAILED
        else:
            end, flags = max(begin, *(step.end for step in members.values())), 0
            for step in members.values():
                flags |= step.flags
            self._number = number
        early = self.reached - self.spread
        self.common += len(members) > 1
        self.apart += any(
            step.begin < early and not self._ranks[rank].taken and self._ranks[rank].latest != NO_STEP
            for rank, step in members.items()
        )
        others = [moment for moment, rank in begins if rank != last]
        ready = others[(len(others) - 1) // 2] if others else begin
        self._decided += self._between(last, begin, ready, self.reached)
        self._decided.append(JobStep(number, begin, end, flags, self._within(members, begin, end)))
        self.reached = end

    def _take_part(self, members: dict[int, RankStep]) -> None:
        """Go on behind a step of `members`; those that do not know yet that another one died are still in it."""
        interrupted = any(step.flags & DIED for step in members.values())
        for one in self._ranks.values():
            one.taken = one.taken and interrupted
            while one.pieces and one.pieces[0].end <= self.reached:
                one.pieces.popleft()
        for rank, step in members.items():
            one = self._ranks[rank]
            one.taken = True
            if not interrupted or step.flags & FAILED:
                one.drop()

    # --- time ---------------------------------------------------------------------------------------------------------

    def _between(self, rank: int, until: int, since: int, reached: int) -> list[Stretch]:
        """Return the time from `reached` on in which the job waits for `rank`, which begins the next step at `until`.

        Most of the others could work from `since` on. Whoever is away has the job wait for it first.
        """
        ranks = self._ranks
        away = [
            (one, piece)
            for one, each in ranks.items()
            for piece in each.pieces_until(until)
            if piece.category == RECOVERY and piece.end > reached
        ]
        edges = {reached, until, min(max(since, reached), until)}
        edges |= {min(max(edge, reached), until) for _, piece in away for edge in piece[:2]}
        own = list(_covering(ranks[rank].pieces_until(until), reached, until))
        edges |= {piece.begin for piece in own}
        stretches: list[Stretch] = []
        pieces = iter(own)
        piece = next(pieces, None)
        for begin, end in pairwise(sorted(edges)):
            while piece is not None and piece.end <= begin:
                piece = next(pieces, None)
            gone = [(who, one) for who, one in away if one.begin <= begin and one.end >= end]
            if gone:
                waits = len(ranks) > 1 and 2 * len(gone) <= len(ranks)
                longest, _ = max(gone, key=lambda one: (one[1].end, -one[0]))
                stretches.append(Stretch(begin, end, RECOVERY, "", longest, waits))
            elif piece is not None:
                stretches.append(Stretch(begin, end, piece.category, piece.name, rank, begin >= since))
        return stretches

    def _within(self, members: dict[int, RankStep], begin: int, end: int) -> tuple[Stretch, ...]:
        """Return the time of a step of `members`, which lasts from `begin` to `end` (ns).

        It is the step's, but for what ranks do besides in theirs: then it is of the one that takes longest.
        """
        ends = {rank: end if step.end == NOT_KNOWN else min(step.end, end) for rank, step in members.items()}
        nested = [
            (rank, piece._replace(end=min(piece.end, until)))
            for rank, until in ends.items()
            for piece in self._ranks[rank].pieces_until(until)
            if piece.end > begin
        ]
        edges = {begin, end, *(min(max(edge, begin), end) for _, piece in nested for edge in piece[:2])}
        stretches: list[Stretch] = []
        for since, until in pairwise(sorted(edges)):
            inside = [(rank, piece) for rank, piece in nested if piece.begin <= since and piece.end >= until]
            if inside:
                rank, piece = max(inside, key=lambda one: (one[1].end, -one[0]))
                waits = len(members) > 1 and 2 * len(inside) <= len(members)
                stretches.append(Stretch(since, until, piece.category, piece.name, rank, waits))
            else:
                stretches.append(Stretch(since, until, STEP_TIME, "", NOBODY, False))
        return tuple(stretches)


def _covering(pieces: Iterable[Piece], begin: int, end: int) -> Iterator[Piece]:
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

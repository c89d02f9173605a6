"""What a rank did in a long undisturbed loop as columns, and what many ranks did in theirs, together (rule R11).

A journal has thousands of steps in a row in which nothing else happens, and so have those of the other ranks. Of these,
each step of the job follows from the begins and ends of that step on all ranks alone.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from operator import sub
from typing import Final, NamedTuple

from otel_goodput._accounting.events import NO_STEP, NOT_KNOWN, Column
from otel_goodput._accounting.ranks import (
    NEVER,
    NOBODY,
    STEP_TIME,
    JobStep,
    Piece,
    RankMerger,
    RankStep,
    Stretch,
)  # fmt: skip
from otel_goodput._accounting.rules import DATA_LOADING_TIME, RECOVERY

FEWEST: Final = 64  # steps: fewer are kept one by one
LONGEST: Final = "q"  # of times, ns
_make: Final = tuple.__new__


class StepColumns(NamedTuple):
    """Steps of a rank in a row, with their begins and ends (ns). Between two of them, it loads data.

    Neither steps nor loads are empty.
    """

    numbers: Sequence[int]
    begins: Sequence[int]
    ends: Sequence[int]

    @classmethod
    def packed(cls, numbers: Sequence[int], begins: Column, ends: Column) -> StepColumns:
        """Return them in little space."""
        following = range(numbers[0], numbers[-1] + 1)  # they rise
        kept = following if len(following) == len(numbers) else array(LONGEST, numbers)
        return cls(kept, array(LONGEST, begins), array(LONGEST, ends))

    def slice(self, begin: int, end: int) -> StepColumns:
        """Return those at the places from `begin` up to, not including, `end`."""
        return StepColumns(*(column[begin:end] for column in self))

    def steps(self, begin: int = 0, end: int | None = None) -> list[RankStep]:
        """Return the same one by one."""
        end = len(self.numbers) if end is None else end
        numbers, begins, ends = self.slice(begin, end)
        return [*map(_make, repeat(RankStep), zip(numbers, begins, ends, repeat(0), strict=False))]

    def pieces(self, begin: int = 0, end: int | None = None) -> list[Piece]:
        """Return the loads before each of them, apart from that before the first of all."""
        end = len(self.numbers) if end is None else end
        first = max(begin, 1)
        loads = zip(
            self.ends[first - 1 : end - 1],
            self.begins[first:end],
            repeat(DATA_LOADING_TIME),
            repeat(""),
            strict=False,
        )
        return [*map(_make, repeat(Piece), loads)]


class RankPart(NamedTuple):
    """Steps and pieces of a rank, each in order."""

    steps: Sequence[RankStep]
    pieces: Sequence[Piece]


class RankParts:
    """The steps and pieces of a rank in parts, in order; most of them are columns."""

    def __init__(self, parts: Iterable[RankPart | StepColumns]) -> None:
        self.parts = [part for part in parts if isinstance(part, StepColumns) or part.steps or part.pieces]

    @property
    def steps(self) -> list[RankStep]:
        """All of them, one by one."""
        return [step for steps, _ in self._each() for step in steps]

    @property
    def pieces(self) -> list[Piece]:
        """All of them, one by one."""
        return [piece for _, pieces in self._each() for piece in pieces]

    @property
    def latest(self) -> RankStep | None:
        """The last step; None if there is none."""
        for part in reversed(self.parts):
            steps = part.steps(len(part.numbers) - 1) if isinstance(part, StepColumns) else part.steps
            if steps:
                return steps[-1]
        return None

    @property
    def absences(self) -> list[Piece]:
        """When it was away until it came back."""
        parts = (part for part in self.parts if isinstance(part, RankPart))
        return [piece for part in parts for piece in part.pieces if piece.category == RECOVERY]

    def multiples(self, every: int) -> Iterator[RankStep]:
        """Yield the steps whose numbers are multiples of `every`, the last one first."""
        for part in reversed(self.parts):
            if isinstance(part, StepColumns):
                for at in range(len(part.numbers) - 1, -1, -1):
                    if not part.numbers[at] % every:
                        yield from part.steps(at, at + 1)
            else:
                yield from (step for step in reversed(part.steps) if not step.number % every)

    def _each(self) -> Iterator[RankPart]:
        for part in self.parts:
            yield RankPart(part.steps(), part.pieces()) if isinstance(part, StepColumns) else part


class RankWalk:
    """Walks through what a rank did up to `known` (ns)."""

    def __init__(self, parts: RankParts, known: int) -> None:
        self._parts, self._known = parts.parts, known
        self._part = self._at = 0  # the next part, the next step in it if that is columns
        self.over = False

    @property
    def ahead(self) -> tuple[StepColumns, int] | None:
        """The columns that the walk is in, and the place of the next step there; None if it is not in any."""
        part = self._parts[self._part] if self._at else None
        return (part, self._at) if isinstance(part, StepColumns) else None

    @property
    def number(self) -> int:
        """The number of the next step that is in columns; ``NO_STEP`` if there is none."""
        coming = (part for part in self._parts[self._part :] if isinstance(part, StepColumns))
        part = next(coming, None)
        return NO_STEP if part is None else part.numbers[self._at]

    def pass_by(self, count: int) -> None:
        """Go on by so many steps in the columns."""
        columns = self.ahead
        if columns is not None:
            self._at += count
            if self._at == len(columns[0].numbers):
                self._part, self._at = self._part + 1, 0

    def until(self, number: int) -> tuple[list[RankStep], list[Piece], int]:
        """Go on to behind the step `number` in columns; return the steps and pieces up to there, and up to when."""
        steps, pieces = list[RankStep](), list[Piece]()
        while self._part < len(self._parts):
            part = self._parts[self._part]
            if not isinstance(part, StepColumns):
                steps += part.steps
                pieces += part.pieces
                self._part += 1
                continue
            first = self._at
            behind = max(first, bisect_right(part.numbers, number))
            steps += part.steps(first, behind)
            pieces += part.pieces(first, behind)
            if behind < len(part.numbers):
                self._at = behind
                return steps, pieces, steps[-1].end if steps else NOT_KNOWN
            self._part, self._at = self._part + 1, 0
        self.over = True
        return steps, pieces, self._known


class ColumnMerger(RankMerger):
    """Decides steps together that all ranks have in columns."""

    def decide_columns(self, ranks: Mapping[int, tuple[StepColumns, int]], most: int) -> int:
        """Decide the next steps of the job, up to `most`; return how many these are.

        They are those of `ranks`, each of which goes on at a place in its columns, where the step before is the job's
        latest. Steps after which the ranks do not go on together, or may not, are left to :meth:`feed`.
        """
        limit = self._quiet(ranks)
        if limit == NOT_KNOWN:
            return 0
        count = min([most, *(len(columns.numbers) - at for columns, at in ranks.values())])
        own = [(rank, columns.slice(at, at + count)) for rank, (columns, at) in sorted(ranks.items())]
        numbers, *others = (columns.numbers for _, columns in own)
        if not numbers or numbers[0] <= self._number or any(other != numbers for other in others):
            return 0
        begins = list(zip(*(columns.begins for _, columns in own), strict=True))
        ends = list(zip(*(columns.ends for _, columns in own), strict=True))
        each = zip(numbers, map(max, begins), map(min, ends), map(max, ends), begins, strict=True)
        names, middle, spread, reached = [rank for rank, _ in own], (len(own) - 2) // 2, self.spread, self.reached
        decided = self._decided
        done = 0
        for number, latest, first, end, row in each:
            if latest > first + spread or first > limit:
                break
            begin = reached
            if latest > reached:
                begin = latest
                rank = names[len(row) - 1 - row[::-1].index(latest)]
                # As small numbers, they are sorted in half the time.
                ready = reached + max(0, sorted(map(sub, row, repeat(reached)))[middle]) if others else latest
                if ready > reached:
                    decided.append(_make(Stretch, (reached, ready, DATA_LOADING_TIME, "", rank, False)))
                if ready < latest:
                    decided.append(_make(Stretch, (ready, latest, DATA_LOADING_TIME, "", rank, True)))
            reached = max(begin, end)
            inside = (_make(Stretch, (begin, reached, STEP_TIME, "", NOBODY, False)),) if begin < reached else ()
            decided.append(_make(JobStep, (number, begin, reached, 0, inside)))
            done += 1
        if done:
            self._pass_by(numbers[done - 1], reached, {rank: columns.ends[done - 1] for rank, columns in own})
            self.common += done * (len(own) > 1)
        return done

    def _quiet(self, ranks: Collection[int]) -> int:
        """Return up to when (ns) nothing is known of others than `ranks`, all of which wait; ``NOT_KNOWN`` if not."""
        if (
            self.expected
            or self._absent
            or self.reached == NOT_KNOWN
            or self._open != NOBODY
            or self._broken != NO_STEP
            or any(one.steps for one in self._ranks.values())
        ):
            return NOT_KNOWN
        limit = NEVER
        for rank, one in self._ranks.items():
            if rank in ranks:
                if not one.taken or one.left != NOT_KNOWN or one.pieces:
                    return NOT_KNOWN
            elif one.left == NOT_KNOWN:
                limit = min(limit, one.known)
        return limit

    def _pass_by(self, number: int, reached: int, known: Mapping[int, int]) -> None:
        """Go on behind step `number`, which each of the ranks that took part has ended when it is `known`, ns."""
        self.reached, self._number, self._soonest = reached, number, NEVER
        for rank, one in self._ranks.items():
            one.taken = rank in known
            if one.taken:
                one.latest, one.known = number, max(one.known, known[rank])
            while one.pieces and one.pieces[0].end <= reached:
                one.pieces.popleft()

"""What a rank did in a long undisturbed loop as columns, and what many ranks did in theirs, together (rule R11).

A journal has thousands of steps in a row in which nothing else happens, and so have those of the other ranks. Of these,
each step of the job follows from the begins and ends of that step on all ranks alone.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise, repeat
from operator import le, lt
from typing import Final, NamedTuple, TypeAlias

from otel_goodput._accounting.arithmetic import PLAIN, WHOLE, Arithmetic
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
BLOCK: Final = 2048  # steps that are kept together at most, if they were applied one by one
_make: Final = tuple.__new__


class StepColumns(NamedTuple):
    """Steps of a rank in a row, with their begins and ends (ns). Between two of them, it loads data, or nothing is.

    No step is empty. `since`: the end of the step right before them, which is in columns, too, from when on it loads
    data; ``NOT_KNOWN`` if something else is before them.
    """

    numbers: Sequence[int]
    begins: Sequence[int]
    ends: Sequence[int]
    since: int = NOT_KNOWN

    @classmethod
    def packed(cls, numbers: Sequence[int], begins: Column, ends: Column, since: int = NOT_KNOWN) -> StepColumns:
        """Return them in little space."""
        following = range(numbers[0], numbers[-1] + 1)  # they rise
        kept = following if len(following) == len(numbers) else array(WHOLE, numbers)
        begun, ended = (column if isinstance(column, array) else array(WHOLE, column) for column in (begins, ends))
        return cls(kept, begun, ended, since)

    def behind(self, before: StepColumns | None, steps: Sequence[RankStep], pieces: Sequence[Piece]) -> StepColumns:
        """Return them behind the columns `before`, with the `steps` in between, if nothing else is there.

        `pieces` are all between the two.
        """
        if before is None or not steps:
            if (
                before is None
                or [*pieces] != _loads((before.ends[-1],), self.begins)
                or self.begins[0] < before.ends[-1]
            ):
                return self
            return self._replace(since=before.ends[-1])
        numbers, begins, ends, flags, counts = zip(*steps, strict=True)
        sinces, untils = (before.ends[-1], *ends), (*begins, self.begins[0])
        rising = before.numbers[-1], *numbers, self.numbers[0]
        if (
            any(flags)
            or any(count > 1 for count in counts)
            or [*pieces] != _loads(sinces, untils)
            or not all(one < other for one, other in pairwise(rising))
            or not all(map(le, sinces, untils))
            or not all(map(lt, begins, ends))
        ):
            return self
        return StepColumns.packed(numbers, begins, ends, before.ends[-1]).followed(self)

    def slice(self, begin: int, end: int) -> StepColumns:
        """Return those at the places from `begin` up to, not including, `end`."""
        since = self.since if not begin else self.ends[begin - 1]
        return StepColumns(self.numbers[begin:end], self.begins[begin:end], self.ends[begin:end], since)

    def followed(self, columns: StepColumns) -> StepColumns:
        """Return these and those right behind them."""
        numbers: Sequence[int] = range(self.numbers[0], columns.numbers[-1] + 1)
        if len(numbers) != len(self.numbers) + len(columns.numbers):
            numbers = (*self.numbers, *columns.numbers)
        begins = array(WHOLE, self.begins) + array(WHOLE, columns.begins)
        ends = array(WHOLE, self.ends) + array(WHOLE, columns.ends)
        return StepColumns.packed(numbers, begins, ends, self.since)

    def steps(self, begin: int = 0, end: int | None = None) -> list[RankStep]:
        """Return the same one by one."""
        numbers, begins, ends, _ = self.slice(begin, len(self.numbers) if end is None else end)
        return [*map(_make, repeat(RankStep), zip(numbers, begins, ends, repeat(0), repeat(1), strict=False))]

    def pieces(self, begin: int = 0, end: int | None = None) -> list[Piece]:
        """Return the loads before each of them; before the first of all only if that follows columns."""
        _, begins, ends, since = self.slice(begin, len(self.numbers) if end is None else end)
        sinces = [since, *ends[:-1]]
        first = since == NOT_KNOWN
        return _loads(sinces[first:], begins[first:])


def _loads(sinces: Sequence[int], untils: Sequence[int]) -> list[Piece]:
    """Return the loads from one moment to another one (ns) each, but for empty ones."""
    return [
        _make(Piece, (since, until, DATA_LOADING_TIME, ""))
        for since, until in zip(sinces, untils, strict=False)
        if since < until
    ]


class RankPart(NamedTuple):
    """Steps and pieces of a rank, each in order."""

    steps: Sequence[RankStep]
    pieces: Sequence[Piece]


Part: TypeAlias = "RankPart | StepColumns"


class RankParts:
    """The steps and pieces of a rank in parts, in order; most of them are columns. No part is empty."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = parts

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
    def stepped(self) -> bool:
        """Whether a step is over."""
        return any(
            isinstance(part, StepColumns) or any(step.end != NOT_KNOWN for step in part.steps) for part in self.parts
        )

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


def in_columns(part: RankPart) -> Iterator[Part]:
    """Yield the same in parts of which those are columns in which nothing else happens than in columns."""
    steps, pieces = part
    given = taken = at = piece = 0
    while at < len(steps):
        first = at
        while piece < len(pieces) and pieces[piece].begin < steps[first].begin:
            piece += 1
        begun = piece
        at = max(first + 1, behind_usual(steps, pieces, first, piece))
        if at - first < FEWEST:
            continue
        while piece < len(pieces) and pieces[piece].end <= steps[at - 1].begin:
            piece += 1
        if first > given or begun > taken:
            yield RankPart(steps[given:first], pieces[taken:begun])
        given, taken = at, piece
        numbers, begins, ends, *_ = zip(*steps[first:at], strict=True)
        columns = StepColumns.packed(numbers, begins, ends)
        yield from (columns.slice(begin, begin + BLOCK) for begin in range(0, at - first, BLOCK))
    if len(steps) > given or len(pieces) > taken:
        yield RankPart(steps[given:], pieces[taken:])


def behind_usual(steps: Sequence[RankStep], pieces: Sequence[Piece], first: int, piece: int) -> int:
    """Return the place behind the last step, from the `first` on, up to which there are steps and loads only.

    `piece`: the place of the first piece that does not begin before that step.
    """
    if piece and pieces[piece - 1].end > steps[first].begin:
        return first
    before: RankStep | None = None
    for at in range(first, len(steps)):
        step = steps[at]
        if step.flags or step.steps > 1 or not step.begin < step.end:
            return at
        if before is not None:
            if step.number <= before.number:
                return at
            if step.begin > before.end:
                if piece == len(pieces) or pieces[piece] != (before.end, step.begin, DATA_LOADING_TIME, ""):
                    return at
                piece += 1
            elif step.begin < before.end:
                return at
        if piece < len(pieces) and pieces[piece].begin < step.end:
            return at
        before = step
    return len(steps)


def absences_in(part: Part) -> list[Piece]:
    """Return when the rank was away until it came back."""
    return [] if isinstance(part, StepColumns) else [piece for piece in part.pieces if piece.category == RECOVERY]


class RankWalk:
    """Walks through what a rank did up to `known` (ns)."""

    def __init__(self, parts: RankParts, known: int) -> None:
        self._parts, self._known = parts.parts, known
        self._part = self._at = 0  # the next part, the next step in it if that is columns
        self.over = False

    def ahead(self, most: int) -> StepColumns | None:
        """Return up to `most` of the next steps that are in columns behind others; None if there are none."""
        part, at, columns = self._part, self._at, None
        while part < len(self._parts):
            coming = self._parts[part]
            if not isinstance(coming, StepColumns) or (not at and coming.since == NOT_KNOWN):
                break
            some = coming.slice(at, at + most)
            most -= len(some.numbers)
            columns = some if columns is None else columns.followed(some)
            if not most:
                break
            part, at = part + 1, 0
        return columns

    @property
    def number(self) -> int:
        """The number of the next step that is in columns; ``NO_STEP`` if there is none."""
        at = self._at
        for place in range(self._part, len(self._parts)):
            part = self._parts[place]
            if isinstance(part, StepColumns):
                return part.numbers[at]
            at = 0
        return NO_STEP

    def pass_by(self, count: int) -> None:
        """Go on by so many steps in columns."""
        while count:
            part = self._parts[self._part]
            assert isinstance(part, StepColumns)
            passed = min(count, len(part.numbers) - self._at)
            count, self._at = count - passed, self._at + passed
            if self._at == len(part.numbers):
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

    def decide_columns(self, ranks: Mapping[int, StepColumns], most: int, arithmetic: Arithmetic = PLAIN) -> int:
        """Decide the next steps of the job, up to `most`; return how many these are.

        They are those of `ranks`, each of which goes on there, where the step before is the job's latest. Steps after
        which the ranks do not go on together, or may not, are left to :meth:`feed`.
        """
        limit = self._quiet(ranks)
        if limit == NOT_KNOWN:
            return 0
        count = min([most, *(len(columns.numbers) for columns in ranks.values())])
        own = [(rank, columns.slice(0, count)) for rank, columns in sorted(ranks.items())]
        numbers, *others = (columns.numbers for _, columns in own)
        if not numbers or numbers[0] <= self._number or any(other != numbers for other in others):
            return 0
        common = arithmetic.common(
            [columns.begins for _, columns in own], [columns.ends for _, columns in own], max(0, len(own) - 2) // 2
        )
        names, spread, reached, decided = [rank for rank, _ in own], self.spread, self.reached, self._decided
        done = 0
        for number, (latest, last, ready, first, end) in zip(numbers, common.each(), strict=True):
            if latest > first + spread or first > limit:
                break
            begin = reached
            if latest > reached:
                begin, rank = latest, names[last]
                ready = max(reached, ready) if others else latest
                if ready > reached:
                    decided.append(_make(Stretch, (reached, ready, DATA_LOADING_TIME, "", rank, False)))
                if ready < latest:
                    decided.append(_make(Stretch, (ready, latest, DATA_LOADING_TIME, "", rank, True)))
            reached = max(begin, end)
            inside = (_make(Stretch, (begin, reached, STEP_TIME, "", NOBODY, False)),) if begin < reached else ()
            decided.append(_make(JobStep, (number, begin, reached, 0, inside, 1)))
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

"""What a rank publishes about itself: what it did since its update before, for the account of the job (rule R11)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from operator import le, lt
from typing import Final, NamedTuple

from otel_goodput._accounting.account_state import AccountState, Noted, NotedTurns
from otel_goodput._accounting.cursor import Cursor
from otel_goodput._accounting.events import FAILED, NO_STEP, NONBLOCKING, NOT_KNOWN, Event
from otel_goodput._accounting.execution import Execution
from otel_goodput._accounting.rank_columns import FEWEST, Part, RankPart, StepColumns, in_columns
from otel_goodput._accounting.rank_groups import FEWER, MOST, grouped
from otel_goodput._accounting.ranks import DIED, ENDED, STEP_TIME, Piece, RankStep
from otel_goodput._accounting.rules import (
    CUSTOM,
    CUSTOM_PHASE,
    DATA_LOADING_TIME,
    ELASTIC_CATEGORY,
    EXCLUDED_TIME,
    EXCLUSION,
    FIXED,
    NAMES,
    OTHER,
    OWNERS,
    PROFILED,
    RECOVERY,
    STEP,
    SUSPENDED_TIME,
)  # fmt: skip
from otel_goodput.semconv import Phase

_make: Final = tuple.__new__
# Words for what a rank does, by category number or what is in place of it.
DOING: Final = {
    **dict(enumerate(NAMES)),
    STEP_TIME: Phase.STEP,
    EXCLUDED_TIME: Phase.EXCLUSION,
    SUSPENDED_TIME: "suspended",
}
_LATEST: Final = 8  # steps, one of which may have been open when the process died


class Opened(NamedTuple):
    """The innermost phase that is open on a rank.

    Attributes:
        category, name: category number and custom name; ``STEP_TIME``: a step; one of ``CUT_OUT``.
        number: of the step that it is, or that it is part of; ``NO_STEP`` if none.
        since: when it began, ns.
    """

    category: int
    name: str
    number: int
    since: int

    @property
    def phase(self) -> str:
        """The word for it: that of its category, ``step``, ``exclusion`` or ``suspended``."""
        return DOING[self.category]


class RankUpdate(NamedTuple):
    """What a rank did since its update before.

    Attributes:
        joined, left: begin and end of its latest job, ns; ``NOT_KNOWN``: none has begun; it goes on. Of a whole run,
            `joined` is the begin of the first job.
        known, at: what it did before this moment is final, but for what its open step still becomes; its last sign of
            life, ns (``known`` or later).
        steps: new ones, in order. The last one may be open; it comes again, first, in the next update, unless it turned
            out to be no step.
        pieces: time up to `known` that is no step's own, in order; one that goes on comes in parts. What is in neither
            is ``OTHER``. Time between two jobs of one process is ``RECOVERY``, unless the end of the first was `left`.
        opened: what it is doing at `at`; None if no phase is open.
        size: the steps are groups of so many, see :func:`~otel_goodput._accounting.rank_groups.grouped`.
    """

    joined: int
    known: int
    at: int
    left: int
    steps: Sequence[RankStep]
    pieces: Sequence[Piece]
    opened: Opened | None
    size: int = 1

    def after(self, moment: int) -> RankUpdate:
        """Return what it says of the time after `moment` (ns)."""
        steps = [
            one._replace(begin=max(one.begin, moment)) for one in self.steps if one.end == NOT_KNOWN or one.end > moment
        ]
        pieces = [one._replace(begin=max(one.begin, moment)) for one in self.pieces if one.end > moment]
        return self._replace(steps=steps, pieces=pieces)

    def halves(self) -> tuple[RankUpdate, RankUpdate]:
        """Return it as two updates, one after the other. Raises ValueError if it has no more than one step or piece."""
        longer = self.steps if len(self.steps) > len(self.pieces) else self.pieces
        if len(longer) < 2:
            raise ValueError("it cannot be divided")
        middle = longer[len(longer) // 2].begin
        steps = [one for one in self.steps if one.begin < middle]
        pieces = [one._replace(end=min(one.end, middle)) for one in self.pieces if one.begin < middle]
        first = self._replace(known=middle, at=middle, left=NOT_KNOWN, steps=steps, pieces=pieces, opened=None)
        rest = [one for one in self.steps if one.begin >= middle]
        return first, self.after(middle)._replace(steps=rest)


def innermost(opened: Sequence[Event], offset: int = 0) -> Opened | None:
    """Return the innermost of the `opened` phases that may own time, given by their STARTs; None if there is none.

    `offset` is added to the numbers that loops give their steps.
    """
    mine = [event for event in opened if not event.flags & NONBLOCKING]
    number = next((event.step + offset for event in reversed(mine) if event.phase == STEP), NO_STEP)
    for event in mine:
        if event.phase == EXCLUSION:  # whatever is open besides (rule R7)
            return Opened(EXCLUDED_TIME, "", number, event.time)
    for event in reversed(mine):
        if event.phase == STEP:
            return Opened(STEP_TIME, "", number, event.time)
        if event.phase == CUSTOM_PHASE:
            return Opened(CUSTOM, event.name, number, event.time)
        category = OWNERS.get(event.phase, ELASTIC_CATEGORY.get(event.name))
        if category is not None:
            return Opened(category, "", number, event.time)
    return None


class _Body:
    """What an execution owns: its first moment and its last so far, ns."""

    __slots__ = ("begin", "end", "execution", "running")

    def __init__(self, execution: Execution, begin: int, running: Mapping[int, Execution]) -> None:
        self.begin = self.end = begin
        one = running.get(execution.key)
        self.running = one is not None and one.start == execution.start
        self.execution = execution

    @property
    def category(self) -> int:
        """Of its time; ``STEP_TIME`` unless it was no step after all."""
        fate = self.execution.fate
        return fate if fate in (OTHER, DATA_LOADING_TIME) else STEP_TIME


class RankNotes:
    """What a rank's own partition is: what of it is final and was not taken yet, and what is noted beyond that.

    The cursor of the rank's ledger adds to `rows`. What is final stays, even if a phase that was recorded late puts the
    cursor back to before it.

    Args:
        whole: they are of all jobs of the rank; else of those from the next attempt on.
        in_columns: put steps into `parts`, to be taken by :meth:`taken_parts`.

    Attributes:
        rows: whose time passed, in order, as far as that is not final.
        since: what was before this moment is final, ns; ``NOT_KNOWN`` before the first job.
        steps, pieces: what is final, in order; of a whole run, after `parts`.
        size: of the groups of steps; the last group may be in parts.
    """

    def __init__(self, *, whole: bool = False, in_columns: bool = False) -> None:
        self._in_columns = in_columns
        self._most = MOST  # steps that may wait
        self.rows: list[Noted] = []
        self.steps: list[RankStep] = []
        self.pieces: list[Piece] = []
        self.parts: list[Part] = []
        self._columns: StepColumns | None = None  # the last of the parts, if that is columns
        self._whole = whole
        self._away = False  # the rank's job has not begun, or its end has been taken
        self.size = 1
        self._begin()

    def begin_attempt(self) -> None:
        """Begin with the job of the next attempt, unless the `whole` run is wanted."""
        if not self._whole:
            for noted in (self.rows, self.steps, self.pieces):
                noted.clear()
            self._begin()
            self._away = True

    def _begin(self) -> None:
        self.since = NOT_KNOWN
        self._removed = 0  # rows
        self._left = 0  # rows that were not final the last time
        self._inside = NOT_KNOWN  # pieces inside an open step have been taken up to this moment, ns
        self._open: tuple[int, int] | None = None  # key and start of that step

    @property
    def position(self) -> int:
        """The number of rows so far, those that were removed included."""
        return self._removed + len(self.rows)

    def rows_for(self, cursor: AccountState) -> list[Noted]:
        """Return the rows for a `cursor` that goes on from there; it is a copy, and so are its executions."""
        running = cursor.steps.running
        return [
            (running.get(owner.key, owner) if isinstance(owner, Execution) else owner, begin, end)
            for owner, begin, end in self.rows
        ]

    def go_back(self, position: int, cursor: AccountState) -> None:
        """Forget the rows from `position` on, where `cursor` is, which will note them again."""
        del self.rows[max(0, position - self._removed) :]
        self._removed = min(self._removed, position)
        self.rows[:] = self.rows_for(cursor)

    def settle(self, cursor: AccountState, position: int) -> None:
        """Take for final what can be of the rows before `position`; the cursor will not go back to before that."""
        count = position - self._removed
        if count > 2 * (len(self.rows) - count) + self._left:  # each time, all rows are looked at
            limit = self.rows[count][1] if count < len(self.rows) else cursor.now
            self._decide(cursor, self.rows, limit, broken=not self._whole)
            self._left = len(self.rows)
        self._coarsen()

    def _coarsen(self, *, taken: bool = False) -> None:
        """Group steps if too many wait, and make the groups larger until there are few; also if they are `taken`."""
        if self._whole or (len(self.steps) <= self._most and not (taken and self.size > 1)):
            return
        if self.size > 1:
            self._group()
        while len(self.steps) > self._most // FEWER:
            count, self.size = len(self.steps), 2 * self.size
            self._group()
            if 4 * len(self.steps) > 3 * count:  # steps that failed stay by themselves
                self.size //= 2
                self._most = 2 * count
                break

    def _group(self) -> None:
        steps, pieces, others, between = grouped(self.steps, self.pieces, self.size)
        self.steps, self.pieces = steps + others, pieces + between

    def take(self, ahead: Cursor, at: int, limit: int, opened: Opened | None, *, last: bool = False) -> RankUpdate:
        """Return what the rank did since the last call.

        Args:
            ahead: a copy of the cursor with rows of its own, which has gone on to `at`. Do not use it afterwards.
            at: the last sign of life, by the clock of the process, ns.
            limit: what the copy has noted is not final from this moment on, ns.
            opened: the innermost phase that is open now, by the clock of the process.
            last: all is final, because nothing more will be noted.
        """
        if last or not ahead.alive:
            ahead.close()
        self._most = MOST
        joined, left, shift = ahead.steps.job_begin, NOT_KNOWN, ahead.shift
        if self._whole:
            joined, shift = ahead.begin, 0
        if joined is None:
            return RankUpdate(NOT_KNOWN, at, at, NOT_KNOWN, (), (), opened)
        if not ahead.alive and (last or not ahead.steps.running):
            left, limit, opened = ahead.now - shift, ahead.now, None
        rows = ahead.noted or []
        body = self._decide(ahead, rows, ahead.now if last else min(limit, ahead.now), broken=last)
        self._coarsen(taken=True)
        steps, pieces, known, size = self.steps, self.pieces, self.since, self.size
        self.steps, self.pieces, self._open = [], [], None
        if size > 1:
            groups, parts, others, between = grouped(steps, pieces, size)
            if groups and others and left == NOT_KNOWN:  # the last group comes when it is complete
                steps, pieces, body = groups, parts, None
                self.steps, self.pieces = others, between
                known = min(others[0].begin, *(piece.begin for piece in between[:1]), known)
            else:
                steps, pieces = groups + others, parts + between
            if len(steps) < MOST // FEWER // 4 or sum(step.steps for step in steps) <= MOST // 2:
                self.size = size // 2
        if body is not None and not body.execution.usual:
            execution = body.execution
            self._open = execution.key, execution.start
            steps.append(RankStep(execution.number, body.begin, NOT_KNOWN))
            if body.running:
                self.pieces = pieces
                self._add_inside(ahead, rows, body)
                self.pieces, known = [], ahead.now
        self._away = left != NOT_KNOWN and not self._whole
        if shift:
            steps = [
                one._replace(begin=one.begin - shift, end=one.end - shift if one.end != NOT_KNOWN else NOT_KNOWN)
                for one in steps
            ]
            pieces = [one._replace(begin=one.begin - shift, end=one.end - shift) for one in pieces]
        at = max(at, known - shift)
        return RankUpdate(joined - shift, known - shift, at, left, steps, pieces, opened, size)

    def taken_parts(self) -> Iterator[Part]:
        """Yield the parts since the last call."""
        parts, self.parts = self.parts, []
        for part in parts:
            yield from in_columns(part) if isinstance(part, RankPart) else (part,)

    def _decide(self, cursor: AccountState, rows: Sequence[Noted], limit: int, *, broken: bool = False) -> _Body | None:
        """Take for final what can be of `rows`, before `limit` (ns).

        `broken`: a step that is open on the host although another one has begun since then will not end any more.
        Returns what of an execution is not final then, if that is why not more is.
        """
        bodies: dict[tuple[int, int], _Body] = {}
        running, profiled, latest = cursor.steps.running, cursor.name_index.get(PROFILED), None
        for owner, begin, end in rows:
            if isinstance(owner, Execution) and begin < end:
                key = owner.key, owner.start
                body = bodies.get(key)
                if body is None:
                    body = bodies[key] = _Body(owner, begin, running)
                body.end, body.execution = end, owner
                latest = body
            elif owner == profiled and latest is not None and latest.end == begin:  # the end of a step (rule R12)
                latest.end = end
        for body in [*bodies.values()][:-1] if broken else ():
            body.running = body.running and not body.execution.on_host
        until = min([limit, *(body.begin for body in bodies.values() if body.running)])
        while torn := [body.begin for body in bodies.values() if body.begin < until < body.end]:
            until = min(torn)
        for owner, begin, end in rows:
            if begin >= until:
                break
            if self._away:
                if owner == RECOVERY:
                    continue
                self._away = False
            if isinstance(owner, int):
                self._add_piece(cursor, begin, min(end, until), owner)
            elif isinstance(owner, NotedTurns):
                self._add_turns(cursor, owner, begin)
            elif begin < end:
                body = bodies[owner.key, owner.start]
                if body.category != STEP_TIME:
                    self._add_piece(cursor, begin, end, body.category)
                elif begin == body.begin:
                    self._add_step(body)
        self.since = max(self.since, until)
        final = next((at for at, (_, _, end) in enumerate(self.rows) if end > until), len(self.rows))
        del self.rows[:final]
        self._removed += final
        return next((body for body in bodies.values() if body.begin == until < body.end), None)

    def _add_piece(self, cursor: AccountState, begin: int, end: int, category: int) -> None:
        begin, name = max(begin, self.since, self._inside), ""
        if category == RECOVERY:
            self._mark_deaths(begin)
            name = ENDED if cursor.steps.disruptions.restarted(begin, end) else ""
        if begin >= end or category == OTHER:
            return
        piece = Piece(begin, end, category, name)
        if category >= FIXED:
            piece = Piece(begin, end, CUSTOM, cursor.names[category - FIXED])
        before = self.pieces[-1] if self.pieces else None
        if before is not None and (before.end, *before[2:]) == (begin, *piece[2:]):
            piece = self.pieces.pop()._replace(end=end)
        self.pieces.append(piece)

    def _add_step(self, body: _Body) -> None:
        execution = body.execution
        begin = max(body.begin, self.since)
        if (execution.key, execution.start) != self._open:
            begin = max(begin, self._inside)
        if begin < body.end:
            flags = FAILED if execution.failed and not execution.left else 0
            self.steps.append(RankStep(execution.number, begin, max(body.end, execution.given_up), flags))

    def _add_turns(self, cursor: AccountState, turns: NotedTurns, begin: int) -> None:
        """Add steps and the loads before them, the first of which begins at `begin` (ns)."""
        numbers, begins, ends, apart = turns
        floor = max(self.since, self._inside)
        if (
            self._in_columns
            and begin >= floor
            and len(numbers) >= FEWEST
            and (apart or (all(map(le, (begin, *ends[:-1]), begins)) and all(map(lt, begins, ends))))
        ):
            self._add_piece(cursor, begin, begins[0], DATA_LOADING_TIME)
            self._add_columns(StepColumns.packed(numbers, begins, ends))
            return
        loads = [begin, *ends[:-1]]
        if begin >= floor and all(map(lt, loads, begins)) and all(map(lt, begins, ends)):
            if self.size > 1 and numbers[-1] - numbers[0] == len(loads) - 1:
                self._add_groups(cursor, turns, loads)
                return
            self._add_piece(cursor, begin, begins[0], DATA_LOADING_TIME)
            rest = zip(loads[1:], begins[1:], repeat(DATA_LOADING_TIME), repeat(""), strict=False)
            self.pieces += map(_make, repeat(Piece), rest)
            each = zip(numbers, begins, ends, repeat(0), repeat(1), strict=False)
            self.steps += map(_make, repeat(RankStep), each)
            return
        for load, number, begin, end in zip(loads, numbers, begins, ends, strict=True):
            self._add_piece(cursor, load, begin, DATA_LOADING_TIME)
            if (begin := max(begin, floor)) < end:
                self.steps.append(RankStep(number, begin, end))

    def _add_columns(self, columns: StepColumns) -> None:
        """Add steps behind all that waits; if that is nothing but steps and loads, too, to the same columns."""
        joined = columns.behind(self._columns, self.steps, self.pieces)
        if joined.since == NOT_KNOWN and (self.steps or self.pieces):
            self.parts.append(RankPart(self.steps, self.pieces))
        self.parts.append(joined)
        self._columns, self.steps, self.pieces = joined, [], []

    def _add_groups(self, cursor: AccountState, turns: NotedTurns, loads: Sequence[int]) -> None:
        """Add successive steps, which `loads` begin before, as groups, of which the first and the last may be parts."""
        numbers, begins, ends, _ = turns
        first = 0
        while first < len(numbers):
            behind = min(first + 1 + -numbers[first] % self.size, len(numbers))
            end = ends[behind - 1]
            begin = end - sum(ends[first:behind]) + sum(begins[first:behind])
            self._add_piece(cursor, loads[first], begin, DATA_LOADING_TIME)
            self.steps.append(RankStep(numbers[behind - 1], begin, end, steps=behind - first))
            first = behind

    def _add_inside(self, cursor: AccountState, rows: Sequence[Noted], body: _Body) -> None:
        """Add the pieces inside the step that is open."""
        for owner, begin, end in rows:
            if begin < body.begin:
                continue
            if isinstance(owner, int):
                self._add_piece(cursor, begin, end, owner)
                self._inside = max(self._inside, end)
            elif not isinstance(owner, Execution) or (owner.key, owner.start) != self._open:
                return

    def _mark_deaths(self, time: int) -> None:
        """Mark the steps that the end of the process at `time` (ns) interrupted."""
        for at, step in enumerate(self.steps[-_LATEST:], max(0, len(self.steps) - _LATEST)):
            if step.end == time and step.flags & FAILED:
                self.steps[at] = step._replace(flags=step.flags | DIED)

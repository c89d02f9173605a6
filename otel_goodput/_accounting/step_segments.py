"""Segments of consecutive steps, and the start-up hidden in the first step of each (rule R5)."""

from __future__ import annotations

from otel_goodput._accounting.codec import COUNT, FLAG, MASK, NUMBER, PARTS, TEXT, Each, Optional, Row, State, field
from otel_goodput._accounting.progress import Progress
from otel_goodput._accounting.rules import FIRST_EXECUTION, STARTUP_SAMPLE
from otel_goodput._accounting.stats import median


class Life(State):
    """What the accounting of steps needs to know about one attempt.

    Attributes:
        number: number of the attempt, from 0.
        first_segment: index of its first segment of steps.
        begun: its job has started (a job can start more than once).
        steps_started: a step has started since.
        compiles_seen: compilations are recorded in it, so start-up is estimated only of first steps that compile.
        compiled: names of the functions compiled so far.
    """

    number: int = field(NUMBER)
    first_segment: int = field(COUNT)
    begun: bool = field(FLAG, False)
    steps_started: bool = field(FLAG, False)
    compiles_seen: bool = field(FLAG, False)
    compiled: frozenset[str] = field(Each(TEXT, make=frozenset), frozenset())

    def __init__(self, number: int, first_segment: int) -> None:
        self.number = number
        self.first_segment = first_segment

    def compile(self, function: str) -> bool:
        """Record a compilation; returns whether this attempt had compiled `function` before (False without a name)."""
        again = function in self.compiled
        if function and not again:
            self.compiled |= {function}
        return again


class StepSegment(State):
    """Consecutive steps, from a start or rollback to the next.

    Attributes:
        attempt: number of its attempt, from 0.
        compiles_seen: compilations are recorded in that, see :class:`Life`.
        begin: start of its first step, ns.
        low, high: the segment's part of the kept stack, as indices `low` up to, not including, `high`.
        first_index: index of its first completed step in the kept stack, None if it is not kept.
        first_net: net time of its first completed step, ns; None until one has completed.
        first_start: when that step started, ns.
        first_ordinal: its ordinal, where executions have one from their start; not stored.
        compiles: a compilation was recorded inside that step, and it did not stand still.
        pieces: own time of that step in order, as (ns, mask of open windows); empty if there are no windows.
        spots: where in the bins of the run its time passed that is not excluded, in order.
        lost_to: number of the disruption (from 1) that lost its first completed step, else 0.
        starts: number of the disruption (from 1) whose job's first completed step is its first one, too, else 0.
        lost: net times (ns) of its lost steps without the first completed one, up to a bound.
    """

    attempt: int = field(NUMBER)
    compiles_seen: bool = field(FLAG)
    begin: int = field(NUMBER)
    low: int = field(COUNT)
    high: int = field(COUNT)
    first_net: int | None = field(Optional(NUMBER))
    first_index: int | None = field(Optional(COUNT))
    first_start: int = field(NUMBER, 0)
    pieces: list[tuple[int, int]] = field(Each(Row(NUMBER, MASK)), make=list)
    lost: list[int] = field(Each(NUMBER), make=list)
    lost_to: int = field(COUNT, 0)
    spots: tuple[tuple[int, int], ...] = field(PARTS, ())
    starts: int = field(COUNT, 0)
    compiles: bool = field(FLAG, False)
    first_ordinal = -1
    _known: int | None = None

    def __init__(self, life: Life, low: int, begin: int) -> None:
        super().__init__()
        self.attempt, self.compiles_seen = life.number, life.compiles_seen
        self.begin = begin
        self.low = self.high = low

    def move_to(self, length: int, time: int) -> None:
        """Have the segment, which is empty, begin at `time` (ns) on top of a kept stack of `length`."""
        self.low = self.high = length
        self.begin = time

    def grow(self, count: int = 1) -> None:
        """Count `count` more kept steps of this segment, on top of the stack."""
        if self.high - self.low <= STARTUP_SAMPLE:
            self._known = None
        self.high += count

    def add_lost(self, net: int) -> None:
        if len(self.lost) < STARTUP_SAMPLE:
            self.lost.append(net)
        self._known = None

    def cut_to(self, length: int, popped: list[int], disruption: int) -> None:
        """Follow a cut of the kept stack to `length` by `disruption`; `popped` are the net times (ns) cut off."""
        if self.high <= length:
            return
        for index in range(max(self.low, length), self.high):
            if index == self.first_index:
                continue
            if len(self.lost) >= STARTUP_SAMPLE:
                break
            self.lost.append(popped[index - length])
        if self.first_index is not None and self.first_index >= length:
            self.first_index = None
            self.lost_to = disruption
        self.high = max(self.low, length) if self.low < length else length
        self.low = min(self.low, length)
        self._known = None

    def forget(self) -> None:
        """The net time of one of its steps has changed."""
        self._known = None

    def make_room(self, index: int, own: bool) -> None:
        """Follow an insertion into the kept stack at `index`; `own`: the entry belongs to this segment."""
        if self.low > index or (self.low == index and not own):
            self.low += 1
            self.high += 1
        elif self.high > index or own:
            self.high += 1
        if self.first_index is not None and self.first_index >= index:
            self.first_index += 1
        self._known = None

    def excess(self, progress: Progress) -> int:
        """By how much the first completed step is longer than the usual step of its segment, ns (rule R5).

        Where compilations are reported, than ten times the usual, and only if the step compiles.
        """
        seen = self.compiles_seen
        if self.first_net is None or (seen and not self.compiles):
            return 0
        if self._known is not None:
            return self._known
        others = self._others(progress) or [net for net in self.lost if net]
        usual = median(others) if others else progress.early_median(self.first_index)
        excess = 0 if usual is None else max(0, self.first_net - usual * (FIRST_EXECUTION if seen else 1))
        if others:
            self._known = excess
        return excess

    def _others(self, progress: Progress) -> list[int]:
        """Net times of the other kept steps, without those of time 0, which ran entirely after the end of the job."""
        nets = progress.nets(self.low, min(self.high, self.low + STARTUP_SAMPLE + 1))
        if self.first_index is not None:
            del nets[self.first_index - self.low : self.first_index - self.low + 1]
        return [net for net in nets[:STARTUP_SAMPLE] if net]

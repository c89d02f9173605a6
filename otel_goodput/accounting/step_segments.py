"""Segments of consecutive steps, and the start-up hidden in the first step of each (rule R5)."""

from __future__ import annotations

from typing import Any

from otel_goodput.accounting.progress import Progress
from otel_goodput.accounting.rules import FIRST_EXECUTION, STARTUP_SAMPLE
from otel_goodput.accounting.state import Stateful
from otel_goodput.accounting.stats import median


class Life(Stateful):
    """What the accounting of steps needs to know about one attempt.

    Attributes:
        number: number of the attempt, from 0.
        begun: its job has started (a job can start more than once).
        steps_started: a step has started since.
        compiles_seen: compilations are recorded in it, so start-up is estimated only of first steps that compile.
        compiled: names of the functions compiled so far.
    """

    STORED = __slots__ = ("number", "begun", "steps_started", "compiles_seen", "compiled")

    def __init__(self, number: int) -> None:
        self.number = number
        self.begun = False
        self.steps_started = False
        self.compiles_seen = False
        self.compiled: frozenset[str] = frozenset()

    def compile(self, function: str) -> bool:
        """Record a compilation; returns whether this attempt had compiled `function` before (False without a name)."""
        again = function in self.compiled
        if function and not again:
            self.compiled |= {function}
        return again

    @classmethod
    def from_state(cls, state: list[Any]) -> Life:
        life = cls(0)
        life.restore(state)
        return life


class StepSegment(Stateful):
    """Consecutive steps, from a start or rollback to the next.

    Attributes:
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

    STORED = (
        "begin",
        "low",
        "high",
        "first_net",
        "first_index",
        "first_start",
        "pieces",
        "lost",
        "lost_to",
        "spots",
        "starts",
        "compiles",
    )
    __slots__ = (*STORED, "_known", "first_ordinal", "life")

    def __init__(self, life: Life, low: int, begin: int) -> None:
        self.life = life
        self.begin = begin
        self.low = self.high = low
        self.first_net: int | None = None
        self.first_index: int | None = None
        self.first_start = 0
        self.first_ordinal = -1
        self.pieces: list[tuple[int, int]] = []
        self.spots: tuple[tuple[int, int], ...] = ()
        self.lost_to = 0
        self.starts = 0
        self.compiles = False
        self.lost: list[int] = []
        self._known: int | None = None

    def of(self, life: Life) -> StepSegment:
        """Return a copy that belongs to `life`."""
        twin = self.clone()
        twin.life = life
        return twin

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
        seen = self.life.compiles_seen
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

    @classmethod
    def from_state(cls, state: list[Any], life: Life) -> StepSegment:
        segment = cls(life, 0, 0)
        segment.restore(state)
        return segment

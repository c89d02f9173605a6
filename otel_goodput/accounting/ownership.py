"""Follows a run offline and remembers what the account only sums up: who owned each moment, and each step's fate.

:class:`Witness` is a cursor that keeps everything, so its memory grows with the run; the live account uses
:class:`~otel_goodput.accounting.cursor.Cursor`. The categories of :meth:`Witness.owners` add up to the totals of the
same events exactly.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from otel_goodput.accounting.cursor import Cursor
from otel_goodput.accounting.device import NEVER
from otel_goodput.accounting.disruption import Disruption
from otel_goodput.accounting.execution import Execution
from otel_goodput.accounting.overview import IN_FLIGHT as STILL_IN_FLIGHT
from otel_goodput.accounting.overview import KEPT, LOST, NO_STEP_DONE, NOT_KNOWN
from otel_goodput.accounting.rules import IN_FLIGHT, OTHER, PRODUCTIVE, PROGRAM_STARTUP, WASTED_PROGRESS
from otel_goodput.accounting.step_history import StepHistory
from otel_goodput.accounting.timepiece import NOBODY
from otel_goodput.accounting.windows import EXCLUDED, Edge, Window, leading
from otel_goodput.semconv import ClockState

Owner = int | Execution
CLOCKS: Final = (ClockState.DEVICE, ClockState.HOST, ClockState.UNKNOWN)
_CATEGORY: Final = {KEPT: PRODUCTIVE, LOST: WASTED_PROGRESS, STILL_IN_FLIGHT: IN_FLIGHT, NO_STEP_DONE: OTHER}


class Cost(NamedTuple):
    """A disruption, when it was felt, and the last sign of life before it (``NOT_KNOWN`` for a rollback); ns."""

    time: int
    died: int
    disruption: Disruption


class Work(NamedTuple):
    """One segment of work on the device; `owner` is an execution, or the key of another phase. `end` may be unknown."""

    begin: int
    end: int
    owner: Execution | int


class Told:
    """One execution of a step, as a witness remembers it.

    Attributes:
        execution: the account's own record of it.
        attempt: from 0.
        end: when its phase ended, ns; ``NOT_KNOWN`` if it never did.
        clock: index into ``CLOCKS``; ``NOT_KNOWN`` before it is over.
    """

    __slots__ = ("attempt", "clock", "end", "execution", "fate")

    def __init__(self, execution: Execution, attempt: int) -> None:
        self.execution = execution
        self.attempt = attempt
        self.end = NOT_KNOWN
        self.clock = NOT_KNOWN
        self.fate = STILL_IN_FLIGHT


class _History(StepHistory):
    """The history of steps that also remembers every execution and every disruption."""

    def __init__(self, windows: list[Window], witness: Witness) -> None:
        super().__init__(windows)
        self._witness = witness
        self.told: dict[Execution, Told] = {}  # in order of their starts
        self.firsts: dict[int, Execution] = {}  # by index of the segment: its first completed step
        self._stack: list[Execution] = []  # those kept, in order of their numbers
        self._numbers: list[int] = []
        self.costs: list[Cost] = []

    def start(self, number: int, key: int, time: int) -> Execution:
        execution = super().start(number, key, time)
        self.told[execution] = Told(execution, self.life.number)
        return execution

    def begin_life(self, *, gap: int, **life: Any) -> None:
        self._witness.gap = gap
        super().begin_life(gap=gap, **life)

    def _disrupt(self, disruption: Disruption) -> None:
        super()._disrupt(disruption)
        now, rollback = self._witness.now, disruption.attempt is None
        self.costs.append(
            Cost(now if rollback else now + self._witness.gap, NOT_KNOWN if rollback else now, disruption)
        )

    def _complete(self, execution: Execution) -> None:
        first = execution.step_segment.first_net is None
        super()._complete(execution)
        if first:
            segments = self.segments
            at = next(at for at in range(len(segments) - 1, -1, -1) if segments[at] is execution.step_segment)
            self.firsts[at] = execution

    def _keep(self, execution: Execution, first: bool) -> None:
        super()._keep(execution, first)
        self.told[execution].fate = KEPT
        at = bisect_left(self._numbers, execution.number)
        self._numbers.insert(at, execution.number)
        self._stack.insert(at, execution)

    def _forfeit(self, execution: Execution, fate: int) -> None:
        super()._forfeit(execution, fate)
        self.told[execution].fate = LOST if fate == WASTED_PROGRESS else NO_STEP_DONE

    def _go_back(self, number: int, disruption: int) -> int:
        at = bisect_left(self._numbers, number)
        for execution in self._stack[at:]:
            self.told[execution].fate = LOST
        del self._numbers[at:], self._stack[at:]
        return super()._go_back(number, disruption)


class Witness(Cursor):
    """A cursor that remembers who owned each moment.

    Args:
        edges: of times to exclude, as of a cursor; usually exclusions are events.

    Attributes:
        work: segments of work on the device, in order of their ends.
        excluded: (begin, end) of the excluded times, ns.
    """

    steps: _History

    def __init__(self, edges: Sequence[Edge] = ()) -> None:
        super().__init__(edges=edges)
        self.gap = 0
        self.steps = _History(self.windows, self)
        self.work: list[Work] = []
        self.excluded: list[tuple[int, int]] = []
        self._pieces: list[tuple[int, int, Owner]] = []
        self._marked: dict[tuple[int, int], int] = {}
        self.choose()

    @property
    def executions(self) -> Sequence[Told]:
        """Every execution of a step, in order of their starts."""
        return list(self.steps.told.values())

    @property
    def costs(self) -> Sequence[Cost]:
        """Every disruption. Call after :meth:`close`: start-up in a lost first step is then no longer its waste."""
        found = [Cost(cost.time, cost.died, cost.disruption.clone()) for cost in self.steps.costs]
        for segment in self.steps.segments:
            if segment.lost_to and segment.first_index is None and (excess := segment.excess(self.steps.progress)):
                hidden = leading(segment.pieces, excess, EXCLUDED)
                found[segment.lost_to - 1].disruption.wasted -= excess - hidden
        return found

    def owners(self) -> list[tuple[int, int, int]]:
        """Return (begin, end, category number) of all time that is accounted for, in order; neighbours differ."""
        startup = {
            self.steps.firsts[at]: excess
            for at, segment in enumerate(self.steps.segments)
            if at in self.steps.firsts and (excess := segment.excess(self.steps.progress))
        }
        excluded, hidden = self.excluded, 0
        found: list[tuple[int, int, int]] = []

        def own(begin: int, end: int, category: int) -> None:
            if begin < end:
                if found and found[-1][2] == category and found[-1][1] == begin:
                    begin = found.pop()[0]
                found.append((begin, end, category))

        for begin, end, owner in self._pieces:
            while hidden < len(excluded) and excluded[hidden][1] <= begin:
                hidden += 1
            visible = hidden == len(excluded) or excluded[hidden][0] >= end  # a piece is inside or outside, never both
            if isinstance(owner, int):
                category = owner
            else:
                category = _CATEGORY[self.steps.told[owner].fate]
                if left := startup.get(owner):
                    early = min(left, end - begin)
                    startup[owner] = left - early
                    if visible:
                        own(begin, begin + early, PROGRAM_STARTUP)
                    begin += early
            if visible:
                own(begin, end, category)
        return found

    def unfinished(self) -> list[Work]:
        """Return the work that has not left the device, in its order; the begin of all but the first is not known."""
        return [
            Work(max(one.begin, self.freed) if not at else NOT_KNOWN, NOT_KNOWN, self._worker(one.owner, one))
            for at, one in enumerate(self.device)
        ]

    # --- what the cursor does, remembered -----------------------------------------------------------------------------

    def _nothing_beside(self) -> bool:
        return False  # so that every moment goes through _spend()

    def _spend(self, time: int) -> None:
        begin, owner = self.now, self._owner
        if self.open_windows.mask & EXCLUDED:
            if self.excluded and self.excluded[-1][1] == begin:
                begin_excluded = self.excluded.pop()[0]
                self.excluded.append((begin_excluded, time))
            else:
                self.excluded.append((begin, time))
        if not (isinstance(owner, int) and owner == NOBODY):
            self._pieces.append((begin, time, owner))
        super()._spend(time)

    def _end_step(self, execution: Execution, flags: int) -> None:
        told = self.steps.told[execution]
        if execution.on_host:
            told.end = self.now
        super()._end_step(execution, flags)

    def _finish(self, execution: Execution) -> None:
        super()._finish(execution)
        self.steps.told[execution].clock = CLOCKS.index(ClockState.DEVICE if execution.timed else self.fallback)

    def _mark(self, owner: int, time: int, device_end: int) -> None:
        if owner in self.blockers and device_end:
            self._marked[time, self._shifted(device_end)] = owner
        super()._mark(owner, time, device_end)

    def _leave_device(self) -> None:
        segment = self.device[0]
        if segment.end < NEVER:
            begin = max(segment.begin, self.freed)
            self.work.append(Work(min(begin, segment.end), segment.end, self._worker(segment.owner, segment)))
        super()._leave_device()

    def _worker(self, owner: Owner, segment: tuple[Owner, int, int]) -> Owner:
        if not isinstance(owner, int):
            return owner
        return self._marked.get((segment[1], segment[2]), 0)

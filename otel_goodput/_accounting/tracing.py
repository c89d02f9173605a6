"""The owner of every moment of a run and what became of each step: offline, one by one, from all events of a run."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from otel_goodput._accounting import rules
from otel_goodput._accounting.cursor import Cursor
from otel_goodput._accounting.device import NEVER, DeviceSegment
from otel_goodput._accounting.events import NO_STEP
from otel_goodput._accounting.execution import Execution
from otel_goodput._accounting.overview import FATES, IN_FLIGHT, KEPT, LOST, NO_STEP_DONE, NOT_KNOWN, SKIPPED
from otel_goodput._accounting.resuming import Numbering, Resume
from otel_goodput._accounting.rules import EXCLUDED as EXCLUSION
from otel_goodput._accounting.step_summary import StepSummary
from otel_goodput.semconv import CLOCK_STATES, ClockState

EXCLUDED: Final = -1  # in place of a category: time that is cut out (rule R7)

Interval = tuple[int, int, int]  # begin, end in ns, category number

# What the time of a step is, by its fate (rule R4).
_OWNER: Final = {
    KEPT: rules.PRODUCTIVE,
    LOST: rules.WASTED_PROGRESS,
    IN_FLIGHT: rules.IN_FLIGHT,
    NO_STEP_DONE: rules.OTHER,
    SKIPPED: rules.DATA_LOADING_TIME,
}
_NONE: Final = -1
_STALLED: Final = 1 << 40
_LATEST: Final = (1 << 63) - 1  # ns


def _fitting(time: int) -> int:
    """Clip a time to what an array holds: clocks of a damaged journal may add up to more."""
    return max(-_LATEST, min(_LATEST, time))


class StepTrace(NamedTuple):
    """One execution of a step; times in ns, ``NOT_KNOWN`` if they were not observed.

    Attributes:
        attempt, number: of its attempt, from 0; of the step, which its loop had `given` another, maybe.
        wall, net: from its start to its end on the host; its own time (rule R3), with excluded time and what stalled.
        device_begin, device_end: its first moment on the device and its last.
        fate: ``KEPT``, ``LOST``, ``IN_FLIGHT``, ``NO_STEP_DONE`` or ``SKIPPED``.
        clock: index into ``semconv.CLOCK_STATES``: what its end goes by.
        failed: it was left by an exception, or it was open when its process died.
    """

    attempt: int
    number: int
    start: int
    wall: int
    net: int
    device_begin: int
    device_end: int
    fate: int
    clock: int
    failed: int
    key: int
    given: int


class DeviceTrace(NamedTuple):
    """An interval of the device's time: `step` is an index into :attr:`Tracer.step_traces`, or -1."""

    begin: int
    end: int
    step: int
    key: int
    attempt: int


class Fates(StepSummary):
    """Follows what becomes of executions, each of which has its ordinal from its start."""

    def __init__(self) -> None:
        super().__init__()
        self.fates = bytearray()  # by ordinal
        self.over: list[Execution] = []  # since it was last looked at
        self.usual: set[int] = set()  # ordinals of long steps whose stalled time was given back
        self._stack: list[int] = []  # ordinals of the kept executions

    def discard(self, execution: Execution, fate: int) -> None:
        self.fates[execution.ordinal] = FATES[fate]
        self.over.append(execution)

    def keep(self, index: int, execution: Execution, *, inserted: bool) -> None:
        self.fates[execution.ordinal] = KEPT
        self.over.append(execution)
        self._stack.insert(index, execution.ordinal)

    def take_back(self, execution: Execution, fate: int) -> None:
        self.fates[execution.ordinal] = IN_FLIGHT

    def lengthen(self, index: int, stall: Execution) -> None:
        self.usual.add(self._stack[index])

    def lose_from(self, index: int, durations: object, attempts: object) -> None:
        for ordinal in self._stack[index:]:
            self.fates[ordinal] = LOST
        del self._stack[index:]


class Tracer(Cursor):
    """A cursor that writes down what it does. It is not to be cloned.

    Args:
        exclusions: (begin, end) to cut out (rule R7), ns.
        numbering: which step each body is; None if that follows from the events, because they are all of the run.
    """

    def __init__(self, exclusions: Sequence[tuple[int, int]] = (), numbering: Numbering | None = None) -> None:
        edges = [edge for a, b in exclusions if a < b for edge in ((a, 0, True), (b, 0, False))]
        super().__init__(edges=sorted(edges))
        self._numbering = numbering
        self.fates = self.steps.summary = Fates()
        # Intervals: successive ones of one owner are one. An owner is a category number, or -1 - ordinal of a step; of
        # what stalled, less by _STALLED.
        self.begins, self.ends, self.owners, self.hidden = array("q"), array("q"), array("q"), array("b")
        self.columns = {name: array("Q" if name == "key" else "q") for name in StepTrace._fields}
        self.device_traces: list[DeviceTrace] = []
        self._phases: deque[int] = deque()  # keys of the phases that the segments of no step on the device belong to
        self._known: dict[int, Execution] = {}  # executions not written down yet, by ordinal

    @staticmethod
    def ordinal_of(owner: int) -> int | None:
        """The ordinal of the step whose time, or stalled time, an interval with this `owner` is; None if of no step."""
        if owner >= 0:
            return None
        return -1 - owner - (_STALLED if owner < -_STALLED else 0)

    def _only_totals(self) -> bool:
        return False  # so that it is told of all time that passes

    def _spend_elsewhere(self, spent: int, owner: int | Execution, *, stalled: bool = False) -> None:
        super()._spend_elsewhere(spent, owner, stalled=stalled)
        code = owner if isinstance(owner, int) else -1 - owner.ordinal - (_STALLED if stalled else 0)
        begin, end, hidden = _fitting(self.now - spent), _fitting(self.now), self.open_windows.mask & EXCLUSION
        if self.ends and self.ends[-1] == begin and self.owners[-1] == code and self.hidden[-1] == hidden:
            self.ends[-1] = end
            return
        self.begins.append(begin)
        self.ends.append(end)
        self.owners.append(code)
        self.hidden.append(hidden)

    def _start_step(self, time: int, key: int, step: int, flags: int, device_end: int) -> None:
        ordinal = len(self.fates.fates)
        before, given = self.steps.running.get(key), step
        if self._numbering is not None:
            step = self._number(self._numbering, max(time, self.now) if self.alive else time, given)
        super()._start_step(time, key, step, flags, device_end)
        execution = self.steps.running.get(key)
        if execution is None or execution is before:
            return
        execution.ordinal = ordinal
        self.fates.fates.append(IN_FLIGHT)
        self._known[ordinal] = execution
        for name, column in self.columns.items():
            column.append(key & (1 << 64) - 1 if name == "key" else given if name == "given" else NOT_KNOWN)

    def _number(self, numbering: Numbering, time: int, given: int) -> int:
        """Return which step a body is that begins at `time` (ns); one that waits for the next is skipped."""
        number = numbering.step(self.steps.life.number, time, given)
        if number != NO_STEP:
            self.steps.resume = None
            return number
        if self.steps.resume is None:
            self.steps.resume = Resume(NO_STEP, NO_STEP, own=False, usual=NEVER, room=NEVER)
        return given

    def _start_phase(self, time: int, phase: int, key: int, step: int, flags: int, name: str) -> None:
        super()._start_phase(time, phase, key, step, flags, name)
        if self._numbering is not None:
            self.steps.restores.clear()  # what they moved is known

    def _finish(self, execution: Execution) -> None:
        super()._finish(execution)
        self._write(self.fates.over)  # nothing but their fate changes any more
        self.fates.over.clear()

    def _write(self, executions: Iterable[Execution]) -> None:
        columns = self.columns
        for execution in executions:
            at = execution.ordinal
            clock = ClockState.DEVICE if execution.timed else self.fallback
            columns["attempt"][at] = execution.attempt
            columns["number"][at] = execution.number
            columns["start"][at] = _fitting(execution.start)
            columns["wall"][at] = _fitting(execution.wall)
            columns["net"][at] = _fitting(execution.own)
            columns["clock"][at] = CLOCK_STATES.index(clock)
            columns["failed"][at] = execution.failed and not execution.left
            self._known.pop(at, None)

    def _mark(self, owner: int, time: int, device_end: int) -> None:
        before = len(self.device)
        super()._mark(owner, time, device_end)
        if len(self.device) > before and self.device[-1].step is None:
            self._phases.append(owner)

    def _begin_attempt(self, number: int) -> None:
        super()._begin_attempt(number)
        self._phases.clear()

    def _leave_device(self) -> None:
        segment = self.device[0]
        begin = min(max(segment.begin, self.freed), segment.end)
        trace = self._device_trace(segment, begin, segment.end, self._phases)
        self.device_traces.append(trace)
        if trace.step != _NONE:
            begins, ends = self.columns["device_begin"], self.columns["device_end"]
            if begins[trace.step] == NOT_KNOWN:
                begins[trace.step] = _fitting(begin)
            ends[trace.step] = _fitting(segment.end)
        super()._leave_device()

    def _device_trace(self, segment: DeviceSegment, begin: int, end: int, phases: deque[int]) -> DeviceTrace:
        owner = self._owner_of(segment)
        step, key = (_NONE, phases.popleft()) if isinstance(owner, int) else (owner.ordinal, owner.key)
        return DeviceTrace(begin, end, step, key, self.steps.life.number)

    def waiting(self) -> list[DeviceTrace]:
        """What has not left the device, in order; only the begin of the first is known."""
        phases = self._phases.copy()
        waiting: list[DeviceTrace] = []
        for segment in self.device:
            begin = NOT_KNOWN if waiting else max(segment.begin, self.freed)
            waiting.append(self._device_trace(segment, begin, NOT_KNOWN, phases))
        return waiting

    def finish(self) -> None:
        """Write down what is still open, too."""
        self._write([*self.fates.over, *self._known.values()])
        for at, fate in enumerate(self.fates.fates):
            self.columns["fate"][at] = fate

    @property
    def step_traces(self) -> Iterator[StepTrace]:
        """All executions of steps, in order of their start."""
        return map(StepTrace._make, zip(*self.columns.values(), strict=True))

    def intervals(self) -> Iterator[Interval]:
        """Successive intervals from the first job's start on, ``EXCLUDED`` ones included; no neighbors are alike."""
        last: Interval | None = None
        for piece in self._pieces():
            if last is not None and (last[1], last[2]) == (piece[0], piece[2]):
                last = last[0], piece[1], piece[2]
                continue
            if last is not None:
                yield last
            last = piece
        if last is not None:
            yield last

    def _pieces(self) -> Iterator[Interval]:
        fates, progress = self.fates.fates, self.steps.progress
        # What is left of the start-up hidden in first steps, by ordinal, ns (rule R5).
        startup = {
            segment.first_ordinal: excess for segment in self.steps.segments if (excess := segment.excess(progress))
        }
        for begin, end, owner, hidden in zip(self.begins, self.ends, self.owners, self.hidden, strict=True):
            category, ordinal = owner, -1 - owner
            if owner < -_STALLED:
                ordinal -= _STALLED
                category = _OWNER[fates[ordinal]] if ordinal in self.fates.usual else rules.STALLED
            elif owner < 0:
                category = _OWNER[fates[ordinal]]
                if taken := min(startup.get(ordinal, 0), end - begin):
                    startup[ordinal] -= taken
                    yield begin, begin + taken, EXCLUDED if hidden else rules.PROGRAM_STARTUP
                    begin += taken
            if begin < end:
                yield begin, end, EXCLUDED if hidden else category

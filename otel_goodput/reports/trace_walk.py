"""Turns the journal of a process into the parts of a trace: a group of tracks for each attempt, slices and moments."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable
from typing import Final

from otel_goodput._accounting import events as ev
from otel_goodput._accounting import phases, rules
from otel_goodput._accounting.device import owner_of
from otel_goodput._accounting.events import Event
from otel_goodput.reports.trace_survey import AttemptSpan, Survey
from otel_goodput.reports.trace_writer import Args, Arrows, TraceWriter
from otel_goodput.semconv import (
    ATTEMPT,
    GOODPUT_BLOCKING,
    GOODPUT_DISRUPTION_REASON,
    GOODPUT_INTERRUPTED,
    GOODPUT_STEP,
    GOODPUT_STEP_COMPLETED,
    GOODPUT_STEP_STATE,
    PHASES,
    REASONS,
    STEP_KEPT,
    Phase,
    Reason,
)

# What has ended of a track, beyond which nothing more can begin among it; see `Lane`.
REMEMBERED: Final = 8192


class Lane:
    """One track, to which slices are added when they end: begin and end of the outermost that it holds, in order.

    Only the latest are remembered; where a slice would begin before these, it is not taken.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self._begins = array("q")
        self._ends = array("q")
        self._floor: int | None = None  # before it, what the track holds is forgotten

    def take(self, begin: int, end: int) -> bool:
        """Add a slice if it lies apart from or around what is there; return whether it does."""
        begins, ends = self._begins, self._ends
        if ends and begin >= ends[-1] and begin > begins[-1] and len(begins) < 2 * REMEMBERED:  # mostly
            begins.append(begin)
            ends.append(end)
            return True
        if self._floor is not None and begin < self._floor:
            return False
        first = bisect_left(begins, begin)  # those from here on, up to `last`, begin within the slice
        last = max(first, bisect_left(begins, end))
        if (first and ends[first - 1] > begin) or (last > first and ends[last - 1] > end):
            return False
        begins[first:last] = array("q", (begin,))
        ends[first:last] = array("q", (end,))
        if len(begins) > 2 * REMEMBERED:
            self._floor = ends[-REMEMBERED - 1]
            del begins[:-REMEMBERED], ends[:-REMEMBERED]
        return True


class Lanes:
    """The tracks for one kind of slice of one process. `new` makes a track, given how many there are; returns its
    number.
    """

    def __init__(self, new: Callable[[int], int]) -> None:
        self._new = new
        self._lanes: list[Lane] = []

    def track(self, begin: int, end: int) -> int:
        """Return the number of the track for a slice."""
        for lane in self._lanes:
            if lane.take(begin, end):
                return lane.number
        lane = Lane(self._new(len(self._lanes)))
        self._lanes.append(lane)
        lane.take(begin, end)
        return lane.number


# The tracks of an attempt, in the order in which they are shown.
JOB, PHASE, STEP, DEVICE, PART, COMPILE, LOADING, BESIDE, SAVING = range(9)
TRACKS: Final = {
    JOB: "job",
    PHASE: "blocking phases",
    STEP: "steps",
    DEVICE: "device",
    PART: "parts",
    COMPILE: "compilations",
    LOADING: "loading beside training",
    BESIDE: "beside training",
    SAVING: "checkpoints being committed",
}
_OF_PHASE: Final = {rules.JOB: JOB, rules.STEP: STEP, rules.PART: PART, rules.COMPILE: COMPILE}
_BESIDE: Final = {rules.DATA_LOADING: LOADING, rules.SAVE: SAVING}
_AWAITED: Final = 65_536  # steps whose end on the device may still come; of older ones it is given up
_RECENT: Final = 256  # ended phases that a mark may still name


class _Open(phases.Phase):
    """A phase from its start on."""

    __slots__ = ("compiled", "into", "out", "place", "step")

    def __init__(self, event: Event, place: int) -> None:
        super().__init__(event)
        self.step = self.given  # by the account
        self.place = place  # of a step: in the order of starts
        self.compiled: tuple[int, int] | None = None  # begin and end of the last compilation in it
        self.into = 0  # number of an arrow, 0: none
        self.out: list[int] = []  # numbers of arrows

    @property
    def title(self) -> str:
        return self.name or PHASES[self.phase]


class ProcessWalk:
    """Walks through the journal of one process.

    Args:
        known: what the survey found.
        sink: takes the parts.
        number: returns the number of an attempt's group of tracks.
        new_number: returns the number of a new track, or of an arrow.
    """

    def __init__(
        self, known: Survey, sink: TraceWriter, number: Callable[[int], int], new_number: Callable[[], int]
    ) -> None:
        self._known = known
        self._sink = sink
        self._number = number
        self._new_number = new_number
        self._steps = 0
        self._attempt: AttemptSpan | None = None
        self._process = 0
        self._arrow = 0  # from the last job of the attempt before to the first one of this
        self._begin()

    def _begin(self) -> None:
        self._lanes: dict[int, Lanes] = {}
        self._phases: phases.Phases[_Open] = phases.Phases()
        self._recent: dict[int, _Open] = {}
        self._awaited: dict[int, tuple[_Open, int]] = {}  # key -> the phase, and when it dispatched the work
        self._commits: dict[int, tuple[int, int, int]] = {}  # key of a save -> step, end of its phase, arrow
        self._freed = 0  # until when the device is known to have been at work, ns
        self._latest = 0
        self._jobs = 0  # that have begun in this attempt
        self._moments = 0  # number of the track for moments, 0 while there is none
        self._started = False  # a step has started in this attempt
        self._back: tuple[int, int] | None = None  # key of the job that restarted, and the step that it goes back to

    # --- events -------------------------------------------------------------------------------------------------------

    def take(self, events: list[Event], attempt: int) -> None:
        """Take the events of a segment, in the order of their records."""
        if self._attempt is None or self._attempt.number != attempt:
            self.end()
            self._begin()
            spans = (span for span in self._known.attempts if span.number == attempt)
            self._attempt = next(spans, AttemptSpan(attempt, events[0].time, events[0].time))
            self._process = self._number(attempt)
        for event in events:
            time, kind = event[0], event[1]
            if time > self._latest:
                self._latest = time
            if kind == ev.START:
                self._start(event)
            elif kind == ev.END:
                self._end(event)
            elif kind == ev.DEVICE_END:
                self._leave_device(event.key, time)
            elif kind == ev.MARK:
                owner = self._phases.opened.get(owner_of(event)) or self._recent.get(owner_of(event))
                if owner is not None:
                    self._await(event.key, owner, time)
            elif kind == ev.OBSERVED and (step := self._phases.opened.get(event.key)) is not None:
                self._await(event.key, step, step.begin)
            elif kind == ev.UNOBSERVED:
                self._awaited.pop(event.key, None)
            elif kind == ev.DURABLE and (commit := self._commits.pop(event.key, None)) is not None:
                self._commit(*commit, time, durable=True)
            elif kind == ev.NOTICE:
                withdrawn = {"withdrawn": True} if event.flags & ev.WITHDRAWN else {}
                self._moment(time, f"notice of {REASONS[event.phase]}", withdrawn)

    def end(self) -> None:
        """Close what is open: its attempt is over, or nothing more is known of it."""
        if self._attempt is None:
            return
        last = max(self._latest, self._attempt.last)
        for commit in self._commits.values():
            self._commit(*commit, last, durable=False)
        for phase in self._phases.die():
            self._close(phase, max(last, phase.begin), ev.FAILED, ended=False)
        self._attempt = None

    def _start(self, event: Event) -> None:
        assert self._attempt is not None
        place, number = -1, event.step
        if event.phase == rules.STEP:
            if not event.flags & ev.NONBLOCKING and event.step >= 0:
                place = self._steps
                self._steps += 1
                number = self._known.number(self._attempt.number, event.time, event.step)
                if self._started and self._known.went_back(place):
                    to_step: Args = {GOODPUT_DISRUPTION_REASON: Reason.ROLLBACK, GOODPUT_STEP: number}
                    self._moment(event.time, f"disruption: {Reason.ROLLBACK}", to_step)
                self._started = self._started or number != ev.NO_STEP
        elif event.phase == rules.JOB:
            self._begin_job(event.time, event.key)
        phase = self._phases.start(event.key, _Open(event, place))
        phase.step = number
        if place < 0:
            self._find_step(phase, event.time)
        if place >= 0 and self._back is not None and number == self._back[1]:
            job = self._phases.opened.get(self._back[0])
            if job is not None and job is not phase:
                phase.into = self._new_number()
                job.out.append(phase.into)
            self._back = None

    def _find_step(self, phase: _Open, end: int) -> None:
        """Say to which step a phase belongs that ends at `end` (ns), or later."""
        assert self._attempt is not None
        attempt, shift = self._attempt.number, self._known.shift(self._attempt.number)
        numbering = self._known.numbering
        phase.step = numbering.of_phase(attempt, phase.phase, phase.begin + shift, end + shift, phase.given)

    def _begin_job(self, time: int, key: int) -> None:
        assert self._attempt is not None
        known = self._known.disruptions.get(self._attempt.number)
        self._jobs += 1
        if known is not None and self._jobs == 1:
            args: dict[str, int | float | bool | str] = {
                GOODPUT_DISRUPTION_REASON: known.reason,
                "recovery_s": known.recovery / 1e9,
                "wasted_s": known.wasted / 1e9,
            }
            correction = self._known.corrections.get(self._attempt.number + 1)
            if correction is not None:
                args |= {"said_by": correction.by, "first_reason": correction.first}
            if known.to_step is not None:
                args["to_step"] = known.to_step
                self._back = key, known.to_step
            self._moment(time, f"disruption: {known.reason}", args)

    def _end(self, event: Event) -> None:
        time, _, _, key, _, flags, _, name = event
        phase = self._phases.end(key, time, name)
        if phase is None:
            return
        if phase.phase in rules.MARKABLE:
            self._recent[key] = phase
            if len(self._recent) > _RECENT:
                del self._recent[next(iter(self._recent))]
            if flags & ev.ON_DEVICE:
                self._await(key, phase, phase.begin)
        elif phase.phase == rules.COMPILE and not phase.flags & ev.NONBLOCKING:
            opened = self._phases.opened.values()
            around = [one for one in opened if one.phase in rules.MARKABLE and one.begin <= phase.begin]
            if around:
                around[-1].compiled = phase.begin, phase.end
        self._close(phase, phase.end, flags, ended=True, key=key)

    def _close(self, phase: _Open, end: int, flags: int, *, ended: bool, key: int = 0) -> None:
        """Add the slice of a phase that has `ended`, or of which nothing more is known."""
        args: dict[str, int | float | bool | str] = {}
        title = phase.title
        into, out = phase.into, phase.out
        beside = bool(phase.flags & ev.NONBLOCKING)
        if phase.place < 0:
            self._find_step(phase, end)
        if (number := phase.given if phase.step < 0 else phase.step) >= 0:
            args[GOODPUT_STEP] = number
        if not ended:
            args[GOODPUT_INTERRUPTED] = True
        if phase.place >= 0:
            title = self._step(phase, flags, args, ended=ended)
        elif flags & ev.FAILED and ended:
            args["failed"] = True
        if beside:
            args[GOODPUT_BLOCKING] = False
        if phase.phase == rules.JOB:
            assert self._attempt is not None
            args[ATTEMPT] = self._attempt.number
            into, self._arrow = self._arrow, 0
            if self._jobs >= self._attempt.jobs and self._another_follows():
                self._arrow = self._new_number()
                out.append(self._arrow)
        elif phase.phase == rules.SAVE and flags & ev.PENDING and not flags & ev.FAILED:
            out.append(self._new_number())
            self._commits[key] = phase.step, end, out[-1]
        group = _OF_PHASE.get(phase.phase, PHASE)
        if beside and group == PHASE:
            group = _BESIDE.get(phase.phase, BESIDE)
        self._slice(group, phase.begin, end, title, args, into, out)

    def _step(self, phase: _Open, flags: int, args: dict[str, int | float | bool | str], *, ended: bool) -> str:
        """Say what became of a step; return its title."""
        assert self._attempt is not None
        left = bool(flags & ev.LEFT)
        failed = bool(flags & ev.FAILED) and ended
        fate = self._known.fate(phase.place, phase.step, self._attempt.number, left=left, failed=failed)
        args[GOODPUT_STEP_STATE] = fate
        if flags & ev.FAILED:
            args[GOODPUT_STEP_COMPLETED] = False
        return Phase.STEP if fate == STEP_KEPT else f"{Phase.STEP} ({fate})"

    def _another_follows(self) -> bool:
        assert self._attempt is not None
        return any(span.jobs for span in self._known.attempts if span.number > self._attempt.number)

    # --- the device, and commits --------------------------------------------------------------------------------------

    def _await(self, key: int, owner: _Open, since: int) -> None:
        self._awaited[key] = owner, since
        if len(self._awaited) > _AWAITED:
            del self._awaited[next(iter(self._awaited))]

    def _leave_device(self, key: int, end: int) -> None:
        found = self._awaited.pop(key, None)
        if found is None:
            return
        owner, since = found
        begin = max(since, self._freed)
        if owner.compiled is not None and since <= owner.compiled[0] and owner.compiled[1] <= end:
            begin = max(begin, owner.compiled[1])  # nothing was dispatched before (rule R3)
        self._freed = max(self._freed, end)
        args: Args = {GOODPUT_STEP: owner.step} if owner.step >= 0 else {}
        self._slice(DEVICE, min(begin, end), end, owner.title, args)

    def _commit(self, step: int, begin: int, arrow: int, end: int, *, durable: bool) -> None:
        args: dict[str, int | float | bool | str] = {GOODPUT_STEP: step} if step >= 0 else {}
        title = "commit" if durable else "commit, never durable"
        self._slice(SAVING, begin, max(begin, end), title, args, into=arrow)

    # --- to the sink --------------------------------------------------------------------------------------------------

    def _slice(self, group: int, begin: int, end: int, name: str, args: Args, into: int = 0, out: Arrows = ()) -> None:
        self._sink.slice(self._process, self._track(group, begin, end), begin, end, name, args, into, out)

    def _moment(self, time: int, name: str, args: Args) -> None:
        if not self._moments:
            self._moments = self._new_track(0, "notices and disruptions")
        self._sink.instant(self._process, self._moments, time, name, args)

    def _track(self, group: int, begin: int, end: int) -> int:
        lanes = self._lanes.get(group)
        if lanes is None:
            lanes = self._lanes[group] = Lanes(lambda count: self._new_track(group + 1, _titled(group, count)))
        return lanes.track(begin, end)

    def _new_track(self, rank: int, name: str) -> int:
        number = self._new_number()
        self._sink.track(number, self._process, name, rank)
        return number


def _titled(group: int, count: int) -> str:
    return TRACKS[group] + (f" {count + 1}" if count else "")

"""The state of a run's account, moved through time: every nanosecond goes to its owner (rules R1 to R3)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias, TypeVar

from otel_goodput._accounting import codec, rules
from otel_goodput._accounting.buckets import Rolling, forgotten
from otel_goodput._accounting.codec import Blobs, Each, Optional, Pairs, Part, Row, State, Text, Whole, field
from otel_goodput._accounting.device import DEVICE_SEGMENT, NEVER, DeviceSegment
from otel_goodput._accounting.events import Column
from otel_goodput._accounting.execution import Execution
from otel_goodput._accounting.overview import RiskCurve
from otel_goodput._accounting.rules import EXCLUDED
from otel_goodput._accounting.stalls import Outside
from otel_goodput._accounting.step_history import StepHistory
from otel_goodput._accounting.step_summary import StepSummary
from otel_goodput._accounting.windows import Edge, Overlay, Weighted, WindowSet
from otel_goodput.semconv import CLOCK_STATES, FALLBACK_CLOCKS, REASONS, ClockState

NOBODY: Final = -1
T = TypeVar("T", bound="AccountState")


class NotedTurns(NamedTuple):
    """Steps that own what is from their `begins` to their `ends` (ns); what is before and between is data loading.

    `apart`: it is known that no step is empty, and that times do not go back.
    """

    numbers: Sequence[int]
    begins: Sequence[int]
    ends: Sequence[int]
    apart: bool = False


# Time that passed: whose it was (a category number, an execution of a step, steps and loads), its begin and end, ns.
Noted: TypeAlias = "tuple[int | Execution | NotedTurns, int, int]"


class AccountState(State):
    """The state of one run's account at one moment, and the logic that moves it forward.

    Args:
        spans: lengths of the rolling windows, ns.
        edges: of the exact windows and exclusions known in advance, as of :class:`WindowSet`.
        windows: number of windows, window 0 (the excluded time) included.
        overview: also follow what an overview shows.

    Attributes:
        begin, now: first job start, and the latest moment accounted for, ns.
        shift: ns to add to the times of the current attempt; the account never goes back, even if a clock does.
        alive, ended, clean: a job has started and not ended; the latest one ended by itself; without an error.
        finished: both, and nothing had announced the end of the job before.
        totals: ns by category number, without steps; `names`: of custom phases, from ``rules.FIXED`` on.
        fallback, clock: that of steps whose device end is not reported; that by which the latest step ended.
    """

    begin: int | None = field(Optional(codec.COUNT), key="started_at")
    now: int = field(codec.COUNT, 0)
    shift: int = field(codec.NUMBER, 0, key="clock_shift")
    freed: int = field(codec.COUNT, 0, key="device_free_at")  # when the device finished the latest known segment, ns
    alive: bool = field(codec.FLAG, False)
    ended: bool = field(codec.FLAG, False)
    clean: bool = field(codec.FLAG, False)
    finished: bool = field(codec.FLAG, False)
    spans: tuple[int, ...] = field(Each(Whole(1), 64, tuple), (), key="window_lengths")
    open_windows: WindowSet = field(Part(lambda: WindowSet), make=WindowSet)
    totals: list[int] = field(Each(codec.NUMBER), make=lambda: [0] * rules.FIXED)
    names: list[str] = field(Each(codec.TEXT), make=list, key="custom_names")
    notice: str | None = field(Optional(Text(*REASONS)))
    skewed: bool = field(codec.FLAG, False, key="clock_skewed")
    recompilations: int = field(codec.COUNT, 0)
    suspended: int = field(codec.COUNT, 0)  # ns in which the machine was suspended
    overlapped: int = field(codec.COUNT, 0, key="loading_overlapped")  # ns of non-blocking data loading
    fallback: str = field(Text(*FALLBACK_CLOCKS), ClockState.HOST, key="fallback_clock")
    clock: str | None = field(Optional(Text(*CLOCK_STATES)))
    overlay: Overlay = field(Part(lambda: Overlay), make=Overlay, key="conditions")
    risk_curve: RiskCurve = field(Part(lambda: RiskCurve), make=RiskCurve, key="overview")
    steps: StepHistory = field(Part(lambda: StepHistory))
    # While a profiler runs: what a step takes without it, ns, by loop (rule R12).
    ceilings: dict[int, int] = field(Pairs(codec.NUMBER, codec.COUNT), make=dict, key="usual_before_profile", absent=[])
    error: str = field(codec.TEXT, "")  # the exception that ended the latest job, until the next one begins
    # Signals and the exit status of the latest process, until the next job begins.
    ended_by: list[str] = field(Each(codec.TEXT, 64), make=list)
    # ns of both before the job's first step has completed
    startup_before: int = field(codec.NUMBER, -1)
    restored_before: int = field(codec.NUMBER, -1)
    # ns of no step when the latest step was over; None if none was in this job
    _between: int | None = field(Optional(codec.NUMBER), key="time_between_steps")
    outside: Outside = field(Part(lambda: Outside), make=Outside, absent=Outside().to_plain(Blobs()))
    # Open phases by key. In dictionaries, the latest started comes last.
    job: int | None = field(Optional(codec.KEY), key="open_job")
    blockers: dict[int, int] = field(Pairs(codec.KEY, codec.COUNT), make=dict, key="open_phases")  # -> category
    # The same, of phases that own time only while no step is open.
    overlapping: dict[int, int] = field(Pairs(codec.KEY, codec.COUNT), make=dict, key="open_overlapping_phases")
    # -> rank, category
    elastic: dict[int, tuple[int, int]] = field(
        Pairs(codec.KEY, Row(codec.NUMBER, codec.COUNT)), make=dict, key="open_elastic_phases"
    )
    loads: set[int] = field(Each(codec.KEY, make=set), make=set, key="open_overlapped_loads")  # non-blocking data loads
    # Segments waiting for the device or running on it.
    device: deque[DeviceSegment] = field(Each(DEVICE_SEGMENT, make=deque), make=deque, key="device_queue")
    name_index: dict[str, int]
    hosts: list[Execution]  # executions whose phase is open, the latest last
    noted: list[Noted] | None = None  # whose time passed, in order, if somebody asks; clones note nothing
    _overview: bool
    _owner: int | Execution = NOBODY
    _timer = NEVER
    _plain = True  # as time passes, only the owner's account changes
    _calm = True  # no window, overlay or overlapped load needs updating as time passes
    _direct = False  # no elastic phase or device segment outranks ordinary phases and the open step

    def __init__(
        self, spans: Sequence[int] = (), edges: Sequence[Edge] = (), windows: int = 1, *, overview: bool = False
    ) -> None:
        super().__init__()
        self.spans = tuple(spans)
        self.steps = StepHistory(windows)
        self.open_windows = WindowSet(edges)
        self.name_index = {}
        self.hosts = []
        self._overview = overview
        if overview:
            self.steps.summary = StepSummary()

    def loaded(self) -> None:
        steps, categories = self.steps, rules.FIXED + len(self.names)
        used = [
            *self.blockers.values(),
            *self.overlapping.values(),
            *(category for _, category in self.elastic.values()),
            *steps.discarded,
            *(one.category for one in self.device),
            *(one.fate for one in (*steps.running.values(), *steps.recoverable.values()) if one.fate is not None),
        ]
        for window in self.steps.windows:
            used += [*window.totals, *window.discarded]
        for buckets in (steps.rolling, steps.bins):
            if buckets is not None:
                buckets.prove_categories(categories)
        self.name_index = {name: at for at, name in enumerate(self.names, rules.FIXED)}
        if (
            max(used, default=0) >= categories
            or not len(self.totals) == categories == rules.FIXED + len(self.name_index)
            or not all(one.step is None or one.step in steps.running for one in self.device)
            or (steps.rolling is not None and (self.begin is None or steps.rolling.spans != self.spans))
            or (steps.summary is not None and (steps.bins is None) is not (self.begin is None))
        ):
            raise ValueError("the account contradicts itself")
        self._overview = steps.summary is not None
        self._follow()

    def _follow(self) -> None:
        self.hosts = [execution for execution in self.steps.running.values() if execution.on_host]
        self.choose()

    @property
    def in_step(self) -> bool:
        """Whether time is a step's now."""
        return isinstance(self._owner, Execution)

    @property
    def since_step(self) -> int | None:
        """Time since a step completed, or since the job began if none has in it, ns; None while no job is open."""
        begins = [moment for moment in (self.steps.step_end, self.steps.job_begin) if moment is not None]
        return max(0, self.now - max(begins)) if self.alive and begins else None

    def clone(self: T, *, overview: bool = True, rolling: bool = True) -> T:
        """Return an independent copy, in some microseconds.

        Without `overview`, or `rolling` windows, time passes faster for it.
        """
        steps = self.steps
        held = steps.bins, steps.summary, steps.rolling
        if not overview:
            steps.bins = steps.summary = None
        if not rolling:
            steps.rolling = None
        twin = super().clone()
        steps.bins, steps.summary, steps.rolling = held
        twin._overview = overview and self._overview
        twin.noted = None
        twin.name_index = self.name_index.copy()
        twin._follow()
        return twin

    def reach(self, time: int) -> None:
        """Move to `time` (ns by the clock of the current attempt)."""
        self.advance(time + self.shift)

    def advance(self, time: int) -> None:
        """Move to `time` (ns) and give the time that passed to its owner. Never moves back."""
        if time >= self._timer:
            self._fire(time)
        if self.alive and time > self.now:
            self._spend(time)

    def _spend(self, time: int) -> None:
        spent = time - self.now
        self.now = time
        owner = self._owner
        if isinstance(owner, Execution):
            profiled = self._beyond_ceiling(owner, spent) if self.ceilings else 0
            if profiled:
                self.now -= profiled
            if not profiled or spent > profiled:
                self._spend_on_step(owner, spent - profiled)
            if not profiled:
                return
            self.now, spent, owner = time, profiled, self.custom(rules.PROFILED)
        self.totals[owner] += spent
        if not self._plain:
            self._spend_elsewhere(spent, owner)

    def _beyond_ceiling(self, execution: Execution, spent: int) -> int:
        """How much of the `spent` ns of an execution a profiler costs (rule R12)."""
        ceiling = self.ceilings.get(execution.loop)
        known = execution.timed or self.fallback != ClockState.UNKNOWN
        if ceiling is None or not known or self.open_windows.mask & EXCLUDED:
            return 0
        own = execution.visible + (0 if execution.stall is None else execution.stall.net)
        return min(spent, max(0, own + spent - ceiling))

    def custom(self, name: str) -> int:
        """The category number of the custom phases of a name."""
        category = self.name_index.setdefault(name, len(self.totals))
        if category == len(self.totals):
            self.names.append(name)
            self.totals.append(0)
        return category

    def _spend_on_step(self, execution: Execution, spent: int) -> None:
        """Divide `spent` ns between an execution and what stalls of it (rule R10)."""
        execution.net += spent
        if not self._plain and self.open_windows.mask & EXCLUDED:
            execution.limit += spent  # what is cut out does not count
        stalled = self._stand_still(execution) if execution.net > execution.limit else 0
        if self._plain:
            return
        self.now -= stalled
        if spent > stalled:
            self._spend_elsewhere(spent - stalled, execution)
        self.now += stalled
        if stalled:
            self._spend_elsewhere(stalled, execution, stalled=True)

    def _stand_still(self, execution: Execution) -> int:
        """Take for stalled what an execution owns beyond its limit; returns how much that is, ns."""
        if not execution.judged:
            self.steps.judge(execution, known=execution.timed or self.fallback != ClockState.UNKNOWN)
        excess = execution.net - execution.limit
        if excess <= 0:
            return 0
        stall = execution.stall
        if stall is None:
            number, key, start = execution.number, execution.key, execution.start
            stall = execution.stall = Execution(number, key, start, execution.attempt, execution.segment)
        execution.net -= excess
        stall.net += excess
        self.totals[rules.STALLED] += excess
        return excess

    def _spend_elsewhere(self, spent: int, owner: int | Execution, *, stalled: bool = False) -> None:
        """Add `spent` ns to everything but the owner's account; `stalled`: they are stalled time of the execution."""
        if self.noted is not None:
            excluded = not self._calm and owner != rules.RECOVERY and self.open_windows.mask & EXCLUDED
            self.noted.append((self.open_windows.cut_out if excluded else owner, self.now - spent, self.now))
            if self._calm and (isinstance(owner, int) or owner.pieces is None):
                return
        self.overlapped += len(self.loads) * spent
        mask = self.open_windows.mask
        execution, category = (None, owner) if isinstance(owner, int) else (owner, None)
        if execution is not None and stalled:
            execution, category = execution.stall, rules.STALLED
        if execution is not None and execution.pieces is not None:
            execution.pieces.append((spent, mask))
        self.overlay.weigh(self.overlay.time, spent)
        for window in self.steps.windows if mask else ():
            if not window.bit & mask:
                continue
            window.elapsed += spent
            if execution is not None:
                execution.share(window.bit, spent)
            if category is not None:
                window.totals[category] = window.totals.get(category, 0) + spent
            self.overlay.weigh(window.weighted, spent)

    def _fire(self, time: int) -> None:
        """Handle everything due up to `time`, in order: device ends, and edges of windows and buckets."""
        while self._timer <= time and self._timer < NEVER:
            due = self._timer
            if self.alive and due > self.now:
                self._spend(due)
            while self.device and self.device[0].end <= due:
                self._leave_device()
            if self.alive:
                self.open_windows.move(due)
                rolling, bins = self.steps.rolling, self.steps.bins
                if rolling is not None and rolling.boundary <= due:
                    self._close_bucket(rolling, time)
                if bins is not None and bins.boundary <= due:
                    bins.reach(time)
                    if bins.boundary <= due:
                        bins.close(*self._bucketed())
            self.choose()

    def _close_bucket(self, rolling: Rolling, time: int) -> None:
        """Close a bucket of the rolling windows; skip following buckets in which nothing happens, up to `time`."""
        rolling.close_weighted(*self._bucketed(), self.visible_weighted())
        due = self.device[0].end if self.device else NEVER
        boundary = min(rolling.last_boundary_before(time), due, self._next_edge(buckets=False))
        if boundary > rolling.boundary:
            boundary -= (boundary - rolling.boundary) % rolling.width
            self.choose()
            self._spend(boundary)
            rolling.jump(boundary, *self._bucketed(), self.visible_weighted())

    def _bucketed(self) -> tuple[list[int], Iterable[Execution], int]:
        """What buckets are made of: time by category, the open executions, and the length of the kept stack."""
        return self.visible_times(), self.steps.running.values(), len(self.steps.progress)

    def _next_edge(self, *, buckets: bool = True) -> int:
        """When the next edge of a window or bin, or of a bucket of the rolling windows, is due, ns."""
        bins, rolling, due = self.steps.bins, self.steps.rolling, self.open_windows.due
        if bins is not None and bins.boundary < due:
            due = bins.boundary
        if buckets and rolling is not None and rolling.boundary < due:
            due = rolling.boundary
        return due

    def change_spans(self, spans: Sequence[int]) -> None:
        """Have rolling windows of the lengths `spans` (ns) from now on; they are empty if they need finer buckets."""
        if tuple(spans) == self.spans:
            return
        self.spans = tuple(spans)
        if spans and self.steps.rolling is not None and self.steps.rolling.respan(spans):
            return
        self.steps.rolling = None
        if spans and self.begin is not None:
            rolling = self.steps.rolling = Rolling(spans, self.begin)
            rolling.jump(
                rolling.last_boundary_before(self.now) or self.begin, *self._bucketed(), self.visible_weighted()
            )
            self.steps.stalls = {at: forgotten(stall) for at, stall in self.steps.stalls.items()}
        self.choose()

    def visible_totals(self) -> list[int]:
        """Time by category outside exclusions, without steps, ns."""
        excluded = self.steps.windows[0].totals
        if not excluded:
            return self.totals
        return [total - excluded.get(category, 0) for category, total in enumerate(self.totals)]

    def visible_times(self) -> list[int]:
        """Time by category outside exclusions, ns: a partition, but for start-up hidden in first steps (rule R5)."""
        steps, hidden = self.steps, self.steps.windows[0]
        times = list(self.visible_totals())
        times[rules.PRODUCTIVE] += steps.progress.total - hidden.kept_total
        for fate, duration in steps.discarded.items():
            times[fate] += duration - hidden.discarded.get(fate, 0)
        for execution in steps.running.values():
            times[rules.IN_FLIGHT] += execution.visible
        return times

    def visible_weighted(self) -> Weighted:
        """The overlay's sums outside exclusions, weighted ns; a sum of floats may be a little less than its part."""
        hidden = self.steps.windows[0].weighted
        return [max(0.0, whole - part) for whole, part in zip(self.overlay.time, hidden, strict=True)]

    def choose(self) -> None:
        """Decide who owns time from now on (rule R3), what else changes as time passes, and when to stop next."""
        self._calm = self._only_totals()
        self._direct = self.alive and not self.elastic and not self.device
        if self._direct:
            self._choose_directly()
        else:
            self._plain = False
            if not self.alive:
                self._owner = NOBODY
            elif self.elastic:
                # The latest started phase of the highest rank.
                self._owner = max(reversed(self.elastic.values()), key=lambda phase: phase[0])[1]
            else:
                self._owner = self._owner_of(self.device[0])
        due, edge = self.device[0].end if self.device else NEVER, self._next_edge() if self.alive else NEVER
        self._timer = edge if edge < due else due

    def _owner_of(self, segment: DeviceSegment) -> int | Execution:
        return segment.category if segment.step is None else self.steps.running[segment.step]

    def _only_totals(self) -> bool:
        overlay = self.overlay
        return not (self.loads or self.open_windows.mask or overlay.unknown or overlay.shares is not None)

    def _choose_directly(self) -> None:
        """Choose the owner among the ordinary phases and the open step."""
        if self.blockers:
            self._owner = next(reversed(self.blockers.values()))
            self._plain = self._calm and self.noted is None
        elif self.hosts:
            step = self._owner = self.hosts[-1]
            self._plain = self._calm and step.pieces is None and self.noted is None
        else:
            self._owner = next(reversed(self.overlapping.values()), rules.OTHER)
            self._plain = self._calm and self.noted is None

    def _noted_dispatched(
        self, waiting: list[Execution], new: Column, owned: Column, overs: Column, count: int, until: int
    ) -> list[Noted]:
        """Return whose it was up to `until` (ns): the first `count` of `waiting` and `new` steps, and the next one."""
        noted: list[Noted] = []
        first = min(len(waiting), count)
        for one, over, begin, end in zip(waiting[:count], overs, owned, overs[1:], strict=False):
            noted += [(rules.DATA_LOADING_TIME, over, begin), (one, begin, end)]
        if first < count:
            turns = NotedTurns(new[: count - first], owned[first:count], overs[first + 1 : count + 1])
            noted.append((turns, overs[first], overs[count]))
        if count < len(owned):
            running = next(iter(self.steps.running.values()))
            noted += [(rules.DATA_LOADING_TIME, overs[count], owned[count]), (running, owned[count], until)]
        return noted

    def _outside_steps(self) -> int:
        """Time of no step so far without exclusions, ns."""
        return sum(self.totals) - self.totals[rules.STALLED] - sum(self.steps.windows[0].totals.values())

    def _close_startup(self) -> None:
        """If the first step of the job has completed by now, note what the start-up before it took."""
        if self.startup_before >= 0 and self.steps.first_step is not None:
            startup, restored = self._startup()
            self.steps.disruptions.change_restart(
                startup=startup - self.startup_before, restored=restored - self.restored_before
            )
            self.startup_before = self.restored_before = -1

    def _startup(self) -> tuple[int, int]:
        """Time of start-up, and of restoring checkpoints, in all of the run so far, ns."""
        times = self.visible_totals()
        return sum(times[category] for category in rules.STARTING), times[rules.RESTORE_TIME]

    def drain(self) -> None:
        """Move to the latest known device end: it is a sign of life."""
        self.advance(max((segment.end for segment in self.device if segment.end < NEVER), default=0))

    def _leave_device(self) -> None:
        segment = self.device.popleft()
        execution, begin, end = self._owner_of(segment), segment.begin, segment.end
        earliest = max(begin, self.freed)
        begin = max(earliest, self.now)
        self.freed = max(self.freed, end)
        if isinstance(execution, int):
            return
        execution.busy += max(0, end - earliest)
        if not self.alive:
            execution.beyond += max(0, end - begin)
        execution.segments -= 1
        if not execution.on_host and not execution.segments:
            self._finish(execution)

    def _settle(self, execution: Execution) -> bool:
        """Decide the fate of an execution that is over; returns whether it counts as a step."""
        if execution.stall is None:
            return self.steps.settle(execution, self.now)
        before, returned = self.steps.at_risk(), self.steps.returned
        counts = self.steps.settle(execution, self.now)
        if self.steps.returned > returned:
            self.risk_curve.jump(self.now, before, self.steps.at_risk())
        return counts

    def _works(self) -> None:
        """A body after a restore turned out to be a step (rule R4)."""
        for execution in self.steps.held:
            self.clock = ClockState.DEVICE if execution.timed else self.fallback
        before = self.steps.at_risk()
        self.steps.take_as_steps()
        self._close_startup()
        self.risk_curve.jump(self.now, before, self.steps.at_risk())

    def _decide(self) -> None:
        """Nothing more may follow: bodies after a restore that took as long as a step are steps."""
        for execution in list(self.steps.running.values()):
            if execution.usual and execution.worked(execution.usual):
                self._works()

    def _finish(self, execution: Execution) -> None:
        """End an execution that is over on host and device."""
        clock = ClockState.DEVICE if execution.timed else self.fallback
        execution.blurred = clock == ClockState.UNKNOWN
        outside = self._outside_steps()
        if self._between is not None:
            execution.outside = outside - self._between
        self._between = outside
        self.outside.end_turns([(self.totals[rules.DATA_LOADING_TIME], self.totals[rules.OTHER])])
        if execution.usual:
            if self.steps.hold(execution, self.now):
                return
            if not self.steps.walks_on(execution):
                self._works()
        over = self._settle(execution)
        self._close_startup()
        if not over:
            return
        self.clock = clock
        self.overlay.unknown = self.alive and execution.blurred
        self._calm = self._only_totals()

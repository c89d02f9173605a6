"""The heart: a cursor that moves over the timeline and gives every nanosecond to its owner (rules R1 to R3).

:class:`Cursor` takes events in the order of time and does constant work for each. It knows nothing of late events; the
:class:`~otel_goodput.accounting.ledger.Ledger` puts them in order and asks clones of the cursor for provisional
answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from otel_goodput.accounting import events as ev
from otel_goodput.accounting import rules
from otel_goodput.accounting.course import Course
from otel_goodput.accounting.events import ATTEMPT, END, FAILED, START, Event
from otel_goodput.accounting.execution import Execution
from otel_goodput.accounting.lenses import Edge, Lens, Shutter
from otel_goodput.accounting.overlay import Overlay, Weighted, shares_of
from otel_goodput.accounting.rolling import Rolling
from otel_goodput.accounting.rules import COMPILE, PART, SIMPLE, STEP
from otel_goodput.semconv import ELASTIC_SLICE_DOWN, FALLBACK_CLOCKS, REASONS, ClockState, Reason

NEVER: Final = 1 << 62
NOBODY: Final = -1


class Cursor:
    """State of one run's account at one moment.

    Args:
        spans: lengths of the rolling windows in ns.
        edges: (time ns, lens index, opens?) of exact windows and exclusions known beforehand, rising; lens 0 excludes.
        lenses: how many lenses `edges` speak of.

    Attributes:
        begin, now: first job start and the latest moment accounted for, ns.
        alive: between a job's start and its end.
        ended, clean: the latest job ended by itself; and without an error.
        totals: ns by category number, steps apart.
        names: custom names; the first has the category ``rules.FIXED``.
        course: fates of the steps.
        fallback: what a step is whose end on the device is not told, one of ``semconv.FALLBACK_CLOCKS``.
        clock: by which clock the latest step ended, one of ``semconv.CLOCK_STATES``; None before the first.
    """

    def __init__(self, spans: Sequence[int] = (), edges: Sequence[Edge] = (), lenses: int = 1) -> None:
        self.begin: int | None = None
        self.now = 0
        self.alive = False
        self.ended = False
        self.clean = False
        self.spans = tuple(spans)
        self.lenses = [Lens(1 << index) for index in range(lenses)]
        self.course = Course(self.lenses)
        self.shutter = Shutter(edges)
        self.totals = [0] * rules.FIXED
        self.names: list[str] = []
        self.name_index: dict[str, int] = {}
        self.notice: str | None = None
        self.skewed = False
        self.recompilations = 0
        self.overlapped = 0  # ns of non-blocking data loading
        self.fallback = ClockState.HOST
        self.clock: str | None = None
        self.overlay = Overlay()
        # What is open, by key; in dictionaries the latest started is the last.
        self.job: int | None = None
        self.blockers: dict[int, int] = {}  # -> category
        self.elastic: dict[int, tuple[int, int]] = {}  # -> rank, category
        self.loads: set[int] = set()  # non-blocking data loads
        self.hosts: list[Execution] = []  # executions whose phase is open, latest last
        self.device: deque[Execution] = deque()
        self._owner: int | Execution = NOBODY
        self._timer = NEVER
        self._plain = True  # nothing but the owner's account moves with time
        self._calm = True  # nothing moves beside, whoever owns
        self._direct = False  # nothing is above the ordinary phases and the open step

    @property
    def rolling(self) -> Rolling | None:
        """The rolling windows, from the first job start on."""
        return self.course.rolling

    def clone(self) -> Cursor:
        """An independent copy; costs some microseconds, whatever the run's length."""
        twin = Cursor.__new__(Cursor)
        twin.__dict__.update(self.__dict__)
        twin.lenses = [lens.clone() for lens in self.lenses]
        twin.course = self.course.clone(twin.lenses, self.rolling.clone() if self.rolling else None)
        twin.shutter, twin.overlay = self.shutter.clone(), self.overlay.clone()
        for name in ("totals", "names", "name_index", "blockers", "elastic", "loads"):
            setattr(twin, name, getattr(self, name).copy())
        running = twin.course.running
        twin.hosts = [running[execution.key] for execution in self.hosts]
        twin.device = deque(running[execution.key] for execution in self.device)
        twin.choose()
        return twin

    # --- time passes --------------------------------------------------------------------------------------------------

    def advance(self, time: int) -> None:
        """Move to `time` (ns); what passed belongs to the owner. Never moves back."""
        if time >= self._timer:
            self._fire(time)
        if self.alive and time > self.now:
            self._spend(time)

    def _spend(self, time: int) -> None:
        spent = time - self.now
        self.now = time
        owner = self._owner
        if owner.__class__ is int:
            self.totals[owner] += spent
        else:
            owner.net += spent  # type: ignore[union-attr]
        if not self._plain:
            self._spend_beside(spent)

    def _spend_beside(self, spent: int) -> None:
        """What moves with time beside the owner's account: lenses, the overlay, overlapped loading, pieces."""
        owner = self._owner
        self.overlapped += len(self.loads) * spent
        mask = self.shutter.mask
        execution = owner if isinstance(owner, Execution) else None
        if execution is not None and execution.pieces is not None:
            execution.pieces.append((spent, mask))
        self.overlay.weigh(self.overlay.time, spent)
        for lens in self.lenses if mask else ():
            if not lens.bit & mask:
                continue
            lens.elapsed += spent
            if execution is not None:
                execution.share(lens.bit, spent)
            elif isinstance(owner, int):
                lens.totals[owner] = lens.totals.get(owner, 0) + spent
            self.overlay.weigh(lens.beside, spent)

    def _fire(self, time: int) -> None:
        """Stop at everything that is due up to `time` by itself: device ends, edges of lenses and of buckets."""
        while self._timer <= time and self._timer < NEVER:
            due = self._timer
            if self.alive and due > self.now:
                self._spend(due)
            while self.device and self.device[0].device_end is not None and self.device[0].device_end <= due:
                self._leave_device()
            if self.alive:
                self.shutter.move(due)
                if self.rolling is not None and self.rolling.boundary <= due:
                    self._close_bucket(time)
            self.choose()

    def _close_bucket(self, time: int) -> None:
        """A bucket of the rolling windows ends; skip those in which nothing but the passing of time happens."""
        rolling = self.course.rolling
        if rolling is None:
            return
        running = self.course.running.values()
        rolling.close(self.visible_totals(), running, len(self.course.progress), self.visible_beside())
        boundary = min(rolling.last_boundary_before(time), self._next_due())
        if boundary > rolling.boundary:
            boundary -= (boundary - rolling.boundary) % rolling.resolution
            self.choose()
            self._spend(boundary)
            rolling.jump(boundary, self.visible_totals(), running, len(self.course.progress), self.visible_beside())

    def _next_due(self) -> int:
        """When something other than a bucket's edge is due."""
        due = NEVER
        if self.device and self.device[0].device_end is not None:
            due = self.device[0].device_end
        edge = self.shutter.due
        if edge is not None and self.alive:
            due = min(due, edge)
        return due

    def change_spans(self, spans: Sequence[int]) -> None:
        """Roll other windows from now on, empty ones; `spans` in ns."""
        self.spans = tuple(spans)
        self.course.rolling = None
        if spans and self.begin is not None:
            rolling = self.course.rolling = Rolling(spans, self.begin)
            boundary = rolling.last_boundary_before(self.now) or self.begin
            running, length = self.course.running.values(), len(self.course.progress)
            rolling.jump(boundary, self.visible_totals(), running, length, self.visible_beside())

    def visible_totals(self) -> list[int]:
        """Time by category outside of exclusions, steps apart, ns."""
        excluded = self.lenses[0].totals
        if not excluded:
            return self.totals
        return [total - excluded.get(category, 0) for category, total in enumerate(self.totals)]

    def visible_beside(self) -> Weighted:
        """What lies over the time line outside of exclusions, ns weighted."""
        return [whole - hidden for whole, hidden in zip(self.overlay.time, self.lenses[0].beside, strict=True)]

    def choose(self) -> None:
        """Who owns time from now on (rule R3), when to stop next, and what else moves with time."""
        self._calm = self._nothing_beside()
        self._direct = self.alive and not self.elastic and not self.device
        if self._direct:
            self._choose_directly()
        else:
            self._plain = False
            if not self.alive:
                self._owner = NOBODY
            elif self.elastic:
                # The latest of the highest rank.
                self._owner = max(reversed(self.elastic.values()), key=lambda phase: phase[0])[1]
            else:
                self._owner = self.device[0]
        due = self._next_due()
        rolling = self.course.rolling
        if rolling is not None and self.alive and rolling.boundary < due:
            due = rolling.boundary
        self._timer = due

    def _nothing_beside(self) -> bool:
        return not (self.loads or self.shutter.mask or self.overlay.weights is not None)

    def _choose_directly(self) -> None:
        """The owner where nothing is above the ordinary phases and the open step."""
        if self.blockers:
            self._owner = next(reversed(self.blockers.values()))
            self._plain = self._calm
        elif self.hosts:
            step = self._owner = self.hosts[-1]
            self._plain = self._calm and step.pieces is None
        else:
            self._owner = rules.OTHER
            self._plain = self._calm

    # --- events -------------------------------------------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        """Take the next event; a time before the previous one's counts as now."""
        time, kind, phase, key, step, flags, arg, name = event
        if kind == ATTEMPT:
            self._begin_attempt(step)
            return
        if time >= self._timer:
            self._fire(time)
        if time > self.now and self.alive:
            if self._plain:
                # As in _spend, which this saves a call for nearly every event.
                owner = self._owner
                if owner.__class__ is int:
                    self.totals[owner] += time - self.now
                else:
                    owner.net += time - self.now  # type: ignore[union-attr]
                self.now = time
            else:
                self._spend(time)
        if kind == START:
            if phase == STEP:
                self._start_step(time, key, step, flags, arg)
                if self._direct:
                    self._choose_directly()
                    return
            elif not flags and phase in SIMPLE:
                if key not in self.blockers:
                    self.blockers[key] = SIMPLE[phase]
                    if self._direct:
                        self._owner = SIMPLE[phase]
                        self._plain = self._calm
                return
            elif phase == PART:
                return
            else:
                self._start_phase(time, phase, key, step, flags, name)
        elif kind == END:
            execution = self.course.running.get(key)
            if execution is not None:
                self._end_step(execution, flags & FAILED != 0)
            elif self.blockers.pop(key, None) is None or key in self.course.saves:
                self._end_phase(key, flags)
            if name and phase == COMPILE:
                self.recompilations += self.course.compile(name)
            if self._direct and self.alive and not self.device:
                self._choose_directly()
                return
        elif kind == ev.SLICES:
            shares = shares_of(step, key, arg)
            if self.alive or self.begin is None:
                self.overlay.share(shares)
            else:
                self.overlay.between.append((time, shares))
        elif kind == ev.NOTICE:
            self.notice = None if flags & ev.WITHDRAWN else _weightier(self.notice, REASONS[phase])
        elif kind == ev.DURABLE:
            self.course.end_save(key, True)
        elif kind == ev.CLOCK:
            self.fallback = FALLBACK_CLOCKS[phase]
        else:
            return
        self.choose()

    # --- lives --------------------------------------------------------------------------------------------------------

    def _begin_attempt(self, number: int) -> None:
        """The process began anew; whatever was open died at its last sign of life (rule R2)."""
        while self.device and (self.device[0].device_end or NEVER) < NEVER:
            self.advance(max(self.now, self.device[0].device_end or 0))
        self.alive = False
        self.fallback = ClockState.HOST
        self.overlay.blur(False)
        self.course.begin_attempt(number)
        self.job = None
        for opened in (self.blockers, self.elastic, self.loads, self.hosts, self.device):
            opened.clear()
        self.shutter.forget()
        self.choose()

    def _start_job(self, time: int, key: int) -> None:
        if self.alive:
            return
        first = self.begin is None
        if first:
            self.begin = self.now = time
            if self.spans:
                self.course.rolling = Rolling(self.spans, time)
        reason = self.notice or (Reason.RESTART if self.clean else Reason.CRASH)
        self.skewed |= time < self.now
        self.course.begin_life(first=first, reason=reason, gap=max(0, time - self.now))
        if not first:
            self.hosts = [execution for execution in self.hosts if execution.key in self.course.running]
            self.device = deque(execution for execution in self.device if execution.key in self.course.running)
            self._recover(time)
        self.notice = None
        self.alive, self.ended, self.clean = True, False, False
        self.job = key
        self.choose()
        self._fire(self.now)

    def _recover(self, time: int) -> None:
        """Give the time from the last sign of life to the job's start at `time` to recovery (rule R2)."""
        held = self.elastic, self.loads
        self.elastic, self.loads = {0: (rules.REINITIALIZING, rules.RECOVERY)}, set()
        self.alive = True
        self.choose()
        between, self.overlay.between = self.overlay.between, []
        for told, shares in between:
            self.advance(min(told, time))
            self.overlay.share(shares)
            self.choose()
        self.advance(time)
        self.elastic, self.loads = held

    # --- phases -------------------------------------------------------------------------------------------------------

    def _start_phase(self, time: int, phase: int, key: int, step: int, flags: int, name: str) -> None:
        category = rules.OWNERS.get(phase, NOBODY)
        if phase == rules.JOB:
            self._start_job(time, key)
            return
        if phase == rules.EXCLUSION:
            self.shutter.exclude(key)
            return
        if phase == rules.COMPILE:
            self.course.life.compiles_seen = True
        elif phase == rules.SAVE:
            self.course.begin_save(key, step)
        elif phase == rules.CUSTOM_PHASE:
            category = self._custom(name)
        if flags & ev.NONBLOCKING:
            if phase == rules.DATA_LOADING:
                self.loads.add(key)
        elif phase in rules.RANK:
            if phase == rules.ELASTIC_WAIT:
                category = rules.ELASTIC_CATEGORY.get(name, rules.ELASTIC_CATEGORY[ELASTIC_SLICE_DOWN])
            self.elastic.setdefault(key, (rules.RANK[phase], category))
        else:
            self.blockers.setdefault(key, category)

    def _custom(self, name: str) -> int:
        category = self.name_index.get(name)
        if category is None:
            category = self.name_index[name] = rules.FIXED + len(self.names)
            self.names.append(name)
            self.totals.append(0)
        return category

    def _end_phase(self, key: int, flags: int) -> None:
        """The end of anything but a step or a simple phase."""
        if key in self.course.saves:
            if flags & ev.FAILED or not flags & ev.PENDING:
                self.course.end_save(key, not flags & ev.FAILED)
        elif key in self.loads:
            self.loads.remove(key)
            self.choose()
        elif self.elastic.pop(key, None) is not None:
            self.choose()
        elif key in self.shutter.exclusions:
            self.shutter.include(key)
            self.choose()
        elif key == self.job and self.alive:
            self.job = None
            self.alive, self.ended, self.clean = False, True, not flags & ev.FAILED
            self.overlay.blur(False)
            self.choose()

    # --- steps --------------------------------------------------------------------------------------------------------

    def _start_step(self, time: int, key: int, step: int, flags: int, device_end: int) -> None:
        course = self.course
        if key in course.running or flags & ev.NONBLOCKING or step < 0:
            return
        if time < self.now and self.alive:
            time = self.now
        execution = course.start(step, key, time, device_end or None)
        self.hosts.append(execution)
        if execution.on_device:
            self.device.append(execution)
            self._direct = False

    def _end_step(self, execution: Execution, failed: bool) -> None:
        if not execution.on_host:
            return
        execution.on_host = False
        execution.failed |= failed
        if self.hosts[-1] is execution:
            self.hosts.pop()
        else:
            self.hosts.remove(execution)
        if not execution.on_device:
            self._finish(execution)

    def _leave_device(self) -> None:
        execution = self.device.popleft()
        execution.on_device = False
        if not execution.on_host:
            self._finish(execution)

    def _finish(self, execution: Execution) -> None:
        """The execution is over, on the host and on the device."""
        self.clock = self.fallback if execution.device_end is None else ClockState.DEVICE
        unknown = self.alive and self.clock == ClockState.UNKNOWN
        if unknown is not self.overlay.unknown:
            self.overlay.blur(unknown)
            self._calm = self._nothing_beside()
        self.course.settle(execution, timed=self.clock != ClockState.UNKNOWN)


def _weightier(stands: str | None, comes: str) -> str:
    """Of two notices the one that says more: a SIGTERM after a preemption was announced is that preemption."""
    if stands in rules.PRECEDENCE and comes in rules.PRECEDENCE:
        return min(stands, comes, key=rules.PRECEDENCE.index)
    return comes

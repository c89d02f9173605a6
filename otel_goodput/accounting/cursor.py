"""The heart: a cursor that moves over the timeline and gives every nanosecond to its owner.

:class:`Cursor` takes events in the order of time and does constant work for each. It knows nothing of late events; the
:class:`~otel_goodput.accounting.ledger.Ledger` puts them in order and asks clones of the cursor for provisional answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from otel_goodput.accounting import events as ev
from otel_goodput.accounting import rules
from otel_goodput.accounting.disruption import Disruption
from otel_goodput.accounting.events import Event
from otel_goodput.accounting.execution import Execution
from otel_goodput.accounting.lenses import EXCLUDED, Lens
from otel_goodput.accounting.progress import Progress
from otel_goodput.accounting.rolling import Rolling
from otel_goodput.accounting.stretches import Life, Stretch
from otel_goodput.semconv import REASONS, Reason

NEVER: Final = 1 << 62
NOBODY: Final = -1


class Open:
    """An open phase other than a step: the category it owns time for and its rank (rule R3)."""

    __slots__ = ("category", "durable", "phase", "rank", "safe", "step")

    def __init__(self, phase: int, category: int, step: int = ev.NO_STEP) -> None:
        self.phase = phase
        self.category = category
        self.rank = rules.RANK.get(phase, rules.ORDINARY)
        self.step = step
        self.safe = 0  # a save: kept entries that it covers
        self.durable = False

    def clone(self) -> Open:
        twin = Open(self.phase, self.category, self.step)
        twin.safe, twin.durable = self.safe, self.durable
        return twin


class Cursor:
    """State of one run's account at one moment; see ACCOUNTING rules R1 to R9.

    Args:
        spans: lengths of the rolling windows in ns.
        edges: (time ns, lens index, opens?) of exact windows and exclusions known beforehand, rising; lens 0 excludes.
        lenses: how many lenses `edges` speak of.
    """

    def __init__(self, spans: Sequence[int] = (), edges: Sequence[tuple[int, int, bool]] = (), lenses: int = 1) -> None:
        self.begin: int | None = None
        self.now = 0
        self.alive = False  # between a job's start and its end
        self.ended = False  # the latest job ended by itself
        self.clean = False  # and without an error
        self.spans = tuple(spans)
        self.rolling: Rolling | None = None
        self.lenses = [Lens(1 << index) for index in range(lenses)]
        self.edges = edges
        self.next_edge = 0
        self.excluded = 0  # exclusions open
        self.opened = 0  # mask of lenses open, exclusions aside
        self.totals = [0] * rules.FIXED
        self.names: list[str] = []  # custom names, numbered from rules.FIXED on
        self.name_index: dict[str, int] = {}
        self.progress = Progress()
        self.life = Life(0)
        self.stretches: list[Stretch] = []
        self.executed = 0
        self.interrupted = 0  # ns of steps in flight when the last life ended
        self.lost = 0
        self.lost_time = 0
        self.last_step: int | None = None
        self.safe = 0  # kept entries covered by the last durable checkpoint
        self.attempts = 0
        self.disruptions: dict[str, int] = {}
        self.history: list[Disruption] = []
        self.notice: str | None = None
        self.skewed = False
        self.recompilations = 0
        self.overlapped = 0  # ns of non-blocking data loading
        self.slices: tuple[float, float] | None = None  # shares of slices stepping and available
        self.slice_time = [0.0, 0.0, 0.0]
        self.finished: list[int] | None = None  # net times of completed steps, for whoever drains them
        # What is open.
        self.open: dict[int, Open] = {}
        self.blockers: list[Open] = []
        self.elastic: list[Open] = []
        self.running: dict[int, Execution] = {}
        self.hosts: list[Execution] = []  # executions whose phase is open, latest last
        self.device: deque[Execution] = deque()
        self.loads = 0  # non-blocking data loads open
        self._owner: int | Execution = NOBODY
        self._timer = NEVER
        self._plain = True  # nothing but the owner's account moves with time

    def clone(self) -> Cursor:
        """An independent copy; costs a few microseconds, whatever the run's length."""
        twin = Cursor.__new__(Cursor)
        twin.__dict__.update(self.__dict__)
        twin.finished = None
        twin.rolling = self.rolling.clone() if self.rolling else None
        twin.lenses = [lens.clone() for lens in self.lenses]
        twin.totals = self.totals.copy()
        twin.names = self.names.copy()
        twin.name_index = self.name_index.copy()
        twin.progress = self.progress.clone()
        twin.life = Life(self.life.number)
        twin.life.compiles_seen, twin.life.steps_started = self.life.compiles_seen, self.life.steps_started
        # Stretches that nothing runs in are shared: whoever changes one puts a changed copy in its place.
        twin.stretches = self.stretches.copy()
        mine: dict[int, Stretch] = {}
        for stretch in (*self.stretches[-1:], *(execution.stretch for execution in self.running.values())):
            if id(stretch) not in mine:
                mine[id(stretch)] = stretch.clone(twin.life if stretch.life is self.life else stretch.life)
        missing = len(mine)
        for at in range(len(twin.stretches) - 1, -1, -1):
            if not missing:
                break
            if own := mine.get(id(twin.stretches[at])):
                twin.stretches[at] = own
                missing -= 1
        twin.disruptions = self.disruptions.copy()
        twin.history = [*self.history[:-1], *(disruption.clone() for disruption in self.history[-1:])]
        twin.slice_time = self.slice_time.copy()
        opened = {id(phase): phase.clone() for phase in self.open.values()}
        twin.open = {key: opened[id(phase)] for key, phase in self.open.items()}
        twin.blockers = [opened[id(phase)] for phase in self.blockers]
        twin.elastic = [opened[id(phase)] for phase in self.elastic]
        executions = {
            id(execution): execution.clone(mine[id(execution.stretch)]) for execution in self.running.values()
        }
        twin.running = {key: executions[id(execution)] for key, execution in self.running.items()}
        twin.hosts = [executions[id(execution)] for execution in self.hosts]
        twin.device = deque(executions[id(execution)] for execution in self.device)
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
        if self._plain:
            return
        self.overlapped += self.loads * spent
        mask = EXCLUDED if self.excluded else self.opened
        execution = owner if isinstance(owner, Execution) else None
        if execution is not None and execution.stretch.first_net is None:
            execution.pieces.append((spent, mask))
        for lens in self.lenses if mask else ():
            if not lens.bit & mask:
                continue
            lens.elapsed += spent
            if execution is not None:
                execution.shares[lens.bit] = execution.shares.get(lens.bit, 0) + spent
            elif isinstance(owner, int):
                lens.totals[owner] = lens.totals.get(owner, 0) + spent
        if self.slices is not None:
            known = (1.0, *self.slices)
            for at, share in enumerate(known):
                self.slice_time[at] += share * spent
                for lens in self.lenses if mask else ():
                    if lens.bit & mask:
                        lens.slices[at] += share * spent

    def _fire(self, time: int) -> None:
        """Stop at everything that is due up to `time` by itself: device ends, edges of lenses and of buckets."""
        while self._timer <= time:
            due = self._timer
            if self.alive and due > self.now:
                self._spend(due)
            while self.device and self.device[0].device_end is not None and self.device[0].device_end <= due:
                self._leave_device(self.device[0])
            if self.alive:
                while self.next_edge < len(self.edges) and self.edges[self.next_edge][0] <= due:
                    _, lens, opens = self.edges[self.next_edge]
                    self.next_edge += 1
                    self._toggle(lens, opens)
                if self.rolling and self.rolling.boundary <= due:
                    self.rolling.close(self.visible_totals(), self.running.values(), len(self.progress))
                    if boundary := self.rolling.last_boundary_before(time):
                        self._owner_until(min(boundary, self._next_due()))
            self.choose()

    def _owner_until(self, time: int) -> None:
        """Skip the buckets up to `time`, in which nothing but the passing of time happens."""
        rolling = self.rolling
        if rolling is None or time <= rolling.boundary:
            return
        boundary = rolling.boundary - rolling.resolution
        boundary += (time - boundary) // rolling.resolution * rolling.resolution
        self.choose()
        self._spend(boundary)
        rolling.jump(boundary, self.visible_totals(), self.running.values(), len(self.progress))

    def _next_due(self) -> int:
        due = NEVER
        if self.device and self.device[0].device_end is not None:
            due = self.device[0].device_end
        if self.alive and self.next_edge < len(self.edges):
            due = min(due, self.edges[self.next_edge][0])
        return due

    def _toggle(self, lens: int, opens: bool) -> None:
        if lens == 0:
            self.excluded = max(0, self.excluded + (1 if opens else -1))
        elif opens:
            self.opened |= 1 << lens
        else:
            self.opened &= ~(1 << lens)

    def change_spans(self, spans: Sequence[int]) -> None:
        """Roll other windows from now on, empty ones; `spans` in ns."""
        self.spans = tuple(spans)
        self.rolling = None
        if spans and self.begin is not None:
            self.rolling = Rolling(spans, self.begin)
            if boundary := self.rolling.last_boundary_before(self.now):
                self.rolling.jump(boundary, self.visible_totals(), self.running.values(), len(self.progress))
            else:
                self.rolling.jump(self.begin, self.visible_totals(), self.running.values(), len(self.progress))

    def visible_totals(self) -> list[int]:
        """Time by category outside of exclusions, steps apart, ns."""
        excluded = self.lenses[0].totals
        if not excluded:
            return self.totals
        return [total - excluded.get(category, 0) for category, total in enumerate(self.totals)]

    def choose(self) -> None:
        """Who owns time from now on (rule R3), and when to stop next."""
        if not self.alive:
            self._owner = NOBODY
        elif self.elastic:
            self._owner = max(reversed(self.elastic), key=lambda phase: phase.rank).category  # latest of the highest
        elif self.device:
            self._owner = self.device[0]
        elif self.blockers:
            self._owner = self.blockers[-1].category
        elif self.hosts:
            self._owner = self.hosts[-1]
        else:
            self._owner = rules.OTHER
        due = self._next_due()
        if self.alive and self.rolling:
            due = min(due, self.rolling.boundary)
        self._timer = due
        self._plain = not (
            self.loads
            or self.excluded
            or self.opened
            or self.slices
            or (isinstance(self._owner, Execution) and self._owner.stretch.first_net is None)
        )

    # --- events -------------------------------------------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        """Take the next event; its time must not be before the previous one's, or it counts as now."""
        time, kind, phase, key, step, flags, arg, name = event
        if kind == ev.ATTEMPT:
            self._begin_attempt(step)
            return
        if time >= self._timer:
            self._fire(time)
        if self.alive and time > self.now:
            self._spend(time)
        if kind == ev.START:
            if phase == rules.STEP:
                self._start_step(event)
            elif phase == rules.JOB:
                self._start_job(time, key)
            else:
                self._start_phase(phase, key, step, flags, name)
        elif kind == ev.END:
            execution = self.running.get(key)
            if execution is not None:
                self._end_step(execution, bool(flags & ev.FAILED))
            elif (opened := self.open.pop(key, None)) is not None:
                self._end_phase(opened, flags, key)
            else:
                return
        elif kind == ev.SLICES:
            self.slices = (step / arg, key / arg) if arg > 0 else (0.0, 0.0)
        elif kind == ev.NOTICE:
            self.notice = REASONS[phase]
        elif kind == ev.DURABLE:
            if (opened := self.open.pop(key, None)) is not None:
                self.safe = opened.safe
        else:
            return
        self.choose()

    def _begin_attempt(self, number: int) -> None:
        """The process began anew; whatever was open died at its last sign of life (rule R2)."""
        while self.device and self.device[0].device_end is not None and self.device[0].device_end < NEVER:
            self.advance(max(self.now, self.device[0].device_end))
        self.alive = False
        self._bury()
        self.life = Life(number)
        self.open.clear()
        self.blockers.clear()
        self.elastic.clear()
        self.loads = 0
        self.choose()

    def _bury(self) -> None:
        """The steps in flight are lost with the life that ended."""
        for execution in self.running.values():
            self._lose(execution)
            self.interrupted += execution.visible
        self.running.clear()
        self.hosts.clear()
        self.device.clear()

    def _start_job(self, time: int, key: int) -> None:
        if self.alive:
            return
        if self.begin is None:
            self.begin = self.now = time
            if self.spans:
                self.rolling = Rolling(self.spans, time)
        else:
            # Rule R6 holds too where one process opens its job a second time.
            self._bury()
            self.life.steps_started = False
            reason = self.notice or (Reason.RESTART if self.clean else Reason.CRASH)
            self.skewed |= time < self.now
            gap = max(0, time - self.now)
            self._disrupt(Disruption(self.attempts + 1, reason, gap, self.interrupted, self.last_step, None))
            self._recover(time)
        self.interrupted = 0
        self.attempts += 1
        self.notice = None
        self.alive, self.ended, self.clean = True, False, False
        self.open[key] = Open(rules.JOB, NOBODY)
        self.choose()
        self._fire(self.now)

    def _recover(self, time: int) -> None:
        """Give the time from the last sign of life to the job's start at `time` to recovery (rule R2)."""
        held = self.elastic, self.loads
        self.elastic, self.loads = [Open(rules.ELASTIC_REINIT, rules.RECOVERY)], 0
        self.alive = True
        self.choose()
        self.advance(time)
        self.elastic, self.loads = held

    def _start_phase(self, phase: int, key: int, step: int, flags: int, name: str) -> None:
        if key in self.open:
            return
        if phase == rules.EXCLUSION:
            self.excluded += 1
            self.open[key] = Open(phase, NOBODY)
            return
        if phase == rules.COMPILE:
            self.life.compiles_seen = True
            self.recompilations += bool(flags & ev.RECOMPILATION)
        opened = self.open[key] = Open(phase, self._category(phase, name), step)
        if phase == rules.SAVE:
            opened.safe = len(self.progress)
            if step >= 0:
                opened.safe = min(opened.safe, self.progress.index_above(step))
        if flags & ev.NONBLOCKING:
            self.loads += phase == rules.DATA_LOADING
        elif opened.rank == rules.ORDINARY:
            self.blockers.append(opened)
        else:
            self.elastic.append(opened)

    def _category(self, phase: int, name: str) -> int:
        if phase == rules.CUSTOM_PHASE:
            category = self.name_index.get(name)
            if category is None:
                category = self.name_index[name] = rules.FIXED + len(self.names)
                self.names.append(name)
                self.totals.append(0)
            return category
        if phase == rules.ELASTIC_WAIT:
            return rules.ELASTIC_CATEGORY.get(name, rules.ELASTIC_CATEGORY["slice_down"])
        return rules.OWNERS[phase]

    def _end_phase(self, opened: Open, flags: int, key: int) -> None:
        if opened.phase == rules.JOB:
            self.alive, self.ended, self.clean = False, True, not flags & ev.FAILED
            return
        if opened.phase == rules.EXCLUSION:
            self.excluded = max(0, self.excluded - 1)
            return
        if opened in self.blockers:
            self.blockers.remove(opened)
        elif opened in self.elastic:
            self.elastic.remove(opened)
        elif opened.phase == rules.DATA_LOADING:
            self.loads -= 1
        if opened.phase == rules.SAVE and not flags & ev.FAILED:
            if flags & ev.PENDING:
                self.open[key] = opened  # until its commit is known
            else:
                self.safe = opened.safe

    # --- steps --------------------------------------------------------------------------------------------------------

    def _start_step(self, event: Event) -> None:
        key, number = event.key, event.step
        if key in self.running or event.flags & ev.NONBLOCKING or number < 0:
            return
        life = self.life
        top = self.progress.top
        popped = top is not None and top >= number
        first = not life.steps_started
        if popped:
            wasted = self._go_back(number)
            if first and self.history and self.attempts > 1:
                self.history[-1].wasted += wasted
            elif not first:
                self._disrupt(Disruption(None, Reason.ROLLBACK, 0, wasted, self.last_step, number))
        if first:
            life.steps_started = True
            if self.attempts > 1 and self.history and self.history[-1].to_step is None:
                self.history[-1].to_step = number
        if first or popped:
            self.stretches.append(Stretch(life, len(self.progress)))
        for execution in self.running.values():
            if execution.number >= number:
                execution.doomed = True
        start = max(event.time, self.now) if self.alive else event.time
        execution = Execution(number, key, start, self.stretches[-1], event.arg or None)
        self.running[key] = execution
        self.hosts.append(execution)
        if execution.on_device:
            self.device.append(execution)
        self.last_step = number

    def _end_step(self, execution: Execution, failed: bool) -> None:
        if not execution.on_host:
            return
        execution.on_host = False
        execution.failed |= failed
        self.hosts.remove(execution)
        if not execution.on_device:
            self._complete(execution)
            del self.running[execution.key]

    def _leave_device(self, execution: Execution) -> None:
        self.device.popleft()
        execution.on_device = False
        if not execution.on_host:
            self._complete(execution)
            del self.running[execution.key]

    def _complete(self, execution: Execution) -> None:
        stretch = execution.stretch
        if execution.failed:
            self._lose(execution)
            return
        self.executed += 1
        if self.finished is not None:
            self.finished.append(execution.net)
        first = stretch.first_net is None
        if first:
            stretch.first_net, stretch.first_start = execution.net, execution.start
            stretch.pieces = execution.pieces
        if execution.doomed:
            self._lose(execution)
            if not first:
                stretch.add_lost(execution.net)
            return
        index = len(self.progress)
        top = self.progress.top
        if stretch is not self.stretches[-1] or (top is not None and top >= execution.number):
            index = self._insert(execution)
            stretch = execution.stretch
        else:
            self.progress.push(execution.number, execution.net)
            stretch.grow()
        if first:
            stretch.first_index = index
        for lens in self.lenses if execution.shares else ():
            lens.keep(index, execution.shares.get(lens.bit, 0))
        if self.rolling:
            self.rolling.keep(index, execution)

    def _insert(self, execution: Execution) -> int:
        """Steps overlapped and an earlier one completed later: keep it below those above it."""
        above = self.progress.pop_from(execution.number)
        index = len(self.progress)
        self.progress.push(execution.number, execution.net)
        for number, net in above:
            self.progress.push(number, net)
        for lens in self.lenses:
            lens.insert(index)
        if self.rolling:
            self.rolling.insert(index)
        for at in range(len(self.stretches) - 1, -1, -1):
            if self.stretches[at].high < index:
                break
            own = self.stretches[at] is execution.stretch
            self._own_stretch(at).make_room(index, own)
        self.safe += self.safe > index
        for opened in self.open.values():
            opened.safe += opened.safe > index
        return index

    def _lose(self, execution: Execution) -> None:
        self.lost += 1
        self.lost_time += execution.net
        for lens in self.lenses if execution.shares else ():
            lens.wasted += execution.shares.get(lens.bit, 0)
        if self.rolling:
            self.rolling.lose(execution)

    def _go_back(self, number: int) -> int:
        """Every kept execution numbered `number` or higher is lost (rule R4); returns their time, ns."""
        before = len(self.progress)
        popped = [net for _, net in self.progress.pop_from(number)]
        length = before - len(popped)
        self.lost += len(popped)
        self.lost_time += sum(popped)
        excluded = self.lenses[0].kept
        visible = [net - excluded.get(index, 0) for index, net in enumerate(popped, length)] if excluded else popped
        for lens in self.lenses:
            lens.lose_from(length, before)
        if self.rolling:
            self.rolling.lose_from(length, visible)
        for at in range(len(self.stretches) - 1, -1, -1):
            if self.stretches[at].high <= length:
                break
            self._own_stretch(at).cut_to(length, popped)
        self.safe = min(self.safe, length)
        for opened in self.open.values():
            opened.safe = min(opened.safe, length)
        return sum(visible)

    def _own_stretch(self, at: int) -> Stretch:
        """A stretch that may be changed: clones share all but the running ones."""
        shared = self.stretches[at]
        own = self.stretches[at] = shared.clone(shared.life)
        for execution in self.running.values():
            if execution.stretch is shared:
                execution.stretch = own
        return own

    def _disrupt(self, disruption: Disruption) -> None:
        self.disruptions[disruption.reason] = self.disruptions.get(disruption.reason, 0) + 1
        self.history.append(disruption)
        if len(self.history) > Disruption.REMEMBERED:
            del self.history[0]

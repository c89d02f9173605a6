"""The cursor moves along the timeline and assigns every nanosecond to one owner (rules R1 to R3).

:class:`Cursor` takes events in time order and does constant work for each. The events of an undisturbed loop (steps one
after another, and phases that block them) are applied together: one by one, they take three times as long.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from operator import le, sub
from typing import Final

from otel_goodput._accounting import events as ev
from otel_goodput._accounting import rules
from otel_goodput._accounting.account_state import NOBODY, AccountState, NotedTurns
from otel_goodput._accounting.buckets import Bins, Rolling
from otel_goodput._accounting.device import NEVER, DeviceSegment, owner_of
from otel_goodput._accounting.events import ATTEMPT, END, FAILED, LEFT, MARK, START, Column, Event, Turns, following
from otel_goodput._accounting.execution import Execution
from otel_goodput._accounting.overview import NOT_KNOWN
from otel_goodput._accounting.rules import COMPILE, DATA_LOADING_TIME, OTHER, PART, SIMPLE, STALLED_SLACK, STEP
from otel_goodput._accounting.stalls import NO_LIMIT, Outside
from otel_goodput._accounting.step_summary import rows_of
from otel_goodput._accounting.windows import SUSPENSION
from otel_goodput.semconv import ELASTIC_SLICE_DOWN, FALLBACK_CLOCKS, REASONS, ClockState, Reason

MOST_ENDS: Final = 4  # signals and statuses of one end
_WEIGHTS: Final[dict[str | None, int]] = {reason: place for place, reason in enumerate(rules.PRECEDENCE)}
# After runs shorter than FEW, TRIES times in turn, that many events are applied one by one before looking again.
FEW: Final = 16
TRIES: Final = 3


class Cursor(AccountState):
    """The account of one run, updated event by event."""

    def apply(self, event: Event) -> None:
        """Apply the next event. If its time is before the previous event's, the current time is used."""
        time, kind, phase, key, step, flags, arg, name = event[:]  # a plain tuple, which is unpacked in half the time
        if kind == ATTEMPT:
            self._begin_attempt(step)
            return
        time += self.shift
        self.advance(time)
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
                        self._plain = self._calm and self.noted is None
                return
            elif phase == PART:
                if not flags & ev.NONBLOCKING:
                    self._take_as_steps()
                return
            else:
                self._start_phase(time, phase, key, step, flags, name)
        elif kind == END:
            execution = self.steps.running.get(key)
            if execution is not None:
                self._end_step(execution, time, flags)
            elif self.blockers.pop(key, None) is None or key in self.steps.saves or key in self.steps.restores:
                self._end_phase(key, flags)
            if name:
                if phase == COMPILE:
                    self.recompilations += self.steps.compile(name)
                elif phase == rules.JOB and not self.alive:
                    self.error = name
            if self._direct and self.alive and not self.device:
                self._choose_directly()
                return
        elif kind == MARK:
            self._mark(owner_of(event), time, arg)
        elif kind == ev.SLICES:
            shares = (step / arg, key / arg) if arg > 0 else (0.0, 0.0)
            if self.alive or self.begin is None:
                self.overlay.shares = shares
            else:
                self.overlay.between.append((time, shares))
        elif kind == ev.NOTICE:
            # The more specific notice counts: a SIGTERM after an announced preemption belongs to that preemption.
            stands, comes = (_WEIGHTS.get(one, len(_WEIGHTS)) for one in (self.notice, REASONS[phase]))
            if flags & ev.WITHDRAWN:
                self.notice = None
            elif comes <= stands:
                self.notice = REASONS[phase]
            if name and name not in self.ended_by:
                self.ended_by.append(name)
        elif kind == ev.DURABLE:
            self._end_save(key, True)
        elif kind == ev.LABEL:
            self.steps.label(key, step)
        elif kind == ev.CLOCK:
            self.fallback = FALLBACK_CLOCKS[phase]
        elif kind == ev.SUSPENDED:
            if self.alive:  # what passes while the machine is suspended is cut out: it is nobody's (rule R7)
                begin = self.now
                self.open_windows.exclusions.add(SUSPENSION)
                self._give_to(OTHER, min(time + max(0, key), NEVER - 1))
                self.open_windows.exclusions.remove(SUSPENSION)
                self.suspended += self.now - begin
        elif kind == ev.LOOP:
            self.steps.enter(step)
        elif kind == ev.LIMIT:
            self.steps.limit = min(max(0, key), NO_LIMIT)
        elif kind == ev.PROFILING:
            self.ceilings = self.steps.ceilings() if step else {}
        else:
            return
        self.choose()

    def apply_all(self, events: Sequence[Event]) -> None:
        """Apply successive events."""
        at = short = 0
        while at < len(events):
            alone = FEW  # so many events are applied by themselves
            if self._steady():
                begun, at = at, self._apply_steady(events, at)
                short = short + 1 if at - begun < FEW else 0
                if short < TRIES:
                    alone = 1
            for event in events[at : at + alone]:
                self.apply(event)
            at += alone

    def _steady(self) -> bool:
        """Whether the next events may be those of a steady loop: nothing unusual is open, and nothing waits."""
        steps = self.steps
        if (
            not self.alive or not self._calm or self.ceilings or self.elastic or self.overlapping or len(self.hosts) > 1
            or steps.saves or steps.recoverable or steps.restores or steps.resume is not None or steps.watch is not None
            or not steps.life.steps_started or steps.segments[-1].first_net is None
        ):  # fmt: skip
            return False
        running = list(steps.running.values())  # the last one may be open on the host, the device has the others
        return (
            [one.step for one in self.device] == [one.key for one in running if one.segments]
            and [one for one in running if one.on_host] == self.hosts
            and self.hosts in ([], running[-1:])
            and all(map(self._usual, running))
        )

    def _usual(self, execution: Execution) -> bool:
        """Whether nothing is unusual about this open execution."""
        return (
            execution.number > self.steps.progress.top and execution.loop == self.steps.loop
            and execution.segments <= 1 and (execution.timed or self.fallback != ClockState.UNKNOWN)
            and not execution.failed and not execution.superseded and not execution.usual
            and execution.net <= execution.limit and execution.stall is None
            and execution.pieces is None and execution.shares is None and execution.ordinal < 0
            and execution.segment == len(self.steps.segments) - 1
        )  # fmt: skip

    def _apply_steady(self, events: Sequence[Event], first: int) -> int:
        """Apply the events from `first` on up to the first that is not of a steady loop; returns its index.

        The time up to that event has passed, too, if it does nothing but begin or end a phase.
        """
        steps, totals, blockers, device, hosts = self.steps, self.totals, self.blockers, self.device, self.hosts
        running, shift, offset, safe = steps.running, self.shift, steps.offset, steps.safe
        life, segment, slack = steps.life.number, len(steps.segments) - 1, steps.limit or STALLED_SLACK
        top = max([steps.progress.top, *[execution.number for execution in running.values()]])
        edge, unknown = self._next_edge(), self.fallback == ClockState.UNKNOWN
        outside = self._outside_steps()  # time of no step so far
        between = outside if self._between is None else self._between
        noted = self.noted
        over: list[Execution] = []
        ends: list[int] = []
        turns: list[tuple[int, int]] = []
        now = self.now
        at = first
        for at in range(first, len(events)):
            time, kind, phase, key, step, flags, device_end, name = events[at][:]
            time += shift
            if not now <= time < edge or not START <= kind <= END or name:
                break
            while device and device[0].end <= time:  # the device has steps only: see _steady
                _, _, begin, end = device[0]
                execution = running[device[0].step]  # type: ignore[index]
                if end > now:
                    execution.net += end - now
                    if noted is not None:
                        noted.append((execution, now, end))
                    now = end
                if execution.net > slack or execution.parts or execution.spots:
                    break
                device.popleft()
                execution.segments = 0
                execution.busy += max(0, end - max(begin, self.freed))
                self.freed = max(self.freed, end)
                if not execution.on_host:
                    del running[execution.key]
                    execution.outside = outside - between
                    between = outside
                    turns.append((totals[DATA_LOADING_TIME], totals[OTHER]))
                    over.append(execution)
                    ends.append(now)
            if device:
                execution = running[device[0].step]  # type: ignore[index]
                if device[0].end <= time:
                    break
                execution.net += time - now
                if noted is not None:
                    noted.append((execution, now, time))
            elif hosts and not blockers:
                hosts[-1].net += time - now
                if noted is not None:
                    noted.append((hosts[-1], now, time))
            else:
                category = next(reversed(blockers.values())) if blockers else OTHER
                totals[category] += time - now
                outside += time - now
                if noted is not None:
                    noted.append((category, now, time))
            now = time
            if kind == START:
                if phase == STEP:
                    step += offset
                    if hosts or flags or step <= top or step <= safe or key in running or (unknown and not device_end):
                        break
                    execution = running[key] = Execution(step, key, time, life, segment)
                    execution.loop, execution.fixed, execution.limit = steps.loop, steps.limit, slack
                    hosts.append(execution)
                    if device_end:
                        execution.segments, execution.timed, steps.observed = 1, True, True
                        device.append(DeviceSegment(key, OTHER, time, self._shifted(device_end)))
                    steps.latest, steps.previous, steps.last_step, top = key, steps.last_step, step, step
                elif flags or phase not in SIMPLE or key in blockers or key in running:
                    break
                else:
                    blockers[key] = SIMPLE[phase]
            elif hosts and key == hosts[-1].key:
                execution = hosts[-1]
                if execution.net > slack or flags & FAILED or execution.parts or execution.spots:
                    break
                if device and not execution.segments:
                    break  # it is over before the ones that are on the device
                hosts.clear()
                execution.on_host, execution.wall = False, time - execution.start
                if not execution.segments:
                    del running[key]
                    execution.outside = outside - between
                    between = outside
                    turns.append((totals[DATA_LOADING_TIME], totals[OTHER]))
                    over.append(execution)
                    ends.append(now)
            elif blockers.pop(key, None) is None:
                break
        else:
            at = len(events)  # all of them
        self.now = now
        if over:
            if self._between is None:
                over[0].outside = NOT_KNOWN
            self.outside.end_turns(turns)
            steps.push(rows_of(over), ends)
            self.clock = ClockState.DEVICE if over[-1].timed else self.fallback
            self._between = between
        for execution in running.values():
            if execution.net > execution.limit:
                self._stand_still(execution)
        self.choose()
        return at

    def apply_turns(
        self, load: int, begins: Column, ends: Column, numbers: Column, keys: Column = ()
    ) -> tuple[list[int], list[int]]:
        """Apply steps in a row, with rising `numbers`, behind the open `load`, as long as nothing else is due.

        `begins` and `ends` are ns; `keys` of steps are for an overview. Returns the lengths of the steps that were
        applied and of the loads between them, ns; none if the loop is not steady.
        """
        steps, shift, offset = self.steps, self.shift, self.steps.offset
        count = bisect_left(ends, self._timer - shift)
        begins, ends, numbers = begins[:count], ends[:count], numbers[:count]
        if (
            not count or begins[0] + shift < self.now or numbers[0] + offset <= max(steps.progress.top, steps.safe)
            or steps.running or self.blockers.keys() != {load} or self.fallback == ClockState.UNKNOWN
            or not self._steady()
        ):  # fmt: skip
            return [], []
        nets, loads = list(map(sub, ends, begins)), list(map(sub, begins[1:], ends))
        if max(nets) > (steps.limit or STALLED_SLACK) or min(nets) < 0 or min(loads, default=0) < 0:
            return [], []
        outsides = [begins[0] + shift - self.now, *loads]
        loaded = sum(outsides)
        self.outside.end_loads(self.totals, outsides)
        self.totals[self.blockers.pop(load)] += loaded
        between = self._outside_steps()
        outsides[0] = NOT_KNOWN if self._between is None else between - loaded + outsides[0] - self._between
        self._between = between
        latest = ev.key_behind(load, 2 * count - 1)
        self.blockers[following(latest)] = DATA_LOADING_TIME
        since, self.now = self.now, ends[-1] + shift
        steps.previous = numbers[-2] + offset if count > 1 else steps.last_step
        steps.last_step, steps.latest = numbers[-1] + offset, latest
        starts, overs = ([time + shift for time in times] if shift else list(times) for times in (begins, ends))
        moved = [number + offset for number in numbers] if offset else numbers
        if self.noted is not None:
            self.noted.append((NotedTurns(moved, starts, overs), since, self.now))
        steps.push(([*moved], starts, nets, nets, outsides, [NOT_KNOWN] * count, [*keys[:count]]), overs)
        self.clock = self.fallback
        return nets, loads

    def undisturbed(self) -> bool:
        """Whether this may be a steady loop in which a data load is open, nothing else on the host."""
        return not self.hosts and [*self.blockers.values()] == [DATA_LOADING_TIME] and self._steady()

    def apply_dispatched(self, turns: Turns) -> bool:
        """Apply steady whole turns whose device ends are known; False, and nothing is done, if something else is due.

        A step is over when both host and device are done with it. It owns the time since the one before was over, but
        for what passed before it began.
        """
        steps, shift, offset, device, now = self.steps, self.shift, self.steps.offset, self.device, self.now
        begins, ends = [[time + shift for time in turns.times[at::2]] for at in (0, 1)]
        keys, until, waiting = turns.keys[1::2], ends[-1], list(steps.running.values())
        numbers = [one.number for one in waiting] + [number + offset for number in turns.numbers[::2]]
        freed = [self.freed, *(one.end for one in device), *(end + shift for end in turns.left)]
        if (
            begins[0] < now or until >= self._next_edge() or turns.keys[0] not in self.blockers
            or not self.undisturbed() or len(device) != len(waiting) or (device and device[0].end <= now)
            or freed[-1] >= NEVER or any(one.parts or one.spots for one in waiting)
            or numbers[len(waiting)] <= max(steps.progress.top, steps.safe, *numbers[: len(waiting)])
            or not all(map(le, freed, freed[1:])) or not all(map(le, begins, freed[len(device) + 1 :]))
            or not steps.running.keys().isdisjoint(turns.keys)
        ):  # fmt: skip
            return False
        overs = [now, *map(max, [now] * len(waiting) + ends, freed[1:])]
        owned = list(map(max, [now] * len(waiting) + begins, overs))
        nets, outsides = list(map(sub, overs[1:], owned)), list(map(sub, owned, overs))
        limit = steps.limit or STALLED_SLACK
        if max(nets) + (waiting[0].net if waiting else 0) > min([limit, *(one.limit for one in waiting)]):
            return False
        count = bisect_right(overs, until) - 1  # so many are over
        dispatches = [one.begin for one in device] + begins
        busy = list(map(sub, freed[1:], map(max, dispatches, freed)))
        walls = [one.wall for one in waiting] + list(map(sub, ends, begins))
        starts, every = [one.start for one in waiting] + begins, [one.key for one in waiting] + [*keys]
        for at, one in enumerate(waiting[:count]):
            device.popleft()
            del steps.running[one.key]
            nets[at] += one.net
            busy[at] += one.busy
        life, segment = steps.life.number, len(steps.segments) - 1
        for at in range(max(count, len(waiting)), len(every)):
            key, start = every[at], starts[at]
            one = steps.running[key] = Execution(numbers[at], key, start, life, segment)
            one.loop, one.fixed, one.limit, one.wall = steps.loop, steps.limit, limit, walls[at]
            one.on_host, one.segments, one.timed = False, 1, True
            device.append(DeviceSegment(key, OTHER, start, freed[at + 1]))
        if count < len(every):
            steps.running[every[count]].net += until - owned[count]
        if self.noted is not None:
            self.noted += self._noted_dispatched(waiting, numbers[len(waiting) :], owned, overs, count, until)
        outside = self._outside_steps()
        self.outside.end_loads(self.totals, outsides[:count])
        self.totals[DATA_LOADING_TIME] += sum(outsides[: count + 1])
        self.blockers = {following(turns.keys[-1]): DATA_LOADING_TIME}
        self.now, self.freed = until, freed[count]
        steps.latest, steps.previous, steps.last_step = keys[-1], steps.last_step, numbers[-1]
        if len(keys) > 1:
            steps.previous = numbers[-2]
        steps.observed = True
        if count:
            between = outside + sum(outsides[:count])
            outsides[0] = NOT_KNOWN if self._between is None else outside + outsides[0] - self._between
            self._between = between
            rows = numbers, starts, nets, walls, outsides, busy, every
            steps.push(tuple(row[:count] for row in rows), overs[1 : count + 1])
            self.clock = ClockState.DEVICE
        self.choose()
        return True

    def _begin_attempt(self, number: int) -> None:
        """Start a new attempt. Whatever was open ended with the last sign of life of the old process (rule R2)."""
        self.drain()
        self.risk_curve.end(self.now, clean=False)
        self.alive = False
        self.shift = 0
        self.ceilings = {}
        self.fallback = ClockState.HOST
        self.overlay.unknown = False
        self._decide()
        self.steps.mark_lost(self.now)
        self._close_startup()
        self.startup_before = self.restored_before = -1
        self.steps.begin_attempt(number)
        self.job = None
        for opened in (self.blockers, self.overlapping, self.elastic, self.loads, self.hosts, self.device):
            opened.clear()
        self.open_windows.exclusions.clear()
        self.choose()

    def _start_job(self, time: int, key: int) -> None:
        if self.alive:
            return
        first = self.begin is None
        if first:
            self.begin = self.now = time
            if self.spans:
                self.steps.rolling = Rolling(self.spans, time)
            if self._overview:
                self.steps.bins = Bins(time)
        reason = self.notice or (Reason.RESTART if self.clean else Reason.CRASH)
        if time < self.now:  # the clock of this attempt is behind the account: all its times are shifted forward
            behind, time = self.now - time, self.now
            self.skewed = True
            self.shift += behind
            self.device = deque(one._replace(end=one.end + behind) if one.end < NEVER else one for one in self.device)
        if self.steps.life.begun:
            self._decide()
            self.steps.mark_lost(self.now, pending=False)
            self._close_startup()
        self.steps.begin_life(first=first, reason=reason, gap=time - self.now, time=time)
        if not first:
            signals = ", ".join(self.ended_by[:MOST_ENDS])
            self.steps.disruptions.change_restart(error=self.error or None, ended_by=signals or None)
            self.startup_before, self.restored_before = self._startup()
        self.error, self.ended_by = "", []
        self.risk_curve.begin(self.steps.life.number, time, self.shift)
        self._between, self.outside = None, Outside()
        if not first:
            risk = self.steps.at_risk()
            self.risk_curve.jump(self.now, risk, risk)
            self.risk_curve.jump(time, risk, risk)
            self.hosts = [execution for execution in self.hosts if execution.key in self.steps.running]
            self.device = deque(one for one in self.device if one.step is None or one.step in self.steps.running)
            self._give_to(rules.RECOVERY, time)
        self.notice = None
        self.alive, self.ended, self.clean, self.finished = True, False, False, False
        self.job = key
        self.choose()
        self._fire(self.now)

    def close(self, *, dead: bool = False) -> None:
        """Give up what can no longer end: all if the process is `dead`, else what an ended job left open on the host.

        Apply no event to this cursor afterwards.
        """
        if dead:
            self.drain()
            self.alive = False
        self._decide()
        if not self.alive:
            self.steps.mark_lost(self.now, pending=dead)
            self._close_startup()

    def _give_to(self, category: int, time: int) -> None:
        """Give all time up to `time` (ns) to this category, whatever is open."""
        held = self.elastic, self.loads
        self.elastic, self.loads = {0: (rules.REINITIALIZING, category)}, set()
        self.alive = True
        self.choose()
        between, self.overlay.between = self.overlay.between, []
        for moment, shares in between:
            self.advance(min(moment, time))
            self.overlay.shares = shares
            self.choose()
        self.advance(time)
        self.elastic, self.loads = held

    def _start_phase(self, time: int, phase: int, key: int, step: int, flags: int, name: str) -> None:
        category = rules.OWNERS.get(phase, NOBODY)
        if phase == rules.JOB:
            self._start_job(time, key)
            return
        if phase == rules.EXCLUSION:
            self.open_windows.exclusions.add(key)
            return
        inside = not flags & (ev.NONBLOCKING | ev.OVERLAPPING)  # whether it is part of the open step
        if inside:
            self._take_as_steps()
        if phase == rules.COMPILE:
            self.steps.compiles(self.hosts[-1] if self.hosts and inside else None)
        elif phase == rules.SAVE:
            if flags & ev.COVERS:
                self.steps.saves[key] = step
            else:
                self.steps.begin_save(key, step, inside)
        elif phase == rules.RESTORE and inside:
            # What an evaluation restores amid training, in a custom phase, does not move it (rule R4).
            if not (self.steps.life.steps_started and max(self.blockers.values(), default=0) >= rules.FIXED):
                self.steps.restores[key] = step
        elif phase == rules.CUSTOM_PHASE:
            category = self.custom(name)
        if flags & ev.NONBLOCKING:
            if phase == rules.DATA_LOADING:
                self.loads.add(key)
        elif phase in rules.RANK:
            if phase == rules.ELASTIC_WAIT:
                category = rules.ELASTIC_CATEGORY.get(name, rules.ELASTIC_CATEGORY[ELASTIC_SLICE_DOWN])
            self.elastic.setdefault(key, (rules.RANK[phase], category))
        elif flags & ev.OVERLAPPING:
            self.overlapping.setdefault(key, category)
        else:
            self.blockers.setdefault(key, category)

    def _end_phase(self, key: int, flags: int) -> None:
        """End a phase that is neither a step nor a simple phase."""
        overlapped = self.overlapping.pop(key, None) is not None
        if key in self.steps.restores:
            self.steps.end_restore(key, flags & ev.FAILED != 0)
        elif key in self.steps.saves:
            if flags & ev.FAILED or not flags & ev.PENDING:
                self._end_save(key, not flags & ev.FAILED)
        elif key in self.loads:
            self.loads.remove(key)
        elif key in self.elastic:
            del self.elastic[key]
        elif key in self.open_windows.exclusions:
            self.open_windows.exclusions.remove(key)
        elif key == self.job and self.alive:
            self.job = None
            self.alive, self.ended, self.clean = False, True, not flags & ev.FAILED
            self.finished = self.clean and self.notice is None
            self.risk_curve.end(self.now, clean=self.clean)
            self.overlay.unknown = False
        elif not overlapped:
            return
        self.choose()

    def _end_save(self, key: int, durable: bool) -> None:
        covered = self.steps.saves.pop(key, None)
        if durable and covered is not None:
            before = self.steps.at_risk()
            self.steps.save(covered, self.now)
            self._close_startup()
            self.risk_curve.jump(self.now, before, self.steps.at_risk())

    def _start_step(self, time: int, key: int, step: int, flags: int, device_end: int) -> None:
        steps = self.steps
        if key in steps.running or flags & ev.NONBLOCKING or step < 0:
            return
        if time < self.now and self.alive:
            time = self.now
        moves = steps.resume is not None or steps.progress.top >= step + steps.offset
        before = steps.at_risk() if moves else 0
        execution = steps.start(step, key, time, numbered=flags & ev.NUMBERED != 0)
        if moves:
            self.risk_curve.jump(self.now, before, steps.at_risk())
        self.hosts.append(execution)
        if device_end:
            self._enqueue(execution, time, device_end)

    def _take_as_steps(self) -> None:
        """A phase that blocks training begins: if that is in a body after a restore, the body is a step (rule R4)."""
        if (self.hosts and self.hosts[-1].usual) or (self.steps.resume is not None and self.steps.held):
            self._works()

    def _mark(self, owner: int, time: int, device_end: int) -> None:
        """Queue the work that `owner` dispatched from `time` on until `device_end` (ns; 0 if that is never known)."""
        execution = self.steps.running.get(owner)
        if execution is not None and execution.on_host and device_end:
            self._enqueue(execution, time, device_end)
        elif device_end and (category := self.blockers.get(owner, self.overlapping.get(owner))) is not None:
            self.device.append(DeviceSegment(None, category, time, self._shifted(device_end)))

    def _enqueue(self, execution: Execution, time: int, device_end: int) -> None:
        execution.segments += 1
        execution.timed = self.steps.observed = True
        self.device.append(DeviceSegment(execution.key, OTHER, time, self._shifted(device_end)))
        self._direct = False

    def _shifted(self, end: int) -> int:
        return end + self.shift if end < NEVER else end

    def _end_step(self, execution: Execution, time: int, flags: int) -> None:
        if not execution.on_host:
            return
        execution.on_host = False
        execution.wall = time - execution.start if time > execution.start else 0
        if flags & FAILED:
            execution.failed, execution.left, execution.idle = True, flags & LEFT != 0, flags & ev.IDLE != 0
        if self.hosts[-1] is execution:
            self.hosts.pop()
        else:
            self.hosts.remove(execution)
        if not execution.segments:
            self._finish(execution)
        if flags & ev.RANK_DIED:
            self.steps.interrupt(execution)

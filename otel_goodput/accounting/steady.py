"""The events of an undisturbed training loop, applied together: steps one after another, and phases that block them.

Nearly all events of nearly all runs are of this kind, and to apply each by itself takes three times as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from otel_goodput.accounting import rules
from otel_goodput.accounting.events import END, FAILED, START, Event
from otel_goodput.accounting.execution import Execution
from otel_goodput.accounting.overview import NOT_KNOWN
from otel_goodput.accounting.rules import SIMPLE, STALLED_SLACK, STEP
from otel_goodput.accounting.step_summary import no_steps
from otel_goodput.accounting.timepiece import Timepiece
from otel_goodput.semconv import ClockState

FEW: Final = 16  # if fewer events than that in a row are of a steady loop, so many are not looked at,
TRIES: Final = 3  # if that happens so often in turn
THE_STEP: Final = -2  # as the owner of time: the open step


class SteadyLoop(Timepiece):
    """Applies events of a steady loop, with the same result as :meth:`apply` for each of them."""

    def apply(self, event: Event) -> None:
        """Apply the next event, whatever it is."""
        raise NotImplementedError

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
        return (
            self._direct and self._calm and not self.overlapping and self.fallback != ClockState.UNKNOWN
            and not steps.saves and not steps.recoverable and not steps.restores
            and steps.resume is None and steps.watch is None
            and steps.life.steps_started and steps.segments[-1].first_net is not None
            and (not steps.running or self._usual(*steps.running.values()))
        )  # fmt: skip

    def _usual(self, execution: Execution, *others: Execution) -> bool:
        """Whether this is the only open execution, and nothing is unusual about it."""
        return (
            not others and execution.number > self.steps.progress.top
            and execution.on_host and not execution.segments and not execution.timed
            and not execution.failed and not execution.superseded and not execution.usual
            and execution.net <= execution.limit and execution.stall is None
            and execution.pieces is None and execution.shares is None and execution.ordinal < 0
            and execution.step_segment is self.steps.segments[-1]
        )  # fmt: skip

    def _apply_steady(self, events: Sequence[Event], first: int) -> int:
        """Apply the events from `first` on up to the first that is not of a steady loop; returns its index.

        The time up to that event has passed, too, if it does nothing but begin or end a phase.
        """
        steps, totals, blockers, timer, shift = self.steps, self.totals, self.blockers, self._timer, self.shift
        top, safe, offset, now = steps.progress.top, steps.safe, steps.offset, self.now
        last, previous, latest = steps.last_step, steps.previous, steps.latest
        beside = self._beside() if self.landmarks is not None else 0  # time of no step so far
        between = beside if self._between is None else self._between
        slack = steps.limit or STALLED_SLACK
        key: int | None = None  # of the open step
        number = start = net = 0
        opened = next(iter(steps.running.values()), None)  # the same, if it was open before
        if opened is not None:
            key, number, start, net = opened.key, opened.number, opened.start, opened.net
        owner = rules.OTHER if key is None else THE_STEP
        if blockers:
            owner = next(reversed(blockers.values()))
        over = no_steps()
        numbers, starts, nets, walls, outsides, devices, keys = over
        at = first
        for at in range(first, len(events)):
            time, kind, phase, which, step, flags, arg, name = events[at][:]  # a plain tuple is unpacked faster
            time += shift
            if not now <= time < timer or not START <= kind <= END:
                break
            if owner == THE_STEP:
                net += time - now
            else:
                totals[owner] += time - now
                beside += time - now
            now = time
            if kind == START:
                if phase == STEP:
                    step += offset
                    if key is not None or flags or arg or step <= top or step <= safe:
                        break
                    key, number, start, net = which, step, time, 0
                    previous, last, latest = last, step, which
                    if not blockers:
                        owner = THE_STEP
                elif flags or phase not in SIMPLE or which in blockers or which == key:
                    break
                else:
                    owner = blockers[which] = SIMPLE[phase]
            elif name:
                break
            elif which == key:
                if net > slack or flags & FAILED or (opened is not None and (opened.parts or opened.spots)):
                    break
                opened = None
                numbers.append(number)
                starts.append(start)
                nets.append(net)
                walls.append(time - start)
                outsides.append(beside - between)
                keys.append(which)
                top, between, key = number, beside, None
                if not blockers:
                    owner = rules.OTHER
            elif which in blockers:
                del blockers[which]
                if blockers:
                    owner = next(reversed(blockers.values()))
                else:
                    owner = rules.OTHER if key is None else THE_STEP
            else:
                break
        else:
            at = len(events)  # all of them
        self.now = now
        steps.last_step, steps.previous, steps.latest = last, previous, latest
        if numbers:
            if self._between is None:
                outsides[0] = NOT_KNOWN
            devices += [NOT_KNOWN] * len(numbers)
            steps.push(over)
            self.clock = self.fallback
            if self.landmarks is not None:
                self._between = between
        if opened is None:
            steps.running.clear()
            self.hosts.clear()
        if key is not None:
            execution = opened or steps.begun(number, key, start)
            execution.net = net
            if net > execution.limit:
                self._stand_still(execution)
            steps.running[key] = execution
            self.hosts[:] = [execution]
        self._choose_directly()
        return at

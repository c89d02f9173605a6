"""The cursor of a rank of which only its partition is wanted, of which it takes long undisturbed loops as columns."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import Final

from otel_goodput._accounting.account_state import NotedTurns
from otel_goodput._accounting.arithmetic import PLAIN, WHOLE, Arithmetic, Dispatched
from otel_goodput._accounting.cursor import Cursor
from otel_goodput._accounting.device import NEVER, DeviceSegment
from otel_goodput._accounting.events import Column, Turns, following, key_behind, place_of
from otel_goodput._accounting.execution import Execution
from otel_goodput._accounting.rules import CADENCE_SAMPLE, DATA_LOADING_TIME, OTHER, STALLED_SLACK
from otel_goodput.semconv import ClockState

FEWEST: Final = 16  # steps: fewer are applied one by one


class RankCursor(Cursor):
    """A cursor without an overview that notes whose time passes. Nobody collects the lengths of its steps."""

    def apply_columns(
        self, load: int, begins: Column, ends: Column, numbers: range, arithmetic: Arithmetic = PLAIN
    ) -> int:
        """Apply steps in a row behind the open `load`, as long as nothing else is due; return how many these are.

        It is what :meth:`~otel_goodput._accounting.cursor.Cursor.apply_turns` does, but that takes all or nothing: this
        stops before the first step that is longer than its limit.
        """
        steps, shift, offset = self.steps, self.shift, self.steps.offset
        count = bisect_left(ends, self._timer - shift)
        if (
            not count or begins[0] + shift < self.now or numbers[0] + offset <= max(steps.progress.top, steps.safe)
            or steps.running or self.blockers.keys() != {load} or self.fallback == ClockState.UNKNOWN
            or not self._steady()
        ):  # fmt: skip
            return 0
        limit = steps.limit or STALLED_SLACK
        begins, ends, numbers = begins[:count], ends[:count], numbers[:count]
        lengths = arithmetic.lengths(begins, ends)
        if lengths.longest > limit:
            count = next(at for at, length in enumerate(lengths.steps) if length > limit)
            if not count:
                return 0
            begins, ends, numbers = begins[:count], ends[:count], numbers[:count]
            lengths = arithmetic.lengths(begins, ends)
        if lengths.shortest < 0 or lengths.load < 0:
            return 0
        since, self.now = self.now, ends[-1] + shift
        self.totals[self.blockers.pop(load)] += self.now - since - lengths.total
        self._between = self._outside_steps()
        latest = key_behind(load, 2 * count - 1)
        self.blockers[following(latest)] = DATA_LOADING_TIME
        steps.previous = numbers[-2] + offset if count > 1 else steps.last_step
        steps.last_step, steps.latest = numbers[-1] + offset, latest
        if shift:
            begins, ends = arithmetic.moved(begins, shift), arithmetic.moved(ends, shift)
        moved = range(numbers[0] + offset, numbers[-1] + offset + 1)
        if self.noted is not None:
            self.noted.append((NotedTurns(moved, begins, ends, lengths.shortest > 0), since, self.now))
        steps.push_columns(moved, begins, lengths.steps, ends)
        self.clock = self.fallback
        return count

    def apply_dispatched_columns(
        self, load: int, begins: Column, ends: Column, numbers: range, left: Column, arithmetic: Arithmetic = PLAIN
    ) -> int:
        """Apply steps in a row that `left` the device (ns), behind the open `load`; return how many these are.

        It is what :meth:`~otel_goodput._accounting.cursor.Cursor.apply_dispatched` does, up to the first that is odd.
        """
        steps, shift, device, waiting = self.steps, self.shift, self.device, list(self.steps.running.values())
        count = bisect_left(ends, self._next_edge() - shift)
        tops = [one.number for one in waiting]
        if (
            count < FEWEST or begins[0] + shift < self.now or load not in self.blockers
            or not self.undisturbed() or len(device) != len(waiting) or (device and device[0].end <= self.now)
            or any(one.parts or one.spots for one in waiting)
            or numbers[0] + steps.offset <= max(steps.progress.top, steps.safe, *tops)
            or any(place_of(key, load) < 2 * count for key in steps.running)
        ):  # fmt: skip
            return 0
        begins, ends, left = begins[:count], ends[:count], left[:count]
        if shift:
            begins, ends, left = (arithmetic.moved(times, shift) for times in (begins, ends, left))
        freed = [self.freed, *(one.end for one in device)]
        limit = min([steps.limit or STALLED_SLACK, *(one.limit for one in waiting)]) - sum(one.net for one in waiting)
        shares = arithmetic.dispatched(self.now, freed, begins, ends, left, limit)
        if shares is None or freed[-1] >= NEVER:
            return self._apply_some(load, begins, ends, numbers[:count], left)
        count = shares.sound - len(waiting)
        if count < FEWEST:
            return 0
        self._take_dispatched(load, begins[:count], ends[:count], numbers[:count], left, shares, arithmetic)
        return count

    def _apply_some(self, load: int, begins: Column, ends: Column, numbers: range, left: Column) -> int:
        """Apply steps of which the times are shifted already, or half of them if not all can be, and so on."""
        count, shift = len(numbers), self.shift
        while count >= FEWEST:
            times, given = [0] * (2 * count), [0] * (2 * count)
            times[::2], times[1::2] = begins[:count], ends[:count]
            given[::2] = given[1::2] = numbers[:count]
            keys = [load]
            for _ in range(2 * count - 1):
                keys.append(following(keys[-1]))
            gone = tuple(end - shift for end in left[:count])
            if self.apply_dispatched(
                Turns(True, tuple(time - shift for time in times), tuple(keys), tuple(given), (), gone)
            ):
                return count
            count //= 2
        return 0

    def _take_dispatched(
        self,
        load: int,
        begins: Column,
        ends: Column,
        new: range,
        left: Column,
        shares: Dispatched,
        arithmetic: Arithmetic,
    ) -> None:
        """Apply `new` steps, and go on with those that are on the device already: up to the last of the `ends` (ns)."""
        steps, device, waiting = self.steps, self.device, list(self.steps.running.values())
        before, every = len(waiting), len(waiting) + len(new)
        new = range(new[0] + steps.offset, new[-1] + steps.offset + 1)
        until, owned, overs = ends[-1], shares.owned, array(WHOLE, (self.now,)) + array(WHOLE, shares.overs[:every])
        count = bisect_right(overs, until) - 1  # so many are over
        freed = [self.freed, *(one.end for one in device)]
        free = freed[count] if count <= before else left[count - before - 1]
        first = [length + one.net for length, one in zip(shares.lengths, waiting[:count], strict=False)]
        lengths, life, segment = shares.lengths[before:count], steps.life.number, len(steps.segments) - 1
        rest, shortest = arithmetic.sum_and_least(lengths) if lengths else (0, 0)
        spent, whole = rest + sum(shares.lengths[: len(first)]), shortest > 0
        for one in waiting[:count]:
            device.popleft()
            del steps.running[one.key]
        for at in range(max(0, count - before), len(new)):
            key, start = key_behind(load, 2 * at + 1), begins[at]
            one = steps.running[key] = Execution(new[at], key, start, life, segment)
            one.loop, one.fixed, one.limit = steps.loop, steps.limit, steps.limit or STALLED_SLACK
            one.wall, one.on_host, one.segments, one.timed = ends[at] - start, False, 1, True
            device.append(DeviceSegment(key, OTHER, start, left[at]))
        if count < every:
            next(iter(steps.running.values())).net += until - owned[count]
        if self.noted is not None:
            for owner, begin, end in self._noted_dispatched(waiting, new, owned[:every], overs, count, until):
                if whole and isinstance(owner, NotedTurns):
                    owner = owner._replace(apart=True)
                self.noted.append((owner, begin, end))
        outside, loaded = self._outside_steps(), overs[count] - self.now - spent
        self.totals[DATA_LOADING_TIME] += loaded + (owned[count] - overs[count] if count < every else 0)
        latest = key_behind(load, 2 * len(new) - 1)
        self.blockers = {following(latest): DATA_LOADING_TIME}
        self.now, self.freed = until, free
        steps.previous = new[-2] if len(new) > 1 else steps.last_step
        steps.latest, steps.last_step, steps.observed = latest, new[-1], True
        if count:
            self._between = outside + loaded
            if first:
                waited, begun = zip(*((one.number, one.start) for one in waiting[:count]), strict=True)
                steps.push_columns(waited, begun, first, overs[1 : len(first) + 1])
            if lengths:
                starts = begins[max(0, len(lengths) - CADENCE_SAMPLE - 1) : len(lengths)]
                steps.push_columns(new[: len(lengths)], starts, lengths, overs[before + 1 : count + 1])
            self.clock = ClockState.DEVICE
        self.choose()

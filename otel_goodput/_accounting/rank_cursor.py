"""The cursor of a rank of which only its partition is wanted, of which it takes long undisturbed loops as columns."""

from __future__ import annotations

from bisect import bisect_left

from otel_goodput._accounting.account_state import NotedTurns
from otel_goodput._accounting.arithmetic import PLAIN, Arithmetic
from otel_goodput._accounting.cursor import Cursor
from otel_goodput._accounting.events import Column, following, key_behind
from otel_goodput._accounting.rules import DATA_LOADING_TIME, STALLED_SLACK
from otel_goodput.semconv import ClockState


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
            apart = begins[0] > since and lengths.shortest > 0 and lengths.load > 0
            self.noted.append((NotedTurns(moved, begins, ends, apart), since, self.now))
        steps.push_columns(moved, begins, lengths.steps, ends)
        self.clock = self.fallback
        return count

"""Rolling windows in constant time: a ring of equal buckets of wall time and a running sum for each window (rule R8).

A bucket holds the time spent in it, by category. A step counts in the buckets in which its time passed, even if its
fate changes later. Only the bucket that contains the left edge of the window is counted in proportion. A bucket is
1/240 of the shortest window wide.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any, Final

from otel_goodput.accounting.execution import Execution
from otel_goodput.accounting.overlay import NOTHING, Weighted, widened
from otel_goodput.accounting.rules import IN_FLIGHT, PRODUCTIVE, WASTED_PROGRESS

BUCKETS: Final = 240

Bucket = dict[int, int]


def _add(bucket: Bucket, category: int, duration: int) -> None:
    bucket[category] = bucket.get(category, 0) + duration


class Rolling:
    """The buckets of a run. `spans` are the lengths of the windows, `begin` is the start of the run, all in ns."""

    __slots__ = (
        "_base",
        "_begin",
        "_beside",
        "_buckets",
        "_firsts",
        "_gains",
        "_lows",
        "_offset",
        "_parts",
        "_sums",
        "resolution",
        "spans",
    )

    def __init__(self, spans: Sequence[int], begin: int) -> None:
        self.spans = tuple(spans)
        self.resolution = max(1, min(self.spans) // BUCKETS)
        self._begin = begin
        self._offset = 0  # id of the first bucket held
        self._buckets: list[Bucket] = []  # closed; replaced, never changed, because clones share them
        self._lows: list[int] = [0]  # length of the kept stack when each bucket opened; last: the open bucket
        self._beside: list[Weighted] = [NOTHING]  # overlay sums when each bucket opened; last: the open one
        self._parts: dict[
            int, Sequence[tuple[int, int]]
        ] = {}  # kept index -> (bucket, ns), for steps that span several buckets
        self._sums: list[Bucket] = [{} for _ in self.spans]
        self._firsts = [0 for _ in self.spans]  # first bucket in each sum
        self._base: list[int] = []  # totals when the open bucket opened
        self._gains: Bucket = {}  # ns added to the open bucket when the fate of executions was decided

    def clone(self) -> Rolling:
        twin = Rolling.__new__(Rolling)
        for name in ("spans", "resolution", "_begin", "_offset", "_base"):
            setattr(twin, name, getattr(self, name))
        for name in ("_buckets", "_lows", "_beside", "_parts", "_firsts", "_gains"):
            setattr(twin, name, getattr(self, name).copy())
        twin._sums = [total.copy() for total in self._sums]
        return twin

    @property
    def _open_id(self) -> int:
        return self._offset + len(self._buckets)

    @property
    def boundary(self) -> int:
        """When the open bucket closes, ns."""
        return self._begin + (self._open_id + 1) * self.resolution

    def last_boundary_before(self, time: int) -> int:
        """The latest bucket edge before `time`, ns; 0 unless by then everything held is older than every window."""
        if time - self.boundary <= max(self.spans) + 2 * self.resolution:
            return 0
        return self._begin + (time - 1 - self._begin) // self.resolution * self.resolution

    # --- what happens -------------------------------------------------------------------------------------------------

    def keep(self, index: int, execution: Execution) -> None:
        """Count `execution` as productive: it completed and is kept at `index`."""
        _add(self._gains, PRODUCTIVE, execution.visible - execution.marked)
        if execution.parts:
            self._parts[index] = execution.parts
            for bucket, duration in execution.parts:
                self._move(bucket, IN_FLIGHT, PRODUCTIVE, duration)

    def forfeit(self, execution: Execution, fate: int) -> None:
        """Move the time of `execution` from in flight to the category `fate`: it is not kept."""
        self._mark(execution)
        for bucket, duration in execution.parts:
            self._move(bucket, IN_FLIGHT, fate, duration)

    def give_back(self, execution: Execution, fate: int) -> None:
        """Move the time of `execution` from `fate` back to in flight."""
        for bucket, duration in execution.parts:
            self._move(bucket, fate, IN_FLIGHT, duration)

    def _mark(self, execution: Execution) -> None:
        """Assign the time that `execution` gained since the last call to the open bucket."""
        if execution.visible > execution.marked:
            execution.parts += ((self._open_id, execution.visible - execution.marked),)
            _add(self._gains, IN_FLIGHT, execution.visible - execution.marked)
            execution.marked = execution.visible

    def lose_from(self, index: int, durations: Sequence[int]) -> None:
        """Count the kept entries from `index` on as wasted; `durations` are their visible net times, ns."""
        for entry, net in enumerate(durations, index):
            rest = net
            for bucket, duration in self._parts.pop(entry, ()):
                self._move(bucket, PRODUCTIVE, WASTED_PROGRESS, duration)
                rest -= duration
            at = bisect_right(self._lows, entry) - 1
            if at >= 0:
                self._move(self._offset + at, PRODUCTIVE, WASTED_PROGRESS, rest)
        at = len(self._lows) - 1
        while at >= 0 and self._lows[at] > index:
            self._lows[at] = index
            at -= 1

    def insert(self, index: int) -> None:
        """Move the kept entries from `index` on up by one."""
        self._parts = {at + (at >= index): parts for at, parts in self._parts.items()}
        self._lows = [low + (low > index) for low in self._lows]

    def close(self, totals: Sequence[int], running: Iterable[Execution], length: int, beside: Weighted) -> None:
        """Close the open bucket and open the next one.

        Args:
            totals, beside: totals by category and overlay sums of the run so far.
            running: the open executions.
            length: length of the kept stack.
        """
        for execution in running:
            self._mark(execution)
        bucket = self._since(totals, ())
        self._buckets.append(bucket)
        self._lows.append(length)
        self._beside.append(tuple(beside))
        for total in self._sums:
            for category, duration in bucket.items():
                _add(total, category, duration)
        self._open(totals)
        self._trim()

    def jump(
        self,
        boundary: int,
        totals: Sequence[int],
        running: Iterable[Execution],
        length: int,
        beside: Weighted,
    ) -> None:
        """Start again at `boundary` (ns), because so much time has passed that no window reaches what is held."""
        self._offset = (boundary - self._begin) // self.resolution
        self._buckets, self._lows, self._beside, self._parts = [], [length], [tuple(beside)], {}
        self._sums = [{} for _ in self.spans]
        self._firsts = [self._offset for _ in self.spans]
        for execution in running:
            execution.marked, execution.parts = execution.visible, ()
        self._open(totals)

    def _open(self, totals: Sequence[int]) -> None:
        self._base = list(totals)
        self._gains = {}

    def _since(self, totals: Sequence[int], running: Iterable[Execution]) -> Bucket:
        base = self._base
        bucket: Bucket = {}
        for category, total in enumerate(totals):
            spent = total - (base[category] if category < len(base) else 0)
            if spent:
                bucket[category] = spent
        in_flight = sum(execution.visible - execution.marked for execution in running)
        for category, duration in (*self._gains.items(), (IN_FLIGHT, in_flight)):
            if duration:
                _add(bucket, category, duration)
        return bucket

    def _move(self, bucket: int, source: int, target: int, duration: int) -> None:
        at = bucket - self._offset
        if at < 0 or not duration:
            return
        if at >= len(self._buckets):
            _add(self._gains, source, -duration)
            _add(self._gains, target, duration)
            return
        changed = self._buckets[at].copy()
        _add(changed, source, -duration)
        _add(changed, target, duration)
        self._buckets[at] = changed
        for first, total in zip(self._firsts, self._sums, strict=True):
            if bucket >= first:
                _add(total, source, -duration)
                _add(total, target, duration)

    def _trim(self) -> None:
        """Drop buckets that no window reaches any more. This happens only once enough of them have collected."""
        now = self.boundary - self.resolution
        for which, span in enumerate(self.spans):
            self._advance(which, (now - span - self._begin) // self.resolution)
        spare = min(self._firsts) - 1 - self._offset
        if spare > BUCKETS:
            del self._buckets[:spare], self._lows[:spare], self._beside[:spare]
            self._offset += spare
            if self._parts:
                self._parts = {i: parts for i, parts in self._parts.items() if parts[-1][0] >= self._offset}

    def _advance(self, which: int, first: int) -> None:
        """Make window `which` begin after bucket `first`."""
        total = self._sums[which]
        while self._firsts[which] <= first:
            at = self._firsts[which] - self._offset
            if 0 <= at < len(self._buckets):
                for category, duration in self._buckets[at].items():
                    _add(total, category, -duration)
            self._firsts[which] += 1

    def to_state(self) -> dict[str, Any]:
        return {
            "spans": self.spans,
            "begin": self._begin,
            "offset": self._offset,
            "buckets": [list(bucket.items()) for bucket in self._buckets],
            "lows": self._lows,
            "beside": self._beside,
            "parts": list(self._parts.items()),
            "base": self._base,
            "gains": list(self._gains.items()),
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Rolling:
        rolling = cls(state["spans"], state["begin"])
        rolling._offset, rolling._lows, rolling._base = state["offset"], state["lows"], state["base"]
        rolling._gains = dict(map(tuple, state["gains"]))
        rolling._beside = [tuple(widened(sums)) for sums in state["beside"]]
        rolling._buckets = [dict(map(tuple, bucket)) for bucket in state["buckets"]]
        rolling._parts = {index: [(bucket, ns) for bucket, ns in parts] for index, parts in state["parts"]}
        rolling._firsts = [rolling._offset for _ in rolling.spans]
        for bucket in rolling._buckets:
            for total in rolling._sums:
                for category, duration in bucket.items():
                    _add(total, category, duration)
        return rolling

    # --- the answer ---------------------------------------------------------------------------------------------------

    def window(self, which: int, now: int, totals: Sequence[int], running: Iterable[Execution]) -> Bucket:
        """Time by category (ns) in the last ``spans[which]`` ns before `now`. Advances the running sums to `now`."""
        left = now - self.spans[which]
        edge = (left - self._begin) // self.resolution
        current = self._since(totals, running)
        if edge >= self._open_id:
            return _share(current, now - left, max(1, now - (self.boundary - self.resolution)))
        self._advance(which, edge)
        found = self._sums[which].copy()
        at = edge - self._offset
        if 0 <= at < len(self._buckets):
            inside = self._begin + (edge + 1) * self.resolution - left
            for category, duration in _share(self._buckets[at], inside, self.resolution).items():
                _add(found, category, duration)
        for category, duration in current.items():
            _add(found, category, duration)
        return {category: duration for category, duration in found.items() if duration}

    def beside(self, which: int, now: int, sums: Weighted) -> Weighted:
        """The part of the overlay's `sums` (weighted ns) that falls in the last ``spans[which]`` ns before `now`."""
        left = now - self.spans[which] - self._begin
        at = left // self.resolution - self._offset
        part = 1.0
        if at >= len(self._buckets):
            before = self._beside[-1]  # assume that shares are the same throughout the open bucket
            opened = self.boundary - self.resolution
            part = self.spans[which] / max(self.spans[which], now - opened)
        elif at < 0:
            before = self._beside[0]
        else:
            passed = left % self.resolution / self.resolution
            before = [low + (high - low) * passed for low, high in zip(*self._beside[at : at + 2], strict=True)]
        return [(whole - earlier) * part for whole, earlier in zip(sums, before, strict=True)]


def _share(bucket: Bucket, part: int, whole: int) -> Bucket:
    """Return `part`/`whole` of a bucket. Rounding errors go to the largest category, so that the shares add up."""
    if part >= whole or not bucket:
        return bucket.copy()
    shares = {category: duration * part // whole for category, duration in bucket.items()}
    largest = max(bucket, key=lambda category: bucket[category])
    shares[largest] += sum(bucket.values()) * part // whole - sum(shares.values())
    return shares

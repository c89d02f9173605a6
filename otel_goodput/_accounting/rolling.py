"""Rolling windows in constant time: a ring of equal buckets of wall time and a running sum for each window (rule R8).

A bucket holds the time spent in it, by category. A step counts in the buckets in which its time passed, even if its
fate changes later. Only the bucket that contains the left edge of the window is counted in proportion. A bucket is
1/240 of the shortest window wide.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from otel_goodput._accounting.buckets import Bucket, Buckets, add
from otel_goodput._accounting.codec import COUNT, Each, Row, Shared, Weight, Whole, field
from otel_goodput._accounting.execution import Execution
from otel_goodput._accounting.overlay import NOTHING, Weighted
from otel_goodput._accounting.shared_list import SharedList

BUCKETS: Final = 240
NOWHERE: Final = -1  # place of what is in none of the buckets
FEWEST: Final = 40  # buckets in the shortest window, for windows that came later than the buckets


class Rolling(Buckets):
    """The buckets of a run. `spans` are the lengths of the windows, `begin` is the start of the run, all in ns."""

    MARKED = "marked"
    SPLIT = "parts"

    spans: tuple[int, ...] = field(Each(Whole(1), 64, tuple), (), key="lengths")
    _offset: int = field(COUNT, 0)  # place of the first bucket held: its number from the begin of the run
    # Overlay sums when each bucket opened; last: the open one.
    _weights: SharedList[Weighted] = field(
        Shared(Row(*[Weight()] * len(NOTHING))), make=SharedList, key="weighted_times"
    )
    resolution: int = field(Whole(1))  # width of a bucket, ns
    _sums: list[Bucket]
    _firsts: list[int]  # first bucket in each sum

    def __init__(self, spans: Sequence[int], begin: int) -> None:
        super().__init__(begin)
        self.spans = tuple(spans)
        self._weights.append(NOTHING)
        self.resolution = max(1, min(self.spans) // BUCKETS)
        self._gather()
        self._set_boundary()

    def loaded(self) -> None:
        if not self.spans or len(self._weights) != len(self._lows):
            raise ValueError("there are rolling windows of no length, or without a sum for each bucket")
        super().loaded()
        self._gather()

    def clone(self) -> Rolling:
        twin = super().clone()
        twin._firsts = self._firsts.copy()
        twin._sums = [total.copy() for total in self._sums]
        return twin

    def respan(self, spans: Sequence[int]) -> bool:
        """Have windows of the lengths `spans` (ns) over the buckets that there are.

        Returns False, and does nothing, if the buckets are too wide for that, or were made for much longer windows.
        A window that is longer than what is held fills up as time passes.
        """
        buckets = min(spans) // self.resolution
        if not FEWEST <= buckets <= BUCKETS * (BUCKETS // FEWEST):
            return False
        self.spans = tuple(spans)
        self._gather()
        return True

    def _gather(self) -> None:
        """Make the running sums anew."""
        self._firsts = [self._offset for _ in self.spans]
        self._sums = [{} for _ in self.spans]
        for bucket in self._buckets:
            for total in self._sums:
                for category, duration in bucket.items():
                    add(total, category, duration)

    @property
    def place(self) -> int:
        return self._offset + len(self._buckets)

    def _at(self, place: int) -> int:
        return place - self._offset

    def _set_boundary(self) -> None:
        self.boundary = self._begin + (self.place + 1) * self.resolution

    def last_boundary_before(self, time: int) -> int:
        """The latest bucket edge before `time`, ns; 0 unless by then everything held is older than every window."""
        if time - self.boundary <= max(self.spans) + 2 * self.resolution:
            return 0
        return self._begin + (time - 1 - self._begin) // self.resolution * self.resolution

    # --- what happens -------------------------------------------------------------------------------------------------

    def close(self, times: Sequence[int], running: Iterable[Execution], length: int, weighted: Weighted) -> None:
        """Close the open bucket and open the next one.

        Args:
            times, weighted: time by category and overlay sums of the run so far.
            running: the open executions.
            length: length of the kept stack.
        """
        bucket = self._shut(times, running, length)
        # Nearly always the same as before, and then the same object.
        self._weights.append(self._weights[-1] if (sums := tuple(weighted)) == self._weights[-1] else sums)
        for total in self._sums:
            for category, duration in bucket.items():
                add(total, category, duration)
        self._trim()

    def jump(
        self,
        boundary: int,
        times: Sequence[int],
        running: Iterable[Execution],
        length: int,
        weighted: Weighted,
    ) -> None:
        """Start again at `boundary` (ns), because so much time has passed that no window reaches what is held."""
        self._offset = (boundary - self._begin) // self.resolution
        self._buckets, self._lows, self._parts = SharedList(), SharedList([length]), {}
        self._weights = SharedList([tuple(weighted)])
        self._sums = [{} for _ in self.spans]
        self._firsts = [self._offset for _ in self.spans]
        for execution in running:
            execution.marked, execution.parts = execution.visible, ()
            if execution.stall is not None:
                execution.stall = forgotten(execution.stall)
        self._open(times)

    def _change(self, at: int, source: int, target: int, duration: int) -> None:
        super()._change(at, source, target, duration)
        if 0 <= at < len(self._buckets) and duration:
            for first, total in zip(self._firsts, self._sums, strict=True):
                if at + self._offset >= first:
                    add(total, source, -duration)
                    add(total, target, duration)

    def _trim(self) -> None:
        """Drop buckets that no window reaches any more. This happens only once enough of them have collected."""
        now = self.boundary - self.resolution
        for which, span in enumerate(self.spans):
            self._advance(which, (now - span - self._begin) // self.resolution)
        spare = min(self._firsts) - 1 - self._offset
        if spare > BUCKETS:
            self._buckets, self._lows = self._buckets.since(spare), self._lows.since(spare)
            self._weights = self._weights.since(spare)
            self._offset += spare
            if self._parts:
                # A step that stalled was over long after its own time had passed: the rest is not where it was over.
                least, opened = self._offset, self._lows[0]
                self._parts = {at: parts for at, parts in self._parts.items() if parts[-1][0] >= least or at >= opened}

    def _advance(self, which: int, first: int) -> None:
        """Make window `which` begin after bucket `first`."""
        total = self._sums[which]
        while self._firsts[which] <= first:
            at = self._firsts[which] - self._offset
            if 0 <= at < len(self._buckets):
                for category, duration in self._buckets[at].items():
                    add(total, category, -duration)
            self._firsts[which] += 1

    # --- the answer ---------------------------------------------------------------------------------------------------

    def window(self, which: int, now: int, times: Sequence[int]) -> Bucket:
        """Time by category (ns) in the last ``spans[which]`` ns before `now`. Advances the running sums to `now`."""
        left = now - self.spans[which]
        edge = (left - self._begin) // self.resolution
        current = self._since(times)
        if edge >= self.place:
            return _share(current, now - left, max(1, now - (self.boundary - self.resolution)))
        self._advance(which, edge)
        times_inside = self._sums[which].copy()
        at = edge - self._offset
        if 0 <= at < len(self._buckets):
            inside = self._begin + (edge + 1) * self.resolution - left
            for category, duration in _share(self._buckets[at], inside, self.resolution).items():
                add(times_inside, category, duration)
        for category, duration in current.items():
            add(times_inside, category, duration)
        return {category: duration for category, duration in times_inside.items() if duration}

    def weighted(self, which: int, now: int, sums: Weighted) -> Weighted:
        """The part of the overlay's `sums` (weighted ns) that falls in the last ``spans[which]`` ns before `now`."""
        left = now - self.spans[which] - self._begin
        at = left // self.resolution - self._offset
        part = 1.0
        if at >= len(self._buckets):
            before = self._weights[-1]  # assume that shares are the same throughout the open bucket
            opened = self.boundary - self.resolution
            part = self.spans[which] / max(self.spans[which], now - opened)
        elif at < 0:
            before = self._weights[0]
        else:
            passed = left % self.resolution / self.resolution
            before = [
                low + (high - low) * passed for low, high in zip(self._weights[at], self._weights[at + 1], strict=True)
            ]
        return [(whole - earlier) * part for whole, earlier in zip(sums, before, strict=True)]


def forgotten(stall: Execution) -> Execution:
    """The same stalled time, older than every bucket."""
    twin = stall.clone()
    twin.marked, twin.parts = stall.visible, ((NOWHERE, stall.visible),)
    return twin


def _share(bucket: Bucket, part: int, whole: int) -> Bucket:
    """Return `part`/`whole` of a bucket. Rounding errors go to the largest category, so that the shares add up."""
    if part >= whole or not bucket:
        return bucket.copy()
    shares = {category: duration * part // whole for category, duration in bucket.items()}
    largest = max(bucket, key=lambda category: bucket[category])
    shares[largest] += sum(bucket.values()) * part // whole - sum(shares.values())
    return shares

"""Time in buckets of wall time, by category: rolling windows (rule R8), and the bins of a whole run.

A step counts in the buckets in which its time passed, even if its fate changes later (rule R4). So each execution
carries how much of its time is in which closed bucket, by the place of that. One within the open bucket costs nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from operator import sub
from typing import ClassVar, Final

from otel_goodput._accounting import codec, rules
from otel_goodput._accounting.codec import Each, Pairs, Row, Shared, SharedList, State, Weight, Whole, field
from otel_goodput._accounting.execution import Execution, Parts, StepSegment
from otel_goodput._accounting.windows import NOTHING, Weighted

Bucket = dict[int, int]


def add(bucket: Bucket, category: int, duration: int) -> None:
    bucket[category] = bucket.get(category, 0) + duration


def _add_all(bucket: Bucket, more: Bucket, sign: int = 1) -> None:
    for category, duration in more.items():
        bucket[category] = bucket.get(category, 0) + sign * duration


def _without_zeros(bucket: Bucket) -> Bucket:
    return {category: duration for category, duration in bucket.items() if duration}


def transfer(bucket: Bucket, segment: StepSegment, excess: int) -> None:
    """Move `excess` ns of start-up hidden in a segment's first step to the program start-up category (rule R5)."""
    if excess:
        add(bucket, segment.category, -excess)
        add(bucket, rules.PROGRAM_STARTUP, excess)


def folded(times: Mapping[int, int]) -> Bucket:
    """Time by category number with stalled time as one category, ns."""
    bucket = dict(times)
    for category in (rules.STALLED_KEPT, rules.STALLED_LOST):
        if category in bucket:
            add(bucket, rules.STALLED, bucket.pop(category))
    return bucket


class Buckets(State):
    """Successive buckets from `begin` (ns), that of the run, on; the last one is open until `boundary` (ns).

    Attributes:
        MARKED, SPLIT: names of the attributes of an execution that hold how much of its time is in closed buckets of
            this kind, and in which.
    """

    MARKED: ClassVar[str]
    SPLIT: ClassVar[str]

    begin: int = field(codec.COUNT)
    # Closed buckets; replaced, never changed, because clones share them.
    _buckets: SharedList[Bucket] = field(Shared(Pairs(codec.COUNT, codec.NUMBER, replaced=True)), make=SharedList)
    # Length of the kept stack when each bucket opened; last: the open bucket.
    _lows: SharedList[int] = field(Shared(codec.COUNT), make=SharedList, key="kept_before")
    # kept index -> (place, ns), for steps that do not lie whole in the bucket that their index tells: those open
    # when a bucket closed, which are few, and those kept late, at most as many as failed while a save that
    # holds them was open. None can be forgotten: the categories would not add up after a rollback.
    _parts: dict[int, Sequence[tuple[int, int]]] = field(Pairs(codec.COUNT, codec.PARTS), make=dict, key="split_steps")
    # The open bucket holds by how much the time of each category has changed since it opened, and what is to be
    # added because some of that was a change of closed buckets.
    _base: list[int] = field(Each(codec.NUMBER), make=list, key="times_at_open")
    _gains: Bucket = field(codec.BY_CATEGORY, make=dict, key="corrections")
    boundary = 0
    width: int  # of a bucket, ns
    _offset = 0  # number of the first bucket that is held, from the begin of the run
    _unit = 1  # by how much the places of neighbors differ

    def __init__(self, begin: int) -> None:
        super().__init__()
        self.begin = begin
        self._lows.append(0)

    def loaded(self) -> None:
        if len(self._lows) != len(self._buckets) + 1:
            raise ValueError("the number of buckets is not that of their boundaries")
        self._set_boundary()

    def _set_boundary(self) -> None:
        """Another bucket is the open one, or it has another width."""
        self.boundary = self.begin + (self._offset + len(self._buckets) + 1) * self.width

    @property
    def place(self) -> int:
        """Place of the open bucket."""
        return (self._offset + len(self._buckets)) * self._unit

    def _at(self, place: int) -> int:
        """Index of the bucket at `place` in `_buckets`; negative if it is not held any more."""
        return place // self._unit - self._offset

    def keep(self, index: int, execution: Execution, *, inserted: bool) -> None:
        """Count `execution` as productive: it completed and is kept at `index`, `inserted` below others or on top."""
        self.move(execution, rules.IN_FLIGHT, rules.PRODUCTIVE)
        if inserted:  # its index tells when its neighbors completed
            self._parts = {at + (at >= index): held for at, held in self._parts.items()}
            self._lows = SharedList(low + (low > index) for low in self._lows)
            self.mark(execution)
        if parts := getattr(execution, self.SPLIT):
            self._parts[index] = parts

    def discard(self, execution: Execution, fate: int) -> None:
        """Move the time of `execution` from in flight to the category `fate`: it is not kept."""
        self.mark(execution)
        self.move(execution, rules.IN_FLIGHT, fate)

    def take_back(self, execution: Execution, fate: int) -> None:
        """Move the time of `execution` from `fate` back to in flight."""
        self.move(execution, fate, rules.IN_FLIGHT)

    def move(self, execution: Execution, source: int, target: int) -> None:
        """Move the time of an execution, or of what stalled of it, from the category `source` to `target`."""
        for place, duration in getattr(execution, self.SPLIT):
            self._change(self._at(place), source, target, duration)

    def lengthen(self, index: int, stall: Execution) -> None:
        """Count stalled time as that of the kept entry at `index` from now on."""
        self.move(stall, rules.STALLED_KEPT, rules.PRODUCTIVE)
        self._parts[index] = (*self._parts.get(index, ()), *getattr(stall, self.SPLIT))

    def mark(self, execution: Execution) -> None:
        """Note that the time that `execution` gained since the last call is in the open bucket."""
        gained = execution.visible - getattr(execution, self.MARKED)
        if gained > 0:
            setattr(execution, self.SPLIT, (*getattr(execution, self.SPLIT), (self.place, gained)))
            setattr(execution, self.MARKED, execution.visible)

    def lose_from(self, index: int, durations: Sequence[int], attempts: object) -> None:
        """Count the kept entries from `index` on as wasted; `durations` are their visible net times, ns."""
        lows = list(self._lows)
        at = bisect_right(lows, index) - 1
        rests: dict[int, int] = {}
        for entry, net in enumerate(durations, index):
            while at + 1 < len(lows) and lows[at + 1] <= entry:
                at += 1
            for place, duration in self._parts.pop(entry, ()) if self._parts else ():
                self._change(self._at(place), rules.PRODUCTIVE, rules.WASTED_PROGRESS, duration)
                net -= duration
            rests[at] = rests.get(at, 0) + net
        for at, rest in rests.items():
            self._change(at, rules.PRODUCTIVE, rules.WASTED_PROGRESS, rest)
        at = len(lows) - 1
        while at >= 0 and self._lows[at] > index:
            self._lows[at] = index
            at -= 1

    def close(self, times: Sequence[int], running: Iterable[Execution], length: int) -> Bucket:
        """Close the open bucket, with what :meth:`AccountState._bucketed` returns, and open the next; returns it."""
        for execution in running:
            self.mark(execution)
            if execution.stall is not None:
                self.mark(execution.stall)
        bucket = self._since(times)
        self._buckets.append(bucket)
        self._lows.append(length)
        self._open(times)
        return bucket

    def _open(self, times: Sequence[int]) -> None:
        self._base = list(times)
        self._gains = {}
        self._set_boundary()

    def _since(self, times: Sequence[int]) -> Bucket:
        base, gains = self._base, self._gains
        if len(base) < len(times):
            base += [0] * (len(times) - len(base))
        spent = list(map(sub, times, base))
        for category, duration in gains.items():
            spent[category] += duration
        return {category: duration for category, duration in enumerate(spent) if duration}

    def _change(self, at: int, source: int, target: int, duration: int) -> None:
        """Follow time of the bucket `at` from `source` to `target`; at first, every change counts in the open one."""
        if at >= len(self._buckets) or not duration:
            return
        add(self._gains, source, duration)
        add(self._gains, target, -duration)
        if at < 0:
            return
        changed = self._buckets[at].copy()
        add(changed, source, -duration)
        add(changed, target, duration)
        self._buckets[at] = changed

    def prove_categories(self, count: int) -> None:
        """Raise ValueError if a bucket of a snapshot holds time of a category that is not below `count`."""
        if len(self._base) > count or max(chain(self._gains, *self._buckets), default=0) >= count:
            raise ValueError("a snapshot holds time of categories that do not exist")


BUCKETS: Final = 240  # in the shortest window
HELD: Final = 72 * BUCKETS  # at most so many in the longest one: time that passes closes them one by one
NOWHERE: Final = -1  # place of what is in none of the buckets
_TIMES: Final = 6  # buckets may be so much wider for windows that came later than the buckets
_TIMES_FINER: Final = 20  # or narrower


def _resolution(spans: Sequence[int]) -> int:
    """Return the width of the buckets of windows of the lengths `spans`, ns."""
    return max(1, min(spans) // BUCKETS, max(spans) // HELD)


class Rolling(Buckets):
    """The buckets of rolling windows of the lengths `spans` (ns). A bucket's place is its number in the run."""

    MARKED = "marked"
    SPLIT = "parts"

    spans: tuple[int, ...] = field(Each(Whole(1), 64, tuple), (), key="lengths")
    _offset: int = field(codec.COUNT, 0)
    # Overlay sums when each bucket opened; last: the open one.
    _weights: SharedList[Weighted] = field(
        Shared(Row(*[Weight()] * len(NOTHING))), make=SharedList, key="weighted_times"
    )
    width: int = field(Whole(1), key="resolution")
    _sums: list[Bucket]
    _firsts: list[int]  # first bucket in each sum

    def __init__(self, spans: Sequence[int], begin: int) -> None:
        super().__init__(begin)
        self.spans = tuple(spans)
        self._weights.append(NOTHING)
        self.width = _resolution(self.spans)
        self._gather()
        self._set_boundary()

    def loaded(self) -> None:
        if not self.spans or len(self._weights) != len(self._lows):
            raise ValueError("there are rolling windows of no length, or without a sum for each bucket")
        if min(self.spans) // self.width > BUCKETS * _TIMES:  # older versions knew no ``HELD``
            raise ValueError("the buckets of rolling windows are narrower than they should be")
        super().loaded()
        self._gather()

    def clone(self) -> Rolling:
        twin = super().clone()
        twin._firsts = self._firsts.copy()
        twin._sums = [total.copy() for total in self._sums]
        return twin

    def respan(self, spans: Sequence[int]) -> bool:
        """Have windows of the lengths `spans` (ns) over the buckets that there are, which longer ones fill in time.

        Returns False, and does nothing, if the buckets are too wide for that, or were made for much longer windows.
        """
        width = _resolution(spans)
        if self.width > width * _TIMES or width > self.width * _TIMES_FINER:
            return False
        self.spans = tuple(spans)
        self._gather()
        return True

    def _gather(self) -> None:
        """Make the running sums anew."""
        opened = self._offset + len(self._buckets)
        reached = [(opened * self.width - span) // self.width + 1 for span in self.spans]
        self._firsts = [max(self._offset, first) for first in reached]
        self._sums = [{} for _ in self.spans]
        for at, bucket in enumerate(self._buckets, self._offset):
            for first, total in zip(self._firsts, self._sums, strict=True):
                if at >= first:
                    _add_all(total, bucket)

    def last_boundary_before(self, time: int) -> int:
        """The latest bucket edge before `time`, ns; 0 unless by then everything held is older than every window."""
        if time - self.boundary <= max(self.spans) + 2 * self.width:
            return 0
        return self.begin + (time - 1 - self.begin) // self.width * self.width

    def close_weighted(
        self, times: Sequence[int], running: Iterable[Execution], length: int, weighted: Weighted
    ) -> None:
        """As :meth:`close`; `weighted` are the overlay sums of the run so far."""
        bucket = self.close(times, running, length)
        # Nearly always the same as before, and then the same object.
        self._weights.append(self._weights[-1] if (sums := tuple(weighted)) == self._weights[-1] else sums)
        for total in self._sums:
            _add_all(total, bucket)
        self._trim()

    def jump(
        self, boundary: int, times: Sequence[int], running: Iterable[Execution], length: int, weighted: Weighted
    ) -> None:
        """Start again at `boundary` (ns), because so much time has passed that no window reaches what is held."""
        self._offset = (boundary - self.begin) // self.width
        self._buckets, self._lows, self._parts = SharedList(), SharedList([length]), {}
        self._weights = SharedList([tuple(weighted)])
        self._gather()
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
        now = self.boundary - self.width
        for which, span in enumerate(self.spans):
            self._advance(which, (now - span - self.begin) // self.width)
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
                _add_all(total, self._buckets[at], -1)
            self._firsts[which] += 1

    def window(self, which: int, now: int, times: Sequence[int]) -> Bucket:
        """Time by category (ns) in the last ``spans[which]`` ns before `now`. Advances the running sums to `now`."""
        left = now - self.spans[which]
        edge = (left - self.begin) // self.width
        current = self._since(times)
        if edge >= self.place:
            return _share(current, now - left, max(1, now - (self.boundary - self.width)))
        self._advance(which, edge)
        times_inside = self._sums[which].copy()
        at = edge - self._offset
        if 0 <= at < len(self._buckets):
            inside = self.begin + (edge + 1) * self.width - left
            _add_all(times_inside, _share(self._buckets[at], inside, self.width))
        _add_all(times_inside, current)
        return _without_zeros(times_inside)

    def weighted(self, which: int, now: int, sums: Weighted) -> Weighted:
        """The part of the overlay's `sums` (weighted ns) that falls in the last ``spans[which]`` ns before `now`."""
        left = now - self.spans[which] - self.begin
        at = left // self.width - self._offset
        part = 1.0
        if at >= len(self._buckets):
            before = self._weights[-1]  # assume that shares are the same throughout the open bucket
            opened = self.boundary - self.width
            part = self.spans[which] / max(self.spans[which], now - opened)
        elif at < 0:
            before = self._weights[0]
        else:
            passed = left % self.width / self.width
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


MOST: Final = 512  # bins
FINEST: Final = 30  # of the width: the power of two to begin with, ns; 1.1 s
# To close a bin costs as much as thirty events, so a run of less than 18 minutes has at most this many: there are more
# only from a width of 17 s on.
YOUNG: Final = MOST // 8
MATURE: Final = 34


class Bins(Buckets):
    """The bins of a run that begins at `begin` (ns). A bin's place is its begin, ns from the begin of the run."""

    MARKED = "binned"
    SPLIT = "spots"

    _power: int = field(Whole(0, 65), FINEST, key="width_log2")

    def __init__(self, begin: int) -> None:
        super().__init__(begin)
        self._set_boundary()

    def loaded(self) -> None:
        if len(self._buckets) > MOST:
            raise ValueError("there are more bins than there should be")
        super().loaded()
        self.prove(spot for parts in self._parts.values() for spot in parts)

    def _set_boundary(self) -> None:
        self.width = self._unit = 1 << self._power
        super()._set_boundary()

    def reach(self, time: int) -> None:
        """Widen the bins until they reach `time` (ns); more than that much of the run must not have passed."""
        while time - self.begin >> self._power >= (MOST if self._power >= MATURE else YOUNG):
            self._widen()

    def _widen(self) -> None:
        buckets = list(self._buckets)
        if len(buckets) % 2:
            _add_all(self._gains, buckets.pop())  # it is part of the open one from now on
        merged = [bucket.copy() for bucket in buckets[::2]]
        for bucket, odd in zip(merged, buckets[1::2], strict=True):
            _add_all(bucket, odd)
        self._buckets, self._lows = SharedList(map(_without_zeros, merged)), SharedList(list(self._lows)[::2])
        self._power += 1
        self._set_boundary()
        self._parts = {index: joined for index, parts in self._parts.items() if (joined := self._joined(index, parts))}

    def _joined(self, index: int, parts: Sequence[tuple[int, int]]) -> Parts:
        """Join parts in the same bin; nothing if all are where `index` tells."""
        joined = self.join(parts)
        if len(joined) == 1:
            at = self._at(joined[0][0])
            after = self._lows[at + 1] if at + 1 < len(self._lows) else index + 1
            if self._lows[at] <= index < after:
                return ()
        return joined

    def join(self, parts: Sequence[tuple[int, int]]) -> Parts:
        """Join successive parts that are in the same bin by now."""
        joined: list[tuple[int, int]] = []
        for place, duration in parts:
            place = place >> self._power << self._power
            if joined and joined[-1][0] == place:
                joined[-1] = (place, joined[-1][1] + duration)
            else:
                joined.append((place, duration))
        return tuple(joined)

    def spots(self, execution: Execution) -> Parts:
        """Where all the time of `execution` passed that is not excluded, in order."""
        rest = execution.visible - execution.binned
        return (*self.join(execution.spots), *([(self.place, rest)] if rest else ()))

    def answer(self, times: Sequence[int], startups: Iterable[tuple[StepSegment, int, int]]) -> list[Bucket]:
        """The bins up to now, by category, ns; `startups` as :func:`balance._startups` returns them."""
        buckets = list(map(folded, (*self._buckets, self._since(times))))
        for segment, _, hidden in startups:
            for place, duration in segment.spots:
                taken = max(0, min(hidden, duration))
                hidden -= taken
                transfer(buckets[self._at(place)], segment, taken)
        return list(map(_without_zeros, buckets))

    def prove(self, spots: Iterable[tuple[int, int]]) -> None:
        """Raise ValueError if one of the `spots` is in no bin."""
        if not all(0 <= self._at(place) <= len(self._buckets) for place, _ in spots):
            raise ValueError("a snapshot holds time that is in none of its bins")

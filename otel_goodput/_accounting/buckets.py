"""Time in buckets of wall time, by category: what windows that move and bins of a whole run have in common.

A step counts in the buckets in which its time passed, even if its fate changes later (rule R4). So each execution
carries how much of its time is in which closed bucket, and a bucket is known by its place: what that is, the kind of
buckets says. A step that begins and ends in the open bucket costs nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from operator import sub
from typing import ClassVar

from otel_goodput._accounting.codec import BY_CATEGORY, COUNT, NUMBER, PARTS, Each, Pairs, Shared, State, field
from otel_goodput._accounting.execution import Execution, Parts
from otel_goodput._accounting.rules import (
    IN_FLIGHT,
    PRODUCTIVE,
    STALLED,
    STALLED_KEPT,
    STALLED_LOST,
    WASTED_PROGRESS,
)
from otel_goodput._accounting.shared_list import SharedList

Bucket = dict[int, int]


def add(bucket: Bucket, category: int, duration: int) -> None:
    bucket[category] = bucket.get(category, 0) + duration


def folded(times: Mapping[int, int]) -> Bucket:
    """Time by category number with stalled time as one category, ns."""
    bucket = dict(times)
    for category in (STALLED_KEPT, STALLED_LOST):
        if category in bucket:
            add(bucket, STALLED, bucket.pop(category))
    return bucket


class Buckets(State):
    """Successive buckets from `begin` (ns) on; the last one is open.

    Attributes:
        boundary: when the open bucket closes, ns.
        MARKED, SPLIT: names of the attributes of an execution that hold how much of its time is in closed buckets of
            this kind, and in which.
    """

    MARKED: ClassVar[str]
    SPLIT: ClassVar[str]

    _begin: int = field(COUNT)
    # Closed buckets; replaced, never changed, because clones share them.
    _buckets: SharedList[Bucket] = field(Shared(Pairs(COUNT, NUMBER, replaced=True)), make=SharedList)
    # Length of the kept stack when each bucket opened; last: the open bucket.
    _lows: SharedList[int] = field(Shared(COUNT), make=SharedList, key="kept_before")
    # kept index -> (place, ns), for steps that do not lie whole in the bucket that their index tells: those open
    # when a bucket closed, which are few, and those kept late, at most as many as failed while a save that
    # holds them was open. None can be forgotten: the categories would not add up after a rollback.
    _parts: dict[int, Sequence[tuple[int, int]]] = field(Pairs(COUNT, PARTS), make=dict, key="split_steps")
    # The open bucket holds by how much the time of each category has changed since it opened, and what is to be
    # added because some of that was a change of closed buckets.
    _base: list[int] = field(Each(NUMBER), make=list, key="times_at_open")
    _gains: Bucket = field(BY_CATEGORY, make=dict, key="corrections")
    boundary = 0

    def __init__(self, begin: int) -> None:
        super().__init__()
        self._begin = begin
        self._lows.append(0)

    def loaded(self) -> None:
        if len(self._lows) != len(self._buckets) + 1:
            raise ValueError("the number of buckets is not that of their boundaries")
        self._set_boundary()

    @property
    def place(self) -> int:
        """Place of the open bucket."""
        raise NotImplementedError

    def _set_boundary(self) -> None:
        """Another bucket is the open one, or it has another width."""
        raise NotImplementedError

    def _at(self, place: int) -> int:
        """Index of the bucket at `place` in `_buckets`; negative if it is not held any more."""
        raise NotImplementedError

    # --- what happens -------------------------------------------------------------------------------------------------

    def keep(self, index: int, execution: Execution, *, inserted: bool) -> None:
        """Count `execution` as productive: it completed and is kept at `index`, `inserted` below others or on top."""
        parts: Parts = getattr(execution, self.SPLIT)
        for place, duration in parts:
            self._move(place, IN_FLIGHT, PRODUCTIVE, duration)
        if inserted:  # its index tells when its neighbors completed
            self.mark(execution)
            parts = getattr(execution, self.SPLIT)
        if parts:
            self._parts[index] = parts

    def discard(self, execution: Execution, fate: int) -> None:
        """Move the time of `execution` from in flight to the category `fate`: it is not kept."""
        self.mark(execution)
        for place, duration in getattr(execution, self.SPLIT):
            self._move(place, IN_FLIGHT, fate, duration)

    def give_back(self, execution: Execution, fate: int) -> None:
        """Move the time of `execution` from `fate` back to in flight."""
        for place, duration in getattr(execution, self.SPLIT):
            self._move(place, fate, IN_FLIGHT, duration)

    def stand_still(self, stall: Execution, source: int, target: int) -> None:
        """Move the stalled time of a step that is over from the category `source` to `target`."""
        for place, duration in getattr(stall, self.SPLIT):
            self._move(place, source, target, duration)

    def lengthen(self, index: int, stall: Execution) -> None:
        """Count stalled time as that of the kept entry at `index` from now on."""
        self._parts[index] = (*self._parts.get(index, ()), *getattr(stall, self.SPLIT))

    def mark(self, execution: Execution) -> None:
        """Note that the time that `execution` gained since the last call is in the open bucket."""
        gained = execution.visible - getattr(execution, self.MARKED)
        if gained > 0:
            setattr(execution, self.SPLIT, (*getattr(execution, self.SPLIT), (self.place, gained)))
            setattr(execution, self.MARKED, execution.visible)

    def lose_from(self, index: int, durations: Sequence[int]) -> None:
        """Count the kept entries from `index` on as wasted; `durations` are their visible net times, ns."""
        lows = list(self._lows)
        at = bisect_right(lows, index) - 1
        rests: dict[int, int] = {}
        for entry, net in enumerate(durations, index):
            while at + 1 < len(lows) and lows[at + 1] <= entry:
                at += 1
            for place, duration in self._parts.pop(entry, ()) if self._parts else ():
                self._move(place, PRODUCTIVE, WASTED_PROGRESS, duration)
                net -= duration
            rests[at] = rests.get(at, 0) + net
        for at, rest in rests.items():
            self._change(at, PRODUCTIVE, WASTED_PROGRESS, rest)
        at = len(lows) - 1
        while at >= 0 and self._lows[at] > index:
            self._lows[at] = index
            at -= 1

    def insert(self, index: int) -> None:
        """Move the kept entries from `index` on up by one."""
        self._parts = {at + (at >= index): parts for at, parts in self._parts.items()}
        self._lows = SharedList(low + (low > index) for low in self._lows)

    def _shut(self, times: Sequence[int], running: Iterable[Execution], length: int) -> Bucket:
        """Close the open bucket and open the next one; returns the closed one."""
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

    def _move(self, place: int, source: int, target: int, duration: int) -> None:
        self._change(self._at(place), source, target, duration)

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
        known = len(self._base) <= count and not any(
            category >= count for bucket in (self._gains, *self._buckets) for category in bucket
        )
        if not known:
            raise ValueError("a snapshot holds time of categories that do not exist")

"""The whole run in at most 512 equal bins of wall time, by category, exact however long the run is.

Bins begin narrow. When they do not reach any more, every two neighbors become one, so that the width doubles; it is a
power of two of ns, the least that reaches. Exclusions (rule R7) are not in them, and the start-up hidden in a first
step (rule R5) is taken from where that step's first own time passed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from otel_goodput._accounting.buckets import Bucket, Buckets, add, folded
from otel_goodput._accounting.codec import Whole, field
from otel_goodput._accounting.execution import Execution, Parts
from otel_goodput._accounting.rules import PRODUCTIVE, PROGRAM_STARTUP, WASTED_PROGRESS
from otel_goodput._accounting.shared_list import SharedList
from otel_goodput._accounting.step_segments import StepSegment

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
        self.prove(spot for parts in self._parts.values() for spot in parts)
        super().loaded()

    @property
    def begin(self) -> int:
        """Begin of the first bin, ns."""
        return self._begin

    @property
    def width(self) -> int:
        """Width of a bin, ns."""
        return 1 << self._power

    @property
    def place(self) -> int:
        return len(self._buckets) << self._power

    def _at(self, place: int) -> int:
        return place >> self._power

    def _set_boundary(self) -> None:
        self.boundary = self._begin + (len(self._buckets) + 1 << self._power)

    def reach(self, time: int) -> None:
        """Widen the bins until they reach `time` (ns); more than that much of the run must not have passed."""
        while time - self._begin >> self._power >= (MOST if self._power >= MATURE else YOUNG):
            self._widen()

    def close(self, times: Sequence[int], running: Iterable[Execution], length: int) -> None:
        """Close the open bin; arguments as for :meth:`Rolling.close`."""
        self._shut(times, running, length)

    def _widen(self) -> None:
        buckets = list(self._buckets)
        if len(buckets) % 2:
            for category, duration in buckets.pop().items():  # it is part of the open one from now on
                add(self._gains, category, duration)
        merged: list[Bucket] = []
        for even, odd in zip(buckets[::2], buckets[1::2], strict=True):
            bucket = even | odd
            for category in even.keys() & odd.keys():
                if duration := even[category] + odd[category]:
                    bucket[category] = duration
                else:
                    del bucket[category]
            merged.append(bucket)
        self._buckets, self._lows = SharedList(merged), SharedList(list(self._lows)[::2])
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

    # --- the answer ---------------------------------------------------------------------------------------------------

    def answer(self, times: Sequence[int], startups: Iterable[tuple[StepSegment, int]]) -> list[Bucket]:
        """The bins up to now, by category, ns.

        Args:
            times: as for :meth:`close`.
            startups: segments with the start-up hidden in their first step, without excluded time, ns.
        """
        buckets = [*self._buckets, self._since(times)]
        mine: set[int] = set()
        for segment, hidden in startups:
            source = WASTED_PROGRESS if segment.first_index is None else PRODUCTIVE
            for place, duration in segment.spots:
                if hidden <= 0:
                    break
                at, taken = self._at(place), min(hidden, duration)
                hidden -= taken
                if at not in mine:
                    mine.add(at)
                    buckets[at] = buckets[at].copy()
                add(buckets[at], source, -taken)
                add(buckets[at], PROGRAM_STARTUP, taken)
        return [{category: duration for category, duration in folded(bucket).items() if duration} for bucket in buckets]

    def prove(self, spots: Iterable[tuple[int, int]]) -> None:
        """Raise ValueError if one of the `spots` is in no bin."""
        if not all(0 <= self._at(place) <= len(self._buckets) for place, _ in spots):
            raise ValueError("a snapshot holds time that is in none of its bins")

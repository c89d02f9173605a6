"""The tracks of an exported trace: slices that overlap without lying inside of each other get tracks of their own."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable
from typing import Final

# What has ended of a track, beyond which nothing more can begin among it; see `Lane`.
REMEMBERED: Final = 8192


class Lane:
    """One track, to which slices are added when they end: begin and end of the outermost that it holds, in order.

    Only the latest are remembered; where a slice would begin before these, it is not taken.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self._begins = array("q")
        self._ends = array("q")
        self._floor: int | None = None  # before it, what the track holds is forgotten

    def take(self, begin: int, end: int) -> bool:
        """Add a slice if it lies apart from or around what is there; return whether it does."""
        begins, ends = self._begins, self._ends
        if ends and begin >= ends[-1] and begin > begins[-1] and len(begins) < 2 * REMEMBERED:  # mostly
            begins.append(begin)
            ends.append(end)
            return True
        if self._floor is not None and begin < self._floor:
            return False
        first = bisect_left(begins, begin)  # those from here on, up to `last`, begin within the slice
        last = max(first, bisect_left(begins, end))
        if (first and ends[first - 1] > begin) or (last > first and ends[last - 1] > end):
            return False
        begins[first:last] = array("q", (begin,))
        ends[first:last] = array("q", (end,))
        if len(begins) > 2 * REMEMBERED:
            self._floor = ends[-REMEMBERED - 1]
            del begins[:-REMEMBERED], ends[:-REMEMBERED]
        return True


class Lanes:
    """The tracks for one kind of slice of one process. `new` makes a track, given how many there are; returns its
    number.
    """

    def __init__(self, new: Callable[[int], int]) -> None:
        self._new = new
        self._lanes: list[Lane] = []

    def track(self, begin: int, end: int) -> int:
        """Return the number of the track for a slice."""
        for lane in self._lanes:
            if lane.take(begin, end):
                return lane.number
        lane = Lane(self._new(len(self._lanes)))
        self._lanes.append(lane)
        lane.take(begin, end)
        return lane.number

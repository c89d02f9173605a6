"""Time with a cause over a whole run, in bins: what stands out in each of them, in bounded space."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Final, Generic, TypeVar

MOST: Final = 512  # bins
FINEST: Final = 30  # of the width: the power of two to begin with, ns; 1.1 s
STANDS_OUT: Final = 256  # causes of less than one part in so many of a bin are not remembered

K = TypeVar("K", bound=Hashable)


class CostBins(Generic[K]):
    """Bins of equal width, which doubles whenever there would be too many. They begin at multiples of it, ns.

    Attributes:
        bins: by number, which is the begin over the width: ns by cause. Numbers without any are missing.
        power: of two: the width, ns.
    """

    def __init__(self) -> None:
        self.bins: dict[int, dict[K, int]] = {}
        self.power = FINEST
        self._begin = self._end = 0  # of all time that was added, ns

    @property
    def width(self) -> int:
        """Of a bin, ns."""
        return 1 << self.power

    def add(self, cause: K, begin: int, end: int) -> None:
        """Add time from `begin` to `end` (ns), not before what was added last."""
        if begin >= end:
            return
        if not self._end:
            self._begin = self._end = begin
        before, self._end = self._end, max(self._end, end)
        while (self._end - 1 >> self.power) - (self._begin >> self.power) >= MOST:
            self._widen()
        power = self.power
        for number in range(begin >> power, (end - 1 >> power) + 1):
            held = self.bins.setdefault(number, {})
            held[cause] = held.get(cause, 0) + min(end, number + 1 << power) - max(begin, number << power)
        for number in range(before - 1 >> power, self._end - 1 >> power):
            self._sift(number)

    def stretches(self, least: int) -> Iterator[tuple[int, int, K, int]]:
        """Yield begin and end (ns) of bins in a row in which a cause has `least` or more, the cause, and its time."""
        opened: dict[K, tuple[int, int, int]] = {}  # the first bin, the last, and the time in them
        for number, held in self.bins.items():
            for cause, spent in held.items():
                if spent < least:
                    continue
                first, last, before = opened.get(cause, (number, number - 1, 0))
                if last != number - 1:
                    yield first * self.width, (last + 1) * self.width, cause, before
                    first, before = number, 0
                opened[cause] = first, number, before + spent
        for cause, (first, last, spent) in opened.items():
            yield first * self.width, (last + 1) * self.width, cause, spent

    def restore(self, power: int, bins: dict[int, dict[K, int]]) -> None:
        """Go on with bins of the width ``1 << power``. Raises ValueError if they are not as this makes them."""
        if power < FINEST or (bins and max(bins) - min(bins) >= MOST):
            raise ValueError("the bins are not of an expected width")
        self.power, self.bins = power, bins
        self._begin = min(bins, default=0) << power
        self._end = max(bins, default=-1) + 1 << power

    def _widen(self) -> None:
        self.power += 1
        narrow, self.bins = self.bins, {}
        for number, held in narrow.items():
            wide = self.bins.setdefault(number >> 1, {})
            for cause, spent in held.items():
                wide[cause] = wide.get(cause, 0) + spent
        for number in list(self.bins)[:-1]:
            self._sift(number)

    def _sift(self, number: int) -> None:
        """Forget what does not stand out in a bin to which no more is added."""
        kept = {cause: spent for cause, spent in self.bins.get(number, {}).items() if spent * STANDS_OUT >= self.width}
        if kept:
            self.bins[number] = kept
        else:
            self.bins.pop(number, None)

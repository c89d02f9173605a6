"""How far a clock is ahead of another one, from moments of both whose order is known.

If something by one clock came before something by the other one, the difference cannot be less than theirs; the
opposite order bounds it from above. An exchange of two messages has one of each: it is that of NTP (RFC 5905, section
8), whose offset is in the middle between the bounds and whose delay is how far they are apart. It does not matter how
differently long the two messages take.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

# Clocks of two hosts drift apart by at most one ns in 20,000 (50 ppm), and the time in which they do is by one of them.
DRIFT: Final = 19_998
KEPT: Final = 32  # readings
_TICK: Final = 10_000_000  # ns; kernels stamp files with the time of their latest tick
_SECOND: Final = 1_000_000_000


class Reading(NamedTuple):
    """At the moment `at` of a clock, ns, that was ahead of the other one by `least` to `most` ns."""

    at: int
    least: int
    most: int

    @property
    def ahead(self) -> int:
        return (self.least + self.most) // 2

    @property
    def bound(self) -> int:
        """How wrong ``ahead`` may be, ns."""
        return (self.most - self.least + 1) // 2

    def later(self, now: int) -> Reading:
        """Return what it says at a later moment: clocks drift."""
        drift = abs(now - self.at) // DRIFT + 1
        return Reading(now, self.least - drift, self.most + drift)


def exchanged(sent: int, received: int, answered: int, returned: int) -> Reading:
    """Return the reading of an exchange: `sent` and `returned` by the own clock, the other two by the other, ns."""
    drift = (returned - sent) // DRIFT + 1
    return Reading(returned, sent - received - drift, returned - answered + drift)


def stamped(before: int, stamp: int, after: int) -> Reading:
    """Return the reading of the `stamp` of a file that was written between two moments of the own clock, ns.

    It is up to a tick old, or in whole seconds, or in pairs of these.
    """
    grain = next((size for size in (2 * _SECOND, _SECOND) if not stamp % size), _TICK)
    return Reading(after, before - stamp - grain, after - stamp)


class Readings:
    """The latest readings of a clock."""

    def __init__(self) -> None:
        self._latest: deque[Reading] = deque(maxlen=KEPT)

    def add(self, reading: Reading) -> None:
        """Add one, unless it contradicts itself: then a clock was set meanwhile."""
        if reading.least <= reading.most:
            self._latest.append(reading)

    def clear(self) -> None:
        self._latest.clear()

    def best(self, now: int) -> Reading | None:
        """Return what the one says now (ns) that is wrong by least; None if there is none."""
        return min((one.later(now) for one in self._latest), key=lambda one: one.bound, default=None)

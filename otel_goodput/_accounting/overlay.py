"""Facts that hold along the timeline whoever owns the time: shares of slices, and whether the ends of steps are known.

Each fact is a weight on the time that passes. Sums of weighted time are kept for the whole run, for every exact window
and for rolling windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from otel_goodput._accounting.codec import FLAG, NUMBER, Each, Optional, Row, State, Weight, field

Shares = tuple[float, float]
Weighted = Sequence[float]  # ns: [slices known, stepping, available, clock unknown]

NOTHING: Final[Weighted] = (0, 0, 0, 0)
WEIGHTED: Final = Row(*[Weight()] * len(NOTHING), make=list)
_SHARES: Final = Row(Weight(), Weight())


class Overlay(State):
    """Shares of slices and the state of the steps' clock, weighted by the time for which they held.

    Attributes:
        shares: current shares (0 to 1) of all slices that are stepping and that are available; None until reported.
        unknown: nobody knows when the latest step ended on the device.
        weights: the current weight of a nanosecond in each of the sums; None if all are 0.
        time: the sums, weighted ns.
        between: slice shares reported since the last job ended, each with its time (ns).
    """

    shares: Shares | None = field(Optional(_SHARES), key="slice_shares")
    unknown: bool = field(FLAG, False, key="clock_unknown")
    time: list[float] = field(WEIGHTED, make=lambda: [*NOTHING], key="weighted_times")
    between: list[tuple[int, Shares]] = field(Each(Row(NUMBER, _SHARES)), make=list, key="shares_between_jobs")
    weights: tuple[float, ...] | None = None

    def share(self, shares: Shares) -> None:
        """Use these shares of stepping and available slices from now on."""
        self.shares = shares
        self._weigh_anew()

    def blur(self, unknown: bool) -> None:
        """Set whether the ends of steps are unknown from now on."""
        self.unknown = unknown
        self._weigh_anew()

    def _weigh_anew(self) -> None:
        known = self.shares is not None
        stepping, available = self.shares or (0, 0)
        self.weights = (int(known), stepping, available, int(self.unknown)) if known or self.unknown else None

    def weigh(self, into: list[float], spent: int) -> None:
        """Add `spent` ns, weighted, to the sums `into` (laid out like `time`)."""
        if self.weights is not None:
            for at, weight in enumerate(self.weights):
                into[at] += weight * spent

    def loaded(self) -> None:
        self._weigh_anew()


def shares_of(active: int, available: int, total: int) -> Shares:
    """Shares of slices that are stepping and available; both are 0 if `total` is 0."""
    return (active / total, available / total) if total > 0 else (0.0, 0.0)

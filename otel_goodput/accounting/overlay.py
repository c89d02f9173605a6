"""Facts that hold along the timeline whoever owns the time: shares of slices, and whether the ends of steps are known.

Each fact is a weight on the time that passes. Sums of weighted time are kept for the whole run, for every exact window
and for rolling windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

Shares = tuple[float, float]
Weighted = Sequence[float]  # ns: [slices known, stepping, available, clock unknown]

NOTHING: Final[Weighted] = (0, 0, 0, 0)


class Overlay:
    """Shares of slices and the state of the steps' clock, weighted by the time for which they held.

    Attributes:
        shares: current shares (0 to 1) of all slices that are stepping and that are available; None until reported.
        unknown: nobody knows when the latest step ended on the device.
        weights: the current weight of a nanosecond in each of the sums; None if all are 0.
        time: the sums, weighted ns.
        between: slice shares reported since the last job ended, each with its time (ns).
    """

    __slots__ = ("between", "shares", "time", "unknown", "weights")

    def __init__(self) -> None:
        self.shares: Shares | None = None
        self.unknown = False
        self.weights: tuple[float, ...] | None = None
        self.time: list[float] = list(NOTHING)
        self.between: list[tuple[int, Shares]] = []

    def clone(self) -> Overlay:
        twin = Overlay.__new__(Overlay)
        twin.shares, twin.unknown, twin.weights = self.shares, self.unknown, self.weights
        twin.time, twin.between = self.time.copy(), self.between.copy()
        return twin

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

    def to_state(self) -> dict[str, Any]:
        return {
            "slice_shares": self.shares,
            "weighted_times": self.time,
            "shares_between_jobs": self.between,
            "clock_unknown": self.unknown,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Overlay:
        overlay = cls()
        shares = state["slice_shares"]
        overlay.shares = None if shares is None else (shares[0], shares[1])
        overlay.time = as_weighted(state["weighted_times"])
        overlay.between = [(time, (told[0], told[1])) for time, told in state["shares_between_jobs"]]
        overlay.unknown = state["clock_unknown"]
        overlay._weigh_anew()
        return overlay


def shares_of(active: int, available: int, total: int) -> Shares:
    """Shares of slices that are stepping and available; both are 0 if `total` is 0."""
    return (active / total, available / total) if total > 0 else (0.0, 0.0)


def as_weighted(sums: Sequence[float]) -> list[float]:
    """The sums as a snapshot holds them. Raises ValueError if there are more or fewer of them than weights."""
    if len(sums) != len(NOTHING):
        raise ValueError(f"{len(sums)} weighted sums instead of {len(NOTHING)}")
    return list(sums)

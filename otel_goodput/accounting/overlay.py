"""What lies over the time line whoever owns it: shares of slices, and whether the ends of steps are known.

Each is a weight that time passes with. The sums of time so weighted are kept for the whole run, for every window and
for rolling windows alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

Shares = tuple[float, float]
Weighted = Sequence[float]  # ns: [slices known, stepping, available, clock unknown]

WEIGHTS: Final = 4
NOTHING: Final[Weighted] = (0, 0, 0, 0)


class Overlay:
    """What is told of slices and of the steps' clock, weighted by the time that it held.

    Attributes:
        shares: of all slices those stepping and those available at the moment; None before anybody says.
        unknown: the latest step has ended by a clock that tells nothing.
        weights: what a nanosecond counts for at the moment, as the sums are; None where it counts for nothing.
        time: the sums, ns weighted.
        between: what was told of slices since the last life ended, with its times (ns).
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
        """So many slices step and are available from now on."""
        self.shares = shares
        self._weigh_anew()

    def blur(self, unknown: bool) -> None:
        """Whether it is unknown from now on when steps end."""
        self.unknown = unknown
        self._weigh_anew()

    def _weigh_anew(self) -> None:
        known = self.shares is not None
        stepping, available = self.shares or (0, 0)
        self.weights = (int(known), stepping, available, int(self.unknown)) if known or self.unknown else None

    def weigh(self, into: list[float], spent: int) -> None:
        """`spent` ns pass; `into` are sums as `time`."""
        if self.weights is not None:
            for at, weight in enumerate(self.weights):
                into[at] += weight * spent

    def to_state(self) -> list[Any]:
        return [self.shares, self.time, self.between, self.unknown]

    @classmethod
    def from_state(cls, state: list[Any]) -> Overlay:
        overlay = cls()
        shares, time, between, *rest = state
        overlay.shares = None if shares is None else (shares[0], shares[1])
        overlay.time = widened(time)
        overlay.between = [(time, (told[0], told[1])) for time, told in between]
        overlay.unknown = bool(rest and rest[0])
        overlay._weigh_anew()
        return overlay


def shares_of(active: int, available: int, total: int) -> Shares:
    """Of no slices at all nothing steps and nothing is available."""
    return (active / total, available / total) if total > 0 else (0.0, 0.0)


def widened(sums: Sequence[float]) -> list[float]:
    """Sums as an older snapshot has them, which knew of fewer weights."""
    return [*sums, *NOTHING[len(sums) :]]

"""Slice efficiency: the share of slices that step, and of those available, as means over time."""

from __future__ import annotations

from typing import Any

Shares = tuple[float, float]


class Slices:
    """What is told of slices, weighted by the time that it held.

    Attributes:
        shares: of all slices those stepping and those available at the moment; None before anybody says.
        time: [time known, stepping, available], ns weighted by the shares.
        between: what was told since the last life ended, with its times (ns).
    """

    __slots__ = ("between", "shares", "time")

    def __init__(self) -> None:
        self.shares: Shares | None = None
        self.time = [0.0, 0.0, 0.0]
        self.between: list[tuple[int, Shares]] = []

    def clone(self) -> Slices:
        twin = Slices.__new__(Slices)
        twin.shares, twin.time, twin.between = self.shares, self.time.copy(), self.between.copy()
        return twin

    def weigh(self, into: list[float], spent: int) -> None:
        """`spent` ns pass; `into` are sums as `time`."""
        if self.shares is not None:
            for at, share in enumerate((1.0, *self.shares)):
                into[at] += share * spent

    def to_state(self) -> list[Any]:
        return [self.shares, self.time, self.between]

    @classmethod
    def from_state(cls, state: list[Any]) -> Slices:
        slices = cls()
        shares, slices.time, between = state
        slices.shares = None if shares is None else (shares[0], shares[1])
        slices.between = [(time, (told[0], told[1])) for time, told in between]
        return slices


def shares_of(active: int, available: int, total: int) -> Shares:
    """Of no slices at all nothing steps and nothing is available."""
    return (active / total, available / total) if total > 0 else (0.0, 0.0)

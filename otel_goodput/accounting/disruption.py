"""A disruption of the run and what it cost (rule R6)."""

from __future__ import annotations

from typing import Any, ClassVar


class Disruption:
    """One restart or rollback.

    Attributes:
        attempt: number of the attempt that began with it, counted from 1; None for a rollback inside a process.
        reason: one of ``semconv.REASONS``.
        recovery: ns from the last sign of life to the next job start.
        wasted: time of the steps it lost, start-up included, ns.
        from_step, to_step: the step reached before it, and the step at which progress resumed; None if there is none
            (yet).
    """

    REMEMBERED: ClassVar[int] = 100
    __slots__ = ("attempt", "from_step", "reason", "recovery", "to_step", "wasted")

    def __init__(
        self, attempt: int | None, reason: str, recovery: int, wasted: int, from_step: int | None, to_step: int | None
    ) -> None:
        self.attempt = attempt
        self.reason = reason
        self.recovery = recovery
        self.wasted = wasted
        self.from_step = from_step
        self.to_step = to_step

    def clone(self) -> Disruption:
        return Disruption(*self.to_state())

    def to_state(self) -> list[Any]:
        return [self.attempt, self.reason, self.recovery, self.wasted, self.from_step, self.to_step]

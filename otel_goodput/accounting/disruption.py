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
        time: when it happened: the job's start, or the start of the step that goes back, ns; 0 if that is not known.
        died: the last sign of life before it, ns; -1 for a rollback, or if that is not known.
        from_step, to_step: the step reached before it, and the step at which progress resumed; None if there is none
            (yet).
    """

    REMEMBERED: ClassVar[int] = 100
    KEPT: ClassVar[int] = 900  # more of them, for an overview
    __slots__ = ("attempt", "died", "from_step", "reason", "recovery", "time", "to_step", "wasted")

    def __init__(
        self,
        attempt: int | None,
        reason: str,
        recovery: int,
        wasted: int,
        from_step: int | None,
        to_step: int | None,
        time: int = 0,
        died: int = -1,
    ) -> None:
        self.attempt = attempt
        self.reason = reason
        self.recovery = recovery
        self.wasted = wasted
        self.from_step = from_step
        self.to_step = to_step
        self.time = time
        self.died = died

    def clone(self) -> Disruption:
        return Disruption(*self.to_state())

    def to_state(self) -> list[Any]:
        steps = [self.from_step, self.to_step]
        return [self.attempt, self.reason, self.recovery, self.wasted, *steps, self.time, self.died]

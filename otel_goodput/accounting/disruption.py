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
        kept_step: the highest step kept before it; None if none was, or if that is not known.
        first_step: from the job's start to the end of its first completed step, ns; None for a rollback, and while, or
            if, that has not happened in that job.
        regained: from `time` to the end of the first step since then that is kept and has the number `kept_step` or a
            higher one, ns; None while, or if, that has not happened in the same job. An entry that is not among the
            latest ``REMEMBERED`` any more stays as it is.
        error: the exception that ended the job before it, as ``type: message``; None if none did, or if the process
            could not record it.
        ended_by: the signals and the exit status with which the process before it ended, as far as they are known.
        startup, restored: time of start-up (accelerators, preparation, compilation) and of restoring checkpoints from
            the job's start to the end of its first completed step, ns; None while `first_step` is.
    """

    REMEMBERED: ClassVar[int] = 100
    KEPT: ClassVar[int] = 900  # more of them, for an overview
    __slots__ = (
        "attempt",
        "died",
        "ended_by",
        "error",
        "first_step",
        "from_step",
        "kept_step",
        "reason",
        "recovery",
        "regained",
        "restored",
        "startup",
        "time",
        "to_step",
        "wasted",
    )

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
        kept_step: int | None = None,
        first_step: int | None = None,
        regained: int | None = None,
        error: str | None = None,
        ended_by: str | None = None,
        startup: int | None = None,
        restored: int | None = None,
    ) -> None:
        self.attempt = attempt
        self.reason = reason
        self.recovery = recovery
        self.wasted = wasted
        self.from_step = from_step
        self.to_step = to_step
        self.time = time
        self.died = died
        self.kept_step = kept_step
        self.first_step = first_step
        self.regained = regained
        self.error = error
        self.ended_by = ended_by
        self.startup = startup
        self.restored = restored

    def clone(self) -> Disruption:
        return Disruption(*self.to_state())

    def to_state(self) -> list[Any]:
        before = [self.attempt, self.reason, self.recovery, self.wasted, self.from_step, self.to_step]
        after = [self.time, self.died, self.kept_step, self.first_step, self.regained]
        return [*before, *after, self.error, self.ended_by, self.startup, self.restored]

    @property
    def cost(self) -> int:
        """What it cost so far, ns: the outage, the steps lost, and the start-up and restore after it."""
        return self.recovery + self.wasted + (self.startup or 0) + (self.restored or 0)

    @property
    def behind(self) -> bool:
        """Whether the run has still to regain what it had kept before."""
        return self.kept_step is not None and self.regained is None

"""What those who watch a job from beside its phases may use of its recorder; ``PhaseTracer`` has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from opentelemetry import trace as trace_api

from otel_goodput._recording.compile_phases import CompilePhases
from otel_goodput._recording.hooks import Hooks
from otel_goodput._recording.misuse import Misuse
from otel_goodput._runtime.clock import Clock


class Records(Protocol):
    """Where records for the journal go.

    Attributes:
        append: appends one.
    """

    append: Callable[..., None]


class Watched(Protocol):
    """A recorder, for the device clock, jax and the watch for disruptions.

    Attributes:
        clock: returns ns since the epoch.
        blocks: returns whether a phase opened now by this thread is blocking.
        new_key: returns a new span id.
        hooks: register there.
        jobs: takes records.
        compilations: opens compile phases.
        misused: warns of what makes figures wrong.
    """

    @property
    def clock(self) -> Clock: ...
    @property
    def blocks(self) -> Callable[[bool | None], bool]: ...
    @property
    def new_key(self) -> Callable[[], int]: ...
    @property
    def hooks(self) -> Hooks: ...
    @property
    def jobs(self) -> Records: ...
    @property
    def compilations(self) -> CompilePhases: ...
    @property
    def misused(self) -> Misuse: ...
    @property
    def attempt(self) -> int:
        """The number of this attempt at the run, from 0."""
        ...

    @property
    def job_span(self) -> trace_api.Span | None:
        """The job that began last; None before the first."""
        ...

    def notice(self, reason: int, moment: int, *, withdrawn: bool = False, ended_by: str = "") -> None:
        """Record at `moment` (ns) that the platform announced the end of the job or withdrew that.

        `reason` indexes ``semconv.REASONS``; `ended_by` is the signal, or the exit status of the attempt before.
        """
        ...

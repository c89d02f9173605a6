"""The interface of the device clock that spans use."""

from __future__ import annotations

from typing import Any, Protocol

from otel_goodput.recording.observation import Observation
from otel_goodput.recording.short_span import ShortSpan


class Device(Protocol):
    """Notified of blocking phases, so that work on the device can be attributed to the phase that dispatched it.

    All methods but :meth:`poll` are called on the thread that opens and closes the phases.
    """

    awake: bool  # a device may be in use; if False, steps and loads need not be reported
    # In a loop of short steps, a load and a step that begin before `short_until` (ns) need not be reported: the loop
    # only sets `step`, and calls join() when it ends.
    short_until: int
    step: ShortSpan | None

    @property
    def brief(self) -> bool:
        """Whether steps are marked, but are too short to be timed one by one."""

    def observe(self, span: ShortSpan, output: Any) -> None:
        """Take the moment when `output` is ready as the device end of the open step `span`."""

    def compiled(self, moment: int) -> None:
        """Called when a blocking compilation ended at `moment` (ns); the compiled work is dispatched only now."""

    def poll(self) -> None:
        """Check whether a device has come into use. Called on any thread."""

    def begin(self, key: int, phase: int, start: int) -> None:
        """Called when the blocking phase `key` begins at `start` (ns); work dispatched from now on belongs to it."""

    def end(self, key: int, end: int) -> None:
        """Called when the phase `key` (not a step) ended at `end` (ns), before its end is recorded."""

    def end_step(self, span: ShortSpan, end: int, *, begun: bool = True) -> Observation | None:
        """Called when the step `span` ended at `end` (ns); return the observation of its device end, if there is one.

        `begun`: False if the step was left before it did any work; we then do not observe it ourselves.
        """

    def join(self, span: ShortSpan, end: int) -> Observation | None:
        """Called when `step` ended and a load began at `end` (ns); return the observation that it shares.

        None: nothing was done; call :meth:`end_step` and :meth:`load`.
        """

    def load(self, start: int) -> None:
        """Called when a data load begins at `start` (ns), perhaps inside a phase."""

    def loaded(self, end: int) -> None:
        """Called when a data load ended at `end` (ns); work dispatched from now on belongs to the phase around it."""

"""The device clock, as spans see it."""

from __future__ import annotations

from typing import Any, Protocol

from otel_goodput.recording.observation import Observation
from otel_goodput.recording.short_span import ShortSpan


class Device(Protocol):
    """What the spans tell of the training thread's phases, so that work on the device finds whose it is.

    All of it is called on the thread that opens and closes them.
    """

    awake: bool  # something may be on a device; else nobody has to tell of steps and loads

    @property
    def brief(self) -> bool:
        """Whether steps are marked, and so short that they share the time in which they are looked at."""

    def observe(self, span: ShortSpan, output: Any) -> None:
        """The open step `span` has left the device when `output` is ready."""

    def compiled(self, moment: int) -> None:
        """A compilation that held up the thread was over at `moment` (ns); what it is for is dispatched only now."""

    def poll(self) -> None:
        """A device may have come into use; on any thread."""

    def begin(self, key: int, phase: int, start: int) -> None:
        """The blocking phase `key` begins; what is dispatched from now on is its own."""

    def end(self, key: int, end: int) -> None:
        """The phase `key`, no step, ended at `end` (ns), which is about to be told."""

    def end_step(self, span: ShortSpan, end: int, *, begun: bool = True) -> Observation | None:
        """As `end`, of the step of `span`; what tells when it left the device, its user's or ours. Of one that was left
        before it had `begun` nothing does.
        """

    def load(self, start: int) -> None:
        """A data load begins, maybe inside a phase."""

    def loaded(self, end: int) -> None:
        """A data load is over: what is dispatched from now on belongs to the phase around it again."""

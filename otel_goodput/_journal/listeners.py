"""Who is told of the events that the ledger takes; created before the account, which calls them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from otel_goodput._accounting import Event

Look = Callable[[list[Event]], None]
HearSteps = Callable[[list[int]], None]
HearPhases = Callable[[list["EndedPhase"]], None]


class EndedPhase(NamedTuple):
    """A phase other than a step that has ended.

    `duration` is in ns, `error` is the ``error.type`` or empty, `name` is the one that the user gave.
    """

    phase: int
    name: str
    blocking: bool
    error: str
    duration: int


class Listeners:
    """The listeners of one account; each may be None. They are called on whichever thread feeds the ledger.

    Attributes:
        on_events: called with the events that the ledger takes, while it is locked.
        on_steps: called with the durations of completed steps, ns.
        on_phases: called with phases that have ended.
    """

    def __init__(self) -> None:
        self.on_events: Look | None = None
        self.on_steps: HearSteps | None = None
        self.on_phases: HearPhases | None = None

    def hear_events(self, look: Look | None) -> None:
        """Call `look` with the events that the ledger takes; None stops it."""
        self.on_events = look

    def hear_durations(self, steps: HearSteps, phases: HearPhases) -> None:
        """Call `steps` with the durations of completed steps, and `phases` with ended phases."""
        self.on_steps, self.on_phases = steps, phases

    def silence(self) -> None:
        """Call nobody any more."""
        self.on_events = self.on_steps = self.on_phases = None

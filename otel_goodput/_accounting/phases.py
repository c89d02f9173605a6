"""Pairs the START and the END of each phase: what is open, how long a phase took, and what became of it.

A phase begins with the first START of its key; one that comes while it is open is ignored, and so is an END without a
START. A phase ends no earlier than it began. What is still open when its process dies never ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Generic, Protocol, TypeVar

from otel_goodput._accounting import events as ev
from otel_goodput._accounting.events import NOT_KNOWN, Event
from otel_goodput._accounting.rules import COMPILE

OPEN: Final = "open"
COMPLETED: Final = "completed"
FAILED: Final = "failed"  # an exception or a break left it
DIED: Final = "died"  # its process died in it


class Phase:
    """A phase from its START on.

    Attributes:
        begin, phase, key, given, flags, name: as its START has them; a compilation's name is that of its END, if any.
        end: ns; ``NOT_KNOWN`` unless it is over.
        fate: ``OPEN``, ``COMPLETED``, ``FAILED`` or ``DIED``.
    """

    __slots__ = ("begin", "end", "fate", "flags", "given", "key", "name", "phase")

    def __init__(self, start: Event) -> None:
        self.begin, _, self.phase, self.key, self.given, self.flags, _, self.name = start
        self.end = NOT_KNOWN
        self.fate = OPEN

    @property
    def length(self) -> int:
        """How long it took, ns; once it is over."""
        return self.end - self.begin


class Pairable(Protocol):
    """What :class:`Phases` needs of a phase."""

    begin: int
    end: int
    phase: int
    name: str


P = TypeVar("P", bound=Pairable)


class Phases(Generic[P]):
    """The open phases of one process.

    Attributes:
        opened: by key, in the order in which they began.
    """

    def __init__(self) -> None:
        self.opened: dict[int, P] = {}

    def start(self, key: int, phase: P) -> P:
        """Begin a phase; return it, or the one that is open with its key."""
        return self.opened.setdefault(key, phase)

    def end(self, key: int, time: int, name: str = "") -> P | None:
        """End a phase at `time` (ns) and return it; None if none is open with that key. `name`: as its END has it."""
        phase = self.opened.pop(key, None)
        if phase is not None:
            phase.end = max(phase.begin, time)
            if name and phase.phase == COMPILE:
                phase.name = name
        return phase

    def die(self) -> list[P]:
        """The process is gone: return the phases that it had open, the innermost first. They have no end."""
        died = list(reversed(self.opened.values()))
        self.opened.clear()
        return died


def paired(events: Iterable[Event]) -> Iterator[Phase]:
    """Yield the phases of a run as they end, and those of a dead process when the next attempt begins."""
    phases: Phases[Phase] = Phases()
    for event in events:
        if event.kind == ev.START:
            phases.start(event.key, Phase(event))
        elif event.kind == ev.END:
            over = phases.end(event.key, event.time, event.name)
            if over is not None:
                over.fate = FAILED if event.flags & ev.FAILED else COMPLETED
                yield over
        elif event.kind == ev.ATTEMPT:
            for one in phases.die():
                one.fate = DIED
                yield one

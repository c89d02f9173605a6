"""Moments in the life of a run that an overview shows: its jobs, and what was at risk when that changed at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from otel_goodput.accounting import proof
from otel_goodput.accounting.overview import NOT_KNOWN, Life

LIVES: Final = 1000  # if there are more, the oldest are forgotten
CORNERS: Final = 4000  # of the curve of what is at risk; if there are more, every second tooth goes, the lower one

Corner = tuple[int, int]


class Landmarks:
    """The jobs of a run and the corners of the curve of what is at risk. Tuples, which clones share.

    Attributes:
        lives: jobs; the end of the last is not known while it is open.
        corners: (time, ns before) and (time, ns after), in turn, of each moment when what is at risk jumped.
        shifts: by attempt, what is added to its times if its clock was behind, ns; of the latest `LIVES` of these.
        left_out: how many lives and shifts are forgotten.
    """

    __slots__ = ("corners", "left_out", "lives", "shifts")

    def __init__(self) -> None:
        self.lives: tuple[Life, ...] = ()
        self.corners: tuple[Corner, ...] = ()
        self.shifts: dict[int, int] = {}
        self.left_out = 0

    def clone(self) -> Landmarks:
        twin = Landmarks()
        twin.lives, twin.corners, twin.shifts = self.lives, self.corners, self.shifts
        twin.left_out = self.left_out
        return twin

    def begin(self, attempt: int, time: int, shift: int) -> None:
        """A job of `attempt` begins at `time`, whose clock is `shift` behind, ns."""
        self.left_out += len(self.lives) == LIVES
        self.lives = (*self.lives, Life(attempt, time, NOT_KNOWN, False))[-LIVES:]
        if shift:
            shifts = {**self.shifts, attempt: shift}
            self.left_out += len(shifts) > LIVES
            self.shifts = dict(list(shifts.items())[-LIVES:])

    def end(self, time: int, *, clean: bool) -> None:
        """The latest job ended at `time` (ns), by itself if `clean`; if it had ended already, nothing happens."""
        if self.lives and self.lives[-1].end == NOT_KNOWN:
            self.lives = (*self.lives[:-1], self.lives[-1]._replace(end=time, clean=clean))

    def jump(self, time: int, before: int, after: int) -> None:
        """At `time` (ns), what is at risk changes from `before` to `after` at once, ns."""
        self.corners = (*self.corners, (time, before), (time, after))
        if len(self.corners) > CORNERS:
            self.corners = thinned(self.corners)

    def to_state(self) -> dict[str, Any]:
        return {
            "jobs": self.lives,
            "at_risk": self.corners,
            "clock_shifts": list(self.shifts.items()),
            "left_out": self.left_out,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Landmarks:
        found = cls()
        found.lives = tuple(Life(*life) for life in state["jobs"])
        found.corners = tuple((time, ns) for time, ns in state["at_risk"])
        found.shifts = dict(map(tuple, state["clock_shifts"]))
        found.left_out = state["left_out"]
        if max(len(found.lives), len(found.shifts)) > LIVES or len(found.corners) > CORNERS or len(found.corners) % 2:
            raise ValueError("a snapshot holds more of its jobs than it should")
        for *numbers, clean in found.lives:
            proof.whole(numbers)
            proof.flag(clean)
        for row in (*found.corners, *found.shifts.items()):
            proof.whole(row)
        proof.whole((found.left_out,), 0)
        return found


def thinned(corners: Sequence[Corner]) -> tuple[Corner, ...]:
    """Of every two neighboring jumps the one from the higher value."""
    jumps = list(zip(corners[::2], corners[1::2], strict=True))
    higher = (max(pair, key=lambda jump: jump[0][1]) for pair in zip(jumps[::2], jumps[1::2], strict=False))
    kept = [*higher, *(jumps[-1:] if len(jumps) % 2 else ())]
    return tuple(corner for jump in kept for corner in jump)

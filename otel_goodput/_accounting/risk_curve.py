"""Moments in the life of a run that an overview shows: its jobs, and what was at risk when that changed at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from otel_goodput._accounting.codec import COUNT, NUMBER, Each, Pairs, Row, State, field
from otel_goodput._accounting.overview import LIFE, NOT_KNOWN, Life

LIVES: Final = 1000  # if there are more, the oldest are forgotten
CORNERS: Final = 4000  # of the curve of what is at risk; if there are more, every second tooth goes, the lower one

Corner = tuple[int, int]


class RiskCurve(State):
    """The jobs of a run and the corners of the curve of what is at risk. Tuples, which clones share.

    Attributes:
        lives: jobs; the end of the last is not known while it is open.
        corners: (time, ns before) and (time, ns after), in turn, of each moment when what is at risk jumped.
        shifts: by attempt, what is added to its times if its clock was behind, ns; of the latest `LIVES` of these.
        left_out: how many lives and shifts are forgotten.
    """

    lives: tuple[Life, ...] = field(Each(LIFE, LIVES, tuple), (), key="jobs")
    corners: tuple[Corner, ...] = field(Each(Row(NUMBER, NUMBER), CORNERS, tuple), (), key="at_risk")
    shifts: dict[int, int] = field(Pairs(NUMBER, NUMBER, LIVES, replaced=True), make=dict, key="clock_shifts")
    left_out: int = field(COUNT, 0)

    def loaded(self) -> None:
        if len(self.corners) % 2:
            raise ValueError("what is at risk changes, and nobody knows to what")

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


def thinned(corners: Sequence[Corner]) -> tuple[Corner, ...]:
    """Of every two neighboring jumps the one from the higher value."""
    jumps = list(zip(corners[::2], corners[1::2], strict=True))
    higher = (max(pair, key=lambda jump: jump[0][1]) for pair in zip(jumps[::2], jumps[1::2], strict=False))
    kept = [*higher, *(jumps[-1:] if len(jumps) % 2 else ())]
    return tuple(corner for jump in kept for corner in jump)

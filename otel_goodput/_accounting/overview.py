"""What a process remembers of its whole run in bounded space: enough to draw it, however long it was.

Times are ns since the epoch by the account's clock, lengths are ns.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as made
from math import ceil
from typing import Final, NamedTuple

from otel_goodput._accounting import codec
from otel_goodput._accounting.checkpoints import StageSums
from otel_goodput._accounting.codec import Each, Optional, Pairs, Row, State, field
from otel_goodput._accounting.disruption import Disruption
from otel_goodput._accounting.events import NOT_KNOWN as NOT_KNOWN
from otel_goodput._accounting.resuming import Stretch
from otel_goodput._accounting.rules import DATA_LOADING_TIME, OTHER, WASTED_PROGRESS

BINS: Final = 1024  # at most, of steps and of time; a running account has half as many of time
PHASES_KEPT: Final = 8000  # phases other than steps and data loads; if there are more, the longest of each bin
STEPS_KEPT: Final = 2000  # outliers and failed steps; if there are more, the longest
BUCKETS_AN_OCTAVE: Final = 16  # of the histogram: bucket b holds lengths from 2**(b/16) ns up to 2**((b+1)/16) ns


# Where each bucket begins, ns. (As a table, because a search in it takes a third of the time of a logarithm.)
BEGINS: Final = [0, *(ceil(2 ** (bucket / BUCKETS_AN_OCTAVE)) for bucket in range(1, 64 * BUCKETS_AN_OCTAVE))]


def bucket_of(length: int) -> int:
    """The bucket of the histogram that holds `length` (ns); -1 if that is negative."""
    return bisect_right(BEGINS, length) - 1


# What the histogram measures.
NET: Final = 0  # the step's own time (rule R3)
WALL: Final = 1  # from its start to its end on the host
DEVICE: Final = 2  # its work on the device

# The fate of an execution of a step (rule R4).
KEPT: Final = 0
LOST: Final = 1
IN_FLIGHT: Final = 2
NO_STEP_DONE: Final = 3  # left by a break before it did a step's work
SKIPPED: Final = 4  # a batch that the loop skipped after a restore
# That of an execution that is not kept, by the category that gets its time.
FATES: Final = {WASTED_PROGRESS: LOST, OTHER: NO_STEP_DONE, DATA_LOADING_TIME: SKIPPED}


class Spread(NamedTuple):
    """Least, median and greatest of some lengths; the median of merged bins is the weighted mean of theirs."""

    min: int
    median: int
    max: int


_SPREAD: Final = Optional(Row(codec.NUMBER, codec.NUMBER, codec.NUMBER, make=Spread._make))


class StepBin(NamedTuple):
    """Successive executions of steps, numbered from `first` to `last`, the first of which started at `begin`.

    `outside` is time since the execution before was over that belongs to no step (not known of the first of a job).
    Spreads are None where nothing is known.
    """

    first: int
    last: int
    begin: int
    count: int  # type: ignore[assignment]
    lost: int
    net: Spread | None
    outside: Spread | None
    device: Spread | None


STEP_BIN: Final = Row(*[codec.NUMBER] * 5, *[_SPREAD] * 3, make=StepBin._make)


class Group(NamedTuple):
    """All phases of one name that hold up training, or all in the `background`; lengths are those of ended ones."""

    phase: int
    name: str
    background: bool
    count: int  # type: ignore[assignment]
    total: int
    min: int
    max: int
    failed: int


class PhaseEntry(NamedTuple):
    """One phase other than a step. `end` is ``NOT_KNOWN`` while it is open; `flags` are those of its START and END."""

    attempt: int
    phase: int
    name: str
    begin: int
    end: int
    step: int
    flags: int
    key: int


PHASE_ENTRY: Final = Row(codec.NUMBER, codec.PHASE, codec.TEXT, *[codec.NUMBER] * 4, codec.KEY, make=PhaseEntry._make)


class StepEntry(NamedTuple):
    """One execution of a step that stands out: slow, or failed."""

    attempt: int
    number: int
    begin: int
    wall: int
    net: int
    device: int
    fate: int
    key: int


STEP_ENTRY: Final = Row(*[codec.NUMBER] * 7, codec.KEY, make=StepEntry._make)


class Life(NamedTuple):
    """One job of one attempt; `end` is its end or last sign of life, ``NOT_KNOWN`` while it is open."""

    attempt: int
    begin: int
    end: int
    clean: bool


LIFE: Final = Row(codec.NUMBER, codec.NUMBER, codec.NUMBER, codec.FLAG, make=Life._make)


class Save(NamedTuple):
    """A checkpoint; `durable` and `end` are ``NOT_KNOWN`` where that has not happened."""

    attempt: int
    step: int
    begin: int
    end: int
    durable: int
    failed: bool


SAVE_ENTRY: Final = Row(*[codec.NUMBER] * 5, codec.FLAG, make=Save._make)


@dataclass(frozen=True)
class Overview:
    """A run at one moment.

    Attributes:
        begin, width: the bins of time: bin i is from ``begin + i * width``; all begin with the first job start.
        bins: ns by category number (``rules.FIXED`` and up: `names`); they add up to ``Totals.run`` exactly.
        step_bins: in order of completion, of equal count but for the last one.
        histogram: executions by (measure, attempt, fate, bucket).
        groups: all phases, by phase and name; those in the background apart. Skipped batches are no steps.
        phases, steps: what is remembered one by one, in order of their begin.
        left_out: how many phases, saves, notices, slices, exclusions, jobs and shifts are not here any more.
        at_risk: corners of the curve of unsaved progress: (time, ns).
        notices: (time, reason, withdrawn); slices: (time, active, available, total); excluded: (begin, end).
        stages: of checkpoints, by name of the part.
        numbering: where steps are not those whose numbers their loops gave them.
        shifts: by attempt (from 0) whose clock is behind the account's: what is added to its times, ns.
    """

    begin: int
    width: int
    bins: Sequence[Mapping[int, int]] = ()
    names: Sequence[str] = ()
    step_bins: Sequence[StepBin] = ()
    histogram: Mapping[tuple[int, int, int, int], int] = made(default_factory=dict)
    groups: Sequence[Group] = ()
    phases: Sequence[PhaseEntry] = ()
    left_out: int = 0
    steps: Sequence[StepEntry] = ()
    saves: Sequence[Save] = ()
    at_risk: Sequence[tuple[int, int]] = ()
    jobs: Sequence[Life] = ()
    disruptions: Sequence[Disruption] = ()
    notices: Sequence[tuple[int, str, bool]] = ()
    slices: Sequence[tuple[int, int, int, int]] = ()
    excluded: Sequence[tuple[int, int]] = ()
    last_step: int | None = None
    last_sign: int = 0
    stages: Mapping[str, StageSums] = made(default_factory=dict)
    numbering: Sequence[Stretch] = ()
    shifts: Mapping[int, int] = made(default_factory=dict)


LIVES: Final = 1000  # if there are more, the oldest are forgotten
CORNERS: Final = 4000  # of the curve of what is at risk; if there are more, every second tooth goes, the lower one

Corner = tuple[int, int]


class RiskCurve(State):
    """The jobs of a run and the corners of the curve of what is at risk. Tuples, which clones share.

    Attributes:
        lives: jobs; the end of the last is not known while it is open.
        corners: (time, ns before) and (time, ns after), in turn, of each moment when what is at risk jumped.
        shifts: by attempt, what is added to its times if its clock was behind, ns.
        left_out: how many lives and shifts are forgotten.
    """

    lives: tuple[Life, ...] = field(Each(LIFE, LIVES, tuple), (), key="jobs")
    corners: tuple[Corner, ...] = field(Each(Row(codec.NUMBER, codec.NUMBER), CORNERS, tuple), (), key="at_risk")
    shifts: dict[int, int] = field(
        Pairs(codec.NUMBER, codec.NUMBER, LIVES, replaced=True), make=dict, key="clock_shifts"
    )
    left_out: int = field(codec.COUNT, 0)

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
        if len(self.corners) > CORNERS:  # of every two neighboring jumps the one from the higher value stays
            jumps = list(zip(self.corners[::2], self.corners[1::2], strict=True))
            pairs = zip(jumps[::2], jumps[1::2], strict=False)
            kept = [max(pair, key=lambda jump: jump[0][1]) for pair in pairs] + jumps[len(jumps) // 2 * 2 :]
            self.corners = tuple(corner for jump in kept for corner in jump)

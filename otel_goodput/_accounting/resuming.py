"""Where training goes on after a restore: which step a checkpoint stands for, and which bodies are steps (rule R4)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from otel_goodput._accounting.codec import COUNT, FLAG, NUMBER, Pairs, State, field
from otel_goodput._accounting.events import NO_STEP
from otel_goodput._accounting.execution import BRIEF
from otel_goodput._accounting.rules import DATA_LOADING, RESTORE, SAVE

LABELS: Final = 1_000  # of the latest saves
STRETCHES: Final = 1_000  # of the latest
WATCHED: Final = 10_000  # steps after a restore, if it is not known how long a step usually takes
FEW: Final = 2  # so many first steps may be short
JUMP: Final = 10  # the next step takes so many times as long if they were skipped batches


class Past(NamedTuple):
    """What a new attempt needs to know of those before it.

    Attributes:
        labels: as of :class:`Checkpoints`.
        reached, first: highest step that has started, lowest kept step; ``NO_STEP`` if none is kept.
        safe: highest step that a durable checkpoint stands for; ``NO_STEP`` if there is none.
    """

    labels: Mapping[int, int]
    reached: int
    safe: int
    first: int


class Stretch(NamedTuple):
    """Bodies of a loop after a restore, from `begin` (ns) on, that are not the steps whose numbers the loop gives them.

    Those before `working` (ns; ``NEVER`` while none is a step) were skipped batches. From then on, `offset` is added to
    the numbers that loops give, up to the next stretch of the attempt (from 0).
    """

    attempt: int
    begin: int
    working: int
    offset: int


class Numbering:
    """Which step each body of a run is, for whoever reads a journal again: as the account has decided."""

    def __init__(self, stretches: Sequence[Stretch] = ()) -> None:
        self._stretches = sorted(stretches)
        self._begins = [(one.attempt, one.begin) for one in self._stretches]

    def step(self, attempt: int, begin: int, given: int) -> int:
        """Return which step a body is that its loop numbers `given`; ``NO_STEP`` if it is a skipped batch.

        It begins at `begin` (ns by the account's clock) in this attempt (from 0).
        """
        stretch = self._at(attempt, begin)
        return NO_STEP if begin < stretch.working else given + stretch.offset

    def of_phase(self, attempt: int, phase: int, begin: int, end: int, given: int) -> int:
        """Return which step a `phase` recorded with the number `given` belongs to, or the label of its checkpoint.

        A load that precedes its step ends where that begins.
        """
        if given < 0 or phase in (SAVE, RESTORE):
            return given
        step = self.step(attempt, end if phase == DATA_LOADING else begin, given)
        return given if step == NO_STEP else step

    def given(self, attempt: int, begin: int, step: int) -> int:
        """Return the number that its loop gave the `step` that began at `begin` (ns) in this attempt."""
        return step - self._at(attempt, begin).offset

    def _at(self, attempt: int, begin: int) -> Stretch:
        at = bisect_right(self._begins, (attempt, begin)) - 1
        if at >= 0 and self._stretches[at].attempt == attempt:
            return self._stretches[at]
        return Stretch(attempt, begin, begin, 0)


def followed(stretches: tuple[Stretch, ...], one: Stretch) -> tuple[Stretch, ...]:
    """Return the latest stretches with `one` in the place of the last if both begin at once, else behind it."""
    if stretches and stretches[-1][:2] == one[:2]:
        stretches = stretches[:-1]
    before = stretches[-1] if stretches and stretches[-1].attempt == one.attempt else None
    if one.begin == one.working and one.offset == (0 if before is None else before.offset):
        return stretches  # it changes nothing
    return (*stretches, one)[-STRETCHES:]


class Resume(State):
    """A restore that no step has followed yet.

    Attributes:
        at: last step that was done when the checkpoint was saved; ``NO_STEP`` if that is not known.
        label, own: the checkpoint's label, ``NO_STEP`` without one; this run saved it.
        usual: median net time of the latest steps before the restore, ns; 0 if there are none.
        room: how many more bodies can be batches that the loop skips: no more than there were steps.
        skipped: bodies that were such batches.
        walking: a body has begun of which it is not known yet whether it is a step.
    """

    at: int = field(NUMBER)
    label: int = field(NUMBER)
    own: bool = field(FLAG)
    usual: int = field(COUNT)
    room: int = field(COUNT)
    skipped: int = field(COUNT, 0)
    walking: bool = field(FLAG, False)

    def __init__(self, at: int, label: int, own: bool, usual: int, room: int) -> None:
        self.at, self.label, self.own, self.usual, self.room = at, label, own, usual, room

    def take_number(self, number: int) -> bool:
        """Take the number that the user gave to the first body; returns whether it says that this is a step.

        If it is not known which checkpoint was restored, a number above 0 may be that of the step after it or that of
        an epoch's first batch: then only bodies that are far shorter than steps are skipped.
        """
        if number > 0 and self.at < 0 and self.label < 0:
            self.usual = self.usual * 2 // BRIEF
        return number > 0 and number - 1 == (self.label if self.at < 0 else self.at)

    def place(self, number: int, offset: int, top: int) -> int:
        """Return which step the first working body is, to which its loop gives this number.

        `offset` was added to such numbers so far; `top` is the highest kept step.
        """
        following = self.at + 1
        if self.at < 0 or number == following:
            return number
        number += offset
        if self.skipped or number == following:
            return following
        # Saved at the head of the body, before the step of its label; or by another thread behind the work of the step
        # before, which was open.
        if number == self.label and self.at in (number, number - 2):
            return number
        return number if following < number <= top + 1 else following


class Watch(State):
    """The first steps after a restore in a run that has no earlier ones: they may be batches that the loop skips.

    `count` have completed; the longest took `longest` ns.
    """

    count: int = field(COUNT, 0)
    longest: int = field(COUNT, 0)

    def look(self, net: int) -> int:
        """Look at the `net` time (ns) of the next one; return how many before it look like skipped batches."""
        if self.count >= FEW and net > JUMP * self.longest:
            return self.count
        self.count += 1
        self.longest = max(self.longest, net)
        return 0


class Checkpoints(State):
    """The checkpoints of a run by their labels.

    Attributes:
        labels: label -> last step that was done when the save began, of the latest saves. Replaced, never changed.
        reached: highest step that had started when the run went back; ``NO_STEP`` before that.
    """

    labels: Mapping[int, int] = field(Pairs(NUMBER, NUMBER, LABELS, replaced=True), make=dict)
    reached: int = field(NUMBER, NO_STEP)

    def save(self, label: int, done: int) -> None:
        """Note that a checkpoint with `label` stands for the steps up to `done`."""
        others = [one for one in self.labels.items() if one[0] != label]
        self.labels = dict([*others, (label, done)][-LABELS:])

"""Where training goes on after a restore: which step a checkpoint stands for, and which bodies are steps (rule R4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from otel_goodput.accounting.events import NO_STEP
from otel_goodput.accounting.state import Stateful

LABELS: Final = 1_000  # of the latest saves
WATCHED: Final = 10_000  # steps after a restore, if it is not known how long a step usually takes
FEW: Final = 2  # so many first steps may be short
JUMP: Final = 10  # the next step takes so many times as long if they were skipped batches


class Past(NamedTuple):
    """What a new attempt needs to know of those before it.

    Attributes:
        labels: as of :class:`Checkpoints`.
        reached: highest step that has started; ``NO_STEP`` if none is kept.
        safe: highest step that a durable checkpoint stands for; ``NO_STEP`` if there is none.
        first: lowest kept step; ``NO_STEP`` if there is none.
    """

    labels: Mapping[int, int]
    reached: int
    safe: int
    first: int


class Resume(Stateful):
    """A restore that no step has followed yet.

    Attributes:
        at: last step that was done when the checkpoint was saved; ``NO_STEP`` if that is not known.
        label: the checkpoint's label, ``NO_STEP`` without one.
        own: this run saved the checkpoint.
        usual: median net time of the latest steps before the restore, ns; 0 if there are none.
        room: how many more bodies can be batches that the loop skips: no more than there were steps.
        skipped: bodies that were such batches.
        walking: a body has begun of which it is not known yet whether it is a step.
    """

    STORED = __slots__ = ("at", "label", "own", "usual", "room", "skipped", "walking")

    def __init__(self, at: int, label: int, own: bool, usual: int, room: int) -> None:
        self.at = at
        self.label = label
        self.own = own
        self.usual = usual
        self.room = room
        self.skipped = 0
        self.walking = False

    @property
    def doubtful(self) -> bool:
        """Whether a body that begins now may be no step, but a batch that the loop skips."""
        return self.usual > 0 and self.room > 0

    def place(self, number: int, offset: int, top: int) -> int:
        """Return which step the first working body is.

        Args:
            number: the number that its loop gives it.
            offset: what was added to such numbers so far.
            top: the highest kept step.
        """
        following = self.at + 1
        if self.at < 0 or number == following:
            return number
        number += offset
        if self.skipped or number == following:
            return following
        if number == self.at == self.label:
            return number  # its checkpoint was saved at the head of the body, before the step of its label
        return number if following < number <= top + 1 else following

    @classmethod
    def from_state(cls, state: list[Any]) -> Resume:
        resume = cls(0, 0, False, 0, 0)
        resume.restore(state)
        return resume


class Watch(Stateful):
    """The first steps after a restore in a run that has no earlier ones: they may be batches that the loop skips.

    Attributes:
        count: how many have completed.
        longest: net time of the longest of them, ns.
    """

    STORED = __slots__ = ("count", "longest")

    def __init__(self) -> None:
        self.count = 0
        self.longest = 0

    def look(self, net: int) -> bool:
        """Look at the `net` time (ns) of the next one; return whether those before it look like skipped batches."""
        if self.count >= FEW and net > JUMP * self.longest:
            return True
        self.count += 1
        self.longest = max(self.longest, net)
        return False

    @classmethod
    def from_state(cls, state: list[Any]) -> Watch:
        watch = cls()
        watch.restore(state)
        return watch


class Checkpoints(Stateful):
    """The checkpoints of a run by their labels.

    Attributes:
        labels: label -> last step that was done when the save began, of the latest saves. Replaced, never changed,
            because clones share it.
        reached: highest step that had started when the run went back; ``NO_STEP`` before that.
    """

    STORED = __slots__ = ("labels", "reached")

    def __init__(self) -> None:
        self.labels: Mapping[int, int] = {}
        self.reached = NO_STEP

    def save(self, label: int, done: int) -> None:
        """Note that a checkpoint with `label` stands for the steps up to `done`."""
        labels = dict(self.labels)
        labels.pop(label, None)  # so that it is the latest
        labels[label] = done
        if len(labels) > LABELS:
            del labels[next(iter(labels))]
        self.labels = labels

    def stands_for(self, label: int, reached: int) -> int:
        """Return the last step that was done when the checkpoint `label` was saved; ``NO_STEP`` if that is not known.

        One that this run did not save stands for the step of its number, if the run has `reached` that.
        """
        if label in self.labels:
            return self.labels[label]
        return label if label <= reached else NO_STEP

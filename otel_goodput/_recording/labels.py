"""Which step a checkpoint stands for: by its label, and what this process and earlier attempts have saved."""

from __future__ import annotations

from otel_goodput._accounting.resuming import LABELS, Past


class CheckpointLabels:
    """The labels of the checkpoints that the run has saved; the account follows the same rules (R4).

    `moved`: a checkpoint was restored that says which step is the next.
    """

    def __init__(self, past: Past) -> None:
        self._past = past
        self._done = dict(past.labels)  # label -> last step that was done when the save began
        self._own = False  # the latest restored checkpoint is one of these
        self.moved = False

    def save(self, label: int, done: int) -> None:
        """Note that the checkpoint `label` stands for the steps up to `done`."""
        if done >= 0:
            self._done[label] = done
            if len(self._done) > LABELS:
                del self._done[next(iter(self._done))]

    def restore(self, label: int, latest: int, *, again: bool) -> int | None:
        """Return the last step that the restored checkpoint `label` stands for; None if it moves nothing.

        Args:
            label: what it was called when it was saved.
            latest: the step that began last in this process, ``NO_STEP`` before the first.
            again: no step has begun since the restore before.
        """
        own = label in self._done
        reached = max(self._past.reached, latest)
        if not own and ((again and self._own) or 0 <= reached < label):
            return None
        self._own = own
        self.moved = True
        return self._done.get(label, label)

    def begins_anew(self, number: int) -> bool:
        """Whether the first step, `number`, repeats the run from its start, although a checkpoint is durable."""
        return not self.moved and number <= self._past.safe and number <= max(0, self._past.first)

    @property
    def durable(self) -> tuple[int, int]:
        """The label of the run's durable checkpoint when this attempt began, and the last step it stands for."""
        safe = self._past.safe
        return next((label for label, done in reversed(self._done.items()) if done == safe), safe), safe

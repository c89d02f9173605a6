"""The interface between an asynchronous runtime and the device clock: marks behind dispatched work.

:class:`Marker` is all that the clock needs of a runtime. The modules ``jax_marker`` and ``torch_marker`` implement it;
to add another runtime, implement it and enter it in the table of ``async_runtimes``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Mark(Protocol):
    """Becomes ready when all that was dispatched before it is done. Only the clock has references to it."""

    def is_ready(self) -> bool:
        """Return whether the mark is ready; never wait."""

    def is_deleted(self) -> bool:
        """Return whether :meth:`is_ready` can no longer be called; False if that cannot happen."""


class Marker(Protocol):
    """Sets marks in one runtime.

    Attributes:
        waits: its marks have a ``block_until_ready()`` that releases the GIL, so that a thread can wait for a mark
            instead of polling it.
        doubtful: the order must be checked often, because a mark may be ready before the work in front of it.
        prepared: whether marks can be set without :meth:`prepare`.
    """

    waits: bool
    doubtful: bool

    @property
    def prepared(self) -> bool: ...

    def prepare(self) -> bool:
        """Prepare what marks need, on a thread of ours; it may take long. Return False if there will be no marks."""

    def mark(self) -> Mark | None:
        """Set a mark behind what this thread has dispatched so far; return None if that is impossible now.

        Never waits for the device, starts a runtime, or talks to another process.
        """

    def results(self) -> Sequence[Mark]:
        """Return some results of the latest work, to check the order with; none if the order is documented."""

    def retarget(self, late: Sequence[Any]) -> bool:
        """Mark more from now on, because a mark was ready before the results `late` of the work in front of it.

        Returns: False if there is no more to mark.
        """

    def close(self) -> None:
        """Undo what was changed in the runtime."""


class Together:
    """One mark made of a mark in each of several runtimes."""

    def __init__(self, marks: Sequence[Mark]) -> None:
        self._marks = tuple(marks)

    def is_ready(self) -> bool:
        return all(mark.is_ready() for mark in self._marks)

    def is_deleted(self) -> bool:
        return any(mark.is_deleted() for mark in self._marks)

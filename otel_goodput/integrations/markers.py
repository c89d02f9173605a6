"""What a runtime that works asynchronously gives to the device clock: marks behind the work that was dispatched.

:class:`Marker` is all that the clock asks of a runtime. Those for jax and PyTorch stand beside this file; another one
is written by implementing it and entering it in the table of ``async_runtimes``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Mark(Protocol):
    """Becomes ready when all is done that was dispatched before it. Nobody but the clock has it."""

    def is_ready(self) -> bool:
        """Whether it is; never waits."""

    def is_deleted(self) -> bool:
        """Whether nobody can ask it any more; False where that cannot happen."""


class Marker(Protocol):
    """Sets marks in one runtime.

    Attributes:
        waits: its marks have a ``block_until_ready()`` that lets go of the interpreter's lock, so that a thread may
            wait for one instead of asking it again and again.
        prepared: whether marks can be set without preparing anything.
    """

    waits: bool

    @property
    def prepared(self) -> bool: ...

    def prepare(self) -> bool:
        """Make ready what marks need, on a thread of ours; it may take its time. False: there will be no marks."""

    def mark(self) -> Mark | None:
        """A mark behind what this thread has dispatched so far, None where none can be set here and now.

        Never waits for the device, never starts a runtime, talks to no other process.
        """

    def results(self) -> Sequence[Mark]:
        """Some results of what was dispatched latest, to check the order by; none where the order is documented."""

    def widen(self) -> bool:
        """The order was wrong: take more devices in; False where all are."""

    def close(self) -> None:
        """Take back what was changed in the runtime."""


class Together:
    """A mark in each of several runtimes."""

    def __init__(self, marks: Sequence[Mark]) -> None:
        self._marks = tuple(marks)

    def is_ready(self) -> bool:
        return all(mark.is_ready() for mark in self._marks)

    def is_deleted(self) -> bool:
        return any(mark.is_deleted() for mark in self._marks)

"""Tells which thread trains."""

from __future__ import annotations

import threading


class JobThread:
    """The training thread; phases of other threads do not block training unless their user says so.

    It is the thread that opened the job, until another thread opens steps (see :meth:`moves`).

    Attributes:
        identity: id of the thread.
        stepped: the thread has opened a step.
    """

    __slots__ = ("identity", "stepped")

    def __init__(self) -> None:
        self.identity = threading.main_thread().ident
        self.stepped = False

    def take(self) -> None:
        """Make the current thread the training thread, because it begins the job."""
        self.identity = threading.get_ident()
        self.stepped = False

    def step(self) -> None:
        """Take note that the training thread has opened a step."""
        self.stepped = True

    def blocks(self, said: bool | None) -> bool:
        """Return whether a phase opened now by this thread is blocking; `said` is the user's argument, or None."""
        if said is not None:
            return said
        return threading.get_ident() == self.identity

    def moves(self, said: bool | None) -> bool:
        """Make the current thread, which opens a step, the training thread; return whether that was done.

        Not if `said` (the user's `blocking`) is given, or if the previous one has opened a step and is still alive.
        """
        if said is not None:
            return False
        if self.stepped and any(thread.ident == self.identity for thread in threading.enumerate()):
            return False
        self.identity = threading.get_ident()
        return True

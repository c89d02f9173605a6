"""The thread that trains."""

from __future__ import annotations

import threading


class JobThread:
    """The thread that trains: phases of other threads hold up nothing unless they say so.

    It is the one that opened the job, until another one opens steps.

    Attributes:
        stepped: it has opened a step.
    """

    __slots__ = ("identity", "stepped")

    def __init__(self) -> None:
        self.identity = threading.main_thread().ident
        self.stepped = False

    def take(self) -> None:
        """The job begins here."""
        self.identity = threading.get_ident()
        self.stepped = False

    def blocks(self, said: bool | None) -> bool:
        """Whether a phase that opens now, here, is blocking; `said` is what its user said, if anything."""
        if said is not None:
            return said
        return threading.get_ident() == self.identity

    def moves(self, said: bool | None) -> bool:
        """A step opens on another thread: whether this one trains from now on, for the one so far does not, or is
        over.
        """
        if said is not None:
            return False
        if self.stepped and any(thread.ident == self.identity for thread in threading.enumerate()):
            return False
        self.identity = threading.get_ident()
        return True

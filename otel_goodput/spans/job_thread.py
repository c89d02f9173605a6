"""The thread that trains."""

from __future__ import annotations

import threading


class JobThread:
    """The thread that opened the job: phases of other threads hold up nothing unless they say so."""

    __slots__ = ("identity",)

    def __init__(self) -> None:
        self.identity = threading.main_thread().ident

    def blocks(self, said: bool | None) -> bool:
        """Whether a phase that opens now, here, is blocking; `said` is what its user said, if anything."""
        if said is not None:
            return said
        return threading.get_ident() == self.identity

"""Which process is a rank, if several publish as the same one: a wrong variable gives two processes one index.

On one file system, the lock of the journal keeps them apart. Others meet in a store. Only the first one counts: else
the second one would look like its successor, and the rank would seem to have died.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from otel_goodput._accounting.events import NOT_KNOWN
from otel_goodput._live.rank_messages import RankMessage

WAIT_S: Final = 15.0  # without a message of the one before, a process that has its index is its successor


class Claims:
    """Sorts the messages of ranks by the process that sent them.

    Attributes:
        refused: the latest message of each process that does not count, by rank.
    """

    def __init__(self) -> None:
        self.refused: dict[int, RankMessage] = {}
        self._latest: dict[int, RankMessage] = {}  # of the process that is the rank
        self._waiting: dict[int, tuple[float, list[RankMessage]]] = {}  # since when (s, monotonic), of another process

    def take(self, rank: int, message: RankMessage) -> bool:
        """Whether a message counts now; if not, it may do so later: see :meth:`due`."""
        owner = self._latest.get(rank)
        if owner is not None and not _same(owner, message):
            if message.attempt < owner.attempt:
                return True  # it is known to be old
            if message.attempt == owner.attempt and owner.update.left == NOT_KNOWN:
                if rank in self.refused and _same(self.refused[rank], message):
                    self.refused[rank] = message
                else:
                    self._waiting.setdefault(rank, (time.monotonic(), []))[1].append(message)
                return False
        elif (waiting := self._waiting.pop(rank, None)) is not None:  # both live
            self.refused[rank] = waiting[1][-1]
        self._latest[rank] = message
        return True

    def owner(self, rank: int) -> RankMessage:
        """Return the latest message of the process that is the rank, of which there has been one."""
        return self._latest[rank]

    def due(self) -> Iterator[tuple[int, RankMessage]]:
        """Yield the messages of processes that turn out to be successors."""
        now = time.monotonic()
        for rank in [rank for rank, (since, _) in self._waiting.items() if now - since >= WAIT_S]:
            for message in self._waiting.pop(rank)[1]:
                self._latest[rank] = message
                yield rank, message


def _same(one: RankMessage, other: RankMessage) -> bool:
    return (one.host, one.pid) == (other.host, other.pid)

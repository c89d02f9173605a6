"""Bounds for the connections of the server: how many there may be, and how long one may take until it has asked.

uvicorn waits for a request for ever, so clients that connect and say nothing would take all files that the process may
open, and nobody else could be answered. A connection without a request being answered is waiting: it is closed when its
time is over, and the one that has waited longest gives way when there are too many.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

ASKING_S: Final = 10.0  # s from connecting, or from the last answer, until a whole request must have come
_MOST: Final = 1000
_LEAST: Final = 16


def most_connections() -> int:
    """Return how many connections the server may have: half of the files that this process may open."""
    try:
        import resource
    except ImportError:  # not on Windows
        return _MOST // 2
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if soft == resource.RLIM_INFINITY else max(_LEAST, min(_MOST, soft // 2))


def bounded(protocol: type[Any], most: int, asking_s: float = ASKING_S) -> type[Any]:
    """Return uvicorn's `protocol` of a connection, with at most `most` of them at once."""
    waiting: dict[Any, asyncio.TimerHandle] = {}  # the one that has waited longest is the first

    def leave(connection: Any) -> None:
        timer = waiting.pop(connection, None)
        if timer is not None:
            timer.cancel()

    class Bounded(protocol):  # type: ignore[misc]  # uvicorn is imported where it is used
        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            if len(self.connections) > most:
                gives_way = next(iter(waiting), self)
                leave(gives_way)
                gives_way.transport.abort()
            self._wait()

        def connection_lost(self, exc: Exception | None) -> None:
            leave(self)
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._wait()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._wait()

        def _wait(self) -> None:
            if self.transport.is_closing() or (self.cycle is not None and not self.cycle.response_complete):
                leave(self)
            elif self not in waiting:
                waiting[self] = self.loop.call_later(asking_s, self.transport.abort)

    return Bounded

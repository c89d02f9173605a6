"""Reads the answers of HTTP servers within bounds: at most so many bytes, and until one deadline.

A socket's timeout applies to each read, and ``http.client``, which requests and urllib stand on, reads a body of any
length: a server that keeps sending costs memory without end, or a thread that never returns.
"""

from __future__ import annotations

import http.client
import io
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from types import SimpleNamespace
from typing import Any, Final

LONGEST: Final = 1 << 20  # bytes of an answer at most, headers included; an answer of OTLP has some ten

_PIECE: Final = 1 << 16  # bytes


class TooLong(http.client.HTTPException):
    """An answer is longer than it may be."""

    def __init__(self, longest: int = LONGEST) -> None:
        size = f"{longest >> 20} MiB" if longest >= 1 << 20 else f"{longest} bytes"
        super().__init__(f"its answer is longer than {size}")


class _Within(io.RawIOBase):
    """What a socket receives, for as long as its timeout said when the answer was first waited for."""

    def __init__(self, connection: socket.socket, longest: int) -> None:
        self._connection = connection
        self._longest = longest
        self._received = connection.makefile("rb", buffering=0)
        self._timeout = connection.gettimeout()
        self._until = None if self._timeout is None else time.monotonic() + self._timeout
        self._left = longest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if self._until is not None:
            left = self._until - time.monotonic()
            if left <= 0:
                raise TimeoutError("timed out")
            self._connection.settimeout(left)
        count = self._received.readinto(buffer)
        self._left -= count or 0
        if self._left < 0:
            raise TooLong(self._longest)
        return count

    def close(self) -> None:
        if not self.closed:
            with suppress(OSError):  # the connection may be closed; one that is kept waits as long for the next request
                self._connection.settimeout(self._timeout)
            self._received.close()
        super().close()


class BoundedResponse(http.client.HTTPResponse):
    """An answer within these bounds: the `response_class` of an ``http.client.HTTPConnection``.

    Reading it raises TimeoutError at the deadline, which is the connection's timeout from when the request was sent,
    and TooLong beyond the bytes.
    """

    def __init__(self, sock: socket.socket, *args: Any, longest: int = LONGEST, **settings: Any) -> None:
        received = SimpleNamespace(makefile=lambda *_, **__: io.BufferedReader(_Within(sock, longest)))
        super().__init__(received, *args, **settings)  # type: ignore[arg-type]
        self._longest = longest

    def begin(self) -> None:
        super().begin()
        if self.length is not None and self.length > self._longest:  # http.client would take that much memory at once
            raise TooLong(self._longest)


def whole(read: Callable[[int], bytes]) -> bytes:
    """Return all that `read` gives, called with a number of bytes until it gives none.

    Without a number, ``http.client`` asks at once for the memory of a chunk, however long that claims to be.
    """
    return b"".join(iter(partial(read, _PIECE), b""))


def bound(session: Any) -> None:
    """Have a ``requests.Session`` read every answer within these bounds. Call it before the first request.

    Adapters of others that do not stand on urllib3 are left as they are.
    """
    for adapter in session.adapters.values():
        if hasattr(adapter, "poolmanager") and hasattr(adapter, "proxy_manager_for"):
            _bound(adapter.poolmanager)
            adapter.proxy_manager_for = partial(_bounded_manager, adapter.proxy_manager_for)


def _bounded_manager(make: Any, *args: Any, **settings: Any) -> Any:
    """Return the same manager of connections through a proxy as `make`, within bounds."""
    return _bound(make(*args, **settings))


def _bound(manager: Any) -> Any:
    manager.pool_classes_by_scheme = {scheme: _bounded(pool) for scheme, pool in manager.pool_classes_by_scheme.items()}
    return manager


@cache
def _bounded(pool: type[Any]) -> type[Any]:
    if getattr(pool.ConnectionCls, "response_class", None) is BoundedResponse:
        return pool
    connection = type(pool.ConnectionCls.__name__, (pool.ConnectionCls,), {"response_class": BoundedResponse})
    return type(pool.__name__, (pool,), {"ConnectionCls": connection})

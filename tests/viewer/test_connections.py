"""The bounds of the server's connections, around an application that answers at once or never."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from waits import PATIENCE_S, until

from otel_goodput._viewer.server import bounded

uvicorn = pytest.importorskip("uvicorn")
pytestmark = pytest.mark.servers

ASKING_S = 0.3
MOST = 4
ASK = b"GET /%s HTTP/1.1\r\nHost: a\r\n\r\n"


async def application(scope: Any, receive: Any, send: Any) -> None:
    if scope["path"] == "/stream":  # until the client goes
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        await receive()
        await receive()
    else:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})


@pytest.fixture
def port() -> Iterator[int]:
    from uvicorn.protocols.http.h11_impl import H11Protocol

    protocol = bounded(H11Protocol, MOST, ASKING_S)
    config = uvicorn.Config(application, http=protocol, log_level="error", lifespan="off", ws="none", loop="asyncio")
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
        thread.start()
        yield listener.getsockname()[1]
        server.force_exit = server.should_exit = True
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def client(port: int) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port))
    made.settimeout(PATIENCE_S)
    return made


def closed(one: socket.socket) -> bool:
    """Wait until the server has closed the connection."""
    try:
        return one.recv(1) == b""
    except ConnectionError:
        return True


def test_who_does_not_ask_in_time_is_closed(port: int) -> None:
    with client(port) as silent, client(port) as slow:
        slow.sendall(ASK[:20])
        assert closed(silent) and closed(slow)


def test_who_asks_a_letter_at_a_time_is_closed(port: int) -> None:
    """Also after an answer, when the connection is kept for the next request."""
    with client(port) as slow:
        slow.sendall(ASK % b"")
        assert slow.recv(100).startswith(b"HTTP/1.1 204")
        sent = 0

        def refused() -> bool:
            nonlocal sent
            sent += 1
            with contextlib.suppress(ConnectionError):
                slow.sendall(b"G")
                return False
            return True

        until(refused)
        assert sent > 2, "it was not closed for saying nothing"


def test_who_is_being_answered_is_not_timed(port: int) -> None:
    with client(port) as stream, client(port) as silent:
        stream.sendall(ASK % b"stream")
        assert stream.recv(100).startswith(b"HTTP/1.1 200")
        assert closed(silent), "its time is over, and that of the stream, which is as old, would be"
        stream.setblocking(False)
        with pytest.raises(BlockingIOError):
            while stream.recv(1000):
                pass


def test_the_one_that_has_waited_longest_gives_way(port: int) -> None:
    with contextlib.ExitStack() as exits:
        streams = [exits.enter_context(client(port)) for _ in range(MOST - 1)]
        for stream in streams:
            stream.sendall(ASK % b"stream")
            assert stream.recv(100).startswith(b"HTTP/1.1 200")
        for _ in range(20):  # each takes the place of the one before
            asking = exits.enter_context(client(port))
        asking.sendall(ASK % b"")
        assert asking.recv(100).startswith(b"HTTP/1.1 204")
        last = exits.enter_context(client(port))
        last.sendall(ASK % b"stream")
        assert last.recv(100).startswith(b"HTTP/1.1 200")
        # All are being answered now: there is no room.
        assert closed(exits.enter_context(client(port)))

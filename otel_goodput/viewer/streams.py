"""Server-sent events: what changes is made once, and each client gets the latest of it as fast as it reads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from otel_goodput.text.redact import redacting_logger
from otel_goodput.viewer.gate import Receive, Scope, Send, refuse

logger = redacting_logger(__name__)

EVERY_S: Final = 1.0
_SHARE: Final = 20  # making what changed takes at most one part in this many of a core
_HEARTBEAT_S: Final = 10.0  # without news a sign of life, so that both sides notice a dead connection
# The comment is for proxies and people, the event for the page, whose EventSource does not show it comments.
_ALIVE: Final = b": heartbeat\nevent: alive\ndata: {}\n\n"
_PATIENCE_S: Final = 60.0  # a client that takes nothing for so long is let go
MOST: Final = 500  # streams at a time


class Topic:
    """Something that changes, and those who listen. Belongs to one event loop; costs nothing while nobody listens.

    Args:
        make: returns the latest as bytes of an event; called in a thread of its own, once a second at most.
    """

    def __init__(self, make: Callable[[], bytes]) -> None:
        self._make = make
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.listeners = 0
        self.version = 0
        self.latest = b""

    def join(self) -> None:
        """A listener comes: followed by :meth:`leave`."""
        self.listeners += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._loop())

    def leave(self) -> None:
        """A listener goes; the last one ends the work."""
        self.listeners -= 1
        if not self.listeners and self._task is not None:
            self._task.cancel()
            self._task = None
            self.version, self.latest = self.version + 1, b""

    async def after(self, version: int) -> None:
        """Wait until there is something newer than `version`."""
        while self.version <= version or not self.latest:
            await self._changed.wait()

    async def _loop(self) -> None:
        while True:
            took = 0.0
            try:
                latest, took = await asyncio.to_thread(self._timed)
                if latest != self.latest:
                    self.latest, self.version = latest, self.version + 1
                    self._changed.set()
                    self._changed = asyncio.Event()
            except Exception as error:  # a run that is damaged just now may be whole in the next second
                logger.warning("what changed cannot be told: %s: %s", type(error).__name__, error)
            await asyncio.sleep(max(EVERY_S, _SHARE * took))

    def _timed(self) -> tuple[bytes, float]:
        began = time.thread_time()
        return self._make(), time.thread_time() - began


def event(data: bytes, name: str = "") -> bytes:
    """Return one line of data as an event."""
    return (f"event: {name}\n".encode() if name else b"") + b"data: " + data + b"\n\n"


class Streams:
    """All streams of a server. `ending` is set when it stops: each of them then ends at once."""

    def __init__(self) -> None:
        self.ending = asyncio.Event()
        self.open = 0

    async def send(self, topic: Topic, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request with the stream of a topic, until the client goes or the server stops."""
        if self.open >= MOST:
            await refuse(send, 503, f"{MOST} streams are open: this server has no more", [(b"retry-after", b"10")])
            return
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"x-accel-buffering", b"no"),  # a proxy must not wait for more
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if scope["method"] == "HEAD":
            await send({"type": "http.response.body", "body": b""})
            return
        self.open += 1
        topic.join()
        gone = asyncio.ensure_future(_gone(receive))
        over = asyncio.ensure_future(self.ending.wait())
        try:
            await self._follow(topic, send, gone, over)
        finally:
            topic.leave()
            self.open -= 1
            for task in (gone, over):
                task.cancel()

    async def _follow(self, topic: Topic, send: Send, gone: asyncio.Future[Any], over: asyncio.Future[Any]) -> None:
        async def passed(body: bytes, *, more: bool = True) -> bool:
            """Whether the client has taken it. What it has not taken yet holds up this one stream only."""
            message = {"type": "http.response.body", "body": body, "more_body": more}
            sending = asyncio.ensure_future(send(message))
            await asyncio.wait({sending, gone, over}, timeout=_PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                return sending.exception() is None and not gone.done()
            sending.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await sending
            return False

        version = -1
        alive = await passed(b"retry: 2000\n\n")
        while alive and not over.done():
            newer = asyncio.ensure_future(topic.after(version))
            await asyncio.wait({newer, gone, over}, timeout=_HEARTBEAT_S, return_when=asyncio.FIRST_COMPLETED)
            newer.cancel()
            if gone.done():
                return
            if over.done():
                break
            body = _ALIVE
            if topic.latest and topic.version > version:
                version, body = topic.version, topic.latest
            alive = await passed(body)
        if alive:
            await passed(b"event: end\ndata: {}\n\n", more=False)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

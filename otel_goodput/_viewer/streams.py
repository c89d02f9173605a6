"""Server-sent events: each change is made once, and each client gets the latest one as fast as it reads.

sse-starlette would send one generator's events to one client, with pings. What clients share, the latest value in place
of a queue, and letting go of a client that takes nothing would still be here, and are nearly all of it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from otel_goodput._text.redact import redacting_logger
from otel_goodput._viewer.gate import refused

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

logger = redacting_logger(__name__)

EVERY_S: Final = 1.0
_SHARE: Final = 20  # making what changed takes at most one part in this many of a core
_HEARTBEAT_S: Final = 10.0  # without news a sign of life, so that both sides notice a dead connection
# The comment is for proxies and people, the event for the page, whose EventSource does not show it comments.
_ALIVE: Final = b": heartbeat\nevent: alive\ndata: {}\n\n"
_GUARD_S: Final = 2.5  # how often that is looked after
_PATIENCE_S: Final = 60.0  # a client that takes nothing for so long is let go
MOST: Final = 500  # streams at a time


class Topic:
    """Something that changes, and those who listen. Belongs to one event loop; costs nothing while nobody listens.

    `make` returns the latest as bytes of an event, in a thread of its own, once a second at most; `before` the events
    that a client needs before its first one.
    """

    def __init__(self, make: Callable[[], bytes], before: Callable[[], bytes] = bytes) -> None:
        self._make = make
        self.before = before
        self._clients: set[Client] = set()
        self._task: asyncio.Task[None] | None = None
        self.version = 0
        self.latest = b""

    def join(self, client: Client) -> None:
        self._clients.add(client)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._loop())

    def leave(self, client: Client) -> None:
        """A listener goes; the last one ends the work."""
        self._clients.discard(client)
        if not self._clients and self._task is not None:
            self._task.cancel()
            self._task = None
            self.version, self.latest = self.version + 1, b""

    @property
    def listeners(self) -> int:
        return len(self._clients)

    async def _loop(self) -> None:
        while True:
            took = 0.0
            try:
                latest, took = await asyncio.to_thread(self._timed)
                if latest != self.latest:
                    self.latest, self.version = latest, self.version + 1
                    for client in self._clients:
                        client.news.set()
            except Exception as error:  # a run that is damaged just now may be whole in the next second
                logger.warning("changes cannot be sent to a page: %s: %s", type(error).__name__, error)
            await asyncio.sleep(max(EVERY_S, _SHARE * took))

    def _timed(self) -> tuple[bytes, float]:
        began = time.thread_time()
        return self._make(), time.thread_time() - began


def event(data: bytes, name: str) -> bytes:
    return f"event: {name}\ndata: ".encode() + data + b"\n\n"


class Client:
    """One stream: what was sent to it. Belongs to one event loop."""

    def __init__(self, topic: Topic, task: asyncio.Task[Any]) -> None:
        self.topic = topic
        self.task = task
        self.version = -1
        self.sent_at = time.monotonic()
        self.gone = self.stuck = self.sending = False
        self.news = asyncio.Event()  # there is something for it

    async def leave(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        self.news.set()


class Streams:
    """All streams of a server. What is new wakes the task of each client once, and no task is made for it: with many
    clients this is most of what a server does.
    """

    def __init__(self) -> None:
        self.ending = False
        self._clients: set[Client] = set()
        self._guard: asyncio.Task[None] | None = None

    def end(self) -> None:
        self.ending = True
        for client in self._clients:
            client.news.set()

    async def send(self, topic: Topic, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request with the stream of a topic, until the client goes or the server stops."""
        if len(self._clients) >= MOST:
            full = refused(503, f"{MOST} streams are open, which is this server's limit", {"retry-after": "10"})
            await full(scope, receive, send)
            return
        # The second: a proxy must not wait for more.
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if scope["method"] == "HEAD":
            await send({"type": "http.response.body", "body": b""})
            return
        task = asyncio.current_task()
        assert task is not None
        client = Client(topic, task)
        self._clients.add(client)
        topic.join(client)
        if self._guard is None or self._guard.done():
            self._guard = asyncio.create_task(self._watch())
        gone = asyncio.create_task(client.leave(receive))
        try:
            await self._follow(client, send)
        except asyncio.CancelledError:
            if not client.stuck:
                raise
        finally:
            gone.cancel()
            topic.leave(client)
            self._clients.discard(client)
            if not self._clients and self._guard is not None:
                self._guard.cancel()
                self._guard = None

    async def _follow(self, client: Client, send: Send) -> None:
        async def passed(body: bytes, *, more: bool = True) -> None:
            """What the client has not taken yet holds up this one stream only."""
            client.sent_at, client.sending = time.monotonic(), True
            await send({"type": "http.response.body", "body": body, "more_body": more})
            client.sending = False

        topic = client.topic
        await passed(b"retry: 2000\n\n")
        while not client.gone and not self.ending:
            if topic.latest and topic.version > client.version:
                before = topic.before() if client.version < 0 else b""
                client.version = topic.version
                await passed(before + topic.latest)
            elif time.monotonic() - client.sent_at >= _HEARTBEAT_S:
                await passed(_ALIVE)
            else:
                await client.news.wait()
                client.news.clear()
        if not client.gone:
            await passed(b"event: end\ndata: {}\n\n", more=False)

    async def _watch(self) -> None:
        """Wake clients that should hear that the server lives, and let go of those that take nothing any more."""
        while True:
            await asyncio.sleep(_GUARD_S)
            now = time.monotonic()
            for client in self._clients:
                if not client.sending:
                    if now - client.sent_at >= _HEARTBEAT_S:
                        client.news.set()
                elif now - client.sent_at >= _PATIENCE_S and not client.stuck:
                    client.stuck = True
                    client.task.cancel()

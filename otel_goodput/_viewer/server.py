"""The server behind ``otel-goodput serve``: the page of every run of a place, live (extra ``serve``).

=========================================  =============================================================
``/``                                      the index of runs
``/runs/<name>``                           the page of a run
``/compare?a=<name>&b=<name>``             two runs side by side
``/api/runs``, ``/api/runs/events``        the index as JSON, and what changes in it
``/api/runs/<name>/document``              everything that the page shows, see ``_viewer/document.py``
``/api/runs/<name>/window?begin=&end=``    exact spans of a window, ns from the origin of the document; of a job with
                                           ``&process=0`` those of its leader
``/api/runs/<name>/events``                what changes in a run, and its new spans, once a second
``/api/compare?a=&b=``                     the comparison as JSON
=========================================  =============================================================

``<name>`` is looked up among the known runs; no path is ever made of it. Nothing is written. What may ask stands in
``_viewer/gate.py``.
"""

from __future__ import annotations

import asyncio
import errno
import importlib.util
import json
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from otel_goodput._runtime.guard import report_once
from otel_goodput._runtime.installation import install_command
from otel_goodput._text.redact import redacting_logger, shown
from otel_goodput._viewer import page
from otel_goodput._viewer.document import Redaction
from otel_goodput._viewer.gate import WILDCARDS, Gate, Hosts, refused
from otel_goodput._viewer.streams import Streams, Topic, event
from otel_goodput._viewer.watch import Catalogue, Directory, Remote, Terms, Watch
from otel_goodput.errors import ConfigurationError
from otel_goodput.reports import SPANS

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

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


logger = redacting_logger(__name__)

IDLE: Final = "idle"
STOPPED: Final = "stopped"
_BYTES: Final = "application/octet-stream"
_FAR: Final = 2**62  # ns; a window's ends are no further away

Endpoint = Callable[["Request"], Awaitable["Response"]]


class _MissingError(Exception): ...


class Application:
    """The routes, and what they stand on: the runs, and the streams of what changes in them."""

    def __init__(self, catalogue: Catalogue) -> None:
        from starlette.applications import Starlette
        from starlette.routing import Route

        self._catalogue = catalogue
        self.streams = Streams()
        self._index = Topic(lambda: event(_dumped(self._catalogue.changes()), "runs"))
        routes: dict[str, Endpoint] = {
            "/": self._runs_page,
            "/runs/{name}": self._run_page,
            "/compare": self._runs_page,
            "/api/runs": self._runs,
            "/api/runs/events": self._runs_events,
            "/api/runs/{name}/document": self._document,
            "/api/runs/{name}/window": self._window,
            "/api/runs/{name}/events": self._events,
            "/api/compare": self._compare,
            "/favicon.ico": self._icon,
        }
        self.starlette = Starlette(
            # Starlette's routes add HEAD to GET.
            routes=[Route(path, _contained(answer), methods=["GET"]) for path, answer in routes.items()],
            exception_handlers={404: self._nothing_there},
        )
        self.starlette.router.redirect_slashes = False

    # --- pages --------------------------------------------------------------------------------------------------------

    async def _runs_page(self, request: Request) -> Response:  # and two side by side: it knows its address
        return _html(request, None)

    async def _run_page(self, request: Request) -> Response:
        watch = await self._watched(request.path_params["name"])
        # Relative, so that a proxy may serve all of this below a path of its own.
        return _html(request, f"../api/runs/{watch.key}/document")

    async def _icon(self, _: Request) -> Response:
        return _answer(b"", 204, "", {"cache-control": "max-age=86400"})

    async def _nothing_there(self, _: Request, __: Exception) -> Response:
        return refused(404, "page not found")

    # --- data ---------------------------------------------------------------------------------------------------------

    async def _runs(self, _: Request) -> Response:
        answer = await asyncio.to_thread(self._catalogue.answer)
        return _json({**answer, "now": time.time()})

    async def _runs_events(self, _: Request) -> Response:
        return self._stream(self._index)

    async def _events(self, request: Request) -> Response:
        return self._stream((await self._watched(request.path_params["name"])).topic)

    def _stream(self, topic: Topic) -> Response:
        """Return an answer that lasts: it follows the client and the end of the server."""
        return cast("Response", partial(self.streams.send, topic))

    async def _document(self, request: Request) -> Response:
        watch = await self._watched(request.path_params["name"])
        packed, tag = await asyncio.to_thread(watch.document)
        headers = {"etag": tag, "cache-control": "private, no-cache"}
        if tag in [one.strip().removeprefix("W/") for one in request.headers.get("if-none-match", "").split(",")]:
            return _answer(b"", 304, "", headers)
        return _answer(packed, 200, _BYTES, {**headers, "content-encoding": "gzip"})

    async def _window(self, request: Request) -> Response:
        watch = await self._watched(request.path_params["name"])
        try:
            begin, end = (int(request.query_params[name]) for name in ("begin", "end"))
        except (KeyError, ValueError):
            return refused(400, "a window needs begin and end: whole numbers of ns from the run's origin")
        if not -_FAR < begin < end < _FAR:
            return refused(400, "a window begins before it ends")
        of_leader = request.query_params.get("process") == "0"
        packed = await asyncio.to_thread(watch.window, begin, end, of_leader=of_leader)
        return _answer(packed, 200, _BYTES, {"content-encoding": "gzip"})

    async def _compare(self, request: Request) -> Response:
        from otel_goodput.reports.comparison import compare

        names = (request.query_params.get(name, "") for name in ("a", "b"))
        runs = [(await self._watched(name, "a comparison needs two runs of this place: a and b")).run for name in names]
        comparison = await asyncio.to_thread(compare, *runs)
        return _json(Redaction().all(comparison.to_json()))

    async def _watched(self, name: str, missing: str = "this server has no such run") -> Watch:
        """Return the watch of a run. Raises _MissingError, which says what is `missing`, if there is none."""
        watch = await asyncio.to_thread(self._catalogue.find, name)
        if watch is None:
            raise _MissingError(missing)
        self._catalogue.looked_at(watch)
        return watch


def _contained(answer: Endpoint) -> Endpoint:
    """An answer that fails says that it failed, and nothing of what is inside; the log of the server has the rest."""

    async def contained(request: Request) -> Response:
        try:
            return await answer(request)
        except _MissingError as error:
            return refused(404, str(error))
        except Exception as error:
            why = shown(str(error)) or type(error).__name__
            logger.warning("%s %s cannot be answered: %s", request.method, request.url.path, why)
            return refused(500, "this cannot be shown; the server's log says why")

    return contained


def _html(request: Request, source: str | None) -> Response:
    headers = {"content-security-policy": page.served_policy(), "vary": "accept-encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        return _answer(page.packed(source), 200, "text/html", {**headers, "content-encoding": "gzip"})
    return _answer(page.html(None, source=source).encode(), 200, "text/html", headers)


def _dumped(data: Any) -> bytes:
    return json.dumps(data, separators=(",", ":")).encode()


def _json(data: Any) -> Response:
    return _answer(_dumped(data), 200, "application/json", {})


def _answer(body: bytes, status: int, kind: str, headers: Mapping[str, str]) -> Response:
    from starlette.responses import Response

    return Response(body, status, headers, kind or None)


# --- running it -------------------------------------------------------------------------------------------------------


def check() -> None:
    """Raise ConfigurationError if what the extra installs is not there."""
    for package in ("starlette", "uvicorn"):
        if importlib.util.find_spec(package) is None:
            raise ConfigurationError(f"serve needs starlette and uvicorn: {install_command('serve')}")


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens on `host` and `port` (0: any that is free), or raise ConfigurationError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise ConfigurationError(f"--host {host!r} is not an address of this machine: {error}") from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        listener.close()
        why = f"{error.strerror}; choose others with --host and --port"
        if error.errno == errno.EADDRINUSE:
            why = "another program listens there; choose another port with --port, or --port 0 for any free one"
        raise ConfigurationError(f"cannot listen on {host}:{port}: {why}") from error
    return listener


def run(
    place: Directory | Remote,
    listener: socket.socket,
    *,
    hosts: Hosts,
    token: str | None = None,
    idle_s: float | None = None,
    spans: int = SPANS,
    started: Callable[[], None] = lambda: None,
) -> str:
    """Serve `place` on `listener` until a signal comes, or for `idle_s` seconds there was no request.

    `started` is called once requests are answered. Returns why it ended: ``IDLE`` or ``STOPPED``. Ctrl-C raises
    KeyboardInterrupt after all connections are closed. What :func:`check` looks for must be there.
    """
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol

    most = most_connections()
    port = listener.getsockname()[1]
    application = Application(Catalogue(place, Terms(spans, port, idle_s)))
    gate = Gate(application.starlette, hosts, token, f"otel-goodput-{port}")
    why = STOPPED

    class Server(uvicorn.Server):
        """Ends its streams first when it stops; otherwise it would wait for them."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                asyncio.get_running_loop().set_exception_handler(_say_once)
                started()

        async def on_tick(self, counter: int) -> bool:
            nonlocal why
            if idle_s is not None and not gate.under_way and time.monotonic() - gate.requested_at >= idle_s:
                why, self.should_exit = IDLE, True
            ending = await super().on_tick(counter)
            if ending:
                application.streams.end()
            return ending

    config = uvicorn.Config(
        gate,
        log_config=None,  # its lines go the way of ours: redacted, without control characters
        access_log=False,  # addresses may hold the token
        server_header=False,
        proxy_headers=False,
        ws="none",
        log_level="error",  # not a line for each of whatever comes that is not HTTP
        http=bounded(H11Protocol, most),
        loop="asyncio",
        timeout_graceful_shutdown=1,
        timeout_keep_alive=5,
        backlog=min(128, most // 4),  # how many are accepted before the ones over the limit are closed
    )
    asyncio.run(partial(Server(config).serve, sockets=[listener])())
    return why


def _say_once(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Report what failed in the event loop, such as to accept a connection, once instead of each time."""
    what, error = context.get("message", "the server failed"), context.get("exception")
    report_once(f"serve: {what}", "%s: %s", what, "" if error is None else f"{type(error).__name__}: {error}")


def address(host: str, port: int, token: str | None) -> str:
    """Return the address to open in a browser."""
    name = f"[{host}]" if ":" in host else host
    if host in WILDCARDS:
        name = socket.gethostname()
    return f"http://{name}:{port}/{f'?token={token}' if token else ''}"

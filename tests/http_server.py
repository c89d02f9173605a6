"""The HTTP server of the tests: on loopback, in threads, it keeps the requests and answers as it is configured to.

What answers is a function of the request, which a test may replace at any time. It gives a ``Response``; or pieces of
bytes, which go out as they are, for servers that lie, drip or stop halfway; or None: the connection is closed.
"""

from __future__ import annotations

import ssl
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple


@dataclass(frozen=True)
class Request:
    """What was asked. `over` is set when the server closes; answers that wait must also wait for it."""

    method: str
    path: str  # with its query
    headers: Message  # names in any case
    body: bytes
    over: threading.Event = field(repr=False)


class Response(NamedTuple):
    """Length, date and the connection's end are added, unless `headers` have them."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = {}


Answer = Callable[[Request], Response | Iterable[bytes] | None]


def no_such_page(request: Request) -> Response:
    return Response(404)


def hang(request: Request) -> None:
    """Take the question, and say nothing."""
    request.over.wait(30)


def dripping(head: bytes, piece: bytes, pause: float = 0.02) -> Answer:
    """A byte now and then: no read takes long, the answer takes for ever."""

    def drip(request: Request) -> Iterator[bytes]:
        yield head
        while not request.over.wait(pause):
            yield piece

    return drip


def flooding(head: bytes) -> Answer:
    """An answer without end; the client hangs up."""

    def flood(request: Request) -> Iterator[bytes]:
        yield head
        while not request.over.is_set():
            yield b" " * (1 << 16)

    return flood


class HttpServer:
    """Listens from the first on, serves as a context manager or between `start` and `close`.

    `port`: that one, else any; `tls`: speak TLS, with this. `requests` are in the order in which they were read whole.
    """

    def __init__(self, answer: Answer = no_such_page, port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        self.answer = answer
        self.requests: list[Request] = []
        self.over = threading.Event()
        self._server = _Server(("127.0.0.1", port), self._handler())
        if tls is not None:  # hands are shaken in the request's own thread: who is slow at it holds up nobody
            listening = self._server.socket
            self._server.socket = tls.wrap_socket(listening, server_side=True, do_handshake_on_connect=False)
        self.port = int(self._server.server_address[1])
        self.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), name="http-server")

    def __enter__(self) -> HttpServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Refuse connections from now on; answers that wait are ended."""
        self.over.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _any(self) -> None:
                self.close_connection = True
                body = self.rfile.read(int(self.headers.get("content-length", "0")))
                request = Request(self.command, self.path, self.headers, body, owner.over)
                owner.requests.append(request)
                answer = owner.answer(request)
                with suppress(ConnectionError):  # not everybody listens to the end
                    if isinstance(answer, Response):
                        self._respond(answer)
                    else:
                        for piece in answer or ():
                            self.wfile.write(piece)
                            self.wfile.flush()

            def _respond(self, response: Response) -> None:
                headers = {
                    "date": self.date_time_string(),
                    "content-length": str(len(response.body)),
                    "connection": "close",
                    **{name.lower(): value for name, value in response.headers.items()},
                }
                self.send_response_only(response.status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(response.body)

            do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _any

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True  # one that went comes back at its port
    allow_reuse_port = False  # else another server may be given this one's port, and half of what comes there

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away, or does not trust us, is what many tests are about; a fault of ours is logged."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]

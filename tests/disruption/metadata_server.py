"""A metadata server like Google's on loopback, with hanging GETs and etags, that can misbehave on demand."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

MAINTENANCE = "/computeMetadata/v1/instance/maintenance-event"
PREEMPTED = "/computeMetadata/v1/instance/preempted"


class Asked(NamedTuple):
    path: str
    query: dict[str, str]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True


class MetadataServer:
    """`misbehave` is given the handler of a request and answers in its own way; None: well-behaved."""

    def __init__(self) -> None:
        self.values = {MAINTENANCE: "NONE", PREEMPTED: "FALSE"}
        self.asked: list[Asked] = []
        self.misbehave: Callable[[BaseHTTPRequestHandler], object] | None = None
        self.changed = threading.Condition()
        self.gone = False
        self.port = 0
        self.come_back()

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def set(self, path: str, value: str) -> None:
        with self.changed:
            self.values[path] = value
            self.changed.notify_all()

    def vanish(self) -> None:
        """Refuse connections, and drop those that there are."""
        with self.changed:
            self.gone = True
            self.changed.notify_all()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def come_back(self) -> None:
        """Listen again, at the same address."""
        server = _Server(("127.0.0.1", self.port), self._handler())
        with self.changed:  # whoever still waits in the one before must not take this one for it
            self._server, self.gone = server, False
            self.changed.notify_all()
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def count(self, path: str) -> int:
        return sum(asked.path == path for asked in self.asked)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                query = {name: values[0] for name, values in parse_qs(parts.query).items()}

                def left() -> bool:
                    """Whether the server that took this request has vanished; another one may be there by now."""
                    return owner.gone or self.server is not owner._server

                owner.asked.append(Asked(parts.path, query))
                self.close_connection = True
                if owner.misbehave is not None:
                    with suppress(ConnectionError):  # not everybody listens to the end
                        owner.misbehave(self)
                    return
                if self.headers.get("Metadata-Flavor") != "Google":
                    answer(self, "forbidden", status=403)
                    return
                with owner.changed:
                    if parts.path not in owner.values:
                        answer(self, "not found", status=404)
                        return
                    if query.get("wait_for_change") == "true" and "last_etag" in query:
                        owner.changed.wait_for(
                            lambda: left() or etag(owner.values[parts.path]) != query["last_etag"],
                            float(query.get("timeout_sec", "600")),
                        )
                    if left():
                        return
                    value = owner.values[parts.path]
                with suppress(ConnectionError):
                    answer(self, value)

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler


def etag(value: str) -> str:
    return hashlib.sha256(value.encode()).hexdigest()[:16]


def answer(
    handler: BaseHTTPRequestHandler,
    body: str,
    *,
    status: int = 200,
    flavor: str | None = "Google",
    kind: str = "application/text",
) -> None:
    handler.send_response(status)
    if flavor is not None:
        handler.send_header("Metadata-Flavor", flavor)
    handler.send_header("ETag", etag(body))
    handler.send_header("Content-Type", kind)
    handler.send_header("Content-Length", str(len(body.encode())))
    handler.end_headers()
    handler.wfile.write(body.encode())


@contextmanager
def metadata_server() -> Iterator[MetadataServer]:
    server = MetadataServer()
    try:
        yield server
    finally:
        if not server.gone:
            server.vanish()

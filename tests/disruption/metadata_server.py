"""A metadata server like Google's on loopback, with hanging GETs and etags, that can misbehave on demand."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

from http_server import Answer, HttpServer, Request, Response
from ports import reserved_port

MAINTENANCE = "/computeMetadata/v1/instance/maintenance-event"
PREEMPTED = "/computeMetadata/v1/instance/preempted"


class Received(NamedTuple):
    path: str
    query: dict[str, str]


class MetadataServer:
    """On a port that is kept for it. `misbehave` answers in its own way; None: well-behaved."""

    def __init__(self, port: int) -> None:
        self.values = {MAINTENANCE: "NONE", PREEMPTED: "FALSE"}
        self.requests: list[Received] = []
        self.misbehave: Answer | None = None
        self.changed = threading.Condition()
        self.port = port
        self.come_back()

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def gone(self) -> bool:
        return self._server.over.is_set()

    def set(self, path: str, value: str) -> None:
        with self.changed:
            self.values[path] = value
            self.changed.notify_all()

    def vanish(self) -> None:
        """Refuse connections, and drop those that there are."""
        with self.changed:
            self._server.over.set()
            self.changed.notify_all()
        self._server.close()

    def come_back(self) -> None:
        """Listen again, at the same address."""
        self._server = HttpServer(self._answer, self.port)
        self._server.start()

    def count(self, path: str) -> int:
        return sum(request.path == path for request in self.requests)

    def _answer(self, request: Request) -> Response | Iterable[bytes] | None:
        parts = urlsplit(request.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        self.requests.append(Received(parts.path, query))
        if self.misbehave is not None:
            return self.misbehave(request)
        if request.headers.get("Metadata-Flavor") != "Google":
            return answer("forbidden", status=403)
        left = request.over.is_set  # the server that took it; another one may be there by now
        with self.changed:
            if parts.path not in self.values:
                return answer("not found", status=404)
            if query.get("wait_for_change") == "true" and "last_etag" in query:
                self.changed.wait_for(
                    lambda: left() or etag(self.values[parts.path]) != query["last_etag"],
                    float(query.get("timeout_sec", "600")),
                )
            return None if left() else answer(self.values[parts.path])


def etag(value: str) -> str:
    return hashlib.sha256(value.encode()).hexdigest()[:16]


def answer(body: str, *, status: int = 200, flavor: str | None = "Google", kind: str = "application/text") -> Response:
    headers = {"ETag": etag(body), "Content-Type": kind, **({} if flavor is None else {"Metadata-Flavor": flavor})}
    return Response(status, body.encode(), headers)


@contextmanager
def metadata_server() -> Iterator[MetadataServer]:
    with reserved_port() as port:
        server = MetadataServer(port)
        try:
            yield server
        finally:
            if not server.gone:
                server.vanish()

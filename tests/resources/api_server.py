"""A stand-in for the API server of Kubernetes: answers from a table, and misbehaves when told to."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

# Of this test alone, for 127.0.0.1: DER in base 64.
KEY = (
    "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg8Ewa1UQqP42tMm59quG45Yvwzv2o+YCIiGxFsBx9I6mhRANCAARM"
    "kVqEfD6k6dULZMGA3oSN/KhYJIPrKdcvJpHQGtsW47eJmGQ0XK7aNsQmlg1Lq462+oVEPkeiiF5X51czqmv1"
)
CERTIFICATE = (
    "MIIBQzCB6qADAgECAhQErGDem8hL2Cu+15/Z4VyDWxMZ6jAKBggqhkjOPQQDAjAOMQwwCgYDVQQDDANvbmUwIBcNMjAwMTAxMDAw"
    "MDAwWhgPMjEyMDAxMDEwMDAwMDBaMA4xDDAKBgNVBAMMA29uZTBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABEyRWoR8PqTp1Qtk"
    "wYDehI38qFgkg+sp1y8mkdAa2xbjt4mYZDRcrto2xCaWDUurjrb6hUQ+R6KIXlfnVzOqa/WjJDAiMA8GA1UdEQQIMAaHBH8AAAEw"
    "DwYDVR0TAQH/BAUwAwEB/zAKBggqhkjOPQQDAgNIADBFAiEAmf/6q7dcI/jS/Vley+WfFeWeQgcJRgnzKYl+9VfSUAICIDpGRgrq"
    "VFyuu7qlIJB3eHZiwnxmT1EtDQs04WWhQX6A"
)
STRANGER = (
    "MIIBRzCB7qADAgECAhQYUf+J3iXj8Yeyr6e4EtfJ1/17qjAKBggqhkjOPQQDAjAQMQ4wDAYDVQQDDAVvdGhlcjAgFw0yMDAxMDEw"
    "MDAwMDBaGA8yMTIwMDEwMTAwMDAwMFowEDEOMAwGA1UEAwwFb3RoZXIwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAARmT+7BJsah"
    "c2J4ywzcnbeiFYi0cZHG6PFjUZsmm0sMl9sXvfZG4OuM7dzVwts57zAXDTkJiz6tkMa+iFJsWvjfoyQwIjAPBgNVHREECDAGhwR/"
    "AAABMA8GA1UdEwEB/wQFMAMBAf8wCgYIKoZIzj0EAwIDSAAwRQIgUQbyDe/Iw2mnPF2OqzhHv+oLAb5Uq8eUdqlj3KeSEFICIQCq"
    "/nWZzfZBKTNomw3FG3qJ1OdjlFgXLv0IYwgiEwbvLg=="
)

Fault = Callable[["Handler"], None]
Answer = Any  # a dict to send as JSON, (status, bytes), or a Fault


@dataclass
class ApiServer:
    """What is asked, and what was."""

    port: int
    answers: dict[str, Answer]
    asked: list[tuple[str, Mapping[str, str]]] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def paths(self) -> list[str]:
        return [path for path, _ in self.asked]


class Handler(BaseHTTPRequestHandler):
    api: ApiServer

    def do_GET(self) -> None:
        self.api.asked.append((self.path, dict(self.headers)))
        answer = self.api.answers.get(self.path, (404, b'{"kind": "Status", "code": 404}'))
        if callable(answer):
            answer(self)
            return
        status, body = answer if isinstance(answer, tuple) else (200, json.dumps(answer).encode())
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """Clients that went away are what these tests are about."""


def hang(handler: Handler) -> None:
    """Take the question, and say nothing."""
    handler.api.over.wait(30)


def drip(handler: Handler) -> None:
    """A byte now and then: no read takes long, the answer takes for ever."""
    while not handler.api.over.wait(0.02):
        handler.wfile.write(b"H")
        handler.wfile.flush()


def break_off(handler: Handler) -> None:
    """Half of an answer."""
    handler.wfile.write(b'HTTP/1.1 200 OK\r\n\r\n{"metadata": {"creationTimes')


def flood(handler: Handler) -> None:
    """An answer without end."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while not handler.api.over.is_set():
        handler.wfile.write(b" " * (1 << 16))


@contextmanager
def serving(answers: dict[str, Answer], secured_in: Path | None = None) -> Iterator[ApiServer]:
    """A running server; with a folder for its key and certificate it speaks TLS."""

    class Mine(Handler):
        pass

    server = Server(("127.0.0.1", 0), Mine)
    Mine.api = api = ApiServer(server.server_address[1], answers)
    if secured_in is not None:
        key = secured_in / "key.pem"
        key.write_text(ssl.DER_cert_to_PEM_cert(base64.b64decode(KEY)).replace("CERTIFICATE", "PRIVATE KEY"))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate(secured_in / "cert.pem"), key)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield api
    finally:
        api.over.set()
        server.shutdown()
        server.server_close()
        thread.join()


def certificate(path: Path, text: str = CERTIFICATE) -> Path:
    """`text` as a PEM file at `path`."""
    path.write_text(ssl.DER_cert_to_PEM_cert(base64.b64decode(text)))
    return path

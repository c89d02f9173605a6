"""A stand-in for the API server of Kubernetes: answers from a table, and misbehaves when a test wants it to."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from http_server import HttpServer, Request, Response, dripping, flooding

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


class ApiServer:
    """Lets a server answer from a table.

    `answers` by path: what is sent as JSON, (status, bytes), or what answers in its own way.
    """

    def __init__(self, server: HttpServer, answers: dict[str, Any]) -> None:
        self.answers = answers
        self.port = server.port
        self.requests = server.requests
        server.answer = self._by_path

    @property
    def paths(self) -> list[str]:
        return [request.path for request in self.requests]

    def _by_path(self, request: Request) -> Response | Iterable[bytes] | None:
        answer = self.answers.get(request.path, (404, b'{"kind": "Status", "code": 404}'))
        if callable(answer):
            given: Response | Iterable[bytes] | None = answer(request)
            return given
        status, body = answer if isinstance(answer, tuple) else (200, json.dumps(answer).encode())
        return Response(status, body, {"Content-Type": "application/json"})


def break_off(_: Request) -> list[bytes]:
    """Half of an answer."""
    return [b'HTTP/1.1 200 OK\r\n\r\n{"metadata": {"creationTimes']


drip = dripping(b"", b"H")
flood = flooding(b"HTTP/1.1 200 OK\r\n\r\n")


@contextmanager
def serving(answers: dict[str, Any], secured_in: Path | None = None) -> Iterator[ApiServer]:
    """A running server; with a folder for its key and certificate it speaks TLS."""
    context = None
    if secured_in is not None:
        key = secured_in / "key.pem"
        key.write_text(ssl.DER_cert_to_PEM_cert(base64.b64decode(KEY)).replace("CERTIFICATE", "PRIVATE KEY"))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate(secured_in / "cert.pem"), key)
    with HttpServer(tls=context) as server:
        yield ApiServer(server, answers)


def certificate(path: Path, text: str = CERTIFICATE) -> Path:
    """`text` as a PEM file at `path`."""
    path.write_text(ssl.DER_cert_to_PEM_cert(base64.b64decode(text)))
    return path

"""Answers without end, of what Google's library asks for tokens and of the metadata server: read within bounds."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from google.auth import exceptions
from http_server import HttpServer, Response, dripping, flooding

from otel_goodput.exporters.google.connection import Connection

ASKING: dict[str, Callable[[], Any]] = {
    "tokens": Connection.token_request,
    "the metadata server": partial(Connection.token_request, proxies=False),
}
ENDLESS = {
    "body": flooding(b"HTTP/1.1 200 OK\r\n\r\n"),
    "chunks": flooding(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nfffffff\r\n"),
    "length": lambda _: [b"HTTP/1.1 200 OK\r\ncontent-length: 1099511627776\r\n\r\n"],
    "header": flooding(b"HTTP/1.1 200 OK\r\nx: "),
}


@pytest.mark.parametrize("what", ENDLESS)
@pytest.mark.parametrize("who", ASKING)
def test_an_answer_without_end(who: str, what: str) -> None:
    with HttpServer(ENDLESS[what]) as server, pytest.raises(exceptions.TransportError):
        ASKING[who]()(url=server.url, method="GET", timeout=30)


@pytest.mark.parametrize("who", ASKING)
def test_an_answer_that_drips_ends_at_the_timeout(who: str) -> None:
    with HttpServer(dripping(b"HTTP/1.1 200 OK\r\nx: ", b"x", pause=0.005)) as server:
        began = time.monotonic()
        with pytest.raises(exceptions.TransportError):
            ASKING[who]()(url=server.url, method="GET", timeout=0.2)
        assert time.monotonic() - began < 30  # each of its bytes comes within a fortieth of the timeout


@pytest.mark.parametrize("who", ASKING)
def test_what_google_s_library_needs_of_an_answer(who: str) -> None:
    with HttpServer(lambda _: Response(404, b"no such thing", {"Metadata-Flavor": "Google"})) as server:
        answer = ASKING[who]()(url=f"{server.url}/a?b=c", method="GET", headers={"X-Asked": "1"}, timeout=30)
        assert (answer.status, answer.data, answer.headers["metadata-flavor"]) == (404, b"no such thing", "Google")
        (request,) = server.requests
        assert (request.path, request.headers["x-asked"]) == ("/a?b=c", "1")

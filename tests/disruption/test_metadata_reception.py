"""Answers of a metadata server in pieces: the same one however it is cut, and no more of it than it may have."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from http_server import Answer, HttpServer, Request, dripping, flooding

from otel_goodput._disruption.metadata import MetadataAnswer, NotGoogles, ask

HEAD = b"HTTP/1.1 200 OK\r\nMetadata-Flavor: Google\r\nETag: e1\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
ANSWERS = {
    "of a length": HEAD + b"Content-Length: 4\r\n\r\nNONE",
    "empty": HEAD + b"Content-Length: 0\r\n\r\n",
    "in chunks": CHUNKED + b"2;x=1\r\nNO\r\n2\r\nNE\r\n0\r\n\r\n",
    "in chunks, with more behind": CHUNKED + b"4\r\nNONE\r\n0\r\nA: b\r\n\r\n",
    "to the end of the connection": HEAD + b"\r\nNONE",
}


def answer_to(answer: Answer, longest: int = 1 << 13) -> MetadataAnswer:
    with HttpServer(answer) as server:
        return ask(f"127.0.0.1:{server.port}", "instance/preempted", 30, longest)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("case", ANSWERS)
def test_an_answer_in_pieces(case: str, size: int) -> None:
    answer = ANSWERS[case]
    pieces = [answer[place : place + size] for place in range(0, len(answer), size)]
    assert answer_to(lambda _: pieces) == MetadataAnswer(200, "e1", "" if case == "empty" else "NONE")


def test_an_answer_is_over_when_it_is_whole() -> None:
    """A server that keeps the connection open is not waited for."""

    def keep(request: Request) -> Iterator[bytes]:
        yield ANSWERS["of a length"]
        request.over.wait(30)

    began = time.monotonic()
    assert answer_to(keep).body == "NONE"
    assert time.monotonic() - began < 15


@pytest.mark.parametrize("case", ["of a length", "in chunks"])
def test_a_connection_that_ends_before_the_answer(case: str) -> None:
    with pytest.raises(ConnectionError, match="before the answer was complete"):
        answer_to(lambda _: [ANSWERS[case][:-6]])


@pytest.mark.parametrize("chunk", [b"x\r\n", b"-1\r\nNONE", b"\r\n\r\n\r\n"])
def test_a_chunk_that_is_none(chunk: bytes) -> None:
    with pytest.raises((NotGoogles, ConnectionError)):
        answer_to(lambda _: [CHUNKED + chunk])


@pytest.mark.parametrize("head", [HEAD + b"x: ", HEAD + b"\r\n", CHUNKED + b"fffffff\r\n", CHUNKED, b"HTTP/1.1 "])
def test_an_answer_without_end(head: bytes) -> None:
    with pytest.raises((NotGoogles, ConnectionError)):
        answer_to(flooding(head))


@pytest.mark.parametrize("head", [HEAD, HEAD + b"Content-Length: 1000\r\n\r\n", CHUNKED + b"fff\r\n"])
def test_an_answer_that_drips_ends_at_its_time(head: bytes) -> None:
    with HttpServer(dripping(head, b"x", pause=0.005)) as server, pytest.raises(TimeoutError):
        ask(f"127.0.0.1:{server.port}", "instance/preempted", 0.2)

"""Answers of a metadata server in pieces: the same one however it is cut, and no more work than its bytes are worth."""

from __future__ import annotations

import sys
from types import FrameType

import pytest

from otel_goodput._disruption.metadata import MetadataAnswer, NotGoogles, Reception

HEAD = b"HTTP/1.1 200 OK\r\nMetadata-Flavor: Google\r\nETag: e1\r\n"
ANSWERS = {
    "of a length": HEAD + b"Content-Length: 4\r\n\r\nNONE",
    "empty": HEAD + b"Content-Length: 0\r\n\r\n",
    "in chunks": HEAD + b"Transfer-Encoding: chunked\r\n\r\n2;x=1\r\nNO\r\n2\r\nNE\r\n0\r\n\r\n",
    "in chunks, with more behind": HEAD + b"Transfer-Encoding: chunked\r\n\r\n4\r\nNONE\r\n0\r\nA: b\r\n\r\n",
}


def received(answer: bytes, size: int) -> MetadataAnswer | None:
    """What the pieces make, once all are there; before that they make nothing."""
    reception = Reception()
    pieces = [answer[place : place + size] for place in range(0, len(answer), size)]
    assert all(reception.take(piece) is None for piece in pieces[:-1])
    return reception.take(pieces[-1])


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("case", ANSWERS)
def test_an_answer_in_pieces(case: str, size: int) -> None:
    body = "" if case == "empty" else "NONE"
    assert received(ANSWERS[case], size) == MetadataAnswer(200, True, "e1", body)


def test_an_answer_that_ends_with_the_connection() -> None:
    reception = Reception()
    assert reception.take(HEAD + b"\r\nNO") is None
    assert reception.take(b"NE") is None
    assert reception.take(b"") == MetadataAnswer(200, True, "e1", "NONE")


def test_a_connection_that_ends_before_the_answer() -> None:
    for case in ("of a length", "in chunks"):
        reception = Reception()
        assert reception.take(ANSWERS[case][:-6]) is None
        assert reception.take(b"") is None


@pytest.mark.parametrize("chunk", [b"x\r\n", b"-1\r\nNONE", b"\r\n\r\n\r\n"])
def test_a_chunk_that_is_none(chunk: bytes) -> None:
    reception = Reception(1000)
    with pytest.raises(NotGoogles):
        reception.take(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunk)
        while True:
            reception.take(b"x")


def work(*, headers: int, body: int, chunked: bool) -> tuple[int, int]:
    """Calls of functions for an answer byte by byte, and how often headers were read."""
    length = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % (body + 1)
    content = b"1\r\nx\r\n" * (body // 6) if chunked else b"x" * body
    answer = HEAD + b"".join(b"A%d: b\r\n" % number for number in range(headers)) + length + b"\r\n\r\n" + content
    calls = begun = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls, begun
        calls += event in ("call", "c_call")
        begun += event == "call" and frame.f_code.co_name == "begin"

    reception = Reception(1 << 20)
    sys.setprofile(count)
    try:
        for place in range(len(answer)):
            assert reception.take(answer[place : place + 1]) is None
    finally:
        sys.setprofile(None)
    return calls // len(answer), begun


@pytest.mark.parametrize("chunked", [False, True])
def test_a_dripping_server_costs_no_more_for_each_byte_the_more_there_are(chunked: bool) -> None:
    little, much = (work(headers=10, body=size, chunked=chunked) for size in (1000, 16000))
    assert little[1] == much[1] == 1
    assert much[0] <= little[0] + 1


def test_headers_that_drip_are_not_read_before_they_are_all_there() -> None:
    reception = Reception(1 << 12)
    calls = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code.co_name == "begin"

    sys.setprofile(count)
    try:
        with pytest.raises(NotGoogles, match="more than 4096 bytes"):
            for letter in HEAD + b"x" * 5000:
                reception.take(bytes([letter]))
    finally:
        sys.setprofile(None)
    assert calls == 0

"""The metadata server of Google Compute Engine: where it is, how it is asked, and what an answer of it looks like."""

from __future__ import annotations

import io
import os
import re
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from http.client import HTTPResponse

from otel_goodput import files

METADATA_HOST: Final = "GCE_METADATA_HOST"
HOST: Final = "metadata.google.internal"
LINK_LOCAL: Final = "169.254.169.254"  # where that is, on every machine of Google's but those without IPv4
PRODUCT: Final = Path("/sys/class/dmi/id/product_name")
PRODUCTS: Final = frozenset({"Google", "Google Compute Engine"})
FLAVOR: Final = ("Metadata-Flavor", "Google")
LONGEST: Final = 1 << 16  # bytes of an answer; a value is some ten
_BEGINNING: Final = b"HTTP/"
_END_OF_LINE: Final = b"\r\n"
_END_OF_HEAD: Final = b"\r\n\r\n"
_ADDRESS: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")


class MetadataAnswer(NamedTuple):
    """An answer: `flavored` says that it bears the header by which the metadata server is known."""

    status: int
    flavored: bool
    etag: str
    body: str


class NotGoogles(Exception):
    """An answer that is none of Google's metadata server."""


def metadata_host(environ: Mapping[str, str] | None = None, product: Path = PRODUCT) -> str | None:
    """``host`` or ``host:port`` of the metadata server; None outside Google Compute Engine."""
    given = (os.environ if environ is None else environ).get(METADATA_HOST, "").strip()
    if given:
        return given
    try:
        found = files.read_named(product).decode("utf-8", "replace").strip()
    except OSError:
        return None
    return HOST if found in PRODUCTS else None


def address(host: str) -> tuple[str, int] | None:
    """Name and port of a server given as ``host`` or ``host:port``; None where that is no address."""
    parts = _ADDRESS.fullmatch(host)
    if parts is None or int(parts[2] or 80) > 0xFFFF:
        return None
    return parts[1].strip("[]"), int(parts[2] or 80)


def request(host: str, target: str) -> bytes:
    """A question for `target`, which begins below ``/computeMetadata/v1/``; the server closes after its answer."""
    lines = (
        f"GET /computeMetadata/v1/{target} HTTP/1.1",
        f"Host: {host}",
        ": ".join(FLAVOR),
        "Connection: close",
        "",
        "",
    )
    return "\r\n".join(lines).encode("ascii")


def ask(host: str, target: str, timeout_s: float, longest: int = LONGEST) -> MetadataAnswer:
    """Ask once. `timeout_s` bounds the whole exchange and not each of its pieces, `longest` the bytes of the answer.

    Raises:
        OSError: there is no answer, or not in time.
        UnicodeError: the host's name is none.
        NotGoogles: the answer is none of a metadata server.
    """
    until = time.monotonic() + timeout_s
    place = address(host)
    if place is None:
        raise NotGoogles("its address is none")
    name, port = place
    received = bytearray()
    # To look a name up may take long, and nothing bounds it.
    with socket.create_connection((LINK_LOCAL if name == HOST else name, port), timeout_s) as connection:
        connection.sendall(request(host, target))
        while True:
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError("timed out")
            connection.settimeout(left)
            piece = connection.recv(LONGEST)
            if not piece:
                break
            received += piece
            if len(received) > longest:
                raise NotGoogles(f"an answer of more than {longest} bytes")
    answer = parse(bytes(received), ended=True)
    if answer is None:
        raise ConnectionError("the connection was closed before the answer was complete")
    if not answer.flavored:
        raise NotGoogles(f"no {': '.join(FLAVOR)} in its answer (status {answer.status})")
    return answer


class _Received:
    """Bytes as ``http.client`` wants to read them."""

    def __init__(self, received: bytes) -> None:
        self._received = received

    def makefile(self, *_: object) -> io.BytesIO:
        return io.BytesIO(self._received)


class Reception:
    """An answer that comes in pieces, of any size: each byte is looked at a few times, however many pieces they make.

    Args:
        longest: bytes that it may have.
    """

    def __init__(self, longest: int = LONGEST) -> None:
        self._longest = longest
        self._received = bytearray()
        self._searched = 0  # up to here there is no end of the headers, or of the chunk's first line
        self._body = 0  # where the body begins, 0 while that is not known
        self._length: int | None = None  # bytes of the body, None where it says them itself or ends with the connection
        self._chunked = False
        self._chunk = 0  # where the next chunk begins

    def take(self, piece: bytes) -> MetadataAnswer | None:
        """The answer, once it is complete; an empty piece is the end of the connection.

        Raises:
            NotGoogles: it is none, or too long.
        """
        self._received += piece
        if len(self._received) > self._longest:
            raise NotGoogles(f"an answer of more than {self._longest} bytes")
        beginning = bytes(self._received[: len(_BEGINNING)])
        if not _BEGINNING.startswith(beginning):
            raise NotGoogles("no HTTP")
        if not self._body:
            self._read_head()
        if piece and not self._complete():
            return None
        return parse(bytes(self._received), ended=not piece)

    def _read_head(self) -> None:
        end = self._received.find(_END_OF_HEAD, max(self._searched - len(_END_OF_HEAD) + 1, 0))
        self._searched = len(self._received)
        if end < 0:
            return
        self._body = self._chunk = self._searched = end + len(_END_OF_HEAD)
        response = _begun(bytes(self._received[: self._body]))
        self._length, self._chunked = response.length, bool(response.chunked)

    def _complete(self) -> bool:
        if not self._body:
            return False
        if not self._chunked:
            return self._length is not None and len(self._received) >= self._body + self._length
        while True:
            end = self._received.find(_END_OF_LINE, max(self._searched - 1, self._chunk))
            if end < 0:
                self._searched = len(self._received)
                return False
            try:
                size = int(self._received[self._chunk : end].partition(b";")[0], 16)
            except ValueError:
                raise NotGoogles("no HTTP (a chunk without a size)") from None
            if size <= 0:  # what follows it is a line, or lines that nobody asked for
                return self._received.endswith(_END_OF_HEAD)
            after = end + len(_END_OF_LINE) + size + len(_END_OF_LINE)
            if len(self._received) < after:
                self._searched = end
                return False
            self._chunk = self._searched = after


def parse(received: bytes, *, ended: bool) -> MetadataAnswer | None:
    """An answer as far as it was received; None while it is not complete.

    Raises:
        NotGoogles: it is no HTTP.
    """
    if not _BEGINNING.startswith(received[: len(_BEGINNING)]):
        raise NotGoogles("no HTTP")
    if b"\r\n\r\n" not in received:
        return None
    from http.client import HTTPException, IncompleteRead

    response = _begun(received)
    if response.length is None and not response.chunked and not ended:
        return None  # as long as the connection
    try:
        body = response.read()
    except IncompleteRead:
        return None
    except HTTPException as error:
        raise NotGoogles(f"no HTTP ({type(error).__name__})") from None
    name, flavor = FLAVOR
    flavored = response.headers.get(name) == flavor
    etag = response.headers.get("ETag", "").strip()
    return MetadataAnswer(response.status, flavored, etag, body.decode("utf-8", "replace"))


def _begun(received: bytes) -> HTTPResponse:
    """An answer whose headers are read.

    Raises:
        NotGoogles: they are none.
    """
    from http.client import HTTPException, HTTPResponse  # some 20 ms that only machines with such a server need spend

    response = HTTPResponse(_Received(received), method="GET")  # type: ignore[arg-type]
    try:
        response.begin()
    except HTTPException as error:
        raise NotGoogles(f"no HTTP ({type(error).__name__})") from None
    return response

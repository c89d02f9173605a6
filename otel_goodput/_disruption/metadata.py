"""The metadata server of Google Compute Engine: its address, requests to it, and its answers."""

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

from otel_goodput._runtime import files

METADATA_HOST: Final = "GCE_METADATA_HOST"
HOST: Final = "metadata.google.internal"
LINK_LOCAL: Final = "169.254.169.254"  # the address of HOST on every machine of Google's that has IPv4
PRODUCT: Final = Path("/sys/class/dmi/id/product_name")
PRODUCTS: Final = frozenset({"Google", "Google Compute Engine"})
FLAVOR: Final = ("Metadata-Flavor", "Google")
LONGEST: Final = 1 << 16  # bytes of an answer at most; a value has some ten
_BEGINNING: Final = b"HTTP/"
_END_OF_LINE: Final = b"\r\n"
_END_OF_HEAD: Final = b"\r\n\r\n"
_ADDRESS: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")


class MetadataAnswer(NamedTuple):
    """An answer; `flavored`: it has the header that identifies the metadata server."""

    status: int
    flavored: bool
    etag: str
    body: str


class NotGoogles(Exception):
    """The answer does not come from Google's metadata server."""


def metadata_host(environ: Mapping[str, str] | None = None, product: Path = PRODUCT) -> str | None:
    """Return ``host`` or ``host:port`` of the metadata server; None outside Google Compute Engine."""
    given = (os.environ if environ is None else environ).get(METADATA_HOST, "").strip()
    if given:
        return given
    try:
        found = files.read_named(product).decode("utf-8", "replace").strip()
    except OSError:
        return None
    return HOST if found in PRODUCTS else None


def address(host: str) -> tuple[str, int] | None:
    """Return name and port of a server given as ``host`` or ``host:port``; None if that is not an address."""
    parts = _ADDRESS.fullmatch(host)
    if parts is None or int(parts[2] or 80) > 0xFFFF:
        return None
    return parts[1].strip("[]"), int(parts[2] or 80)


def request(host: str, target: str) -> bytes:
    """Return a request for `target`, a path below ``/computeMetadata/v1/``; the server closes after its answer."""
    lines = (
        f"GET /computeMetadata/v1/{target} HTTP/1.1",
        f"Host: {host}",
        ": ".join(FLAVOR),
        "Connection: close",
        "",
        "",
    )
    return "\r\n".join(lines).encode("ascii")


def connect(host: str, port: int, until: float) -> socket.socket:
    """Return a connection to the first address of `host` that takes one, before `until` (monotonic s).

    Unlike ``socket.create_connection``, whose timeout holds for each address anew. A name lookup has no timeout.

    Raises:
        OSError: there is none in time.
        UnicodeError: the host's name is invalid.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    trouble: OSError = TimeoutError("timed out")
    for tried, (family, kind, protocol, _, where) in enumerate(found):
        # Each gets its share of the time that is left, so that a silent one does not take that of the next.
        left = (until - time.monotonic()) / (len(found) - tried)
        if left <= 0:
            break
        connection = None
        try:
            connection = socket.socket(family, kind, protocol)
            connection.settimeout(left)
            connection.connect(where)
            return connection
        except OSError as error:
            trouble = error
            if connection is not None:
                connection.close()
    raise trouble


def ask(host: str, target: str, timeout_s: float, longest: int = LONGEST) -> MetadataAnswer:
    """Send one request and return the answer, of at most `longest` bytes.

    `timeout_s` bounds the whole exchange, not each of its pieces.

    Raises:
        OSError: there is no answer in time.
        UnicodeError: the host's name is invalid.
        NotGoogles: the answer is not from Google's metadata server.
    """
    until = time.monotonic() + timeout_s
    place = address(host)
    if place is None:
        raise NotGoogles("its address is not valid")
    name, port = place
    received = bytearray()
    with connect(LINK_LOCAL if name == HOST else name, port, until) as connection:
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
    """Received bytes, in the form of a socket that ``http.client`` can read."""

    def __init__(self, received: bytes) -> None:
        self._received = received

    def makefile(self, *_: object) -> io.BytesIO:
        return io.BytesIO(self._received)


class Reception:
    """An answer that arrives in pieces of any size. Each byte is scanned only a few times, however many pieces come.

    Args:
        longest: bytes of the answer at most.
    """

    def __init__(self, longest: int = LONGEST) -> None:
        self._longest = longest
        self._received = bytearray()
        self._searched = 0  # no end of the headers, or of the chunk's first line, before this
        self._body = 0  # where the body begins; 0 while unknown
        self._length: int | None = None  # bytes of the body; None if it is chunked or ends with the connection
        self._chunked = False
        self._chunk = 0  # where the next chunk begins

    def take(self, piece: bytes) -> MetadataAnswer | None:
        """Add a piece; return the answer once it is complete. An empty piece is the end of the connection.

        Raises:
            NotGoogles: the answer is not HTTP, or too long.
        """
        self._received += piece
        if len(self._received) > self._longest:
            raise NotGoogles(f"an answer of more than {self._longest} bytes")
        beginning = bytes(self._received[: len(_BEGINNING)])
        if not _BEGINNING.startswith(beginning):
            raise NotGoogles("the answer is not HTTP")
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
                raise NotGoogles("the answer is not HTTP (a chunk without a size)") from None
            if size <= 0:  # the last chunk; an empty line follows, or trailers that nobody asked for
                return self._received.endswith(_END_OF_HEAD)
            after = end + len(_END_OF_LINE) + size + len(_END_OF_LINE)
            if len(self._received) < after:
                self._searched = end
                return False
            self._chunk = self._searched = after


def parse(received: bytes, *, ended: bool) -> MetadataAnswer | None:
    """Return the answer, or None while it is incomplete; `ended`: the connection was closed after `received`.

    Raises:
        NotGoogles: it is not HTTP.
    """
    if not _BEGINNING.startswith(received[: len(_BEGINNING)]):
        raise NotGoogles("the answer is not HTTP")
    if b"\r\n\r\n" not in received:
        return None
    from http.client import HTTPException, IncompleteRead

    response = _begun(received)
    if response.length is None and not response.chunked and not ended:
        return None  # the body ends with the connection
    try:
        body = response.read()
    except IncompleteRead:
        return None
    except HTTPException as error:
        raise NotGoogles(f"the answer is not HTTP ({type(error).__name__})") from None
    name, flavor = FLAVOR
    flavored = response.headers.get(name) == flavor
    etag = response.headers.get("ETag", "").strip()
    return MetadataAnswer(response.status, flavored, etag, body.decode("utf-8", "replace"))


def _begun(received: bytes) -> HTTPResponse:
    """Return an answer whose headers have been read.

    Raises:
        NotGoogles: they are invalid.
    """
    from http.client import HTTPException, HTTPResponse  # takes some 20 ms, spent only on machines with such a server

    response = HTTPResponse(_Received(received), method="GET")  # type: ignore[arg-type]
    try:
        response.begin()
    except HTTPException as error:
        raise NotGoogles(f"the answer is not HTTP ({type(error).__name__})") from None
    return response

"""The metadata server of Google Compute Engine: where it is, how it is asked, and what an answer of it looks like."""

from __future__ import annotations

import io
import os
import re
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

METADATA_HOST: Final = "GCE_METADATA_HOST"
HOST: Final = "metadata.google.internal"
LINK_LOCAL: Final = "169.254.169.254"  # where that is, on every machine of Google's but those without IPv4
PRODUCT: Final = Path("/sys/class/dmi/id/product_name")
PRODUCTS: Final = frozenset({"Google", "Google Compute Engine"})
FLAVOR: Final = ("Metadata-Flavor", "Google")
LONGEST: Final = 1 << 16  # bytes of an answer; a value is some ten
_BEGINNING: Final = b"HTTP/"
_ADDRESS: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")


class Answer(NamedTuple):
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
        found = product.read_text(encoding="utf-8", errors="replace").strip()
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


def ask(host: str, target: str, timeout_s: float, longest: int = LONGEST) -> Answer:
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


def parse(received: bytes, *, ended: bool) -> Answer | None:
    """An answer as far as it was received; None while it is not complete.

    Raises:
        NotGoogles: it is no HTTP.
    """
    if not _BEGINNING.startswith(received[: len(_BEGINNING)]):
        raise NotGoogles("no HTTP")
    if b"\r\n\r\n" not in received:
        return None
    import http.client  # some 20 ms that only machines with such a server need spend

    response = http.client.HTTPResponse(_Received(received), method="GET")  # type: ignore[arg-type]
    try:
        response.begin()
        if response.length is None and not response.chunked and not ended:
            return None  # as long as the connection
        body = response.read()
    except http.client.IncompleteRead:
        return None
    except http.client.HTTPException as error:
        raise NotGoogles(f"no HTTP ({type(error).__name__})") from None
    name, flavor = FLAVOR
    flavored = response.headers.get(name) == flavor
    return Answer(response.status, flavored, response.headers.get("ETag", "").strip(), body.decode("utf-8", "replace"))

"""The metadata server of Google Compute Engine: its address, requests to it, and its answers."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from http.client import HTTPMessage

from otel_goodput._runtime import files

METADATA_HOST: Final = "GCE_METADATA_HOST"
HOST: Final = "metadata.google.internal"
LINK_LOCAL: Final = "169.254.169.254"  # the address of HOST on every machine of Google's that has IPv4
PRODUCT: Final = Path("/sys/class/dmi/id/product_name")
PRODUCTS: Final = frozenset({"Google", "Google Compute Engine"})
FLAVOR: Final = ("Metadata-Flavor", "Google")
LONGEST: Final = 1 << 16  # bytes of an answer at most; a value has some ten
_ADDRESS: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")


class MetadataAnswer(NamedTuple):
    """An answer that has the header which identifies the metadata server."""

    status: int
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
        name = files.read_named(product).decode("utf-8", "replace").strip()
    except OSError:
        return None
    return HOST if name in PRODUCTS else None


def address(host: str) -> tuple[str, int] | None:
    """Return name and port of a server given as ``host`` or ``host:port``; None if that is not an address."""
    parts = _ADDRESS.fullmatch(host)
    if parts is None or int(parts[2] or 80) > 0xFFFF:
        return None
    return parts[1].strip("[]"), int(parts[2] or 80)


def _request(host: str, target: str) -> bytes:
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

    Unlike ``socket.create_connection``, whose timeout starts again for each address. A name lookup has no timeout.

    Raises:
        OSError: there is none in time.
        UnicodeError: the host's name is invalid.
    """
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    trouble: OSError = TimeoutError("timed out")
    for tried, (family, kind, protocol, _, where) in enumerate(addresses):
        # Each gets its share of the time that is left, so that a silent one does not take that of the next.
        left = (until - time.monotonic()) / (len(addresses) - tried)
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


def exchange(connection: socket.socket, message: bytes, until: float, longest: int) -> tuple[int, HTTPMessage, bytes]:
    """Send a request, and return the answer's status, headers and body. `until` (monotonic s) bounds all of it.

    Raises:
        OSError: there is no answer in time, or only a part of one.
        ValueError: it is not HTTP, or has more than `longest` bytes.
    """
    # Takes some 20 ms, spent only on machines with such a server.
    from http.client import HTTPException, IncompleteRead, RemoteDisconnected

    from otel_goodput._runtime.answers import BoundedResponse, TooLong, whole

    connection.settimeout(max(1e-3, until - time.monotonic()))
    connection.sendall(message)
    connection.settimeout(max(1e-3, until - time.monotonic()))
    response = BoundedResponse(connection, method="GET", longest=longest)
    try:
        response.begin()
        body = whole(response.read)
        if response.length:
            raise IncompleteRead(body, response.length)
        return response.status, response.headers, body
    except (IncompleteRead, RemoteDisconnected):
        raise ConnectionError("the connection was closed before the answer was complete") from None
    except TooLong:
        raise ValueError(f"an answer of more than {longest} bytes") from None
    except HTTPException as error:
        raise ValueError(f"the answer is not HTTP ({type(error).__name__})") from None
    finally:
        response.close()


def ask(
    host: str,
    target: str,
    timeout_s: float,
    longest: int = LONGEST,
    hold: Callable[[socket.socket], object] | None = None,
) -> MetadataAnswer:
    """Send one request and return the answer, of at most `longest` bytes.

    `timeout_s` bounds the whole exchange, not each of its pieces. `hold` is called with the connection, so that another
    thread can shut it down.

    Raises:
        OSError: there is no answer in time, or only a part of one.
        UnicodeError: the host's name is invalid.
        NotGoogles: the answer is not from Google's metadata server.
    """
    until = time.monotonic() + timeout_s
    place = address(host)
    if place is None:
        raise NotGoogles("its address is not valid")
    name, port = place
    with connect(LINK_LOCAL if name == HOST else name, port, until) as connection:
        if hold is not None:
            hold(connection)
        try:
            status, headers, body = exchange(connection, _request(host, target), until, longest)
        except ValueError as error:
            raise NotGoogles(str(error)) from None
    header, flavor = FLAVOR
    if headers.get(header) != flavor:
        raise NotGoogles(f"no {header}: {flavor} in its answer (status {status})")
    return MetadataAnswer(status, headers.get("ETag", "").strip(), body.decode("utf-8", "replace"))

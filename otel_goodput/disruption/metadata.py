"""The metadata server of Google Compute Engine: where it is, and what an answer of it looks like."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

METADATA_HOST: Final = "GCE_METADATA_HOST"
HOST: Final = "metadata.google.internal"
PRODUCT: Final = Path("/sys/class/dmi/id/product_name")
PRODUCTS: Final = frozenset({"Google", "Google Compute Engine"})
FLAVOR: Final = ("Metadata-Flavor", "Google")
LONGEST: Final = 1 << 16  # bytes of an answer; a value is some ten
_BEGINNING: Final = b"HTTP/"


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

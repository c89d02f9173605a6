"""The files that can be imported, and which log each is of."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from otel_goodput.errors import GoodputError
from otel_goodput.tools.reason import audit_log, kubernetes_events
from otel_goodput.tools.reason.entries import Entry

MOST: Final = 256 * 2**20  # bytes of a file


class Entries(NamedTuple):
    """The entries of a file.

    Attributes:
        kind: what the file is, for people.
        found: entries that tell something, and those that do not tell why.
        left_out: how many items are no such entry, or have no valid time.
    """

    kind: str
    found: list[Entry]
    left_out: int


def read(data: bytes, name: str) -> Entries:
    """Read a file: its content says which log it is of. `name` is for messages.

    Raises:
        GoodputError: it is neither of the two.
    """
    items = list(_items(data, name))
    for kind, looks_like, parse in (
        ("Google Cloud audit log", audit_log.looks_like, audit_log.parse),
        ("Kubernetes events", kubernetes_events.looks_like, kubernetes_events.parse),
    ):
        if any(map(looks_like, items)):
            parsed = [parse(item) if looks_like(item) else None for item in items]
            found = [one for one in parsed if one is not None]
            return Entries(kind, found, len(items) - len(found))
    if not items:
        raise GoodputError(f"{name} holds no entries")
    raise GoodputError(
        f"{name} has the wrong format: expected the JSON of `gcloud logging read --format=json`, with audit log "
        "entries, or of `kubectl get events -A -o json`"
    )


def _items(data: bytes, name: str) -> Iterator[Mapping[str, Any]]:
    """Yield the JSON objects in a file: those of an array or of a List, one alone, or one a line."""
    try:
        documents = [json.loads(data)]
    except (ValueError, RecursionError):
        try:
            documents = [json.loads(line) for line in data.split(b"\n") if line.strip()]
        except (ValueError, RecursionError) as error:
            raise GoodputError(f"{name} is not JSON") from error
        if not documents:
            raise GoodputError(f"{name} is empty") from None
    for document in documents:
        if isinstance(document, list):
            rows = document
        elif isinstance(document, dict) and isinstance(document.get("items"), list):
            rows = document["items"]
        else:
            rows = [document]
        yield from (row for row in rows if isinstance(row, dict))

"""What must not reach a screen: credentials in URLs and headers, and characters that steer a terminal."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final
from urllib.parse import unquote

HIDDEN: Final = "(hidden)"

_REST: Final = re.compile(r"://(\S+)")
_END_OF_AUTHORITY: Final = re.compile(r"[/?#]")
_QUERY: Final = re.compile(r"\?\S*")
# Shorter pieces of a header are no secret, and replacing them would spoil every message.
_LEAST: Final = 4


def secret(name: str) -> bool:
    """Whether the value of the environment variable `name` is never shown."""
    return name.startswith("OTEL_EXPORTER_") and name.endswith("HEADERS")


def secrets(environ: Mapping[str, str]) -> list[str]:
    """The texts of `environ` that no message may hold, longest first."""
    found = set()
    for name, value in environ.items():
        if not secret(name):
            continue
        for item in (value, *value.split(",")):
            content = item.partition("=")[2].strip()
            found |= {item.strip(), content, unquote(content), *content.split(), *unquote(content).split()}
    return sorted((text for text in found if len(text) >= _LEAST), key=len, reverse=True)


def veil(text: str, hidden: Collection[str] = ()) -> str:
    """`text` without the credentials and queries of its URLs, without `hidden`, and as one printable line."""
    for one in hidden:
        text = text.replace(one, HIDDEN)
    text = _REST.sub(_without_credentials, text)
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _without_credentials(match: re.Match[str]) -> str:
    rest = match[1]
    before, at, after = rest.rpartition("@")
    # An unquoted / ? or # in a password ends the authority early, so a colon before the last @ is reason enough.
    if at and (":" in before or not _END_OF_AUTHORITY.search(before)):
        rest = f"***@{after}"
    return "://" + _QUERY.sub("?***", rest)

"""Text from outside, made fit for a terminal, a log, a message or a wire."""

from __future__ import annotations

import re
from typing import Final

_REST: Final = re.compile(r"://(\S+)")
_END_OF_AUTHORITY: Final = re.compile(r"[/?#]")


def printable(text: str) -> str:
    """One line without control characters: a job's name must not move the cursor."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def encodable(text: str) -> str:
    """With ``?`` for what no encoding has: lone surrogates, of which ``os.fsdecode`` makes bytes that are no UTF-8."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def without_credentials(text: str) -> str:
    """With user names and passwords taken out of the URLs in it."""
    return _REST.sub(_without, text)


def _without(match: re.Match[str]) -> str:
    rest = match[1]
    before, at, after = rest.rpartition("@")
    # An unquoted / ? or # in a password ends the authority early, so a colon before the last @ is reason enough.
    if at and (":" in before or not _END_OF_AUTHORITY.search(before)):
        rest = f"***@{after}"
    return "://" + rest

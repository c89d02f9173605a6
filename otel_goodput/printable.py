"""Text from outside, made fit for a terminal, a log or a message."""

from __future__ import annotations

import re
from typing import Final

_CREDENTIALS: Final = re.compile(r"(?<=://)[^/@\s]*@")


def printable(text: str) -> str:
    """Without control characters: a job's name must not move the cursor; lines stay lines."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in text)


def without_credentials(text: str) -> str:
    """With user names and passwords taken out of the URLs in it."""
    return _CREDENTIALS.sub("", text)

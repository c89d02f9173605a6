"""What a source says about the place of this process among those of its job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

LARGEST: Final = 1 << 40  # largest number accepted in a variable


class Told(NamedTuple):
    """A number, and the name of the variable or function that it is from, or the formula."""

    number: int
    by: str

    def __str__(self) -> str:
        return f"{self.by}={self.number}"


class Place(NamedTuple):
    """What one source (a runtime, a launcher or the platform) says about this process.

    Attributes:
        rank: index of this process, from 0; None if unknown.
        size: number of processes; None if unknown.
        doubt: why another process may have the same rank; empty if nothing is wrong.
        advice: how to correct that.
    """

    rank: Told | None
    size: Told | None
    doubt: str = ""
    advice: str = ""


def number(environ: Mapping[str, str], name: str) -> int | None:
    """Return the number that a variable holds, from 0; None if it holds anything else."""
    text = environ.get(name, "").strip()
    if not (text.isascii() and text.isdecimal() and len(text) < 16):
        return None
    return int(text) if int(text) <= LARGEST else None

"""What an examination finds."""

from __future__ import annotations

from typing import Final, NamedTuple

OK: Final = "ok"
WARNING: Final = "warning"
PROBLEM: Final = "problem"


class Finding(NamedTuple):
    """One thing found: how bad it is, what it concerns, what it is, and what to do about it."""

    level: str
    about: str
    what: str
    do: str = ""


class Export(NamedTuple):
    """One signal that would be exported, through which exporter and where to."""

    exporter: str
    signal: str
    where: str

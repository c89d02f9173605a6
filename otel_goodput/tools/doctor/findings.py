"""The results of an examination."""

from __future__ import annotations

from typing import Final, NamedTuple

OK: Final = "ok"
WARNING: Final = "warning"
PROBLEM: Final = "problem"


class Finding(NamedTuple):
    """One finding: its level (``OK``, ``WARNING``, ``PROBLEM``), its subject, what was found, and what to do.

    `brief` is a problem in a few words, for the verdict; empty if `about` says enough.
    """

    level: str
    about: str
    what: str
    do: str = ""
    brief: str = ""


class Export(NamedTuple):
    """One signal that would be exported: the exporter, the signal, and the destination."""

    exporter: str
    signal: str
    where: str

"""The findings of a check, and what libraries log meanwhile."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
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


def ok(about: str, what: str, do: str = "") -> Finding:
    """Return a finding that is no reason to worry."""
    return Finding(OK, about, what, do)


def warning(about: str, what: str, do: str = "") -> Finding:
    """Return a finding about something that may be wrong."""
    return Finding(WARNING, about, what, do)


def problem(about: str, what: str, do: str = "", brief: str = "") -> Finding:
    """Return a finding about something that does not work."""
    return Finding(PROBLEM, about, what, do, brief)


class Export(NamedTuple):
    """One signal that would be exported: the exporter, the signal, and the destination."""

    exporter: str
    signal: str
    where: str


class LogCapture(logging.Handler):
    """Stores warnings and errors, with the thread that logged them."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._messages: list[tuple[int, str]] = []
        self._changing = threading.Lock()

    def emit(self, record: logging.LogRecord) -> None:
        with self._changing:
            self._messages.append((threading.get_ident(), record.getMessage()))

    def take(self) -> list[str]:
        """Return what this thread has logged since its last call, each text once."""
        mine = threading.get_ident()
        with self._changing:
            taken = [text for thread, text in self._messages if thread == mine]
            self._messages = [one for one in self._messages if one[0] != mine]
        return list(dict.fromkeys(taken))


@contextmanager
def captured_logs() -> Iterator[LogCapture]:
    """During the ``with`` block, replace the root logger's handlers by a :class:`LogCapture`, and yield it."""
    root = logging.getLogger()
    handlers, listener = root.handlers[:], LogCapture()
    root.handlers[:] = [listener]
    try:
        yield listener
    finally:
        root.handlers[:] = handlers

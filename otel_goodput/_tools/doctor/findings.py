"""The findings of a check, and what libraries log meanwhile."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final, NamedTuple

OK: Final = "ok"
WARNING: Final = "warning"
PROBLEM: Final = "problem"


class Finding(NamedTuple):
    """A level, a subject, what was found, what to do, and a problem in a few words, if the subject is not enough."""

    level: str
    about: str
    what: str
    do: str = ""
    brief: str = ""


ok = partial(Finding, OK)
warning = partial(Finding, WARNING)
problem = partial(Finding, PROBLEM)


class LogCapture(logging.Handler):
    """Stores warnings and errors by the thread that logged them."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._messages: dict[int, list[str]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        self._messages.setdefault(threading.get_ident(), []).append(record.getMessage())

    def take(self) -> list[str]:
        """Return what this thread has logged since its last call, each text once."""
        return list(dict.fromkeys(self._messages.pop(threading.get_ident(), ())))


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

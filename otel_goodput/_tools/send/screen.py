"""Prints results on standard output, and errors and progress on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection
from typing import Final

from otel_goodput._text.redact import redact

_SHOWN_EVERY_S: Final = 0.2
# After the first time, say what is being waited for; in a log, repeat it only at the second interval.
_FIRST_WORD_S: Final = 3.0
_WORD_EVERY_S: Final = 15.0
_CLEAR: Final = "\r\x1b[K"


class Screen:
    """Prints for the command ``send``.

    Args:
        hidden: texts that are never printed.
        quiet: print only errors.
        waits: print what is being waited for, even if `quiet`.
    """

    def __init__(self, hidden: Collection[str], *, quiet: bool, waits: bool = True) -> None:
        self._hidden = hidden
        self._quiet = quiet
        self._waits = waits
        self._moving = not quiet and sys.stderr.isatty()
        self._shown_at = -_SHOWN_EVERY_S
        self._said_at = -_WORD_EVERY_S

    def tell(self, text: str) -> None:
        if not self._quiet:
            self.clear()
            sys.stdout.write(redact(text, self._hidden) + "\n")

    def complain(self, text: str) -> None:
        self.clear()
        sys.stderr.write(f"otel-goodput: {redact(text, self._hidden)}\n")

    def show(self, text: str) -> None:
        """Show the progress on a terminal, in place of the previous text, at most every 0.2 s."""
        if self._moving and time.monotonic() - self._shown_at >= _SHOWN_EVERY_S:
            self._shown_at = time.monotonic()
            sys.stderr.write(_CLEAR + redact(text, self._hidden))
            sys.stderr.flush()

    def wait(self, text: str, since: float) -> None:
        """Show what is being waited for since `since` (monotonic s): in place on a terminal, else a line every 15 s."""
        now = time.monotonic()
        if now - since < _FIRST_WORD_S:
            return
        if self._moving:
            self.show(text)
        elif self._waits and now - self._said_at >= _WORD_EVERY_S:
            self._said_at = now
            self.complain(text)
            sys.stderr.flush()

    def clear(self) -> None:
        if self._moving:
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()

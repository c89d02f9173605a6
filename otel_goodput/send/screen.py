"""What is said: results on standard output, complaints and the progress on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection
from typing import Final

from otel_goodput.veil import veil

_SHOWN_EVERY_S: Final = 0.2
_CLEAR: Final = "\r\x1b[K"


class Screen:
    """`hidden` never appears on it; where it is `quiet` only complaints do."""

    def __init__(self, hidden: Collection[str], *, quiet: bool) -> None:
        self._hidden = hidden
        self._quiet = quiet
        self._moving = not quiet and sys.stderr.isatty()
        self._shown_at = -_SHOWN_EVERY_S

    def tell(self, text: str) -> None:
        if not self._quiet:
            self.clear()
            sys.stdout.write(veil(text, self._hidden) + "\n")

    def complain(self, text: str) -> None:
        self.clear()
        sys.stderr.write(f"otel-goodput: {veil(text, self._hidden)}\n")

    def show(self, text: str) -> None:
        """On a terminal, in place of what was shown there before; not more often than can be seen."""
        if self._moving and time.monotonic() - self._shown_at >= _SHOWN_EVERY_S:
            self._shown_at = time.monotonic()
            sys.stderr.write(_CLEAR + veil(text, self._hidden))
            sys.stderr.flush()

    def clear(self) -> None:
        if self._moving:
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()

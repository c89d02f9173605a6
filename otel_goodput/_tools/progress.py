"""Progress of long work, on a line of the terminal that is rewritten in place."""

from __future__ import annotations

import shutil
import sys
import time
from types import TracebackType
from typing import Final

from otel_goodput._text.quantities import percent
from otel_goodput._text.redact import shown

_DELAY_S: Final = 0.5  # work that ends sooner shows nothing
_EVERY_S: Final = 0.1
_COLUMNS: Final = 80


class ProgressLine:
    """A context manager that shows on stderr how far the work is, if stderr is a terminal; else it shows nothing."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._next = self._begun + _DELAY_S
        self._width = 0
        self._terminal = sys.stderr is not None and sys.stderr.isatty()

    def __call__(self, done: float, total: float, what: str) -> None:
        """Show that `done` of `total` of the work is done (0: not known how much there is), and `what` goes on."""
        now = time.monotonic()
        if not self._terminal or now < self._next:
            return
        self._next = now + _EVERY_S
        share = f" {percent(min(done, total), total)}" if total else ""
        self._write(f"{shown(what)}{share}, {now - self._begun:.0f} s; press Ctrl-C to stop")

    def _write(self, text: str) -> None:
        columns = shutil.get_terminal_size().columns or _COLUMNS  # Python 3.10 takes 0, "not known", for a width
        text = text[: columns - 1]
        sys.stderr.write(f"\r{text:<{self._width}}\r" if text else f"\r{'':<{self._width}}\r")
        sys.stderr.flush()
        self._width = len(text)

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._width:
            self._write("")

"""What a command shows while it works: progress, on a line of the terminal that is rewritten in place."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Collection
from types import TracebackType
from typing import Final

from otel_goodput._text.quantities import percent
from otel_goodput._text.redact import redact, shown

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


_SHOWN_EVERY_S: Final = 0.2
_WAIT_DELAY_S: Final = 3.0  # a shorter wait is not shown
_WAIT_EVERY_S: Final = 15.0  # in a log
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
        self._waited_at = -_WAIT_EVERY_S

    def write(self, text: str) -> None:
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
        if now - since < _WAIT_DELAY_S:
            return
        if self._moving:
            self.show(text)
        elif self._waits and now - self._waited_at >= _WAIT_EVERY_S:
            self._waited_at = now
            self.complain(text)
            sys.stderr.flush()

    def clear(self) -> None:
        if self._moving:
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()

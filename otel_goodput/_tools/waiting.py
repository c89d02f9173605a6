"""While a command waits: calls in the background, and a line of the terminal that says what goes on."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future, wait
from typing import Final, TypeVar

from otel_goodput._text.quantities import percent
from otel_goodput._text.redact import redact, shown

S = TypeVar("S")
T = TypeVar("T")

_DELAY_S: Final = 0.5  # work that ends sooner shows no progress
_EVERY_S: Final = 0.1
_COLUMNS: Final = 80
_WAIT_DELAY_S: Final = 3.0  # a shorter wait is not shown
_WAIT_EVERY_S: Final = 15.0  # in a log


def begin(action: Callable[[], T]) -> Future[T]:
    """Run an action in a daemon thread of its own, which is abandoned if it hangs; those of an executor are joined."""
    call = Future[T]()

    def run() -> None:
        try:
            call.set_result(action())
        except BaseException as error:
            call.set_exception(error)

    threading.Thread(target=run, name="goodput-call", daemon=True).start()
    return call


def result(call: Future[T], seconds: float) -> T:
    """Return the result of a call, or raise what it raised; raises TimeoutError if it has not ended in `seconds`."""
    if not wait([call], max(seconds, 0.0)).done:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return call.result()


def within(seconds: float, action: Callable[[], T]) -> T:
    """Run `action` with a time limit in seconds; returns and raises like :func:`result`."""
    return result(begin(action), seconds)


class StatusLine:
    """A line on stderr, if that is a terminal; else nothing is shown. Leaving its ``with`` block clears the line."""

    def __init__(self, *, visible: bool = True, delay_s: float = 0.0) -> None:
        self.moving = visible and sys.stderr is not None and sys.stderr.isatty()
        self._next = time.monotonic() + delay_s
        self._width = 0

    def due(self) -> bool:
        """Return whether the line may change again: every 0.1 s, and not during the delay."""
        return self.moving and time.monotonic() >= self._next

    def show(self, text: str) -> None:
        """Replace the line by `text`, which contains no secrets."""
        if self.moving:
            self._next = time.monotonic() + _EVERY_S
            columns = shutil.get_terminal_size().columns or _COLUMNS  # Python 3.10 takes 0, "not known", for a width
            text = text[: columns - 1]
            sys.stderr.write(f"\r{text:<{self._width}}\r")
            sys.stderr.flush()
            self._width = len(text)

    def clear(self) -> None:
        if self._width:
            self.show("")

    def __enter__(self: S) -> S:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()


def looking_at(thing: str) -> StatusLine:
    """Show on a terminal, during a ``with`` block, what is being waited for."""
    line = StatusLine()
    line.show(redact(f"looking at {thing} …"))
    return line


class ProgressLine(StatusLine):
    """Shows how far the work is."""

    def __init__(self) -> None:
        super().__init__(delay_s=_DELAY_S)
        self._begun = time.monotonic()

    def __call__(self, done: float, total: float, what: str) -> None:
        """Show that `done` of `total` of the work is done (0: not known how much there is), and `what` goes on."""
        if self.due():
            share = f" {percent(min(done, total), total)}" if total else ""
            self.show(f"{shown(what)}{share}, {time.monotonic() - self._begun:.0f} s; press Ctrl-C to stop")


class Screen:
    """Prints results on standard output, errors and progress on standard error, for the command ``send``.

    The texts `hidden` are never printed. `quiet` prints only errors, and what is being waited for if `waits`.
    """

    def __init__(self, hidden: Collection[str], *, quiet: bool, waits: bool) -> None:
        self._hidden = hidden
        self._quiet = quiet
        self._waits = waits
        self._line = StatusLine(visible=not quiet)
        self._waited_at = -_WAIT_EVERY_S

    def write(self, text: str) -> None:
        if not self._quiet:
            self._line.clear()
            sys.stdout.write(redact(text, self._hidden) + "\n")

    def complain(self, text: str) -> None:
        self._line.clear()
        sys.stderr.write(f"otel-goodput: {redact(text, self._hidden)}\n")

    def show(self, text: str) -> None:
        """Show the progress on a terminal, in place of the previous text."""
        if self._line.due():
            self._line.show(redact(text, self._hidden))

    def wait(self, text: str, since: float) -> None:
        """Show what is being waited for since `since` (monotonic s): in place on a terminal, else a line every 15 s."""
        now = time.monotonic()
        if now - since < _WAIT_DELAY_S:
            return
        if self._line.moving:
            self.show(text)
        elif self._waits and now - self._waited_at >= _WAIT_EVERY_S:
            self._waited_at = now
            self.complain(text)
            sys.stderr.flush()

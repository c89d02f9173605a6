"""A line at the bottom of a terminal that gives way to other output.

Prints, logs and progress bars write to the same terminal. So the ``write`` of their streams is wrapped: the line is
erased before anything is written, and drawn again only when the cursor is at the start of a line. It is not drawn while
other code has written half a line or waits for an answer. The stream objects stay in place: replacing ``sys.stdout``,
as a live display of rich does, would hold back unfinished lines, wrap the others, and miss code that keeps the old
object.

While progress bars of tqdm or a live display of rich are on the screen, lines are written through these, one a minute,
because they know how to write beside themselves. Output that bypasses Python's streams, such as that of compilers,
cannot be seen.
"""

from __future__ import annotations

import builtins
import math
import os
import re
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any, Final, TextIO

from otel_goodput.text.quantities import width

BESIDE_BARS_S: Final = 60.0  # between two lines that cannot be rewritten in place
SETTLED_S: Final = 0.5  # after a bar has gone: by then it was drawn for the last time, and its line has ended
PATIENCE_S: Final = 0.05  # longest time that a user's print waits while our line is drawn
_CONTROLS: Final = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_BLANK: Final = re.compile(r"\r[ \t]*\r\Z")


class StatusLine:
    """The status line of one terminal.

    Args:
        stream: where it is drawn.
        columns: returns the present width of the terminal in cells.
    """

    def __init__(self, stream: TextIO, columns: Callable[[], int]) -> None:
        self._stream = stream
        self._columns = columns
        self._lock = threading.RLock()
        self._shown = 0  # cells of the line on the screen; 0 if there is none
        self._fresh = True  # the next write of other code begins a line
        self._waiting = 0  # questions that wait for an answer
        self._queue: deque[None] = deque()  # one for each thread that waits for the lock in order to write
        self._written = -BESIDE_BARS_S
        self._alone_at = 0.0  # from when on no bar is on the screen; one may still use the unwrapped write
        self._listened = [_Listened(self, each) for each in _same_terminal(stream)]
        self._input = _Asked(self)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._fall_silent)

    def show(self, text: str) -> None:
        """Draw `text` over the previous text, unless other code is in the middle of a line.

        Raises:
            OSError, ValueError: the stream cannot be written any more.
        """
        try:
            bars = self._above_bars()
            if bars is not None:
                self._alone_at = math.inf
            beside = bars or _live_display()
            if beside is not None:
                if monotonic() - self._written >= BESIDE_BARS_S and not self._waiting:
                    self._written = monotonic()
                    self.give_way()
                    beside(text)
                return
        except RuntimeError:  # the bars changed during the iteration over them
            return
        if self._alone_at == math.inf:
            self._alone_at = monotonic() + SETTLED_S
        if monotonic() < self._alone_at:
            return
        if self._queue:  # others wait to write: after PATIENCE_S they would write into our line
            return
        with self._held(0) as mine:
            if mine and self._fresh and not self._waiting:
                cells = width(text)
                self._put(f"\r{text}{' ' * (self._shown - cells)}")
                self._shown = cells

    def _above_bars(self) -> Callable[[str], Any] | None:
        """Return a function that writes a line above the bars of tqdm on the screen; None if there are none."""
        tqdm = getattr(sys.modules.get("tqdm"), "tqdm", None)
        bars = [bar for bar in tuple(getattr(tqdm, "_instances", ())) if not getattr(bar, "disable", True)]
        if tqdm is None or not bars:
            return None

        def write(text: str) -> None:
            # A bar that is being closed is not erased by tqdm: overwrite it; it is drawn again below.
            blank = " " * max(0, self._columns() - 1 - width(text))
            tqdm.write(f"\r{text}{blank}", file=self._stream)

        return write

    def give_way(self) -> None:
        """Erase the line from the screen."""
        if self._shown:
            blank = " " * min(self._shown, self._columns() - 1)
            self._shown = 0
            self._put(f"\r{blank}\r")

    def close(self) -> None:
        """Leave the line on the screen, continue below it, and unwrap the streams."""
        self._leave()
        with self._held(PATIENCE_S):
            if self._shown:
                self._shown = 0
                self._put("\n")

    def _leave(self) -> None:
        for each in self._listened:
            each.leave()
        self._input.leave()

    def _fall_silent(self) -> None:
        """Unwrap the streams in a forked child: nothing draws there, and a lock that was held would stay held."""
        self._lock = threading.RLock()
        self._leave()

    def _put(self, text: str) -> None:
        """Write to the terminal, past our own wrapper if the stream has one."""
        mine = [each for each in self._listened if each.stream is self._stream]
        (mine[0].put if mine else self._stream.write)(text)
        self._stream.flush()

    @contextmanager
    def _held(self, patience_s: float) -> Iterator[bool]:
        lock = self._lock
        self._queue.append(None)
        try:
            mine = lock.acquire(timeout=patience_s)
        finally:
            self._queue.pop()
        try:
            yield mine
        finally:
            if mine:
                lock.release()

    # --- others -------------------------------------------------------------------------------------------------------

    def passes(self, put: Callable[[str], int], text: str) -> int:
        """Write `text` of other code by `put`, after erasing the line."""
        with self._held(PATIENCE_S):
            fresh = self._fresh
            try:
                self.give_way()
                rest = _CONTROLS.sub("", text) if "\x1b" in text else text
                if rest:
                    fresh = rest.endswith("\n") or _BLANK.search(rest) is not None
            except Exception:
                fresh = False  # the stream is broken: `put` is about to fail too
            self._fresh = False  # if the lock was not acquired, this keeps `show` from drawing before `put`
            try:
                return put(text)
            finally:
                self._fresh = fresh

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Keep the line off the screen while other code waits for an answer, which is typed behind the question."""
        with self._held(PATIENCE_S):
            self._waiting += 1
            try:
                self.give_way()
            except (OSError, ValueError):
                pass
        try:
            yield
        finally:
            self._waiting -= 1
            self._fresh = True  # the answer ended with a line break


class _Listened:
    """Wraps the `write` of a stream so that it goes through a status line; the stream object stays the same."""

    def __init__(self, line: StatusLine, stream: TextIO) -> None:
        self.stream = stream
        self.put: Callable[[str], int] = stream.write
        put = self.put

        def write(text: str, /) -> int:
            return line.passes(put, text)

        self._write = write
        try:
            stream.write = write  # type: ignore[method-assign]
        except AttributeError:  # a custom stream whose write cannot be replaced
            pass

    def leave(self) -> None:
        inside: dict[str, Any] = getattr(self.stream, "__dict__", {})
        if inside.get("write") is self._write:
            del self.stream.write


class _Asked:
    """Wraps ``input()``, also used by the debugger: the terminal library writes its prompt past the streams."""

    def __init__(self, line: StatusLine) -> None:
        self._original = original = builtins.input

        def input(prompt: object = "", /) -> str:
            with line.asking():
                return original(prompt)

        self._mine = builtins.input = input

    def leave(self) -> None:
        if builtins.input is self._mine:
            builtins.input = self._original


def _same_terminal(stream: TextIO) -> list[TextIO]:
    """Return `stream` and those of the standard streams that write to the same terminal."""
    found: list[TextIO] = [stream]
    for other in (sys.stdout, sys.stderr):
        try:
            same = other is not None and os.fstat(other.fileno()).st_rdev == os.fstat(stream.fileno()).st_rdev
        except (OSError, ValueError, AttributeError):
            continue
        if same and not any(other is one for one in found):
            found.append(other)
    return found


def _live_display() -> Callable[[str], Any] | None:
    """Return a function that writes a line above a live display of rich, which replaces stderr; None without one."""
    stream = sys.stderr
    if not type(stream).__module__.startswith("rich."):
        return None
    return lambda text: stream.write(f"{text}\n")


def is_interactive() -> bool:
    """Return whether this interpreter is a REPL or a notebook, where a status line would be in the way."""
    return bool(
        hasattr(sys, "ps1") or sys.flags.interactive or hasattr(builtins, "__IPYTHON__") or "ipykernel" in sys.modules
    )

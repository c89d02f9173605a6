"""A line at the bottom of a terminal that gives way to whatever else is written there.

Others write where the line is: prints, logs, progress bars. So their streams' ``write`` is listened to: before anything
is written the line is erased, and it is drawn anew only where a line begins. Whoever is in the middle of a line, or is
asked something, is left alone. The streams themselves stay in place: replacing ``sys.stdout``, as a live display of
rich does, holds back lines that are not finished and wraps the others, and does not reach who has kept the old one.

Where progress bars of tqdm or a live display of rich are on the screen, these know better how to write beside them:
lines go through them then, one a minute. What is written past Python's streams, as by compilers, cannot be seen.
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

BESIDE_BARS_S: Final = 60.0  # from one line to the next where it cannot be rewritten in place
SETTLED_S: Final = 0.5  # after which a bar that is gone has been drawn for the last time, and its line has ended
PATIENCE_S: Final = 0.05  # a print of the user's waits no longer than that for a line of ours
_CONTROLS: Final = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_BLANK: Final = re.compile(r"\r[ \t]*\r\Z")


class StatusLine:
    """The line of one terminal.

    Args:
        stream: where it is drawn.
        columns: how wide the terminal is now.
    """

    def __init__(self, stream: TextIO, columns: Callable[[], int]) -> None:
        self._stream = stream
        self._columns = columns
        self._lock = threading.RLock()
        self._shown = 0  # cells of the line on the screen; 0 where there is none
        self._fresh = True  # what others write begins a line
        self._waiting = 0  # questions that wait for an answer
        self._queue: deque[None] = deque()  # one for each who waits for the lock in order to write
        self._written = -BESIDE_BARS_S
        self._alone_at = 0.0  # when nobody's bars are on the screen any more; a bar may keep the write of old
        self._listened = [_Listened(self, each) for each in _same_terminal(stream)]
        self._input = _Asked(self)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._fall_silent)

    def show(self, text: str) -> None:
        """Draw `text` in the place of what stood there, if nobody else is in the middle of a line.

        Raises:
            OSError, ValueError: nothing can be written there any more.
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
        except RuntimeError:  # bars came and went while they were looked at
            return
        if self._alone_at == math.inf:
            self._alone_at = monotonic() + SETTLED_S
        if monotonic() < self._alone_at:
            return
        if self._queue:  # or they would wait until their patience is over, and write amid our line
            return
        with self._held(0) as mine:
            if mine and self._fresh and not self._waiting:
                cells = width(text)
                self._put(f"\r{text}{' ' * (self._shown - cells)}")
                self._shown = cells

    def _above_bars(self) -> Callable[[str], Any] | None:
        """What writes a line above the bars of tqdm that are on the screen; None where there are none."""
        tqdm = getattr(sys.modules.get("tqdm"), "tqdm", None)
        bars = [bar for bar in tuple(getattr(tqdm, "_instances", ())) if not getattr(bar, "disable", True)]
        if tqdm is None or not bars:
            return None

        def write(text: str) -> None:
            # A bar that is being closed is not taken off the screen: this stands in its place, and it is drawn below.
            blank = " " * max(0, self._columns() - 1 - width(text))
            tqdm.write(f"\r{text}{blank}", file=self._stream)

        return write

    def give_way(self) -> None:
        """Take the line off the screen."""
        if self._shown:
            blank = " " * min(self._shown, self._columns() - 1)
            self._shown = 0
            self._put(f"\r{blank}\r")

    def close(self) -> None:
        """Leave the line where it is, go on below it, and listen to nobody any more."""
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
        """In a forked child, where nobody draws, and nobody would release the lock."""
        self._lock = threading.RLock()
        self._leave()

    def _put(self, text: str) -> None:
        """Past ourselves, should we listen to this very stream."""
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
        """Somebody else writes `text`."""
        with self._held(PATIENCE_S):
            fresh = self._fresh
            try:
                self.give_way()
                rest = _CONTROLS.sub("", text) if "\x1b" in text else text
                if rest:
                    fresh = rest.endswith("\n") or _BLANK.search(rest) is not None
            except Exception:
                fresh = False  # a stream that is about to fail for its owner too
            self._fresh = False  # nor is anything drawn before it is written, should we be without the lock
            try:
                return put(text)
            finally:
                self._fresh = fresh

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Somebody asks a question: what is typed stands behind it."""
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
    """A stream whose writes are passed on through a status line; it stays the object that it was."""

    def __init__(self, line: StatusLine, stream: TextIO) -> None:
        self.stream = stream
        self.put: Callable[[str], int] = stream.write
        put = self.put

        def write(text: str, /) -> int:
            return line.passes(put, text)

        self._write = write
        try:
            stream.write = write  # type: ignore[method-assign]
        except AttributeError:  # a stream of somebody's own making
            pass

    def leave(self) -> None:
        inside: dict[str, Any] = getattr(self.stream, "__dict__", {})
        if inside.get("write") is self._write:
            del self.stream.write


class _Asked:
    """``input()``, and with it the prompt of the debugger: the terminal library writes it past the streams."""

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
    """`stream`, and of the standard streams those that end on the same terminal."""
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
    """What writes a line above a live display of rich, which then stands in the place of the standard streams."""
    stream = sys.stderr
    if not type(stream).__module__.startswith("rich."):
        return None
    return lambda text: stream.write(f"{text}\n")


def is_interactive() -> bool:
    """Whether a person types at this very interpreter: a REPL or a notebook, where a line would stand in the way."""
    return bool(
        hasattr(sys, "ps1") or sys.flags.interactive or hasattr(builtins, "__IPYTHON__") or "ipykernel" in sys.modules
    )

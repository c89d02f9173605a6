"""Stopping under one deadline: everything that must be closed is closed at the same time, and nothing can hold up exit.

A backend that accepts and never answers keeps an exporter busy for as long as it likes, and the SDK's own shutdowns run
one after the other (30 s each). Here every closer gets a daemon thread of its own and all share one deadline; a thread
that is stuck when it passes is left behind, and daemon threads do not keep the interpreter alive.

From Python 3.12 on no thread can be started once the interpreter is finalizing, atexit handlers included. So whoever
wants to close at exit reserves threads beforehand with :func:`reserve`; they cost nothing but their parked stacks.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final

from otel_goodput import files
from otel_goodput.guard import report_once

_RUNNING: Final = Path("/proc/loadavg")  # its fourth word is how many threads run or could: proc(5)

Closer = Callable[[int], object]
"""Given the milliseconds that remain, closes one thing."""


def crowding() -> float:
    """How many threads want each core just now, 1 at least; 1 too where the system does not say (only Linux does)."""
    try:
        running = int(files.read_named(_RUNNING).split()[3].partition(b"/")[0])
    except (OSError, ValueError, IndexError):
        return 1.0
    return max(1.0, running / (os.cpu_count() or 1))


class ShutdownSignal:
    """Tells those who try again in the background that the process stops, and how much time they have left then."""

    def __init__(self) -> None:
        self._begun = threading.Event()
        self._until = math.inf

    @property
    def begun(self) -> bool:
        """Whether the process stops."""
        return self._begun.is_set()

    def begin(self, seconds: float) -> None:
        """The process stops in so many seconds."""
        self._until = time.monotonic() + max(seconds, 0.0)
        self._begun.set()

    def left(self, seconds: float) -> float:
        """How many of these seconds there will be."""
        return min(seconds, self._until - time.monotonic())

    def wait(self, seconds: float) -> None:
        """Sleep; what lasts longer than the end allows, or is still asleep when it begins, is woken."""
        if not self.begun:
            self._begun.wait(seconds)
        else:
            time.sleep(max(self.left(seconds), 0.0))


class _Pool:
    """Parked daemon threads. Handed work only when one is free, so that one stuck closer never delays another."""

    def __init__(self) -> None:
        # SimpleQueue is reentrant: a signal handler that closes may interrupt a thread that is inside `put`.
        self._tasks: SimpleQueue[Callable[[], None]] = SimpleQueue()
        # One token a free thread. Taking a token is what entitles to put a task.
        self._free: SimpleQueue[None] = SimpleQueue()

    def reserve(self, count: int) -> int:
        for _ in range(count - self._free.qsize()):
            if not _start(self._work, "goodput-closer"):
                break
            self._free.put(None)
        return self._free.qsize()

    def submit(self, task: Callable[[], None]) -> bool:
        """Hand `task` to a parked thread; False when none is free."""
        try:
            self._free.get_nowait()
        except Empty:
            return False
        self._tasks.put(task)
        return True

    def _work(self) -> None:
        while True:
            self._tasks.get()()
            self._free.put(None)


def _start(target: Callable[[], None], name: str) -> bool:
    try:
        threading.Thread(target=target, name=name, daemon=True).start()
    except RuntimeError:  # the interpreter is finalizing, or the machine is out of threads
        return False
    return True


_pool = _Pool()


def _forget_threads() -> None:
    global _pool
    _pool = _Pool()


# After a fork the parked threads exist in the parent only.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)


def reserve(count: int) -> int:
    """Make sure that `count` daemon threads stand ready for :func:`close_all`; returns how many do.

    Fewer than `count` only where the machine gives no more threads. Threads that finished their closers are used again.
    """
    return _pool.reserve(count)


def close_all(closers: Sequence[tuple[str, Closer]], seconds: float) -> list[str]:
    """Run all closers in parallel and wait for them until one deadline, `seconds` from now.

    Each closer is called with the whole milliseconds that remain. Returns the names of the closers that had not
    finished at the deadline, in the order given; they may still be running, in daemon threads. A closer's error is
    logged, once for each name, and counts as finished. Raises nothing of its own and nothing of the closers'.

    Where no thread is to be had (see :func:`reserve`) closers run in line, after the parallel ones were started: each
    is told what remains and is not run at all once the deadline has passed, but one that disregards its time cannot be
    left behind.
    """
    deadline = time.monotonic() + max(seconds, 0.0)
    runs = [_Run(name, closer, deadline) for name, closer in closers]
    in_line = [run for run in runs if not (_pool.submit(run) or _start(run, f"goodput-close-{run.name}"))]
    for run in in_line:
        if time.monotonic() < deadline:
            run()
    for run in runs:
        run.finished.wait(max(deadline - time.monotonic(), 0.0))
    return [run.name for run in runs if not run.finished.is_set()]


class _Run:
    """One closer under way."""

    __slots__ = ("closer", "deadline", "finished", "name")

    def __init__(self, name: str, closer: Closer, deadline: float) -> None:
        self.name = name
        self.closer = closer
        self.deadline = deadline
        self.finished = threading.Event()

    def __call__(self) -> None:
        try:
            self.closer(max(int((self.deadline - time.monotonic()) * 1000), 0))
        except BaseException as error:  # a SystemExit in a closer must not pass for a stop that went well, nor raise
            report_once(f"closing {self.name}", "closing %s failed: %s: %s", self.name, type(error).__name__, error)
        finally:
            self.finished.set()

"""Stops everything under one deadline: all closers run in parallel, and none of them can hold up exit.

A backend that accepts connections and never answers can block an exporter indefinitely, and the SDK's own shutdowns run
one after the other (30 s each). Here every closer gets its own daemon thread; one that is still stuck at the deadline
is abandoned. From Python 3.12 on, no thread can be started once the interpreter is finalizing, not even in atexit
handlers. Code that closes at exit must therefore reserve threads beforehand; they cost only their parked stacks.
"""

from __future__ import annotations

import atexit
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple

from otel_goodput._runtime import files
from otel_goodput._runtime.guard import contain, report_once

_RUNNING: Final = Path("/proc/loadavg")  # the fourth word is the number of runnable threads: proc(5)

# When the process stops, an export may be under way, and the last one follows it. Both must fit into the grace period.
SHARE_OF_GRACE: Final = 0.4
LAST_WORD_S: Final = 0.2  # that exporters reserve at the end of the process for saying what was not delivered

AFTER_CHILDREN: Final = -1  # exit priority in multiprocessing: after it has joined the process's own children

Closer = Callable[[int], object]
"""Given the milliseconds that remain, closes one thing."""


def crowding() -> float:
    """Return the number of runnable threads per core, at least 1; 1 if that is not known (outside of Linux)."""
    try:
        running = int(files.read_named(_RUNNING).split()[3].partition(b"/")[0])
    except (OSError, ValueError, IndexError):
        return 1.0
    return max(1.0, running / (os.cpu_count() or 1))


class ShutdownSignal:
    """Tells background retries that the process is stopping and how much time is left."""

    def __init__(self) -> None:
        self.at_job_end = False  # everything is being exported because a job has ended; the process may end then, too
        self._begun = threading.Event()
        self._until = math.inf

    @property
    def begun(self) -> bool:
        return self._begun.is_set()

    @property
    def last(self) -> bool:
        """Whether what is exported now may be the last of this process."""
        return self.begun or self.at_job_end

    def begin(self, seconds: float) -> None:
        self._until = time.monotonic() + max(seconds, 0.0)
        self._begun.set()

    def left(self, seconds: float) -> float:
        """Return `seconds`, or the time until the stop if that is shorter."""
        return min(seconds, self._until - time.monotonic())

    def wait(self, seconds: float) -> None:
        """Sleep for `seconds`, but return when the stop begins; during it, sleep no longer than until its end."""
        if self.begun:
            time.sleep(max(self.left(seconds), 0.0))
        else:
            self._begun.wait(seconds)


class _Pool:
    """A pool of parked daemon threads. Only a free thread is given work, so a stuck closer never delays another."""

    def __init__(self) -> None:
        # SimpleQueue is reentrant: a signal handler may close things while its thread is inside `put`.
        self._tasks: SimpleQueue[Callable[[], None]] = SimpleQueue()
        # One token for each free thread. A task may be put only after taking a token.
        self._free: SimpleQueue[None] = SimpleQueue()

    def reserve(self, count: int) -> int:
        while self._free.qsize() < count and _start(self._work, "goodput-closer"):
            self._free.put(None)
        return self._free.qsize()

    def submit(self, task: Callable[[], None]) -> bool:
        """Hand `task` to a parked thread; returns False if none is free."""
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
    except RuntimeError:  # the interpreter is finalizing, or the system has no more threads
        return False
    return True


_pool = _Pool()
closing: Final[set[int]] = set()  # threads that shut a recorder down: who holds one up, holds up the end


def _forget_threads() -> None:
    global _pool
    _pool = _Pool()
    closing.clear()


# After a fork, only the parent has the parked threads.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)


def reserve(count: int) -> int:
    """Make sure that `count` daemon threads are parked for :func:`close_all`; returns how many are.

    That is fewer than `count` only if the system gives no more threads. A thread whose closer has finished is reused.
    """
    return _pool.reserve(count)


def close_all(closers: Sequence[tuple[str, Closer]], seconds: float) -> list[str]:
    """Run all closers in parallel and wait for them until one deadline, `seconds` from now.

    Each closer is called with the whole milliseconds that remain. Returns the names of the closers that had not
    finished at the deadline, in the order given; they may still be running, in daemon threads. A closer that raises
    counts as finished; the error is logged, once for each name. Never raises.

    Closers for which there is no thread (see :func:`reserve`) run in the calling thread, after the parallel ones were
    started. They are not run once the deadline has passed, but one that exceeds its time cannot be abandoned.
    """
    deadline = time.monotonic() + max(seconds, 0.0)
    runs = [_Run(name, closer, deadline, threading.Event()) for name, closer in closers]
    in_line = [run for run in runs if not (_pool.submit(run.close) or _start(run.close, f"goodput-close-{run.name}"))]
    for run in in_line:
        if time.monotonic() < deadline:
            run.close()
    for run in runs:
        run.finished.wait(max(deadline - time.monotonic(), 0.0))
    return [run.name for run in runs if not run.finished.is_set()]


def within(seconds: float, site: str, *jobs: Callable[[], object]) -> bool:
    """Run `jobs`, which may block on a disk, in a thread, and wait for it; return whether they finished in time.

    A thread that hangs, such as on a network mount, is abandoned. Errors are contained under the name `site`.
    """
    errors: list[Exception] = []

    def do(_: int) -> None:
        try:
            for job in jobs:
                job()
        except Exception as error:
            errors.append(error)

    unfinished = close_all([(site, do)], seconds)
    for error in errors:
        contain(site, error)
    return not unfinished


def at_exit(finish: Callable[[], object]) -> None:
    """Call `finish` at exit, also in a child process of multiprocessing, which may exit without running ``atexit``."""
    atexit.register(finish)
    process, util = (sys.modules.get(f"multiprocessing.{name}") for name in ("process", "util"))
    if process is not None and util is not None and process.parent_process() is not None:
        util.Finalize(None, finish, exitpriority=AFTER_CHILDREN)


class _Run(NamedTuple):
    name: str
    closer: Closer
    deadline: float
    finished: threading.Event

    def close(self) -> None:
        try:
            self.closer(max(int((self.deadline - time.monotonic()) * 1000), 0))
        except BaseException as error:  # SystemExit too: it must be reported, and not end the caller
            report_once(f"closing {self.name}", "closing %s failed: %s: %s", self.name, type(error).__name__, error)
        finally:
            self.finished.set()

"""What really happened in a program: readings of the clock that use nothing of otel_goodput.

The chores of the programs (:mod:`everyday.chores`, :mod:`everyday.network`) take readings of themselves. What a
device does is read by a thread that blocks on each output. Readings are lines of a file at once, so that they outlive
a SIGKILL.
"""

from __future__ import annotations

import atexit
import json
import mmap
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

LIFE, STEP, LOAD, COMPILE, SAVE, RESTORE, PREPARE = "life", "step", "load", "compile", "save", "restore", "prepare"
EVALUATION = "eval"
BYTES = 1 << 21  # some thousand readings


def _page(path: str) -> mmap.mmap:
    """A file in memory: what is written there outlives the process, and takes no system call."""
    if path == os.devnull:
        return mmap.mmap(-1, BYTES)
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.ftruncate(file, BYTES)
    return mmap.mmap(file, BYTES)


class Witness:
    """Takes readings: which chore began when, and when it was over.

    Attributes:
        number: of the step that is being done.
    """

    def __init__(self, path: str) -> None:
        self._lines = _page(path)
        self._place = self._lines.find(b"\0")
        self._writing = threading.Lock()
        self._keys = iter(range(10**9))
        self._took = 0  # ns to write the latest reading
        self._outputs: SimpleQueue[tuple[int, int, Any] | None] = SimpleQueue()
        self._waiting: threading.Thread | None = None
        self.number = -1

    def _write(self, **reading: Any) -> None:
        began = time.perf_counter_ns()
        line = json.dumps({**reading, "writing": self._took}).encode() + b"\n"
        with self._writing:
            begin, self._place = self._place, self._place + len(line)
            self._lines[begin : self._place] = line
            self._took = time.perf_counter_ns() - began

    def begin(self, kind: str, at: int | None = None, *, device: bool = False) -> int:
        """A chore begins (at the unix time `at`, ns; by default now); gives its key."""
        key = next(self._keys)
        begun = time.time_ns() if at is None else at
        self._write(key=[os.getpid(), key], kind=kind, begin=begun, step=self.number, device=device)
        return key

    def end(self, key: int, at: int | None = None, *, left: bool = False) -> None:
        """The chore `key` is over, or was `left` in its middle."""
        self._write(key=[os.getpid(), key], end=time.time_ns() if at is None else at, left=left)

    @contextmanager
    def of(self, kind: str) -> Iterator[None]:
        """A chore, for as long as the block lasts; one that an exception ends was not done."""
        key = self.begin(kind)
        yield
        self.end(key)

    @contextmanager
    def life(self) -> Iterator[None]:
        """One life of the job."""
        key = self.begin(LIFE)
        try:
            yield
        finally:
            self.end(key)
            self.settle()

    def watch(self, kind: str, begun: int, output: Any) -> None:
        """The device works from `begun` (unix ns) on `output`, which has ``block_until_ready``, until it is ready."""
        if self._waiting is None:
            self._waiting = threading.Thread(target=self._wait, name="witness", daemon=True)
            self._waiting.start()
            atexit.register(self.settle)  # a thread that waits inside jax at the interpreter's end aborts the process
        self._outputs.put((self.begin(kind, begun, device=True), begun, output))

    def _wait(self) -> None:
        while (each := self._outputs.get()) is not None:
            key, _, output = each
            output.block_until_ready()
            self.end(key)
            del each, output

    def settle(self) -> None:
        """Wait for what is on the device."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self._outputs.put(None)
            waiting.join()


witness = Witness(os.environ.get("EVERYDAY_READINGS", os.devnull))

"""Records what really happened in a program, without any code of otel_goodput.

The chores of the programs (:mod:`everyday.chores`, :mod:`everyday.network`) record themselves here. A
thread that blocks on each output records the work of the device. Each reading is a line in a memory-mapped file, so
readings survive SIGKILL.
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
from pathlib import Path
from queue import SimpleQueue
from typing import Any

LIFE, STEP, LOAD, COMPILE, SAVE, RESTORE, PREPARE = "life", "step", "load", "compile", "save", "restore", "prepare"
EVALUATION = "eval"
BYTES = 1 << 21  # some thousand readings


def _page(path: str) -> mmap.mmap:
    """A memory-mapped file: what is written there outlives the process, and takes no system call."""
    if path == os.devnull:
        return mmap.mmap(-1, BYTES)
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.ftruncate(file, BYTES)
    return mmap.mmap(file, BYTES)


class Witness:
    """Records when each chore began and ended.

    Attributes:
        number: of the current step.
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
        """Record that a chore begins (at the Unix time `at`, ns; by default now); returns its key."""
        key = next(self._keys)
        begun = time.time_ns() if at is None else at
        self._write(key=[os.getpid(), key], kind=kind, begin=begun, step=self.number, device=device)
        return key

    def end(self, key: int, at: int | None = None, *, left: bool = False) -> None:
        """Record that the chore `key` has ended, or was `left` before its end."""
        self._write(key=[os.getpid(), key], end=time.time_ns() if at is None else at, left=left)

    @contextmanager
    def of(self, kind: str) -> Iterator[None]:
        """Record a chore that lasts as long as the block; if an exception ends it, it has no end."""
        key = self.begin(kind)
        yield
        self.end(key)

    @contextmanager
    def life(self, *, of_process: bool = False) -> Iterator[None]:
        """Record one life of the job; `of_process`: it began with this process (Linux only)."""
        key = self.begin(LIFE, _process_began() if of_process else None)
        try:
            yield
        finally:
            self.end(key)
            self.settle()

    def watch(self, kind: str, begun: int, output: Any) -> None:
        """Record that the device works on `output` from `begun` (Unix ns) until its ``block_until_ready`` returns."""
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
        """Wait for the work on the device."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self._outputs.put(None)
            waiting.join()


def _process_began() -> int:
    """When this process began, ns since 1970."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    running = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time_ns() - round(running * 1e9)


witness = Witness(os.environ.get("EVERYDAY_READINGS", os.devnull))

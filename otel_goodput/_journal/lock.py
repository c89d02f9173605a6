"""File locks: only one process may write an attempt, or send a file.

Some file systems have no ``flock`` (Lustre mounted without ``-o flock``: ENOSYS; NFS without lockd: ENOLCK). There
POSIX record locks are tried. Without those, the file's content names the process and the machine that hold it, and its
modification time, which the holder renews, shows whether that process is alive.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from otel_goodput._runtime import files
from otel_goodput._runtime.guard import report_once
from otel_goodput._text.redact import redacting_logger

logger = redacting_logger(__name__)

RENEWED_S: Final = 1.0  # from one renewal of a lock that the file system does not keep to the next
FRESH_S: Final = 15.0  # a lock that another machine has not renewed for longer than this is free
# Clocks of machines differ. Whoever wants to take a lock that is younger than this watches whether it is renewed.
YOUNG_S: Final = 3600.0
WATCHED_S: Final = 3 * RENEWED_S
_HELD: Final = frozenset({errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES})
_OURS: set[tuple[int, str]] = set()  # pid and path: closing any descriptor would release a POSIX lock of this process


class Holder(NamedTuple):
    """The process that took a lock last, according to the file."""

    pid: str = ""  # empty if unknown, or if it has released the lock
    started: str = ""  # see :func:`started`
    machine: str = ""  # where that pid means a process: boot, and namespace of pids


class Lock:
    """A lock on a file. It is released when the process that holds it ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = -1
        self._renewing = False
        self._renewed = 0.0

    @property
    def _ours(self) -> bool:
        return (os.getpid(), str(self.path)) in _OURS

    def acquire(self) -> bool:
        """Take the lock without waiting; returns False if another process holds it.

        Without locks in the file system, it may have to watch for seconds whether another machine still renews it.
        Raises OSError if the file cannot be created.
        """
        if self._ours:
            return False
        file = files.descriptor(self.path, os.O_RDWR | os.O_CREAT)
        locked = _try(file, fcntl.LOCK_EX)
        if locked is False or (locked is None and self._claimed(watch=True)):
            os.close(file)
            return False
        if locked is None:
            report_once(
                "locks",
                "the file system of %s does not support file locks, so process ids and signs of life show whether a "
                "run is still being written; see docs/restarts.md",
                self.path.parent,
            )
            self._renewing = True
        os.ftruncate(file, 0)
        os.pwrite(file, "\n".join([*_this_process(), ""]).encode(), 0)
        self._file = file
        _OURS.add((os.getpid(), str(self.path)))
        return True

    def renew(self) -> None:
        """Give a sign of life, if the file system keeps no locks. Cheap; call it once in a while."""
        now = time.monotonic()
        if self._renewing and self._file >= 0 and now - self._renewed >= RENEWED_S:
            self._renewed = now
            with suppress(OSError):
                os.utime(self._file)

    def held(self, *, watch: bool = False) -> bool:
        """Whether a living process holds the lock; see :meth:`_claimed` for `watch`."""
        if self._ours:
            return True
        try:
            file = files.descriptor(self.path, os.O_RDONLY)  # it may be on a disk that is only read
        except OSError:
            return False
        try:
            # Shared, so that two processes that only check do not take each other for a writer.
            locked = _try(file, fcntl.LOCK_SH)
        finally:
            os.close(file)
        return self._claimed(watch=watch) if locked is None else not locked

    def last_holder(self) -> Holder:
        """Return the process that took the lock last, according to the file."""
        try:
            lines = files.read(self.path).decode("ascii").split("\n")
        except (OSError, ValueError):
            return Holder()
        holder = Holder(*(*lines, "", "", "")[:3])
        return holder if holder.pid.isdecimal() and len(holder.pid) < 16 else Holder()

    def here(self) -> bool:
        """Whether the process that took the lock last lives on this machine."""
        holder, machine = self.last_holder(), _machine()
        return bool(machine) and holder.machine == machine and started(holder.pid) == holder.started

    def stopped(self) -> bool:
        """Whether the process that took the lock last is on this machine, and is stopped, as by SIGSTOP."""
        holder = self.last_holder()
        if not self.here():
            return False
        try:
            about = files.read_named(Path(f"/proc/{holder.pid}/stat")).decode("ascii", "replace").rpartition(")")[2]
        except OSError:
            return False
        return about.split()[:1] in (["T"], ["t"])

    def release(self) -> None:
        """Give the lock back. In a forked child, only this copy of it."""
        if self._file >= 0:
            file, self._file = self._file, -1
            if self._renewing and self._ours:
                with suppress(OSError):
                    os.ftruncate(file, 0)
            _OURS.discard((os.getpid(), str(self.path)))
            os.close(file)

    def _claimed(self, *, watch: bool = False) -> bool:
        """Whether a living process holds the file, according to its content, without locks in the file system.

        On another machine that is one that gave a sign of life lately; with `watch`, one that gives another one now.
        """
        holder = self.last_holder()
        if not holder.pid:
            return False
        here = _this_process()
        if holder.machine and holder.machine == here.machine:
            return started(holder.pid) == holder.started
        seen = self._seen()
        if abs(time.time() - seen / 1e9) > (YOUNG_S if watch else FRESH_S):
            return False
        until = time.monotonic() + WATCHED_S
        while watch and time.monotonic() < until:
            time.sleep(RENEWED_S / 10)
            if self._seen() != seen:
                return True
        return not watch

    def _seen(self) -> int:
        """Return when the lock was renewed last, ns; 0 if unknown."""
        with suppress(OSError), files.opened(self.path) as file:  # opened, because NFS looks at the server only then
            return os.fstat(file.fileno()).st_mtime_ns
        return 0


def _try(file: int, kind: int) -> bool | None:
    """Try to lock without waiting: whether that succeeded; None if the file system has no locks."""
    for name in ("flock", "lockf"):
        try:
            getattr(fcntl, name)(file, kind | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno in _HELD:
                return False
    return None


def _this_process() -> Holder:
    pid = str(os.getpid())
    return Holder(pid, started(pid), _machine())


def started(pid: str) -> str:
    """Return when a process of this machine began, in clock ticks since the machine did; empty if there is none.

    A zombie has ended. Without /proc, it is ``?`` for a process that lives.
    """
    try:
        about = files.read_named(Path(f"/proc/{pid}/stat")).decode("ascii", "replace").rpartition(")")[2].split()
        return "" if about[0] in "ZX" else about[19]
    except (OSError, IndexError):
        pass
    if Path("/proc/self/stat").exists():
        return ""
    try:  # a system without /proc
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return ""
    except OSError:
        pass
    return "?"


def _machine() -> str:
    """Return what is the same for all processes that a pid of this one means; empty if that is unknown."""
    try:
        boot = files.read_named(Path("/proc/sys/kernel/random/boot_id")).decode("ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except (OSError, ValueError):
        return socket.gethostname()

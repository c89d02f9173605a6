"""File locks: only one process may write an attempt, or send a file."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from otel_goodput import files
from otel_goodput.text.redact import redacting_logger

logger = redacting_logger(__name__)


class Lock:
    """A lock on a file. It is released when the process that holds it ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = -1

    def acquire(self) -> bool:
        """Take the lock without waiting; returns False if another process holds it.

        Raises:
            OSError: the file cannot be created.
        """
        file = files.descriptor(self.path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return False
        except OSError as error:
            logger.warning(
                "journal: %s cannot be locked (%s); make sure that only one process writes it", self.path, error
            )
        os.ftruncate(file, 0)
        os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        self._file = file
        return True

    def held(self) -> bool:
        """Whether a living process holds the lock."""
        try:
            file = files.descriptor(self.path, os.O_RDONLY)  # it may be on a disk that is only read
        except OSError:
            return False
        try:
            # Shared, so that two processes that only check do not take each other for a writer.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(file)
        return False

    def holder(self) -> str:
        """The pid of the process that took the lock last, as text; empty if unknown."""
        try:
            found = files.read(self.path).decode("ascii").strip()
        except (OSError, ValueError):
            return ""
        return found if found.isdecimal() else ""

    def release(self) -> None:
        if self._file >= 0:
            file, self._file = self._file, -1
            os.close(file)

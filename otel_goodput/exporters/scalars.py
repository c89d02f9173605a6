"""Scalars for TensorBoard, in its event files, by its own encoders; in a folder or at an fsspec URL.

TensorBoard's ``EventFileWriter`` is not used: where TensorFlow is installed it imports that into the job, and its
thread ends at the first error, with what it held.
"""

from __future__ import annotations

import io
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, Final

from otel_goodput._journal.mirror import open_filesystem
from otel_goodput._runtime import files
from otel_goodput._runtime.installation import install_command
from otel_goodput._text.redact import encodable, without_credentials
from otel_goodput.errors import JournalError
from otel_goodput.exporters.spec import ExporterUnavailable

# An object in a bucket cannot be appended to: a file is uploaded whole each time, so another one is begun at this size.
# TensorBoard reads the files of a folder one after the other.
LARGEST: Final = 1 << 20
# Bytes that are kept while they cannot be written: about a week of the figures of a run.
MOST_KEPT: Final = 16 << 20

OURS: Final = ".goodput"  # what the name of a file of ours ends with

_number = count()


class ScalarWriter:
    """Writes scalars to an event file of its own in `directory`, which is made if it is not there. Thread-safe.

    The writer has no thread, and nothing happens in a forked child unless it is
    called there.

    Args:
        directory: path or fsspec URL, such as ``gs://bucket/run``. The last part of a path may not be a link.
        shared: whether others of this machine may read the files, as far as the umask allows, as those of TensorBoard's
            own writers; otherwise only their owner.
        of: the directory that the user named, above a path: what is below it is used only if its owner is trusted. By
            default it is `directory` itself.

    Raises:
        ExporterUnavailable: a package is missing: TensorBoard, or the one for this kind of URL.
        OSError: the folder cannot be written to.
    """

    def __init__(self, directory: str, *, shared: bool = False, of: Path | None = None) -> None:
        self._records = _Records()
        self._lock = threading.Lock()
        self._kept: deque[bytes] = deque()
        self._bytes = 0  # of what is kept
        self._given_up = 0
        self._step: int | None = None  # of the latest value
        self._place: _Bucket | _Folder
        if "://" in directory:
            self._place = _Bucket(directory, self._records.head)
        else:
            self._place = _Folder(directory, self._records.head, shared=shared, of=of)

    @property
    def lost(self) -> int:
        """How many values were given up, because they could not be written for too long."""
        return self._given_up

    @property
    def unwritten(self) -> int:
        """How many values wait to be written."""
        return len(self._kept)

    def write(self, tag: str, value: float, step: int, wall_time: float) -> None:
        """Take a value, which :meth:`flush` writes; `wall_time` is in seconds since the epoch."""
        record = self._records.scalar(tag, value, step, wall_time)
        if (self._step is None or step < self._step) and self._place.alone():
            # The steps from here on are done again: TensorBoard drops the values that it has of them. It would drop
            # those of other writers too.
            record = self._records.start(step) + record
        self._step = step
        with self._lock:
            self._kept.append(record)
            self._bytes += len(record)
            while self._bytes > MOST_KEPT:
                self._bytes -= len(self._kept.popleft())
                self._given_up += 1

    def flush(self) -> None:
        """Write to the disk, or the URL, what it was given.

        Raises:
            OSError: that is not possible. What was not written is kept for the next time.
        """
        with self._lock:
            if self._kept:
                self._place.append(b"".join(self._kept))
                self._kept.clear()
                self._bytes = 0

    def close(self) -> None:
        """Flush, and close the file.

        Raises:
            OSError: what is left could not be written.
        """
        try:
            self.flush()
        finally:
            self._place.close()


class _Records:
    """TensorBoard's events as bytes. Raises ExporterUnavailable if TensorBoard is not installed."""

    def __init__(self) -> None:
        try:
            from tensorboard.compat.proto.event_pb2 import Event, SessionLog
            from tensorboard.plugins.scalar.summary_v2 import scalar_pb
            from tensorboard.summary.writer.record_writer import RecordWriter
        except ImportError as error:
            raise ExporterUnavailable("tensorboard", str(error), install_command("tensorboard")) from error
        self._event: Any = Event
        self._session: Any = SessionLog
        self._summary: Any = scalar_pb
        self._writer: Any = RecordWriter

    def head(self) -> bytes:
        """What a file begins with."""
        return self._record(self._event(wall_time=time.time(), file_version="brain.Event:2"))

    def scalar(self, tag: str, value: float, step: int, wall_time: float) -> bytes:
        return self._record(self._event(wall_time=wall_time, step=step, summary=self._summary(encodable(tag), value)))

    def start(self, step: int) -> bytes:
        """The start of a session at `step`: TensorBoard takes what it read before of later steps for superseded."""
        session = self._session(status=self._session.START)
        return self._record(self._event(wall_time=time.time(), step=step, session_log=session))

    def _record(self, event: Any) -> bytes:
        stream = io.BytesIO()
        self._writer(stream).write(event.SerializeToString())
        return stream.getvalue()


def _name() -> str:
    """The name of a new file: TensorBoard looks for ``tfevents``, and reads in the order of the names."""
    now = int(time.time())
    return f"events.out.tfevents.{now:010d}.{socket.gethostname()}.{os.getpid()}.{next(_number):06d}{OURS}"


def _alone(names: Iterable[str]) -> bool:
    """Return whether all event files among these `names` are of this module's writers."""
    return all(name.endswith(OURS) for name in names if "tfevents" in name)


class _Folder:
    """A file in a folder."""

    def __init__(self, directory: str, head: Callable[[], bytes], *, shared: bool, of: Path | None) -> None:
        place = Path(directory)
        self._path = files.named(place.parent) / place.name
        self._of = self._path if of is None else of
        self._head = head
        self._shared = shared
        self._fd: int | None = None
        self._begin()

    def append(self, data: bytes) -> None:
        """Append the whole of `data`, or nothing. Raises OSError."""
        try:
            # A file without links has been deleted while open: what is written to it would be lost.
            if self._fd is None or os.fstat(self._fd).st_nlink == 0:
                self.close()
                self._begin()
            assert self._fd is not None, "it was opened above"
            files.append_whole(self._fd, data)
        except OSError as error:
            self.close()  # another file may do better, such as after a mount has come back
            raise OSError(error.errno, error.strerror, str(self._path)) from error

    def alone(self) -> bool:
        """Whether it is known that no other writer has event files here."""
        try:
            return _alone(each.name for each in Path(self._path).iterdir())
        except OSError:
            return False

    def _begin(self) -> None:
        files.make_folders(self._path, self._of, shared=self._shared)
        path = self._path / _name()
        fd = files.descriptor(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, shared=self._shared)
        try:
            files.append_whole(fd, self._head())
        except BaseException:
            os.close(fd)
            with suppress(OSError):  # each try on a full disk would leave an empty file
                files.remove(path)
            raise
        self._fd = fd

    def close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


class _Bucket:
    """A file at a URL, uploaded whole each time."""

    def __init__(self, url: str, head: Callable[[], bytes]) -> None:
        self._url = without_credentials(url)
        try:
            self._filesystem, self._path = open_filesystem(url, "log directory")
        except JournalError as error:
            raise ExporterUnavailable("tensorboard", str(error)) from error
        except Exception as error:  # some connect already here
            raise self._failed(error) from error
        self._head = head
        self._name = ""
        self._there = b""  # what the file holds

    def append(self, data: bytes) -> None:
        """Append the whole of `data`, or nothing. Raises OSError."""
        name, there = self._name, self._there
        if not there or len(there) >= LARGEST:
            name, there = _name(), self._head()
        whole = there + data
        try:
            self._filesystem.makedirs(self._path, exist_ok=True)
            self._filesystem.pipe_file(f"{self._path}/{name}", whole)
        except Exception as error:  # each fsspec filesystem raises its own errors
            raise self._failed(error) from error
        self._name, self._there = name, whole

    def alone(self) -> bool:
        """Whether it is known that no other writer has event files here."""
        try:
            return _alone(str(name) for name in self._filesystem.ls(self._path, detail=False))
        except FileNotFoundError:
            return True
        except Exception:  # each fsspec filesystem raises its own errors
            return False

    def _failed(self, error: Exception) -> OSError:
        return OSError(f"{self._url}: {type(error).__name__}: {without_credentials(str(error))}")

    def close(self) -> None:
        pass

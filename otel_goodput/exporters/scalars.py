"""Scalars for TensorBoard, in its event files, by its own writer; in a folder or at an fsspec URL."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from otel_goodput import files
from otel_goodput.errors import JournalError
from otel_goodput.exporters.spec import ExporterUnavailable
from otel_goodput.journal.mirror import open_filesystem
from otel_goodput.text.redact import without_credentials

HINT: Final = "pip install 'otel-goodput[tensorboard]'"
# An object in a bucket cannot be appended to: a file is uploaded whole each time, so another one is begun at this size.
# TensorBoard reads the files of a folder one after the other.
LARGEST: Final = 1 << 20


class ScalarWriter:
    """Writes scalars to an event file of its own in `directory`, which is made if it is not there. Thread-safe.

    Args:
        directory: path or fsspec URL, such as ``gs://bucket/run``.

    Raises:
        ExporterUnavailable: a package is missing: TensorBoard, or the one for this kind of URL.
        OSError: the folder cannot be written to.
    """

    def __init__(self, directory: str) -> None:
        try:
            from tensorboard.summary import Writer
        except ImportError as error:
            raise ExporterUnavailable("tensorboard", str(error), HINT) from error
        self._lock = threading.Lock()
        self._make: Any = Writer
        self._remote: _Remote | None = _Remote(directory) if "://" in directory else None
        self._scratch = ExitStack()  # removes the local files
        self._folder = Path(directory if self._remote is None else self._scratch.enter_context(files.scratch()))
        self._writer: Any = Writer(str(self._folder))

    def write(self, tag: str, value: float, step: int, wall_time: float) -> None:
        """Write a value; `wall_time` is in seconds since the epoch.

        Raises:
            OSError: what was written before could not be.
        """
        with self._lock:
            self._writer.add_scalar(tag, value, step, wall_time=wall_time)

    def flush(self) -> None:
        """Write to the disk, or the URL, what it was given.

        Raises:
            OSError: that is not possible.
        """
        with self._lock:
            self._flush()

    def _flush(self) -> None:
        self._writer.flush()
        remote = self._remote
        if remote is not None and remote.copy(self._folder):
            self._writer.close()
            self._writer = self._make(str(self._folder))

    def close(self) -> None:
        """Flush, and end its thread.

        Raises:
            OSError: what was written before could not be.
        """
        with self._lock:
            try:
                self._flush()
            finally:
                self._writer.close()
                self._scratch.close()


class _Remote:
    """Copies the event files of a local folder to a URL."""

    def __init__(self, url: str) -> None:
        try:
            self._filesystem, self._path = open_filesystem(url)
        except JournalError as error:
            raise ExporterUnavailable("tensorboard", str(error)) from error
        self._url = without_credentials(url)
        self._done: set[str] = set()  # files that do not grow any more

    def copy(self, folder: Path) -> bool:
        """Copy what may have grown; returns whether another file should be begun."""
        full = False
        for name in files.names(folder):
            if name in self._done:
                continue
            data = files.read(folder / name, 16 * LARGEST)
            try:
                self._filesystem.makedirs(self._path, exist_ok=True)
                self._filesystem.pipe_file(f"{self._path}/{name}", data)
            except Exception as error:  # each fsspec filesystem raises its own errors
                raise OSError(f"{self._url}: {without_credentials(str(error))}") from error
            if len(data) >= LARGEST:
                self._done.add(name)
                full = True
        return full

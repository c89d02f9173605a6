"""A journal at a URL: a local spool that is copied up by a thread of its own and copied down at the start.

What was written since the last copy dies with the machine, not with the process: a restart on the same machine finds
the spool.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import threading
from pathlib import Path
from typing import Any, Final

from otel_goodput.errors import JournalError
from otel_goodput.guard import report_once
from otel_goodput.journal.journal import Journal
from otel_goodput.journal.records import HEADER_SIZE, SIZE
from otel_goodput.journal.rundir import RunDirectory, write_privately
from otel_goodput.printable import without_credentials

logger = logging.getLogger(__name__)

UPLOAD_S: Final = 10.0


def open_filesystem(url: str) -> tuple[Any, str]:
    """The fsspec filesystem of `url` and the path in it.

    Raises:
        JournalError: fsspec or the scheme's package is missing, or the URL makes no sense.
    """
    shown = without_credentials(url)
    try:
        import fsspec
    except ImportError as error:
        raise JournalError(f"a journal at {shown} needs fsspec: pip install 'otel-goodput[remote]'") from error
    try:
        filesystem, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise JournalError(without_credentials(f"the journal's URL {url} cannot be used: {error}")) from None
    return filesystem, str(path)


def spool(url: str) -> Path:
    """Where the journal of `url` lives on this machine: the same for every process of this user."""
    name = hashlib.sha256(url.encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"otel-goodput-{os.getuid() if hasattr(os, 'getuid') else 'spool'}" / name


class Mirror:
    """Keeps a run's folder at a URL in step with its spool.

    Args:
        url: of the journals' directory.
        run: the run's folder in the spool.

    Raises:
        JournalError: as :func:`open_filesystem`.
    """

    def __init__(self, url: str, run: RunDirectory) -> None:
        self._filesystem, base = open_filesystem(url)
        self._run = run
        self._base = base.rstrip("/")
        self._remote = f"{self._base}/{run.path.name}"
        self._sent: dict[str, tuple[int, int]] = {}
        self._live = ("", -1)
        self._ended = threading.Event()
        self._sending = threading.Lock()
        self.shown = without_credentials(url)

    def exists(self) -> bool:
        """Whether the URL has a run there."""
        return bool(self._filesystem.isdir(f"{self._remote}/journal"))

    def siblings(self) -> list[str]:
        """Names of the runs' folders at the URL.

        Raises:
            OSError: the URL cannot be reached.
        """
        try:
            entries = self._filesystem.ls(self._base, detail=False)
        except FileNotFoundError:
            return []
        return [str(entry).rstrip("/").rsplit("/", 1)[-1] for entry in entries]

    def fetch(self) -> None:
        """Bring down what the spool does not have, such as the attempts of another machine.

        Raises:
            OSError: the URL cannot be reached.
        """
        self._run.journal.mkdir(parents=True, exist_ok=True, mode=0o700)
        for part in ("", "journal/"):
            try:
                entries = self._filesystem.ls(f"{self._remote}/{part}", detail=True)
            except FileNotFoundError:
                continue
            for entry in entries:
                name = str(entry["name"]).rstrip("/").rsplit("/", 1)[-1]
                local = self._run.path / part / name
                if entry.get("type") == "directory" or name.endswith((".jsonl", ".lock", ".part")):
                    continue
                # Our own spool is never behind what was copied from it.
                if not local.exists() or (name.endswith(".snapshot") and not self._own_segments()):
                    write_privately(local, self._filesystem.cat_file(entry["name"]))

    def fetch_paces(self, own: int) -> None:
        """Bring down what the processes other than `own` tell of their paces.

        Raises:
            OSError: the URL cannot be reached.
        """
        for entry in self._filesystem.ls(f"{self._remote}/journal", detail=False):
            local = self._run.journal / str(entry).rstrip("/").rsplit("/", 1)[-1]
            if local.suffix == ".pace" and local != self._run.pace_path(own):
                write_privately(local, self._filesystem.cat_file(entry))

    def _own_segments(self) -> bool:
        return any(self._run.journal.glob("*.lock"))

    def start(self, journal: Journal, listener: int | None) -> None:
        """Copy up every few seconds from now on, in a thread that may hang as long as the storage likes.

        `listener`: the process that wants to know what the others tell of their paces; None: nobody does.
        """
        name = "otel-goodput-mirror"
        threading.Thread(target=self._loop, args=(journal, listener), name=name, daemon=True).start()

    def _loop(self, journal: Journal, listener: int | None) -> None:
        while not self._ended.is_set():
            self.send(journal)
            if listener is not None:
                try:
                    self.fetch_paces(listener)
                except Exception as error:  # every filesystem has errors of its own
                    report_once(
                        "paces", "the paces of the processes cannot be read: %s", without_credentials(str(error))
                    )
            self._ended.wait(UPLOAD_S)

    def stop(self) -> None:
        """No more copies but those that are asked for by :meth:`send`."""
        self._ended.set()

    def send(self, journal: Journal) -> None:
        """Copy up what has changed; trouble is reported once and tried again the next time."""
        with self._sending:
            try:
                self._send(journal)
            except Exception as error:  # every filesystem has errors of its own
                report_once(
                    f"journal upload {self.shown}",
                    "the journal cannot be copied to %s: %s: %s. It stays in %s and is tried again",
                    self.shown,
                    type(error).__name__,
                    without_credentials(str(error)),
                    self._run.path,
                )

    def _send(self, journal: Journal) -> None:
        current = journal.current
        live = current.path.name if current.path is not None else ""
        present = set()
        changing = False
        for path in (self._run.path / "run.json", *sorted(self._run.journal.iterdir())):
            if path.name == live or path.suffix in (".lock", ".part"):
                continue
            try:
                if path.suffix == ".segment" and not _in_use(path):
                    continue
                about = path.stat()
                state = (about.st_size, about.st_mtime_ns)
                data = path.read_bytes() if self._sent.get(path.name) != state else None
            except FileNotFoundError:
                changing = True  # the keeper has just put it into a snapshot
                continue
            if data is not None:
                self._put(path, data)
                self._sent[path.name] = state
            present.add(path.name)
        read = current.read  # moves on while this is copied
        if current.path is not None and self._live != (live, read):
            try:
                with current.path.open("rb") as file:  # a segment that is closed has nothing in memory
                    data = file.read(HEADER_SIZE + read * SIZE)
            except FileNotFoundError:
                changing = True  # full and sealed while the others were copied
            else:
                self._put(current.path, data)
                self._live = (live, read)
                self._sent[live] = (0, 0)
                present.add(live)
        # Nothing may go from the URL before what stands for it is there.
        for gone in () if changing else set(self._sent) - present - {live}:
            self._filesystem.rm_file(f"{self._remote}/journal/{gone}")
            del self._sent[gone]

    def put(self, path: Path) -> None:
        """Copy up one file of the run.

        Raises:
            OSError: the URL cannot be reached.
        """
        self._put(path, path.read_bytes())

    def _put(self, path: Path, data: bytes) -> None:
        remote = f"{self._remote}/{path.relative_to(self._run.path).as_posix()}"
        self._filesystem.makedirs(remote.rsplit("/", 1)[0], exist_ok=True)
        self._filesystem.pipe_file(remote, data)


def _in_use(segment: Path) -> bool:
    """Whether it is more than laid ready, and perhaps not even that yet.

    Raises:
        OSError: it cannot be read.
    """
    with segment.open("rb") as file:
        return any(file.read(HEADER_SIZE))

"""A journal at a URL: a local spool that is copied up by a thread of its own and copied down at the start.

What was written since the last copy dies with the machine, not with the process: a restart on the same machine finds
the spool.
"""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from otel_goodput import files
from otel_goodput.errors import JournalError
from otel_goodput.guard import report_once
from otel_goodput.journal.journal import Journal
from otel_goodput.journal.records import HEADER_SIZE, SIZE
from otel_goodput.journal.rundir import IDENTITY_FILE, RunDirectory, bound
from otel_goodput.text.redact import printable, redacting_logger, without_credentials

logger = redacting_logger(__name__)

UPLOAD_S: Final = 10.0
_AT_HOME: Final = (".jsonl", ".lock", files.PART)  # ends of names that are not copied
_UNUSED: Final = (0, 0)


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
    """Where the journal of `url` is to live on this machine: the same for every process of this user."""
    name = hashlib.sha256(url.encode()).hexdigest()[:16]
    return files.temporary() / f"otel-goodput-{os.getuid() if hasattr(os, 'getuid') else 'spool'}" / name


def check_spool(url: str) -> None:
    """Look at what lies in the spool's place.

    Raises:
        FileNotFoundError: nothing does, as before the first run.
        OSError: it is a link, another user's, or open to others.
    """
    files.make_folders(spool(url), files.temporary(), private=True, make=False)


def open_spool(url: str) -> Path:
    """Make the spool; where somebody else has been there before, a folder under a random name in its stead."""
    place = spool(url)
    try:
        files.make_folders(place, files.temporary(), private=True)
    except OSError as error:
        try:
            other = files.lasting_scratch()
        except OSError:
            return Path(os.devnull) / place.name  # no folder: whoever makes it there says so
        logger.warning(
            "the journal's copy on this machine cannot be %s (%s): it is %s this time, and a restart does not look "
            "there for what had not been copied up",
            error.filename,
            error.strerror,
            other,
        )
        return other
    return place


def plain(name: str) -> bool:
    """Whether this is the name of one thing in a folder, and of nothing else."""
    return name not in ("", ".", "..") and name.isprintable() and not set(name) & set("/\\") and len(name) <= 255


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
        # A folder as a storage is written and read as our own are: others may have put links and pipes there.
        protocols = self._filesystem.protocol
        local = "file" in ((protocols,) if isinstance(protocols, str) else protocols)
        self._folder = files.named(base) if local else None
        self._base = str(self._folder or base.rstrip("/"))
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
        self._run.make()
        for part in ("", "journal/"):
            for name, entry in self._objects(part):
                local = self._run.path / part / name
                # Our own spool is never behind what was copied from it.
                if not files.exists(local) or (name.endswith(".snapshot") and not self._own_segments()):
                    self._bring(entry, local)

    def fetch_paces(self, own: int) -> None:
        """Bring down what the processes other than `own` tell of their paces.

        Raises:
            OSError: the URL cannot be reached.
        """
        for name, entry in self._objects("journal/"):
            local = self._run.journal / name
            if local.suffix == ".pace" and local != self._run.pace_path(own):
                self._bring(entry, local)

    def _objects(self, part: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """What the journal has there, by its name; what is no file of a journal is left alone."""
        try:
            entries = self._filesystem.ls(f"{self._remote}/{part}", detail=True)
        except FileNotFoundError:
            return
        for entry in entries:
            key = str(entry["name"])
            name = key.rstrip("/").rpartition("/")[2]
            if entry.get("type") == "directory" or name.endswith(_AT_HOME):
                continue
            regular = entry.get("type", "file") == "file" and not entry.get("islink")
            if regular and plain(name) and bound(name) is not None and (name == IDENTITY_FILE) is not bool(part):
                yield name, entry
            else:
                self._tell(name, "it is no file of a journal, and left alone")

    def _bring(self, entry: dict[str, Any], local: Path) -> None:
        most, size = bound(local.name) or 0, entry.get("size")
        if size == 0:
            data = b""  # some have no range of nothing
        elif isinstance(size, int) and size > most:
            data = None
        elif self._folder is not None:
            data = files.read(Path(entry["name"]), most)
        else:
            data = self._filesystem.cat_file(entry["name"], end=most + 1)
        if data is None or len(data) > most:
            self._tell(local.name, f"it holds more than {most} bytes, and is left out")
            return
        files.write_privately(local, data)

    def _tell(self, name: str, what: str, error: object = "") -> None:
        """Of many such names the first."""
        report_once(f"journal object: {what}", "the journal at %s: %s: %s%s", self.shown, printable(name), what, error)

    def _own_segments(self) -> bool:
        return any(name.endswith(".lock") for name in files.names(self._run.journal))

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
        for path in (self._run.path / IDENTITY_FILE, *map(self._run.journal.joinpath, _known(self._run))):
            if path.name == live:
                continue
            try:
                data, state = self._changed(path)
            except FileNotFoundError:
                changing = True  # the keeper has just put it into a snapshot
                continue
            except OSError as error:
                changing = True
                self._tell(path.name, "it is not copied up: ", error)
                continue
            if data is not None:
                self._put(path, data)
                self._sent[path.name] = state
            if state != _UNUSED:
                present.add(path.name)
        read = current.read  # moves on while this is copied
        if current.path is not None and self._live != (live, read):
            try:
                data = files.beginning(current.path, HEADER_SIZE + read * SIZE)
            except FileNotFoundError:
                changing = True  # full and sealed while the others were copied
            else:
                self._put(current.path, data)
                self._live = (live, read)
                self._sent[live] = _UNUSED
                present.add(live)
        # Nothing may go from the URL before what stands for it is there.
        for gone in () if changing else set(self._sent) - present - {live}:
            self._remove(f"{self._remote}/journal/{gone}")
            del self._sent[gone]

    def _changed(self, path: Path) -> tuple[bytes | None, tuple[int, int]]:
        """What is to be copied of a file, None where that has been done; and its size and time, for the next time.

        Raises:
            OSError: it cannot be read, or is none of ours.
        """
        with files.opened(path) as file:
            # A spare segment is more than laid ready, and perhaps not even that yet.
            if path.suffix == ".segment" and not any(file.read(HEADER_SIZE)):
                return None, _UNUSED
            about = os.fstat(file.fileno())
            if about.st_nlink > 1:
                raise OSError(errno.EPERM, "it is a link to another file", str(path))
            state = (about.st_size, about.st_mtime_ns)
            if self._sent.get(path.name) == state:
                return None, state
            return files.whole(file, path, bound(path.name) or 0), state

    def put(self, path: Path) -> None:
        """Copy up one small file of the run.

        Raises:
            OSError: the URL cannot be reached.
        """
        self._put(path, files.read(path))

    def _put(self, path: Path, data: bytes) -> None:
        remote = f"{self._remote}/{path.relative_to(self._run.path).as_posix()}"
        if self._folder is not None:
            files.make_folders(Path(remote).parent, self._folder)
            files.write_privately(Path(remote), data)
            return
        self._filesystem.makedirs(remote.rsplit("/", 1)[0], exist_ok=True)
        self._filesystem.pipe_file(remote, data)

    def _remove(self, remote: str) -> None:
        if self._folder is not None:
            files.remove(Path(remote))
        else:
            self._filesystem.rm_file(remote)


def _known(run: RunDirectory) -> list[str]:
    """Names of the journal's own files in a run's folder."""
    return sorted(name for name in files.names(run.journal) if bound(name) is not None and name != IDENTITY_FILE)

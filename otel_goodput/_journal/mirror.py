"""A journal at a URL: a local spool that is downloaded at the start and uploaded by a thread of its own.

If the machine dies, records since the last upload are lost. If only the process dies, they are not: a restart on the
same machine finds the spool.
"""

from __future__ import annotations

import errno
import hashlib
import os
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from otel_goodput._journal.journal import Journal
from otel_goodput._journal.records import HEADER_SIZE, SEGMENT_NAME, SIZE
from otel_goodput._journal.rundir import IDENTITY_FILE, JOB, REASONS_FILE, RunDirectory, bound, owner
from otel_goodput._journal.stacks import settled
from otel_goodput._runtime import files
from otel_goodput._runtime.guard import report_once, started
from otel_goodput._runtime.installation import install_command
from otel_goodput._text.redact import printable, redacting_logger, without_credentials
from otel_goodput.errors import JournalError

logger = redacting_logger(__name__)

UPLOAD_S: Final = 10.0
_AT_HOME: Final = (".jsonl", ".lock", files.PART)  # name suffixes of files that are not copied
# The recorded reasons are not ours: we would replace newer ones at the URL by those that we once fetched.
_NOT_SENT: Final = {IDENTITY_FILE, REASONS_FILE}
_REPLACED: Final = (".snapshot", ".digest", ".facts", ".usage", ".offsets")  # suffixes of files that are written again
_UNUSED: Final = (0, 0)
_FILES: Final = ("", "journal/")  # where a run has files,
_OF_JOB: Final = (f"{JOB}/", f"{JOB}/journal/")  # and the job's own records


def open_filesystem(url: str, what: str = "journal") -> tuple[Any, str]:
    """Return the fsspec filesystem of `url` and the path in it; `what` is there, for messages.

    Raises JournalError if fsspec or the package for the URL scheme is missing, or the URL is invalid.
    """
    try:
        import fsspec
    except ImportError as error:
        shown = without_credentials(url)
        raise JournalError(f"a {what} at {shown} needs fsspec: {install_command('remote')}") from error
    try:
        filesystem, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise JournalError(without_credentials(f"the {what}'s URL {url} cannot be used: {error}")) from None
    return filesystem, str(path)


def spool(url: str) -> Path:
    """The local folder for the journal of `url`: the same for every process of this user on this machine."""
    name = hashlib.sha256(url.encode()).hexdigest()[:16]
    return files.temporary() / f"otel-goodput-{os.getuid() if hasattr(os, 'getuid') else 'spool'}" / name


def check_spool(url: str) -> None:
    """Check that the spool folder is safe to use. Raises OSError; before the first run, FileNotFoundError."""
    files.make_folders(spool(url), files.temporary(), private=True, make=False)


def open_spool(url: str) -> Path:
    """Create the spool folder; if it is not safe to use, a folder with a random name instead."""
    place = spool(url)
    try:
        files.make_folders(place, files.temporary(), private=True)
    except OSError as error:
        try:
            other = files.lasting_scratch()
        except OSError:
            return Path(os.devnull) / place.name  # not a folder: the attempt to create files there reports the error
        logger.warning(
            "the local copy of the journal cannot be kept in %s (%s). It is kept in %s instead, where a restart "
            "will not find data that was not uploaded",
            error.filename,
            error.strerror,
            other,
        )
        return other
    return place


def plain(name: str) -> bool:
    """Whether this is a plain file name: no path, no control characters, not too long."""
    return name not in ("", ".", "..") and name.isprintable() and not set(name) & set("/\\") and len(name) <= 255


class Mirror:
    """Keeps a run's folder in the directory `url` in sync with its spool. Raises as :func:`open_filesystem`.

    Its methods raise OSError if the URL cannot be reached, except :meth:`send`.
    """

    def __init__(self, url: str, run: RunDirectory) -> None:
        self._filesystem, base = open_filesystem(url)
        self._run = run
        # If the URL is a local folder, use the same safe file functions: others may have put links or pipes there.
        protocols = self._filesystem.protocol
        local = "file" in ((protocols,) if isinstance(protocols, str) else protocols)
        self._folder = files.named(base) if local else None
        self._base = str(self._folder or base.rstrip("/"))
        self._remote = f"{self._base}/{run.path.name}"
        self._sent: dict[Path, tuple[int, int]] = {}
        self._brought: dict[Path, str] = {}
        self._live: dict[Path, tuple[Path, int]] = {}  # by run: the segment in use, and how much of it was uploaded
        self._job_listed = False
        self._ended = threading.Event()
        self._sending = threading.Lock()
        self.shown = without_credentials(url)

    def exists(self) -> bool:
        """Whether the run exists at the URL."""
        return bool(self._filesystem.isdir(f"{self._remote}/journal"))

    def siblings(self) -> list[str]:
        """Names of all runs' folders at the URL."""
        try:
            entries = self._filesystem.ls(self._base, detail=False)
        except FileNotFoundError:
            return []
        return [str(entry).rstrip("/").rsplit("/", 1)[-1] for entry in entries]

    def fetch(self, *, of_job: bool = True) -> None:
        """Download what the spool does not have, such as attempts of another machine.

        `of_job`: the job's own records, too. They are the leader's: on its machine, no other process may touch them.
        """
        # If this spool has written the journal, its files are never older than the uploaded ones.
        self._run.make()
        own = any(name.endswith(".lock") for name in files.names(self._run.journal))
        for local, entry in self._objects(*_FILES):
            if not files.exists(local) or (local.name.endswith(_REPLACED) and not own):
                self._bring(entry, local)
                self._match(entry, local)
            elif SEGMENT_NAME.fullmatch(local.name):
                self._match(entry, local)
        if of_job and self._has_job():
            self._fetch_job()

    def _fetch_job(self) -> None:
        """Download the job's own records, unless the latest ones were made here: those are newer than the uploaded."""
        folder, objects = self._run.of_job, dict(self._objects(*_OF_JOB))
        names = filter(None, (SEGMENT_NAME.fullmatch(local.name) for local in objects))
        latest = max((int(match[1]) for match in names), default=-1)
        here = folder.attempts(0)[-1:]
        if here and here[0] >= latest and files.exists(folder.file("lock", here[0], 0)):
            return
        folder.clear()  # another machine may have made all of them again
        folder.make()
        for local, entry in objects.items():
            self._bring(entry, local)
            self._match(entry, local)

    def _match(self, entry: dict[str, Any], local: Path) -> None:
        """Do not upload a file that is at the URL with this size: only its writer may have more of it."""
        if local.name in _NOT_SENT:
            return
        with suppress(FileNotFoundError):  # it was too large, and left out
            about = local.stat()
            if about.st_size == entry.get("size"):
                self._sent[local] = about.st_size, about.st_mtime_ns

    def refresh(self) -> None:
        """Make the spool equal to what is at the URL: bring what is new or has changed, remove what is gone.

        Only for those who read: who writes the journal has newer files than the URL, see :meth:`fetch`.
        """
        self._filesystem.invalidate_cache()
        self._run.make()
        objects = dict(self._objects(*_FILES))
        if self._has_job():
            self._run.of_job.make()
            objects |= self._objects(*_OF_JOB)
        for local, entry in objects.items():
            version = repr(sorted(entry.items(), key=str))  # an object's size, time or checksum, if it is replaced
            if self._brought.get(local) != version:
                with suppress(FileNotFoundError):  # its writer has just archived it: the next listing has the archive
                    self._bring(entry, local)
                    self._brought[local] = version
        for local in self._brought.keys() - objects.keys():
            files.remove(local)
            del self._brought[local]

    def _has_job(self) -> bool:
        return any(_name(entry) == JOB and entry.get("type") == "directory" for entry in self._entries(""))

    def _entries(self, part: str) -> list[dict[str, Any]]:
        try:
            return list(self._filesystem.ls(f"{self._remote}/{part}", detail=True))
        except FileNotFoundError:
            return []

    def _objects(self, *parts: str) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Yield the files of the run at the URL: the path of the copy, and the entry of fsspec. Others are reported."""
        for part in parts:
            for entry in self._entries(part):
                name = _name(entry)
                if entry.get("type") == "directory" or name.endswith(_AT_HOME):
                    continue
                regular = entry.get("type", "file") == "file" and not entry.get("islink")
                of_journal = part.endswith("journal/")
                if regular and plain(name) and bound(name) is not None and (name == IDENTITY_FILE) is not of_journal:
                    yield self._run.path / part / name, entry
                else:
                    self._report(name, "it is not a file of a journal, and is left unchanged")

    def _bring(self, entry: dict[str, Any], local: Path) -> None:
        most, size = bound(local.name) or 0, entry.get("size")
        data: bytes | None = None
        if size == 0:
            data = b""  # some filesystems cannot read an empty range
        elif not isinstance(size, int) or size <= most:
            name = entry["name"]
            data = files.read(Path(name), most) if self._folder else self._filesystem.cat_file(name, end=most + 1)
        if data is None or len(data) > most:
            self._report(local.name, f"it holds more than {most} bytes, and is left out")
        else:
            files.write_privately(local, data)

    def _report(self, name: str, what: str, error: object = "") -> None:
        """Report a problem with a file; only the first of each kind of problem is logged."""
        report_once(f"journal object: {what}", "the journal at %s: %s: %s%s", self.shown, printable(name), what, error)

    def start(
        self, journal: Journal, listener: int | None, of_job: Callable[[], Journal | None] = lambda: None
    ) -> None:
        """Start the thread that uploads every few seconds. Only this thread waits if the storage hangs.

        `listener`: index of this process if it compares the paces of the others, so that they are downloaded; else
        None. `of_job`: returns the journal of the job's own records, if this process writes them.
        """
        name = "otel-goodput-mirror"
        thread = threading.Thread(target=self._loop, args=(journal, listener, of_job), name=name, daemon=True)
        started(thread, f"the journal is uploaded to {self.shown} only at the end")

    def _loop(self, journal: Journal, listener: int | None, of_job: Callable[[], Journal | None]) -> None:
        while not self._ended.is_set():
            self.send(journal, of_job())
            try:
                if listener is not None:
                    own = self._run.file("pace", listener)
                    for local, entry in self._objects("journal/"):
                        if local.suffix == ".pace" and local != own:
                            self._bring(entry, local)
            except Exception as error:  # each fsspec filesystem raises its own errors
                report_once("paces", "the paces of the processes cannot be read: %s", without_credentials(str(error)))
            self._ended.wait(UPLOAD_S)

    def stop(self) -> None:
        """Stop the periodic uploads. :meth:`send` still works."""
        self._ended.set()

    def send(self, journal: Journal, of_job: Journal | None = None) -> None:
        """Upload what has changed. An error is reported once; the next call tries again.

        `of_job`: the journal of the job's own records, if this process writes them.
        """
        with self._sending:
            try:
                self._send(self._run, journal)
                if of_job is not None:
                    self._list_job()
                    self._send(self._run.of_job, of_job)
            except Exception as error:  # each fsspec filesystem raises its own errors
                report_once(
                    f"journal upload {self.shown}",
                    "the journal cannot be copied to %s: %s: %s. It stays in %s; the upload will be retried",
                    self.shown,
                    type(error).__name__,
                    without_credentials(str(error)),
                    self._run.path,
                )

    def _list_job(self) -> None:
        """Remove what is at the URL of the job's own records, and not here: they have been made again."""
        if not self._job_listed:
            for local, _ in self._objects(*_OF_JOB):
                if not files.exists(local):
                    self._remove(local)
            self._job_listed = True

    def _send(self, run: RunDirectory, journal: Journal) -> None:
        current = journal.current
        live = current.path
        present: set[Path] = set()
        changing = False
        others = self._left_behind(run, journal.process)
        paths = [run.journal / name for name in sorted({*files.names(run.journal)} - _NOT_SENT)]
        paths = [path for path in paths if bound(path.name) is not None and owner(path.name) in others]
        for path in (run.path / IDENTITY_FILE, *paths):
            if path == live:
                continue
            try:
                data, state = self._changed(path)
            except FileNotFoundError:
                changing = True  # the keeper has just archived or removed it
                continue
            except OSError as error:
                changing = True
                self._report(path.name, "it is not uploaded: ", error)
                continue
            if data is not None:
                self._put(path, data)
                self._sent[path] = state
            if state != _UNUSED:
                present.add(path)
        read = current.read  # read once: it grows during the upload
        if live is not None and self._live.get(run.path) != (live, read):
            try:
                data = files.beginning(live, HEADER_SIZE + read * SIZE)
            except FileNotFoundError:
                changing = True  # it became full and was archived meanwhile
            else:
                self._put(live, data)
                self._live[run.path] = live, read
                self._sent[live] = _UNUSED
        # Remove nothing from the URL before its replacement has been uploaded.
        for path in [] if changing else [path for path in self._sent if path.parent == run.journal]:
            if path in present or path == live or owner(path.name) not in others:
                continue
            self._remove(path)
            del self._sent[path]

    def _left_behind(self, run: RunDirectory, process: int) -> set[int | None]:
        """Return the processes whose files this one uploads: its own, and those that ran and died on this machine.

        Of several processes that live here, the first one does that. None stands for files of no process.
        """
        locks: dict[int, int] = {}  # the latest attempt of each process on this machine
        for name in files.names(run.journal):
            attempt, index = name[1:].partition("-p")[0], owner(name)
            if name.endswith(".lock") and index is not None and attempt.isdecimal():
                locks[index] = max(locks.get(index, -1), int(attempt))
        alive = {index for index, attempt in locks.items() if index != process and run.alive(attempt, index)}
        first = process < min(alive, default=process + 1)
        return {None, process, *(locks.keys() - alive if first else ())}

    def _changed(self, path: Path) -> tuple[bytes | None, tuple[int, int]]:
        """Return a file's data to upload, None if it is unchanged, and its (size, mtime in ns) to compare next time."""
        with files.opened(path) as file:
            # A spare segment has no header until it is used.
            if path.suffix == ".segment" and not any(file.read(HEADER_SIZE)):
                return None, _UNUSED
            if path.suffix == ".stacks":
                content = settled(files.whole(file, path, bound(path.name) or 0))
                state = len(content), zlib.crc32(content)
                return (content if state != self._sent.get(path) else None, state) if content else (None, _UNUSED)
            about = os.fstat(file.fileno())
            if about.st_nlink > 1:
                raise OSError(errno.EPERM, "it is a link to another file", str(path))
            state = (about.st_size, about.st_mtime_ns)
            if self._sent.get(path) == state:
                return None, state
            return files.whole(file, path, bound(path.name) or 0), state

    def put(self, path: Path) -> None:
        """Upload one small file of the run."""
        self._put(path, files.read(path, bound(path.name) or files.SMALL))

    def renew(self, path: Path) -> None:
        """Make the copy of one file of the journal equal to what is at the URL; it is removed if it is not there."""
        self._filesystem.invalidate_cache()
        files.remove(path)
        for local, entry in self._objects("journal/"):
            if local == path:
                self._bring(entry, path)

    def _put(self, path: Path, data: bytes) -> None:
        remote = self._place(path)
        if self._folder is not None:
            files.make_folders(Path(remote).parent, self._folder)
            files.write_privately(Path(remote), data)
            return
        self._filesystem.makedirs(remote.rsplit("/", 1)[0], exist_ok=True)
        self._filesystem.pipe_file(remote, data)

    def _remove(self, path: Path) -> None:
        if self._folder is not None:
            files.remove(Path(self._place(path)))
            return
        with suppress(FileNotFoundError):
            self._filesystem.rm_file(self._place(path))

    def _place(self, path: Path) -> str:
        """Where a file of the run is at the URL."""
        return f"{self._remote}/{path.relative_to(self._run.path).as_posix()}"


def _name(entry: dict[str, Any]) -> str:
    return str(entry["name"]).rstrip("/").rpartition("/")[2]

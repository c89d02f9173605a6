"""Which checkpoint of the run a file is: what identifies the files that were saved, in a small file beside the journal.

A program that saves and loads with ``torch.save`` and ``torch.load`` does not say which step a file was saved after. A
file is recognized by its content, so also after it was renamed, moved, copied or downloaded, by any rank of the job.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from otel_goodput._accounting.codec import COUNT, Each, Row
from otel_goodput._journal.rundir import SAVED, RunDirectory
from otel_goodput._journal.sidecars import Members, Sidecar, kept
from otel_goodput._runtime import files
from otel_goodput._runtime.guard import started

KEPT: Final = 1000  # latest files
UNKNOWN: Final = 0
_TAIL: Final = 1024  # bytes at the end of a file: that of a zip file has checksums of all that is in it
_DIGEST: Final = 7  # bytes, so that it fits a signed integer


class Identity(NamedTuple):
    """What identifies a file; ``UNKNOWN`` is what is not known, or says nothing of this kind of file."""

    size: int  # bytes
    modified: int  # ns since the epoch
    content: int  # digest of a part of it
    place: int  # digest of its path


class SavedFile(NamedTuple):
    """A file that was saved, and the label of its checkpoint."""

    label: int
    identity: Identity


_FILE: Final = Sidecar("saved files", Members({"files": Each(Row(*[COUNT] * 5), KEPT)}), SAVED)


def identified(path: str, *, parts: int = 1) -> Identity | None:
    """Return what identifies a regular file; `parts` of its content are looked at. None if it cannot be read."""
    try:
        with files.open_named(Path(path)) as file:
            return of_file(file, path, parts=parts)
    except (OSError, ValueError):
        return None


def of_file(file: BinaryIO, path: str = "", *, parts: int = 1) -> Identity | None:
    """Return what identifies an open file, without moving its position. Raises OSError if it cannot be read."""
    about = os.fstat(number := file.fileno())
    content = b"".join(
        os.pread(number, _TAIL, max(0, about.st_size * at // parts - _TAIL)) for at in range(1, parts + 1)
    )
    return Identity(about.st_size, about.st_mtime_ns, digest(content), placed(path) if path else UNKNOWN)


def of_bytes(content: memoryview) -> Identity:
    """Return what identifies a file in memory."""
    return Identity(len(content), UNKNOWN, digest(bytes(content[-_TAIL:])), UNKNOWN)


def placed(path: str) -> int:
    """Return a digest of a path, or of an address, that is not ``UNKNOWN``."""
    return (
        digest(os.path.realpath(path).encode(errors="surrogateescape")) if "://" not in path else digest(path.encode())
    )


def digest(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=_DIGEST).digest(), "little") or 1


class SavedFiles:
    """The files that this process saved, and those that its job's leader did.

    Args:
        place: returns the run's folder; None if there is none, or it is not known yet.
        processes: this one, and others whose files are known, too.
    """

    def __init__(
        self, place: Callable[[], RunDirectory | None] = lambda: None, processes: Sequence[int] = (0,)
    ) -> None:
        self._place = place
        self._process, *self._others = dict.fromkeys(processes)
        self._files: tuple[SavedFile, ...] = ()  # replaced, never changed: any thread reads it
        self._read = False
        self._kept: tuple[SavedFile, ...] = ()
        self._changing = threading.Lock()
        self._keeping = threading.Lock()

    def add(self, label: int, identity: Identity) -> None:
        """Note that a file was saved as the checkpoint `label`, and write that in the background, at once."""
        self._load()
        with self._changing:
            self._files = (*self._files, SavedFile(label, identity))[-KEPT:]
        started(
            threading.Thread(target=self.keep, name="goodput-saved", daemon=True), "a restored file is not recognized"
        )

    def label(self, identity: Identity) -> int | None:
        """Return the label of the checkpoint that a file is; None if the run has not saved it."""
        self._load()
        others = [one for process in self._others for one in self._stored(process)]
        return recognized(identity, (*others, *self._files))

    def keep(self) -> None:
        """Write what has changed. An error is reported once; the next call tries again."""
        with self._keeping:
            latest, run = self._files, self._place()
            if run is None or latest is self._kept or not latest:
                return
            data = _FILE.encode(files=[(one.label, *one.identity) for one in latest])
            if kept(run.file("saved", self._process), data, "saved files", "cannot note which files were saved: %s"):
                self._kept = latest

    def _load(self) -> None:
        """Add the files of earlier attempts, once."""
        if self._read or self._place() is None:
            return
        with self._changing:
            if not self._read:
                self._read = True
                self._files = (*self._stored(self._process), *self._files)[-KEPT:]

    def _stored(self, process: int) -> Iterable[SavedFile]:
        run = self._place()
        if run is None:
            return ()
        with suppress(OSError, ValueError):
            rows: Any = _FILE.read(run.file("saved", process))["files"]
            return [SavedFile(label, Identity(*identity)) for label, *identity in rows]
        return ()


def recognized(identity: Identity, saved: Sequence[SavedFile]) -> int | None:
    """Return the label of the one of `saved`, the latest last, that `identity` is; None if it is none of them.

    A copy has another time. If the content does not say which one it is, the path does.
    """
    alike = [one for one in saved if one.identity[:1] == identity[:1] and one.identity.content == identity.content]
    for one in reversed(alike):
        if one.identity.modified == identity.modified != UNKNOWN:
            return one.label
    labels = {one.label for one in alike if identity.content != UNKNOWN}
    if len(labels) == 1:
        return labels.pop()
    there = (one.label for one in reversed(alike) if one.identity.place == identity.place != UNKNOWN)
    return next(there, None)

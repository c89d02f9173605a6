"""The folder of a run: which files its journal has, who may write it, which attempt comes next.

::

    DIR/<run id>/run.json                            identity of the run
    DIR/<run id>/journal/a0000-p0000.lock            held by the living writer of an attempt
    DIR/<run id>/journal/a0000-p0000-000000.segment  records (``records``); `.gz` once sealed
    DIR/<run id>/journal/p0000.snapshot              the account up to a segment (``keeper``)
    DIR/<run id>/journal/p0000.pace                  how fast a process steps, for the others (``paces``)
    DIR/<run id>/journal/productivity.json           submission, FLOPs and peak
    DIR/<run id>/journal/p0000.notes                 what a person must know beside the figures (``notes``)
    DIR/<run id>/traces-*.jsonl, metrics-*.jsonl     what the `file` outlet writes
"""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import json
import logging
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from otel_goodput.errors import JournalError
from otel_goodput.journal import records

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

logger = logging.getLogger(__name__)

_SEGMENT: Final = re.compile(r"a(\d{4,})-p(\d{4,})-(\d{6,})\.segment(\.gz)?$")
_LONGEST: Final = 150


def folder_name(run_id: str) -> str:
    """The run id as the name of a folder: readable, unique, safe."""
    name = (
        quote(run_id, safe="-_=+,@ ").replace(".", "%2E", 1)
        if run_id.startswith(".")
        else quote(run_id, safe="-_=+,@ .")
    )
    if len(name) > _LONGEST:
        name = f"{name[:_LONGEST]}-{hashlib.sha256(run_id.encode()).hexdigest()[:16]}"
    return name


class SegmentFile:
    """A segment on disk: its place in the order of the run, and its data."""

    __slots__ = ("attempt", "number", "path", "process")

    def __init__(self, path: Path, attempt: int, process: int, number: int) -> None:
        self.path = path
        self.attempt = attempt
        self.process = process
        self.number = number

    def data(self) -> bytes:
        """Raises:
        OSError: it cannot be read.
        """
        raw = self.path.read_bytes()
        return gzip.decompress(raw) if self.path.suffix == ".gz" else raw


class RunDirectory:
    """One run's folder. Creating the object touches nothing; :meth:`create` does."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.journal = path / "journal"

    def create(self, identity: dict[str, Any]) -> None:
        """Make the folder, readable by its owner only; write who the run is.

        Raises:
            OSError: it cannot be made or written.
        """
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.journal.mkdir(parents=True, exist_ok=True, mode=0o700)
        about = self.path / "run.json"
        if not about.exists():
            write_privately(about, json.dumps(identity, indent=1).encode())

    def identity(self) -> dict[str, Any]:
        """What run.json says; empty where it cannot be read."""
        try:
            found = json.loads((self.path / "run.json").read_bytes())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def created_at(self) -> int | None:
        """When the run's first attempt began, unix ns; None where that is not written down."""
        found = self.identity().get("created_at")
        return int(found * 1e9) if isinstance(found, (int, float)) and found > 0 else None

    def segment_path(self, attempt: int, process: int, serial: int) -> Path:
        return self.journal / f"a{attempt:04d}-p{process:04d}-{serial:06d}.segment"

    def snapshot_path(self, process: int) -> Path:
        return self.journal / f"p{process:04d}.snapshot"

    def pace_path(self, process: int) -> Path:
        """Where a process tells the others how fast it steps."""
        return self.journal / f"p{process:04d}.pace"

    @property
    def productivity_path(self) -> Path:
        """What the figures need that do not follow from events."""
        return self.journal / "productivity.json"

    def pace_paths(self) -> list[Path]:
        return sorted(path for path in self._files() if path.suffix == ".pace")

    def notes_path(self, process: int) -> Path:
        """What a person must know beside the figures of a process."""
        return self.journal / f"p{process:04d}.notes"

    def recovered_path(self, attempt: int, process: int) -> Path:
        """A mark that what an attempt owed has been exported by the command."""
        return self.journal / f"a{attempt:04d}-p{process:04d}.recovered"

    def attempts(self, process: int) -> list[int]:
        """Numbers of the attempts in which this process left files, rising."""
        found = set()
        for path in self._files():
            if (match := _SEGMENT.search(path.name)) and int(match[2]) == process:
                found.add(int(match[1]))
        return sorted(found)

    def began(self, process: int = 0) -> int | None:
        """When this process's latest attempt began, ns; None where it left nothing that can be read."""
        for attempt in reversed(self.attempts(process)):
            for segment in self.segments(process, attempt)[:1]:
                try:
                    opener = gzip.open if segment.path.suffix == ".gz" else open
                    with opener(segment.path, "rb") as file:
                        data = file.read(records.HEADER_SIZE + records.SIZE)
                    return next((record.time for record in records.decode_segment(data, records.Names())), None)
                except (OSError, EOFError, ValueError):
                    continue
        return None

    def _files(self) -> list[Path]:
        try:
            return list(self.journal.iterdir())
        except OSError:
            return []

    def segments(self, process: int = 0, attempt: int | None = None) -> list[SegmentFile]:
        """Segments in use, in the order of attempt and number; what is foreign, torn in its head or unused is left
        out.
        """
        found: dict[tuple[int, int], SegmentFile] = {}
        for path in self._files():
            match = _SEGMENT.search(path.name)
            if not match or int(match[2]) != process or (attempt is not None and int(match[1]) != attempt):
                continue
            try:
                opener = gzip.open if path.suffix == ".gz" else open
                with opener(path, "rb") as file:
                    head = file.read(records.HEADER_SIZE)
                if not any(head):
                    continue  # laid ready, never used
                header = records.decode_header(head)
            except (OSError, EOFError, ValueError) as error:
                logger.warning("journal: %s is left out: %s", path, error)
                continue
            place = (header.attempt, header.number)
            # A sealed copy and its original may both be there if the process died between the two steps.
            if place not in found or path.suffix != ".gz":
                found[place] = SegmentFile(path, header.attempt, header.process, header.number)
        return [found[place] for place in sorted(found)]

    def sweep(self, process: int, before: int) -> None:
        """Remove segments that attempts before `before` laid ready and never used."""
        for path in self._files():
            match = _SEGMENT.search(path.name)
            if match and not match[4] and int(match[2]) == process and int(match[1]) < before:
                if not path.is_file() or path.stat().st_size < records.HEADER_SIZE:
                    continue  # not ours
                with path.open("rb") as file:
                    unused = not any(file.read(records.HEADER_SIZE))
                if unused:
                    path.unlink(missing_ok=True)

    def lock(self, attempt: int, process: int) -> Lock:
        return Lock(self.journal / f"a{attempt:04d}-p{process:04d}.lock")

    def alive(self, attempt: int, process: int) -> bool:
        """Whether the writer of this attempt is still there."""
        return self.lock(attempt, process).held()


class Lock:
    """A lock on a file, gone with the process that holds it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = -1

    def acquire(self) -> bool:
        """Take it, without waiting; False where another process has it.

        Raises:
            OSError: the file cannot be made.
        """
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return False
        except OSError as error:
            logger.warning("journal: %s cannot be locked (%s); see that one process writes it", self.path, error)
        os.ftruncate(file, 0)
        os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        self._file = file
        return True

    def held(self) -> bool:
        """Whether a living process has it."""
        try:
            file = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            # Shared: two who only look do not take each other for a writer.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(file)
        return False

    def holder(self) -> str:
        """The pid it was last taken by, as text; empty where nobody wrote it."""
        try:
            return self.path.read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            return ""

    def release(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def write_privately(path: Path, *pieces: ReadableBuffer) -> None:
    """Write a file of these pieces as a whole or not at all, mode 0600.

    Raises:
        OSError: it cannot be written.
    """
    # Of each thread its own: the keeper and the end of the process may write the same file.
    part = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}.part")
    file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(file, "wb") as stream:
            stream.writelines(pieces)
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def runs(directory: Path) -> Iterator[RunDirectory]:
    """The runs in `directory`, or `directory` itself where it is a run's folder.

    Raises:
        JournalError: there is none.
    """
    if (directory / "journal").is_dir():
        yield RunDirectory(directory)
        return
    found = False
    if directory.is_dir():
        for path in sorted(directory.iterdir()):
            if (path / "journal").is_dir():
                found = True
                yield RunDirectory(path)
    if not found:
        raise JournalError(
            f"{directory} holds no run: expected DIR/<run id>/journal; is OTEL_GOODPUT_DIR what you meant?"
        )

"""The folder of a run: the files of its journal, its locks and its attempts. docs/journal.md lists them.

No other module knows which files a run has.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from otel_goodput._journal import records
from otel_goodput._journal.lock import Lock
from otel_goodput._journal.records import SEGMENT_NAME, SegmentFile
from otel_goodput._journal.sidecars import IDENTITY, NOTES, checked_json, read_json
from otel_goodput._runtime import files
from otel_goodput._runtime.files import write_privately
from otel_goodput._text.redact import encodable, printable, redacting_logger
from otel_goodput.errors import JournalError

logger = redacting_logger(__name__)

_LONGEST: Final = 150
IDENTITY_FILE: Final = "run.json"
INSTEAD_OF: Final = "instead_of"  # member of that file: the run in which another living process had the same index
REASONS_FILE: Final = "disruptions.reasons"
JOB: Final = "job"  # a folder in that of the run
_ATTEMPTS: Final = 2**31  # attempt numbers are below this; a higher one would leave none for the next attempt
SNAPSHOT: Final = 2**30  # bytes; 130 million steps
DIGEST: Final = files.MIB
REASONS: Final = files.MIB
WAITS: Final = files.MIB
OFFSETS: Final = files.MIB
NOW: Final = files.MIB
OWN: Final = files.MIB
FACTS: Final = 64 * files.KIB
SAVED: Final = 256 * files.KIB
USAGE: Final = 256 * files.KIB
LOADER: Final = files.MIB
REQUESTS: Final = files.MIB  # a request may name 65,536 processes
ANSWERS: Final = 256 * files.KIB
PROFILE: Final = 256 * files.KIB
STACKS: Final = 8 * files.MIB
INCIDENTS: Final = 256 * files.KIB
# A change of a folder within the granularity of its time stamps, or of a clock elsewhere, is not seen by the stamp.
_SETTLED_NS: Final = 3_000_000_000
_PACKED: Final = 2  # bytes of records in a byte of a compressed segment
_BEYOND: Final = 1e9 * 9  # s; ns since the epoch must fit a signed integer of 64 bits
_EXPORTERS: Final = frozenset(range(256))  # a record has a byte for the number of an exporter
_PACE: Final = re.compile(r"p(\d{4,9})\.pace")
_OFFSETS: Final = re.compile(r"p\d{4,9}\.offsets")
_OF_A_PROCESS: Final = re.compile(r"(a\d+-)?p\d+")
_OF_PROCESS: Final = re.compile(r"(?:a\d{4,10}-)?p(\d{4,9})[-.].*")
MOST: Final = 65_536  # processes
_USAGE: Final = re.compile(r"a(\d{4,10})-p(\d{4,9})\.usage")
_LOADER: Final = re.compile(r"a(\d{4,10})-p(\d{4,9})\.loader")
_PROFILE: Final = re.compile(r"a(\d{4,10})-p(\d{4,9})-(\d{6,12})\.profile")
_ANSWERS: Final = re.compile(r"a(\d{4,10})-p(\d{4,9})\.answers")
_STACKS: Final = re.compile(r"a(\d{4,10})-p(\d{4,9})\.stacks")
_INCIDENTS: Final = re.compile(r"a(\d{4,10})-p(\d{4,9})\.incidents")
# All files of a journal and their maximum sizes in bytes. Other files are not read, uploaded or downloaded.
_KNOWN: Final = (
    (re.compile(r"run\.json"), IDENTITY),
    (re.compile(r"productivity\.json"), files.SMALL),
    (_PACE, files.SMALL),
    (re.compile(r"p\d{4,9}\.notes"), NOTES),
    (re.compile(re.escape(REASONS_FILE)), REASONS),
    (re.compile(r"p\d{4,9}\.snapshot"), SNAPSHOT),
    (re.compile(r"p\d{4,9}\.digest"), DIGEST),
    (re.compile(r"p\d{4,9}\.waits"), WAITS),
    (_OFFSETS, OFFSETS),
    (re.compile(r"p\d{4,9}\.now"), NOW),
    (re.compile(r"p\d{4,9}\.own"), OWN),
    (re.compile(r"p\d{4,9}\.saved"), SAVED),
    (re.compile(r"a\d{4,10}-p\d{4,9}\.facts"), FACTS),
    (_USAGE, USAGE),
    (_LOADER, LOADER),
    (_PROFILE, PROFILE),
    (_STACKS, STACKS),
    (_INCIDENTS, INCIDENTS),
    (re.compile(r"a\d{4,10}-p\d{4,9}\.recovered"), files.SMALL),
    (re.compile(r"a\d{4,10}-p\d{4,9}-\d{6,12}\.segment"), records.SEGMENT_BYTES),
    (re.compile(r"a\d{4,10}-p\d{4,9}-\d{6,12}\.segment\.gz"), records.PACKED_BYTES),
)


def bound(name: str) -> int | None:
    """Maximum size in bytes of the journal file `name`; None if a journal has no such file."""
    return next((most for form, most in _KNOWN if form.fullmatch(name)), None)


def owner(name: str) -> int | None:
    """The index of the process whose journal has the file `name`; None if it belongs to no single process."""
    match = _OF_PROCESS.fullmatch(name)
    return None if match is None else int(match[1])


def folder_name(run_id: str) -> str:
    """Convert a run id to a readable, unique and safe folder name."""
    run_id = encodable(run_id)
    name = quote(run_id, safe="-_=+,@ ")  # leaves dots
    if name.startswith("."):
        name = f"%2E{name[1:]}"
    if len(name) > _LONGEST:
        name = f"{name[:_LONGEST]}-{hashlib.sha256(run_id.encode()).hexdigest()[:16]}"
    return name


def profile_name(attempt: int, process: int, number: int) -> str:
    """Return the name of the file of a profile."""
    return f"a{attempt:04d}-p{process:04d}-{number:06d}.profile"


class RunDirectory:
    """One run's folder. The constructor touches no file; :meth:`create` creates the folder."""

    _packed: Mapping[str, SegmentFile] = {}  # by name: those that need not be read again

    def __init__(self, path: Path) -> None:
        self.path = path
        self.journal = path / "journal"
        self.productivity_path = self.journal / "productivity.json"  # for figures that events cannot give
        self.reasons_path = self.journal / REASONS_FILE  # recorded afterwards: the job never reads or writes them
        self.requests_path = self.journal / "requests"  # of commands to the living job; of no use elsewhere

    @property
    def of_job(self) -> RunDirectory:
        """The folder with the job's own records: what all its ranks do together, as the run of one process."""
        return RunDirectory(self.path / JOB)

    def create(self, identity: dict[str, Any]) -> None:
        """Create the folder, readable only by its owner, and write run.json if it does not exist.

        Raises OSError if that fails, or an untrusted user owns what is there.
        """
        self.make()
        about = self.path / IDENTITY_FILE
        if not files.exists(about):
            write_privately(about, checked_json(identity, indent=1))

    def make(self) -> None:
        """Create only the folder. Raises as :meth:`create`."""
        files.make_folders(self.journal, self.path.parent)

    def identity(self) -> dict[str, Any]:
        """The content of run.json; empty if it cannot be read."""
        try:
            return read_json(self.path / IDENTITY_FILE, IDENTITY)
        except (OSError, ValueError):
            return {}

    def displaced(self) -> Iterator[RunDirectory]:
        """Yield the runs of processes whose index in this one was taken."""
        with suppress(OSError):
            for name in files.names(self.path.parent):
                if name.startswith(f"{self.path.name}~"):
                    other = RunDirectory(self.path.parent / name)
                    if other.identity().get(INSTEAD_OF) == self.identity().get("run_id", self.path.name):
                        yield other

    def created_at(self) -> int | None:
        """When the run's first attempt began, ns since the epoch; None if run.json does not say."""
        seconds = self.identity().get("created_at")
        return int(seconds * 1e9) if isinstance(seconds, (int, float)) and 0 < seconds < _BEYOND else None

    def called(self) -> str:
        """The run's id; the folder's name if run.json does not have it."""
        return encodable(str(self.identity().get("run_id", self.path.name)))

    def spoilt(self, process: int) -> Iterator[tuple[Path, Exception]]:
        """Yield (path, error) for each small file that `process` reads, and that exists but cannot be read."""
        # The leader reads the paces of all; each other process reading them too would take N * N reads.
        paces = self.pace_paths() if process == 0 else {process: self.file("pace", process)}
        small = {
            self.path / IDENTITY_FILE: IDENTITY,
            self.productivity_path: files.SMALL,
            self.file("notes", process): NOTES,
            **dict.fromkeys(paces.values(), files.SMALL),
        }
        for path, most in small.items():
            try:
                read_json(path, most)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except (OSError, ValueError) as error:
                yield path, error

    def segment_path(self, attempt: int, process: int, serial: int) -> Path:
        return self.journal / f"a{attempt:04d}-p{process:04d}-{serial:06d}.segment"

    def file(self, suffix: str, *owner: int) -> Path:
        """A file of a process; `owner`: its index, after the number of an attempt if the file is about that alone."""
        *attempt, process = owner
        return self.journal / f"{''.join(f'a{number:04d}-' for number in attempt)}p{process:04d}.{suffix}"

    def usages(self) -> list[tuple[int, int]]:
        """Process and attempt (counted from 0) of each that sampled its usage, sorted."""
        return sorted((int(match[2]), int(match[1])) for match in self._matches(_USAGE))

    def loaders(self) -> list[tuple[int, int]]:
        """Process and attempt (counted from 0) of each that timed its data loaders, sorted."""
        return sorted((int(match[2]), int(match[1])) for match in self._matches(_LOADER))

    def answering(self, attempt: int) -> list[int]:
        """The processes that answered requests in an attempt, counted from 0, sorted."""
        numbers = ((int(match[1]), int(match[2])) for match in self._matches(_ANSWERS))
        return sorted(process for number, process in numbers if number == attempt)

    def profile_path(self, attempt: int, process: int, number: int) -> Path:
        return self.journal / profile_name(attempt, process, number)

    def profiles(self) -> list[tuple[int, int, int]]:
        """Attempt (counted from 0), process and number of each profile."""
        return [(int(match[1]), int(match[2]), int(match[3])) for match in self._matches(_PROFILE)]

    def keep_latest_profiles(self, attempt: int, process: int, most: int, *, but: int) -> None:
        """Remove the oldest profiles of an attempt of a process beyond `most`, but not the one with the number `but`.

        An error is logged.
        """
        numbers = sorted(number for *owner, number in self.profiles() if owner == [attempt, process] and number != but)
        for number in numbers[: 1 - most]:
            try:
                files.remove(self.profile_path(attempt, process, number))
            except OSError as error:
                logger.warning("journal: an old profile cannot be removed: %s", error.strerror or error)

    def stacks(self) -> list[tuple[int, int]]:
        """Attempt (counted from 0) and process of each that left stacks, sorted."""
        return sorted((int(match[1]), int(match[2])) for match in self._matches(_STACKS))

    def incidents(self) -> list[tuple[int, int]]:
        """Attempt (counted from 0) and process of each that noticed incidents, sorted."""
        return sorted((int(match[1]), int(match[2])) for match in self._matches(_INCIDENTS))

    def offsets_paths(self) -> list[Path]:
        """The existing files of offsets of clocks, in order of the leaders that wrote them."""
        return sorted(self.journal / match[0] for match in self._matches(_OFFSETS))

    def pace_paths(self, count: int | None = None) -> dict[int, Path]:
        """The existing pace files by process index; only those of the first `count` processes, if given."""
        names = {int(match[1]): match[0] for match in self._matches(_PACE)}
        return {index: self.journal / name for index, name in sorted(names.items()) if count is None or index < count}

    def recovered_by(self, attempt: int, process: int) -> frozenset[int]:
        """The numbers of the exporters that `otel-goodput recover` has exported an attempt's spans through.

        All numbers if the file cannot be read, so that nothing is exported twice.
        """
        path = self.file("recovered", attempt, process)
        if not files.exists(path):
            return frozenset()
        with suppress(OSError, ValueError, TypeError, AttributeError):
            return frozenset(int(number) for number in read_json(path)["exporters"])
        return _EXPORTERS

    def attempts(self, process: int) -> list[int]:
        """Sorted numbers of the attempts in which this process left segments."""
        matches = filter(None, map(SEGMENT_NAME.fullmatch, self._names(process)))
        return sorted({int(one[1]) for one in matches if int(one[2]) == process and int(one[1]) < _ATTEMPTS})

    def processes(self) -> list[int]:
        """Sorted indices of the processes that left segments."""
        return sorted({int(match[2]) for match in self._matches(SEGMENT_NAME)})

    def recorded_bytes(self) -> int:
        """About how many bytes of records the journals of all processes hold; hardly any of them is read for that."""
        total, plain = 0, defaultdict[tuple[int, int], list[tuple[int, Path]]](list)
        for match in self._matches(SEGMENT_NAME):
            path = self.journal / match[0]
            if match[4]:
                with suppress(OSError):
                    total += _PACKED * path.stat().st_size
            else:
                plain[int(match[1]), int(match[2])].append((int(match[3]), path))
        for segments in plain.values():
            total += records.SEGMENT_BYTES * len(segments)
            for _, path in sorted(segments, reverse=True):  # the last ones may be spares
                total -= records.SEGMENT_BYTES
                with suppress(OSError, EOFError, ValueError):
                    total += records.decode_header(files.beginning(path, records.HEADER_SIZE)).reached * records.SIZE
                    break
        return total

    def _matches(self, form: re.Pattern[str]) -> Iterator[re.Match[str]]:
        return filter(None, map(form.fullmatch, self._all_names()))

    def began(self, process: int = 0) -> int | None:
        """When this process's latest readable attempt began, ns since the epoch; None if there is none."""
        for attempt in reversed(self.attempts(process)):
            for segment in self.segments(process, attempt)[:1]:
                first = segment.first()
                return first.time if first is not None else records.decode_header(segment.head).heartbeat or None
        return None

    def _names(self, process: int, attempt: int | None = None) -> list[str]:
        """The names of files that may be segments of a process, and of an attempt: there may be many of others."""
        mark = f"-p{process:04d}-"
        begin = "a" if attempt is None else f"a{attempt:04d}{mark}"
        return [name for name in self._all_names() if mark in name and name.startswith(begin)]

    def _all_names(self) -> list[str]:
        try:
            return files.names(self.journal)
        except OSError:
            return []

    def segments(
        self,
        process: int = 0,
        attempt: int | None = None,
        left_out: Callable[[Path, Exception], None] | None = None,
    ) -> list[SegmentFile]:
        """The segments in use, ordered by attempt and number.

        Unused segments are skipped. Those that cannot be read are passed to `left_out` with the error, or logged.
        """
        in_use: dict[tuple[int, int], SegmentFile] = {}
        with files.held(self.journal):
            for name in self._names(process, attempt):
                match = SEGMENT_NAME.fullmatch(name)
                if not match or int(match[2]) != process or (attempt is not None and int(match[1]) != attempt):
                    continue
                if (segment := self._packed.get(name)) is None:
                    path = self.journal / name
                    try:
                        segment = self._listed_segment(path, int(match[1]), process)
                    except FileNotFoundError:  # removed since it was listed: its process goes on in another run
                        continue
                    except (OSError, EOFError, ValueError) as error:
                        (left_out or log_left_out)(path, error)
                    if segment is None:
                        continue
                # A compressed copy and its original may both exist if the process died before it removed the original.
                place = (segment.attempt, segment.number)
                if place not in in_use or segment.path.suffix != ".gz":
                    in_use[place] = segment
        return [in_use[place] for place in sorted(in_use)]

    def _listed_segment(self, path: Path, attempt: int, process: int) -> SegmentFile | None:
        """Read the head of a segment; None if it is a spare, never used. Raises OSError, EOFError, ValueError."""
        try:
            head = records.beginning(path, records.HEAD_BYTES)
        except FileNotFoundError:
            path = records.sealed(path)  # compressed since it was listed
            head = records.beginning(path, records.HEAD_BYTES)
        if not any(head):
            return None
        header = records.decode_header(head)
        if (header.attempt, header.process) != (attempt, process):
            raise ValueError(f"its header belongs to attempt {header.attempt}, process {header.process}")
        if header.attempt >= _ATTEMPTS:
            raise ValueError(f"there is no attempt {header.attempt}")
        return SegmentFile(path, header.attempt, header.process, header.number, head)

    def sweep(self, process: int, before: int) -> None:
        """Remove unused spare segments of attempts before `before`, and partly written files of this process."""
        half_written = re.compile(rf"(a\d+-)?p{process:04d}[-.].*{re.escape(files.PART)}")
        with files.held(self.journal):
            for name in self._all_names():
                path, match = self.journal / name, SEGMENT_NAME.fullmatch(name)
                with suppress(OSError):  # not ours
                    if half_written.fullmatch(name):
                        files.remove(path)
                    elif match and not match[4] and int(match[2]) == process and int(match[1]) < before:
                        head = files.beginning(path, records.HEADER_SIZE)
                        if len(head) == records.HEADER_SIZE and not any(head):
                            files.remove(path)

    def withdraw(self, attempt: int, process: int) -> None:
        """Remove the files of an attempt that recorded nothing, and the folder if it holds nothing else.

        An error is logged; what is left is then an attempt without phases.
        """

        def remove(*beginnings: str) -> None:
            # The lock last: who waits for the place looks at the segments first.
            for name in sorted(self._all_names(), key=lambda name: name.endswith(".lock")):
                if name.startswith(beginnings):
                    files.remove(self.journal / name)

        try:
            mine = f"a{attempt:04d}-p{process:04d}"
            remove(f"{mine}.", f"{mine}-")
            if not self.attempts(process):
                remove(f"p{process:04d}.")
            if not any(_OF_A_PROCESS.match(name) for name in self._all_names()):
                remove("")
                files.remove(self.path / IDENTITY_FILE)
                files.remove_folder(self.journal)
                files.remove_folder(self.path)
        except OSError as error:
            logger.warning("journal: an attempt without phases is left in %s: %s", self.path, error.strerror or error)

    def clear(self) -> None:
        """Remove all files of the journal. An error is logged."""
        try:
            for name in self._all_names():
                files.remove(self.journal / name)
        except OSError as error:
            logger.warning("journal: %s cannot be cleared: %s", self.journal, error.strerror or error)

    def lock(self, attempt: int, process: int) -> Lock:
        return Lock(self.file("lock", attempt, process))

    def alive(self, attempt: int, process: int) -> bool:
        """Whether a living process writes this attempt."""
        return self.lock(attempt, process).held()

    def writing(self, attempt: int, process: int) -> bool | None:
        """Whether a living process writes this attempt; None if it left no lock, so that it may be on another machine.

        False: it is over; its lock is on this machine, and it does not hold it any more.
        """
        lock = self.lock(attempt, process)
        return True if lock.held() else False if lock.path.exists() else None


class ListedRun(RunDirectory):
    """A run's folder whose names do not change. The segments of a process are read once, on first use."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._listed = super()._all_names()
        self._known = frozenset(self._listed)
        self._segments: dict[int, dict[int, list[str]]] = {}  # by process and attempt
        self._looked: dict[int, tuple[list[SegmentFile], list[tuple[Path, Exception]]]] = {}
        self.there: set[int] = set()  # indices of the processes that left files
        for name in self._listed:
            if match := SEGMENT_NAME.fullmatch(name):
                self._segments.setdefault(int(match[2]), {}).setdefault(int(match[1]), []).append(name)
            if (match := _OF_PROCESS.fullmatch(name)) and int(match[1]) < MOST:
                self.there.add(int(match[1]))

    def _names(self, process: int, attempt: int | None = None) -> list[str]:
        mine = self._segments.get(process, {})
        return [name for names in mine.values() for name in names] if attempt is None else mine.get(attempt, [])

    def segments(
        self,
        process: int = 0,
        attempt: int | None = None,
        left_out: Callable[[Path, Exception], None] | None = None,
    ) -> list[SegmentFile]:
        if attempt is not None:
            return super().segments(process, attempt, left_out)
        if process not in self._looked:
            unread: list[tuple[Path, Exception]] = []
            segments = super().segments(process, None, lambda path, error: unread.append((path, error)))
            self._looked[process] = segments, unread
        segments, unread = self._looked[process]
        for path, error in unread:
            (left_out or log_left_out)(path, error)
        return list(segments)

    def _all_names(self) -> list[str]:
        return self._listed

    def recorded(self, process: int) -> bool:
        """Whether a process left a part of a journal, or a summary of one."""
        summaries = self.file("snapshot", process), self.file("digest", process)
        return process in self._segments or any(path.name in self._known for path in summaries)


class WatchedRun(RunDirectory):
    """A run's folder that is read again and again: it is listed only if it has changed, and packed segments once."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._stamp = -1  # of the folder when it was listed; -1: list it again
        self._listed: list[str] = []
        self._packed: dict[str, SegmentFile] = {}

    def _all_names(self) -> list[str]:
        try:
            stamp = self.journal.stat().st_mtime_ns
        except OSError:
            return []
        if stamp != self._stamp:
            self._listed = super()._all_names()
            self._stamp = stamp if time.time_ns() - stamp > _SETTLED_NS else -1
        return self._listed

    def _listed_segment(self, path: Path, attempt: int, process: int) -> SegmentFile | None:
        segment = super()._listed_segment(path, attempt, process)
        if segment is not None and segment.path.suffix == ".gz":
            self._packed[segment.path.name] = segment
        return segment


def log_left_out(path: Path, error: Exception) -> None:
    """Log that a segment cannot be read."""
    logger.warning("journal: %s is left out: %s", printable(str(path)), error)


def runs(directory: Path) -> Iterator[RunDirectory]:
    """Yield the runs in `directory`, or `directory` itself if it is a run's folder.

    Raises OSError if it cannot be read, and JournalError if there is no run.
    """
    directory = files.named(directory)
    if (directory / "journal").is_dir():
        yield RunDirectory(directory)
        return
    any_run = False
    if directory.is_dir():
        for path in sorted(directory.iterdir()):
            try:
                if not (path / "journal").is_dir():
                    continue
            except OSError as error:
                logger.warning("journal: %s is left out: %s", printable(str(path)), error.strerror or error)
                any_run = True
                continue
            if path.is_symlink():
                logger.warning("journal: %s is left out: it is a link, which is not followed", path)
                continue
            any_run = True
            yield RunDirectory(path)
    if not any_run:
        raise JournalError(
            f"{directory} holds no run: expected DIR/<run id>/journal; is OTEL_GOODPUT_DIR what you meant?"
        )

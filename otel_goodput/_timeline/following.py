"""Follows the journal of a living process: each poll reads only what was written since the one before.

Segments grow in place, get full, are packed and replaced; a process dies and the next attempt begins; records are
written into places that were passed as empty. Where what was read before turns out to be incomplete, the journal is
restored anew, as after a restart; so after any polls the account is the one that a restart would read.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from otel_goodput._accounting import Event, Ledger, Totals
from otel_goodput._accounting import events as ev
from otel_goodput._accounting.overview import Overview
from otel_goodput._journal import records, segment_file
from otel_goodput._journal.notes import Note
from otel_goodput._journal.records import CAPACITY, HEADER_SIZE, SIZE, Record, SegmentHeader
from otel_goodput._journal.rundir import RunDirectory, head_of
from otel_goodput._journal.segment_file import NAME
from otel_goodput._runtime import files
from otel_goodput._text.redact import redacting_logger
from otel_goodput._timeline.damage import Damages
from otel_goodput._timeline.overlaps import counted_until
from otel_goodput._timeline.reader import Reached
from otel_goodput._timeline.recovery import restore

logger = redacting_logger(__name__)

RECENT: Final = 1000  # records remembered for the live tail
_BEHIND: Final = 16  # places after the last record of a left segment that are still watched
_PASSED: Final = 8  # segments behind the current one that are still watched for late records
# A change of a folder within the granularity of its time stamps, or of a clock elsewhere, is not seen by the stamp.
_SETTLED_NS: Final = 3_000_000_000


_CHUNK: Final = 256 * SIZE  # bytes of a segment that are read at once
_ZEROS: Final = bytes(_CHUNK)

Place = tuple[int, int]  # attempt, segment


class PlacedRecord(NamedTuple):
    """A record, and the attempt that it belongs to."""

    attempt: int
    record: Record


class Follower:
    """Reads the journal of one process as it grows.

    Args:
        run: the run's folder; it need not exist yet.
        process: index of the process.
        spans: lengths of rolling windows, ns.

    Attributes:
        last_sign: its latest sign of life, ns; 0 if there is none.
        recent: the latest records, at most ``RECENT``; those that were there before the first poll are not among them.
        count: how many records there have been in `recent`.
        restored: how often the journal had to be restored, the first time included.
    """

    def __init__(self, run: RunDirectory, process: int = 0, spans: Sequence[int] = ()) -> None:
        self.run = run
        self.process = process
        self.last_sign = 0
        self.recent: deque[PlacedRecord] = deque(maxlen=RECENT)
        self.count = 0
        self.restored = 0
        self._spans = spans
        self._ledger = Ledger(spans)
        self._damages = Damages()
        self._overlap: Note | None = None
        self._reached = Reached()
        self._left_out: frozenset[Path] = frozenset()
        self._spoilt = 0  # restores in a row that events have caused which cannot be accounted for
        self._current: GrowingSegment | None = None
        self._dropped: set[int] = set()  # holes of the segment that was forgotten there
        self._passed: deque[GrowingSegment] = deque()
        self._mark = -1  # time stamp of the folder when it was listed; -1: list it again
        self._places: dict[str, Place | None] = {}  # by name without .gz; None: not used yet
        self._paths: dict[Place, Path] = {}
        self._order: list[Place] = []
        self._sign_before = 0  # the last sign of life of the attempt before, ns
        self._late = False  # a segment has appeared before the one that is being read

    def poll(self) -> int:
        """Read what is new; returns the number of new records. It does not raise, whatever the files contain."""
        with files.held(self.run.journal):
            return self._poll()

    def _poll(self) -> int:
        self._list()
        if not self.restored or self._late or any(source.filled() for source in self._sources()):
            return self._restore()
        if self._spoilt > 1:
            return 0
        try:
            taken = self._read_on()
            while self._at_end() and self._discovered():  # a spare has been put to use meanwhile
                taken += self._read_on()
        except (OSError, EOFError):
            self._mark = -1  # it was packed or removed just now, or cannot be read: the next poll looks again
            self._drop()
            return 0
        except Exception as error:  # hostile events can raise anything
            logger.warning("journal: the records of process %d are read again: %r", self.process, error)
            self._spoilt += 1
            return self._restore()
        self._spoilt = 0
        return taken

    def totals(self, at: int | None = None, *, dead: bool = False) -> Totals:
        """The account at `at` (ns; the last event by default); `dead`: the process is no longer alive."""
        return self._ledger.totals(at, dead=dead)

    def overview(self, at: int | None = None, *, dead: bool = False) -> Overview:
        """The whole run in little space; arguments as of :meth:`totals`."""
        return self._ledger.overview(at, dead=dead)

    @property
    def attempt(self) -> int:
        """Number of the last attempt, -1 if there is none yet."""
        return self._reached.attempt

    @property
    def ledger(self) -> Ledger:
        """The account. Do not change it."""
        return self._ledger

    @property
    def damages(self) -> Damages:
        """What could not be read when the journal was last restored."""
        return self._damages

    @property
    def overlap(self) -> Note | None:
        """The note on attempts that were alive at once, as of then, if there were any."""
        return self._overlap

    def close(self) -> None:
        """Close the files. A later poll opens them again."""
        self._drop()
        for source in self._passed:
            source.close()
        self._passed.clear()

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- the whole journal --------------------------------------------------------------------------------------------

    def _restore(self) -> int:
        self.close()
        self._late = False
        restored = restore(self.run, self.process, self._spans)
        self.restored += 1
        self._ledger, self._damages, self._overlap = restored.ledger, restored.damages, restored.overlap
        self._reached, self._left_out = restored.reached, restored.left_out
        self.last_sign, self._dropped = restored.last_sign, set()
        self._watch()
        return 0

    def _watch(self) -> None:
        """Watch the places that were empty or damaged when the journal was restored."""
        if self._reached.position is None:
            return
        end = self._reached.position[:2]
        holes: dict[Place, set[int]] = {}
        for attempt, number, record in self._reached.holes:
            holes.setdefault((attempt, number), set()).add(record)
        for place in [each for each in self._order if each[0] == end[0] and each < end][-_PASSED:]:
            path = self._paths[place]
            if path.suffix == ".gz":
                continue  # nobody writes there any more
            try:
                source = GrowingSegment(place, path, 0)
                source.read = records.used(source.piece(0, segment_file.SIZE))
            except (OSError, EOFError, ValueError):
                continue
            source.holes = holes.get(place, set())
            self._pass(source)
        if self._open(end) and self._current is not None:
            source = self._current
            source.holes = holes.get(source.place, set())
            source.beat = self.last_sign  # an earlier one tells nothing

    # --- segments -----------------------------------------------------------------------------------------------------

    def _sources(self) -> list[GrowingSegment]:
        return [*self._passed, *([self._current] if self._current is not None else [])]

    def _drop(self) -> None:
        """Forget the current segment, to be opened again where reading has stopped."""
        if self._current is not None:
            self._reached.position = (*self._current.place, self._current.read)
            self._dropped = self._current.holes
            self._current.close()
            self._current = None

    def _open(self, place: Place) -> bool:
        path = self._paths.get(place)
        if path is None:
            return False
        stopped = self._reached.position
        read = stopped[2] if stopped is not None and stopped[:2] == place else 0
        self._current = GrowingSegment(place, path, read)
        if read:
            self._current.holes = self._dropped
        return True

    def _list(self) -> None:
        """Learn which segments there are."""
        try:
            stamp = self.run.journal.stat().st_mtime_ns
        except OSError:
            return
        changed = stamp != self._mark
        if changed:
            try:
                names = files.names(self.run.journal)
            except OSError:
                return
            self._mark = stamp if time.time_ns() - stamp > _SETTLED_NS else -1
            mine = f"-p{self.process:04d}-"
            found = [name for name in names if mine in name and NAME.fullmatch(name)]
            paths = {name.removesuffix(".gz"): self.run.journal / name for name in sorted(found, reverse=True)}
        else:
            paths = {name: self.run.journal / name for name, place in self._places.items() if place is None}
        reading = self._current.place if self._current is not None else (self._reached.position or (-1, 0, 0))[:2]
        # Spares are put to use without any change of the folder, when the current segment is full.
        look = changed or self._at_end()
        for name, path in reversed(paths.items()):  # in order, which takes least where there are many
            place = self._places.get(name)
            attempt = int(name[1:].split("-")[0])
            if place is None and (
                attempt > self.attempt or (look and attempt == self.attempt) or name not in self._places
            ):
                place = self._place(path)
                self._places[name] = place
                if place is not None:
                    self._order.insert(bisect_right(self._order, place), place)
                    self._late = self._late or place < reading
            if place is not None:
                self._moved(place, path)
                self._paths[place] = path

    def _at_end(self) -> bool:
        """Whether the next record may be in another segment."""
        source = self._current
        return source is None or source.read >= CAPACITY - _BEHIND or source.path.suffix == ".gz"

    def _discovered(self) -> bool:
        """Whether there is a segment that was not there a moment ago."""
        before = len(self._order)
        self._list()
        return len(self._order) > before

    def _moved(self, place: Place, path: Path) -> None:
        """Open a segment again if another file is in its place: packed, or a copy from elsewhere that was renamed."""
        for source in self._sources():
            if source.place != place or source.path.suffix == ".gz":
                continue
            try:
                if source.same(path):
                    continue
                again = GrowingSegment(place, path, source.read)
            except (OSError, EOFError, ValueError):
                continue
            again.holes, again.beat = source.holes, source.beat
            if source is self._current:
                self._current = again
            else:
                self._passed[self._passed.index(source)] = again
            source.close()

    def _place(self, path: Path) -> Place | None:
        """The place of a segment by its header; None if it is not used yet, or cannot be read."""
        match = NAME.fullmatch(path.name)
        try:
            _, header = head_of(path)
        except (OSError, EOFError, ValueError):
            return None
        if header is None or match is None or (header.attempt, header.process) != (int(match[1]), self.process):
            return None
        return header.attempt, header.number

    def _after(self, place: Place) -> Place | None:
        at = bisect_right(self._order, place)
        return self._order[at] if at < len(self._order) else None

    # --- records ------------------------------------------------------------------------------------------------------

    def _read_on(self) -> int:
        taken = 0
        if self._current is None:
            stopped = self._reached.position
            place = stopped[:2] if stopped is not None else None
            if place is None or not self._open(place):
                following = self._after(place or (-1, -1))
                if following is None or not self._open(following):
                    return 0
                self._enter(following[0])
        while self._current is not None:
            source = self._current
            following = self._after(source.place)
            taken += self._take(source, final=following is not None)
            if following is None:
                break
            self._pass(source)
            self._reached.position = (*following, 0)
            self._current = None
            self._open(following)
            self._enter(following[0])
        return taken

    def _enter(self, attempt: int) -> None:
        if attempt != self.attempt:
            self._sign_before, self.last_sign = self.last_sign, 0
            self._reached.enter(attempt)

    def _pass(self, source: GrowingSegment) -> None:
        """Leave a segment, and watch it for a while: a thread may have taken a place there and not written yet."""
        source.holes |= set(range(source.read, min(source.read + _BEHIND, CAPACITY)))
        self._passed.append(source)
        while len(self._passed) > _PASSED:
            self._passed.popleft().close()

    def _take(self, source: GrowingSegment, *, final: bool) -> int:
        if source.path in self._left_out:
            return 0
        header = source.header()
        data = source.new(final=final)
        skipped: list[records.Skip] = []
        found = list(records.decode_records(data, self._reached.names, source.read, skipped))
        first = self._reached.begin(found)
        if first is not None:
            until = counted_until(first)
            # The attempt before went on beside this one, and its records have been taken: the next poll restores.
            self._late = self._late or (until is not None and self._sign_before > until)
        events = records.events_of(found)
        if header.heartbeat > source.beat:
            source.beat = header.heartbeat
            events.append(Event(header.heartbeat, ev.HEARTBEAT))
        if events:
            self._ledger.feed(events)
            self.last_sign = max(self.last_sign, *(event.time for event in events))
        source.read += len(data) // SIZE
        source.holes |= {at for at, why in skipped if why != records.UNKNOWN}
        self.recent.extend(PlacedRecord(source.place[0], record) for record in found)
        self.count += len(found)
        return len(found)


class GrowingSegment:
    """One segment, and how far it has been read.

    Args:
        place: attempt and number.
        path: its file, which may have been packed meanwhile.
        read: number of records that have been taken.

    Attributes:
        holes: places of records that were passed as empty or damaged and may still be written.
        beat: the last heartbeat that was taken, ns.

    Raises:
        OSError, EOFError, ValueError: it cannot be read.
    """

    def __init__(self, place: Place, path: Path, read: int) -> None:
        self.place = place
        self.path = path
        self.read = read
        self.holes: set[int] = set()
        self.beat = 0
        self._packed: bytes | None = None
        self._file: BinaryIO | None = None
        try:
            self._open(path)
        except FileNotFoundError:
            self._open(segment_file.sealed(path))

    def _open(self, path: Path) -> None:
        if path.suffix == ".gz":
            self._packed = segment_file.contents(path).data
        else:
            self._file = files.opened(path)

    def header(self) -> SegmentHeader:
        """Raises OSError, ValueError."""
        return records.decode_header(self.piece(0, HEADER_SIZE))

    def piece(self, begin: int, size: int) -> bytes:
        """Bytes of the segment. Raises OSError."""
        if self._file is None:
            return (self._packed or b"")[begin : begin + size]
        return os.pread(self._file.fileno(), size, begin)

    def new(self, *, final: bool) -> bytes:
        """The records after those taken, up to the last one written; `final`: nothing is to come but late records."""
        begin = HEADER_SIZE + self.read * SIZE
        end = HEADER_SIZE + CAPACITY * SIZE
        if final:
            found = self.piece(begin, end - begin)
        else:
            found = b""
            while begin + len(found) < end:
                chunk = self.piece(begin + len(found), min(_CHUNK, end - begin - len(found)))
                if not chunk or chunk == _ZEROS[: len(chunk)]:
                    break
                found += chunk
        count = len(found.rstrip(b"\0"))
        found = found[: -(-count // SIZE) * SIZE].ljust(-(-count // SIZE) * SIZE, b"\0")
        while not final and found and not records.sound(found[-SIZE:]):
            found = found[:-SIZE]  # it is being written
        return found

    def same(self, path: Path) -> bool:
        """Whether the file at `path` is the one that is open. Raises OSError."""
        if self._file is None:
            return True
        found, mine = path.stat(), os.fstat(self._file.fileno())
        return (found.st_dev, found.st_ino) == (mine.st_dev, mine.st_ino)

    def filled(self) -> bool:
        """Whether a record has appeared in a place that had been passed."""
        return any(
            len(record := self.piece(HEADER_SIZE + at * SIZE, SIZE)) == SIZE and records.sound(record)
            for at in self.holes
        )

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

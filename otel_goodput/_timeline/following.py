"""Follows the journal of a living process: each poll reads only what was written since the one before.

It goes on with the one reader from where that has stopped. Where what was read before turns out to be incomplete, the
journal is restored again, as after a restart. So after each poll the account is the one that a restart would read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from otel_goodput._accounting import Ledger
from otel_goodput._accounting import events as ev
from otel_goodput._journal import records
from otel_goodput._journal.records import Record
from otel_goodput._journal.rundir import RunDirectory, WatchedRun
from otel_goodput._runtime import files
from otel_goodput._text.redact import redacting_logger
from otel_goodput._timeline.damage import Damages
from otel_goodput._timeline.reader import Reader
from otel_goodput._timeline.recovery import Restored, restore

logger = redacting_logger(__name__)

RECENT: Final = 1000  # records remembered for the live tail
_WATCHED: Final = 8  # segments before the current one in which a late record is looked for

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
        state: the run as a restart would restore it now. Do not change it; the next poll does.
        recent: the latest records, at most ``RECENT``; those that were there before the first poll are not among them.
        count: how many records there have been in `recent`.
        restored: how often the journal had to be restored, the first time included.
    """

    def __init__(self, run: RunDirectory, process: int = 0, spans: Sequence[int] = ()) -> None:
        self.run = run
        self.process = process
        self.state = Restored(Ledger(spans))
        self.recent: deque[PlacedRecord] = deque(maxlen=RECENT)
        self.count = 0
        self.restored = 0
        self._spans = spans
        self._watched = WatchedRun(run.path)
        self._signs: dict[int, int] = {}  # the last sign of life of the latest attempts that were read, ns
        self._places: set[Place] = set()  # of the segments at the last poll
        self._unreadable: set[Path] = set()
        self._spoilt = 0  # restores in a row that events have caused which cannot be accounted for

    def poll(self) -> int:
        """Read what is new; returns the number of new records. It does not raise, whatever the files contain."""
        with files.held(self.run.journal):
            reader = Reader(self._watched, self.process)
            known, self._places = self._places, {(one.attempt, one.number) for one in reader.segments}
            if not self.restored or self._incomplete(reader, known):
                return self._restore()
            if self._spoilt > 1:
                return 0
            try:
                taken = self._read_on(reader)
            except Exception as error:  # hostile events can raise anything
                logger.warning("journal: the records of process %d are read again: %r", self.process, error)
                self._spoilt += 1
                return self._restore()
            self._spoilt = 0
            if not reader.unreadable <= self._unreadable:
                self._restore()  # what can be read of it, and of what follows, is what a restart can read
                self._unreadable = reader.unreadable
            return taken

    @property
    def attempt(self) -> int:
        """Number of the last attempt, -1 if there is none yet."""
        return self.state.attempt

    @property
    def ledger(self) -> Ledger:
        """The account. Do not change it."""
        return self.state.ledger

    def _restore(self) -> int:
        self.state = restore(self.run, self.process, self._spans)
        self.restored += 1
        self._signs = {self.state.attempt: self.state.last_sign}
        return 0

    def _incomplete(self, reader: Reader, known: set[Place]) -> bool:
        """Whether a restart would read something else of what was read: what came late, or counts no longer."""
        reached = self.state.reached
        if reached.position is None:
            return False
        end = reached.position[:2]
        if any(place < end for place in self._places - known):
            return True
        if any(reader.overlaps.ends(attempt, sign) for attempt, sign in self._signs.items()):
            return True
        passed = [one for one in reader.segments if (one.attempt, one.number) <= end][-_WATCHED - 1 :]
        watched = {(one.attempt, one.number): one for one in passed}
        holes: dict[Place, list[int]] = {}
        for attempt, number, at in reached.holes:
            holes.setdefault((attempt, number), []).append(at)
        gone = set()
        for place, missing in holes.items():
            segment = watched.get(place)
            try:
                if segment is not None and segment.has_any(missing):
                    return True
            except (OSError, EOFError, ValueError):
                continue
            if segment is None or segment.path.suffix == ".gz":  # nobody writes there any more
                gone.add(place)
        if gone:
            reached.holes = {hole for hole in reached.holes if hole[:2] not in gone}
        return False

    def _read_on(self, reader: Reader) -> int:
        state, before = self.state, self.count
        attempt = state.attempt
        reader.reached = state.reached
        for part in reader.records(Damages(), state.left_out):
            if part.attempt != attempt:
                attempt, state.last_sign = part.attempt, 0
            if part.entries and part.entries[-1].kind == ev.HEARTBEAT and part.entries[-1].time <= state.last_sign:
                part.entries.pop()  # it was taken before, or is older than a record
            if part.entries:
                events = records.events_of(part.entries)
                state.ledger.feed(events)
                state.last_sign = max(state.last_sign, *(event.time for event in events), 0)
            fresh = [PlacedRecord(attempt, one) for one in part.entries if one.kind != ev.HEARTBEAT]
            self.recent.extend(fresh)
            self.count += len(fresh)
            self._signs[attempt] = state.last_sign
        self._signs = {each: sign for each, sign in self._signs.items() if each >= attempt - 1}
        return self.count - before

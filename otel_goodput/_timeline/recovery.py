"""Restores a run from its journal: the ledger, and which spans of a dead attempt were not exported.

A :class:`Follower` goes on from there while the journal grows. Where what it has read turns out to be incomplete, the
journal is restored again, so that after each poll the account is the one that a restart would read.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from otel_goodput._accounting import Event, Ledger, rules
from otel_goodput._accounting import events as ev
from otel_goodput._accounting.codec import Blob, Blobs
from otel_goodput._accounting.phase_history import Phases
from otel_goodput._journal import records, state_file
from otel_goodput._journal.notes import Note
from otel_goodput._journal.records import Record
from otel_goodput._journal.rundir import SNAPSHOT, RunDirectory, WatchedRun
from otel_goodput._journal.sidecars import whole
from otel_goodput._runtime import files
from otel_goodput._runtime.files import write_privately
from otel_goodput._text.redact import redacting_logger
from otel_goodput._timeline.damage import Damages
from otel_goodput._timeline.reader import Position, Reached, Reader
from otel_goodput._timeline.span_index import SpanIndex

logger = redacting_logger(__name__)

FORM: Final = state_file.Form("snapshot", b"OGSTATE\0", 1, 64 * files.MIB, SNAPSHOT)
_PLACES: Final = 2**31  # bound of the numbers of attempts, segments and records
_LONG: Final = 3600 * 10**9  # ns


@dataclass
class Restored:
    """A run as read from its journal."""

    ledger: Ledger  # up to the last record
    # Spans of the last attempt, and those that earlier attempts did not export.
    index: SpanIndex = field(default_factory=SpanIndex)
    reached: Reached = field(default_factory=Reached)  # where to read on
    last_sign: int = 0  # latest timestamp of the last attempt, ns; 0 if there is none
    damages: Damages = field(default_factory=Damages)  # what had to be left out
    spoilt: list[Path] = field(default_factory=list)  # damaged files that a writer would replace
    left_out: frozenset[Path] = frozenset()  # segments whose events cannot be accounted for
    overlap: Note | None = None  # on attempts that were alive at once, if there were any

    @property
    def attempt(self) -> int:
        """Number of the last attempt, -1 if there is none."""
        return self.reached.attempt


# Segments left out one by one because their events cannot be accounted for; if there are more, all are left out.
_HOSTILE: Final = 8
_REHEARSED: Final = 5_000  # steps back that are tried out with a snapshot


def restore(run: RunDirectory, process: int = 0, spans: Sequence[int] = (), *, more: bool = False) -> Restored:
    """Read a process's journal of a run. It takes about as long after a million steps as after a thousand.

    It does not raise, whatever the files contain: what cannot be read is left out, reported and logged. `spans` are the
    lengths of the rolling windows, ns; with `more`, those that a snapshot has are kept as well.
    """
    if files.is_nowhere(run.path):
        return Restored(Ledger(spans))
    with files.held(run.journal):
        return _restored(run, process, spans, more)


def _restored(run: RunDirectory, process: int, spans: Sequence[int], more: bool) -> Restored:
    left_out: dict[Path, Exception] = {}
    alone = False  # whether the snapshot is tried out by itself, and not only what was read on from it
    while True:
        # Even a segment with a correct checksum may have been forged.
        reader: Reader | None = None
        try:
            reader = Reader(run, process)
            restored = _restore(reader, _from_snapshot(run, process, spans, more, alone=alone), spans, left_out)
            _try_out(restored)
            break
        except Exception as error:
            if not alone:
                alone = True
                continue
            culprit = None if reader is None else reader.segment
            if culprit is None or culprit.path in left_out or len(left_out) > _HOSTILE:
                restored = Restored(Ledger(spans))
                restored.damages.left_out(f"the journal of process {process}", error)
                break
            left_out[culprit.path] = error
    for path, why in run.spoilt(process):
        restored.damages.small(path.name, why)
        if path.suffix != ".pace":
            restored.spoilt.append(path)
    restored.left_out = frozenset(left_out)
    restored.damages.log()
    return restored


def _restore(reader: Reader, restored: Restored, spans: Sequence[int], left_out: Mapping[Path, Exception]) -> Restored:
    """Read the segments after the snapshot `restored`.

    Those `left_out` are skipped, because their events cannot be accounted for; if they are many, all are.
    """
    if restored.reached.position is not None and reader.overlaps.ends(restored.attempt, restored.last_sign):
        # Written by an attempt that ran at the same time as the next one: read the whole journal instead.
        restored = Restored(Ledger(spans))
    reader.reached, damages = restored.reached, restored.damages
    attempt = restored.attempt
    many = len(left_out) > _HOSTILE
    skipped = {one.path for one in reader.segments} if many else left_out.keys()
    for part in reader.records(damages, skipped):
        if part.attempt != attempt:
            attempt = part.attempt
            restored.index = restored.index.successor(attempt)
        if part.segment.path in skipped:
            why = left_out.get(part.segment.path, ValueError("left out with others"))
            damages.left_out(part.segment.path.name, ValueError(f"its contents cannot be accounted for: {why!r}"))
            continue
        restored.ledger.feed(records.events_of(part.entries))
        restored.index.follow(part.entries)
        restored.last_sign = restored.index.last_sign
    restored.overlap = reader.overlaps.note()
    return restored


def _try_out(restored: Restored) -> None:
    """Do with it all that will be done later, so that hostile data raises here."""
    cursor = restored.ledger.settled.clone()
    cursor.apply_all(restored.ledger.pending)
    json.dumps(restored.ledger.totals(restored.last_sign).to_json())
    restored.ledger.overview(restored.last_sign)
    restored.index.successor(restored.attempt + 1)


def _from_snapshot(run: RunDirectory, process: int, spans: Sequence[int], more: bool, *, alone: bool) -> Restored:
    path = run.file("snapshot", process)
    try:
        head, blobs = state_file.read(path, FORM)
        ledger = Ledger.load(head["ledger"], blobs, None if more else spans)
        ledger.add_windows(spans)
        index = SpanIndex.from_plain(head["spans"], Blobs())
        attempt, number, read = (whole(one, _PLACES) for one in head["position"])
        names = records.Names(dict(enumerate(map(str, head["names"]))))
        phases = Phases({entry.key: entry for entry in index.opened})
        steps = (one for one in reversed(phases.opened.values()) if one.phase == rules.STEP)
        step = next((Record(ev.START, rules.STEP, 0, "", one.key, one.step, one.start) for one in steps), None)
        reached = Reached(attempt, names, True, (attempt, number, read), phases=phases, step=step)
        restored = Restored(ledger, index, reached, index.last_sign)
        (prove if alone else _rehearse)(restored)
        return restored
    except (FileNotFoundError, NotADirectoryError):
        return Restored(Ledger(spans))
    except MemoryError:  # the file may be sound, and the journal needs less at once
        logger.warning("journal: there is too little memory to read %s, the whole journal is read instead", path)
        return Restored(Ledger(spans))
    except Exception as error:  # a hostile file can raise anything
        logger.warning("journal: %s is not used, the whole journal is read instead: %s", path, error)
        restored = Restored(Ledger(spans))
        restored.damages.left_out(path.name, error, harmless=True)
        if not restored.damages.newer:
            restored.spoilt.append(path)
        return restored


def prove(restored: Restored) -> None:
    """Raise an exception if the content of a snapshot is not well-formed; anybody can write a correct checksum."""
    _try_out(restored)
    _rehearse(restored)


def _rehearse(restored: Restored) -> None:
    """Do with a copy of it what a next attempt may do."""
    whole(restored.last_sign)
    again = restored.ledger.clone(spans=())  # else hours in buckets of ms may pass
    again.feed(_rehearsal(restored.last_sign, restored.attempt + 1, restored.ledger))
    again.totals(restored.last_sign + 2 * _LONG)
    again.overview(restored.last_sign + 2 * _LONG)


def _rehearsal(last_sign: int, attempt: int, ledger: Ledger) -> list[Event]:
    """What a next attempt may do after `last_sign` (ns): restore, go back, go on, save, and stand still for long."""
    settled = ledger.settled
    last = settled.steps.last_step or 0
    far = max(0, last - _REHEARSED)  # from further on, it would take longer than all the rest of a restart
    at = last_sign
    events = [Event(at, ev.ATTEMPT, step=attempt), Event(at, ev.START, rules.JOB, 1)]
    phases = [(phase, ev.NO_STEP) for phase in rules.OWNERS] + [(rules.EXCLUSION, ev.NO_STEP)]
    steps = [
        (rules.STEP, number)
        for number in (last + 1, last + 2, max(far, settled.steps.safe + 1), far, far + 1, last + 3)
    ]
    for key, (phase, step) in enumerate((*phases, *steps, (rules.SAVE, last + 3), (rules.STEP, last + 4)), 2):
        begun, ended = at + _LONG // 64, at + _LONG // 32
        at = ended
        events += [Event(begun, ev.START, phase, key, step), Event(ended, ev.END, phase, key)]
    return [*events, Event(at + _LONG, ev.END, rules.JOB, 1)]


def write_snapshot(
    run: RunDirectory,
    process: int,
    ledger: tuple[dict[str, Any], list[Blob]],
    index: SpanIndex,
    names: Sequence[str],
    position: Position,
) -> None:
    """Write a snapshot that covers all records before `position` (attempt, segment, record). Raises OSError."""
    head, blobs = ledger
    held = {"ledger": head, "spans": index.to_plain(Blobs()), "names": list(names), "position": position}
    write_privately(run.file("snapshot", process), *state_file.pieces(FORM, state_file.text_of(held), blobs))


RECENT: Final = 1000  # records remembered for the live tail
_WATCHED: Final = 8  # segments before the current one in which a late record is looked for

Place = tuple[int, int]  # attempt, segment


class PlacedRecord(NamedTuple):
    """A record, and the attempt that it belongs to."""

    attempt: int
    record: Record


class Follower:
    """Reads the journal of one process as it grows; the run's folder need not exist yet."""

    def __init__(self, run: RunDirectory, process: int = 0) -> None:
        self.run = run
        self.process = process
        self.state = Restored(Ledger())  # the run as a restart would restore it now; only the next poll changes it
        # The latest records; those that were there before the first poll are not among them.
        self.recent: deque[PlacedRecord] = deque(maxlen=RECENT)
        self.count = 0  # how many records there have been in `recent`
        self.restored = 0  # how often the journal had to be restored, the first time included
        self._spans: Sequence[int] = ()
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

    def keep(self, spans: Sequence[int]) -> None:
        """Keep rolling windows of the lengths `spans` (ns); reads the journal again if they were not kept."""
        self._spans = spans
        if self.restored and not set(spans) <= set(self.state.ledger.settled.spans):
            self._restore()

    def _restore(self) -> int:
        self.state = restore(self.run, self.process, self._spans, more=True)
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
        holes = defaultdict[Place, list[int]](list)
        for attempt, number, at in reached.holes:
            holes[attempt, number].append(at)
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

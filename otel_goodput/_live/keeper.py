"""The background thread that maintains the journal: heartbeats, archiving of segments, snapshots, digests, upload.

Everything here may wait for a disk. The training thread never waits for it.
"""

from __future__ import annotations

import errno
import gzip
import random
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from otel_goodput._journal import records
from otel_goodput._journal.account import Account
from otel_goodput._journal.digest import write_digest
from otel_goodput._journal.facts import FactSheet
from otel_goodput._journal.incidents import IncidentSheet
from otel_goodput._journal.journal import Segment
from otel_goodput._journal.loader_times import LoaderSheet
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._journal.usage import UsageSheet
from otel_goodput._live.spares import Spares
from otel_goodput._runtime import files, host
from otel_goodput._runtime.files import write_privately
from otel_goodput._runtime.guard import contain, report_once, started
from otel_goodput._timeline.reader import Position
from otel_goodput._timeline.recovery import Restored, restore, write_snapshot
from otel_goodput._timeline.span_index import SpanIndex

TICK_S: Final = 0.25
JITTER: Final = 0.2  # part of it, at random: what is sampled at each tick must not beat with steps that take as long
HEARTBEAT_NS: Final = 1_000_000_000
ROUNDS: Final = 64  # at most so many rounds of feeding the ledger in one tick
# A thread that computes holds the GIL for 5 ms, whoever waits for it. So the ledger is fed a little at a time, and
# between two bites the durations in them are recorded, which takes longer:
BITE: Final = 64  # records
HOLD_S: Final = 0.0001  # of recording durations
PAUSE_S: Final = 0.0002  # between two of either, for the training thread;
BITES: Final = 512  # in a tick at most; beyond, and
LATE_PAUSES_S: Final = 0.01  # if pauses took so much longer, because the training thread keeps the GIL, without pauses
STRETCH_S: Final = 0.005  # and at most so long at a stretch, for others who wait for the ledger;
TIMELY_S: Final = 0.001  # a pause that is less late than that is so because of the system's timer
SYNC_S: Final = 5.0
LAST_S: Final = 0.3  # for the ledger to catch up at the end; what it misses is in the journal
MEMORY_LAST_S: Final = 3.0  # the same, if there is no journal on disk
LATE_S: Final = 2.0  # for other threads to finish writing to a segment that is left
ABANDONED_S: Final = 1.0  # for a round under way to end before its journal is given up
SNAPSHOT_RECORDS: Final = records.CAPACITY * 3 // 4  # of a loop, some 24,000 steps: a restart replays so many
SNAPSHOT_S: Final = 300.0
DIGEST_S: Final = 30.0  # from one digest to the next, if anything happened
# While the disk cannot be written, records wait in memory: 64 segments of 1 MiB hold a million steps or more.
MEMORY_SEGMENTS: Final = 64


class Keeper:
    """Maintains the journal of one process.

    While the run is `provisional`, because it may still turn out to be another one, nothing is written that is about
    more than this attempt: no snapshot, digest or notes.
    """

    def __init__(
        self,
        account: Account,
        run: RunDirectory | None,  # None if the journal is in memory only
        index: SpanIndex,
        work: Callable[[], None],  # further work for every tick (summaries of steps, upload)
        prepare: Callable[[], None] | None,  # creates the folder if that has failed before; may raise OSError again
        between: Callable[[], None],  # the part of `work` that must not wait for the ledger
        sheets: Sequence[FactSheet | UsageSheet | IncidentSheet | LoaderSheet],
        provisional: Callable[[], bool],
    ) -> None:
        self.account = account
        self.run = run
        self.work = work
        self._sheets = sheets
        self._provisional = provisional
        self._between = between
        self._behind = False
        self.index = index
        self._kept: list[Segment] = []  # full, drained, not yet in a snapshot
        self._index_at = self._snapshot_at = self._digest_at = (0, 0)  # segment, record
        self._snapshot_time = self._digest_time = self._synced = time.monotonic()
        self._beaten = 0
        self._on_disk = False  # the whole journal, after stop()
        self._caught_up = False  # the index was up to date when the keeper stopped
        self._random = random.Random()
        self._pause: Callable[[float], float] = _sleep
        self._stop = threading.Event()
        self._pass = threading.Lock()
        self._thread = threading.Thread(target=self._loop, name="otel-goodput-keeper", daemon=True)
        # Set when there is work before the next tick: by the spares, or by the journal itself if it has none.
        self._wake = account.journal.rolled if run is None else threading.Event()
        self._spares = Spares(account.journal, run, self._wake.set, self._save, self._waiting, prepare)
        if run is not None:
            account.notes.load(run, account.journal.process)

    def pause_by(self, pause: Callable[[float], float]) -> None:
        """Pause by `pause` while the ledger is fed.

        It sleeps for so many seconds, or longer if it has something to do then, and returns for how many.
        """
        self._pause = pause

    def start(self) -> None:
        if host.current.in_memory:
            return
        lost = "nothing looks after the journal in the background, live figures may be late until the end"
        if started(self._thread, lost):
            self._spares.start()

    def _loop(self) -> None:
        while not self._stop.is_set():
            self.tick()
            if not self._behind:
                self._wake.wait(TICK_S * self._random.uniform(1 - JITTER, 1 + JITTER))
            self._wake.clear()

    def tick(self) -> None:
        """Do one round of work. Errors are reported, not raised."""
        self._do(
            self.account.look_for_suspension,
            self._beat,
            self._retry,
            self._follow_up,
            self.work,
            self._seal,
            self._save_notes,
            self._digest_now_and_then,
            self._save_sheets,
            self._sync,
        )

    def _do(self, *jobs: Callable[[], object]) -> None:
        with self._pass:
            for job in jobs:
                try:
                    job()
                except Exception as error:
                    contain(f"journal {job.__name__.strip('_')}", error)

    def stop(self) -> None:
        """Stop the thread, write everything and close the journal. May wait for the disk."""
        self._end_thread(5.0)
        self._do(self._retry, self.work, self._seal, self._save_notes)
        with self._pass:
            try:
                self._finish()
            except OSError as error:
                self._spares.trouble(error)
        self._do(self.account.listeners.record_durations)

    def abandon(self) -> None:
        """Stop the thread and give up the journal, without writing anything more."""
        self._end_thread(ABANDONED_S)
        self._spares.clear()
        for segment in (*self._kept, *self.account.journal.take_full(drained=False), self.account.journal.current):
            segment.release()

    def _end_thread(self, seconds: float) -> None:
        self._stop.set()
        self._wake.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(seconds)

    def move(self, run: RunDirectory, attempt: int, first: Path, before: Restored) -> None:
        """Continue in the folder of another run, as its attempt `attempt`: what was recorded so far becomes part of it.

        For `work`, which runs in the keeper's thread, and only while the run is provisional. The records are copied, in
        their order, before anything goes on in the other folder, so that a process that is killed leaves two runs that
        can be read. Raises OSError if that folder cannot be written; the journal then goes on where it is.

        `first` is the path of the first segment there, and `before` is that run so far.
        """
        account, journal = self.account, self.account.journal
        if not self._spares.writable or self._waiting():
            raise OSError(errno.EAGAIN, "records wait in memory", str(run.path))
        paths: dict[int, Path] = {0: first}

        def path_of(segment: Segment) -> Path:
            return paths.get(segment.number) or paths.setdefault(segment.number, self._spares.next_path(run, attempt))

        def copy(segment: Segment) -> bytes:
            data = records.readdressed(segment.buffer, attempt, before.last_sign)
            used = records.HEADER_SIZE + records.used(data) * records.SIZE
            write_privately(path_of(segment), data[:used], size=len(data))
            return data

        with account.lock:  # totals() must wait: for a moment the ledger is that of neither run
            self._kept += journal.take_full()
            for segment in (*self._kept, *journal.segments):
                copy(segment)
            next_one = self._spares.move(run, attempt)
            late = [segment for segment in journal.segments if segment.number < next_one.number]
            until = time.monotonic() + LATE_S
            while late[-1].read < late[-1].end and time.monotonic() < until:
                if not journal.drain()[1]:
                    time.sleep(0.001)
            for segment in (*self._kept, *late):
                try:
                    data = copy(segment)  # again, with what has been written to it since
                    segment.keep(data, path_of(segment), written=True)
                except OSError as error:
                    data = records.readdressed(segment.buffer, attempt, before.last_sign)
                    segment.keep(data, path_of(segment), written=False)
                    self._spares.trouble(error)
            journal.rewind(self._kept)
            self._kept.clear()
            account.ledger = before.ledger
        self.run, self.index = run, before.index.successor(attempt)
        self._index_at = self._snapshot_at = self._digest_at = (0, 0)
        account.notes.load(run, journal.process)

    @property
    def left(self) -> tuple[int, bool]:
        """After :meth:`stop`: spans not known to be exported, 0 if not all is on disk, and whether that is exact."""
        return self.index.all_unexported if self._on_disk else 0, self._caught_up

    # --- rounds -------------------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        now = self.account.clock()
        if now - self._beaten >= HEARTBEAT_NS:
            self._beaten = now
            self.account.journal.current.beat(now)

    def _retry(self) -> None:
        if not self._spares.writable:
            self._spares.lay()

    def _follow_up(self) -> None:
        """Feed the ledger and record durations until all is done; do the urgent work on the journal in between."""
        record = self.account.listeners.record_durations
        late, more = 0.0, True
        for _ in range(BITES):
            if self._behind or late > LATE_PAUSES_S or self._stop.is_set():
                break
            if not record(HOLD_S):
                if not more:
                    return
                more = self.account.take_some(BITE)
            self._beat()
            self._between()
            began = time.monotonic()
            paused = self._pause(PAUSE_S)
            overrun = time.monotonic() - began - paused
            if overrun > TIMELY_S:
                late += overrun
        for _ in range(ROUNDS):
            self._behind = not self.account.refresh(STRETCH_S)
            recording = record(STRETCH_S)
            if not (self._behind or recording) or self._stop.is_set():
                break
            self._beat()
            self._between()
            self._seal()

    def _seal(self) -> None:
        """Collect full segments; write a snapshot if enough has happened since the last one."""
        journal = self.account.journal
        for segment in journal.take_full():
            segment.rest()  # until the next snapshot
            self._kept.append(segment)
        if self.run is None:
            for segment in self._kept:
                segment.release()
            self._kept.clear()
            return
        waiting = [segment for segment in self._kept if segment.path is None]
        if waiting and self._spares.writable:
            for segment in waiting:
                self._write_out(segment)
            if not self._waiting():
                journal.rolled.set()  # now there may be spares
        for oldest in [segment for segment in self._kept if segment.path is None][:-MEMORY_SEGMENTS]:
            self._kept.remove(oldest)
            journal.dropped += oldest.read
            report_once("journal memory", "the journal's disk has been unwritable for too long: records are dropped")
        if self._provisional():
            return
        number, read = self._snapshot_at
        drained = self._drained()
        new = (drained.number - number) * records.CAPACITY + drained.read - read
        if new >= SNAPSHOT_RECORDS or (new and time.monotonic() - self._snapshot_time >= SNAPSHOT_S):
            self._snapshot()

    def _drained(self) -> Segment:
        """The segment that the ledger has reached."""
        segments = (*self._kept, *self.account.journal.segments)
        return next((segment for segment in segments if segment.read < segment.end), segments[-1])

    def _waiting(self) -> list[Segment]:
        """The segments whose records wait in memory for the disk."""
        return [segment for segment in (*self._kept, *self.account.journal.segments) if segment.path is None]

    def _save(self) -> None:
        """Write the records that wait in memory. Raises OSError."""
        for segment in self._waiting():
            self._write(segment)

    def _write(self, segment: Segment) -> None:
        """Write what a segment in memory holds, and no more: the disk may have room for that alone. Raises OSError."""
        if self.run is None:
            return
        if segment.copy is None:
            segment.copy = self._spares.next_path(self.run)
        with memoryview(segment.buffer) as whole:
            used = records.HEADER_SIZE + records.used(segment.buffer) * records.SIZE
            with whole[:used] as part:
                write_privately(segment.copy, part, size=len(whole))

    def _write_out(self, segment: Segment) -> None:
        try:
            self._write(segment)
        except OSError as error:
            self._spares.trouble(error)
            return
        segment.path = segment.copy

    def _snapshot(self) -> None:
        run, account, journal = self.run, self.account, self.account.journal
        if run is None or not self._spares.writable:
            return
        with account.lock:
            self._kept += journal.take_full()  # calls of totals() drain the journal, too
            current = self._drained()
            position: Position = (journal.attempt, current.number, current.read)
            state = account.ledger.dump(later=True)
        self._follow((current.number, current.read), current)
        try:
            write_snapshot(run, journal.process, state, self.index, journal.names, position)
        except OSError as error:
            self._spares.trouble(error)
            return
        self._snapshot_time, self._snapshot_at = time.monotonic(), position[1:]
        for segment in list(self._kept):
            if segment.number < current.number and segment.path is not None:
                try:  # compress it: exact windows still need it
                    write_privately(records.sealed(segment.path), gzip.compress(segment.buffer, 1))
                    files.remove(segment.path)
                except OSError as error:
                    self._spares.trouble(error)
                segment.release()
                self._kept.remove(segment)

    def _follow(self, end: tuple[int, int], current: Segment) -> None:
        """Bring the span index up to `end` (segment, record)."""
        for segment in (*self._kept, current):
            number, read = self._index_at
            if segment.number < number or segment.number > end[0]:
                continue
            begin = read if segment.number == number else 0
            stop = end[1] if segment.number == end[0] else segment.end
            place = slice(*(records.HEADER_SIZE + at * records.SIZE for at in (begin, stop)))
            with memoryview(segment.buffer) as whole, whole[place] as part:
                self.index.follow(records.UNCHECKED.iter_unpack(part), self.account.journal.names)
            self._index_at = (segment.number, stop)

    def _digest_now_and_then(self) -> None:
        if time.monotonic() - self._digest_time >= DIGEST_S and not self._provisional():
            drained = self._drained()
            if (drained.number, drained.read) != self._digest_at:
                self._digest()

    def _digest(self) -> None:
        """Write the overview of the run. What goes wrong with it holds up nothing else, and is reported once."""
        run, account, journal = self.run, self.account, self.account.journal
        if run is None or not self._spares.writable:
            return
        with account.lock:
            drained = self._drained()
            position: Position = (journal.attempt, drained.number, drained.read)
            now = max(account.clock(), account.reached)
            overview = account.ledger.overview(now)
        self._digest_time, self._digest_at = time.monotonic(), position[1:]
        try:
            write_digest(run, journal.process, overview, journal.attempt, now, position)
        except (OSError, ValueError) as error:
            report_once("digest", "the overview of the run cannot be saved (will retry): %s", error)

    def _save_sheets(self) -> None:
        if self.run is not None and self._spares.writable:
            for sheet in self._sheets:
                sheet.keep(self.run)

    def _save_notes(self) -> None:
        if self.run is not None and self._spares.writable and (self._stop.is_set() or not self._provisional()):
            self.account.notes.keep(self.run, self.account.journal.process)

    def _sync(self) -> None:
        if self.run is not None and time.monotonic() - self._synced >= SYNC_S:
            self._synced = time.monotonic()
            self.account.journal.current.sync()

    def _finish(self) -> None:
        journal, run = self.account.journal, self.run
        if run is None:
            self.account.refresh(MEMORY_LAST_S)
            return
        with self.account.lock:  # totals() must wait: for a moment, parts of the journal are neither in it nor on disk
            caught_up = self.account.refresh(LAST_S)
            self._kept += journal.take_full(drained=False)
            for segment in (*self._kept, journal.current):
                if segment.path is None:
                    self._write_out(segment)
            self._on_disk, self._caught_up = self._spares.writable, caught_up  # what follows only saves work later
            journal.current.beat(self.account.clock())
            self._digest()
            self._snapshot()
            if self._spares.writable:
                for sheet in self._sheets:
                    sheet.keep(run, last=True)
            if not caught_up:
                spans = self.account.ledger.settled.spans
                self.account.leave(lambda: restore(run, journal.process, spans).ledger)
        journal.current.sync()
        self._spares.clear()
        for segment in self._kept:
            segment.release()
        journal.current.release()


def _sleep(seconds: float) -> float:
    time.sleep(seconds)
    return seconds

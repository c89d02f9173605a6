"""The job's own records: what all ranks of a run do together, journaled as if it were one process (rule R11).

They are in a folder of their own in that of the run, which everything reads that reads a run. So the report of a job of
hundreds of ranks takes as long as that of one of them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

from otel_goodput._accounting import Event, Ledger
from otel_goodput._accounting.job import Costs
from otel_goodput._accounting.own_time import OwnTimes
from otel_goodput._journal.account import Account
from otel_goodput._journal.job_now import JobNow, write_now
from otel_goodput._journal.job_waits import JobWaits, read_waits, write_waits
from otel_goodput._journal.journal import Journal, Segment
from otel_goodput._journal.lock import Lock
from otel_goodput._journal.own_times import write_own_times
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._live.handover import Handover
from otel_goodput._live.keeper import Keeper
from otel_goodput._live.opening import first_segment
from otel_goodput._text.redact import redacting_logger
from otel_goodput._timeline.recovery import Restored, restore

logger = redacting_logger(__name__)

EVERY_S: Final = 5.0  # from one writing of what the job waited for to the next, if it takes no more than
WRITER: Final = "writer.lock"  # held by the process that writes them, whatever the number of the attempt
IN_MEMORY: Final = "the job's own records are kept in memory only: %s"
_SHARE: Final = 1000  # one part in so many of a core


class JobRecords:
    """Writes the job's own records, and keeps the ledger of them.

    Args:
        run: the folder of the run; None if its journal is in memory only: then so are these.
        spans: lengths of rolling windows, ns.
        anew: those of earlier attempts are made again, so that they are removed.
        writes: they are written; else what is added to them is kept in memory only, as a deputy of the leader does.
        handed: those so far, if they are not in a folder.

    Attributes:
        account: their journal, and the ledger of them.
        costs: what the job has waited for before.
        together: its ranks step together, as far as that is known.
    """

    def __init__(
        self,
        run: RunDirectory | None,
        spans: Sequence[int],
        *,
        anew: bool = False,
        writes: bool = True,
        handed: Handover | None = None,
    ) -> None:
        folder = None if run is None else run.of_job
        self._locks: list[Lock] = []
        if run is not None and folder is not None and writes:
            try:
                folder.create(run.identity())
                if not self._lock(Lock(folder.path / WRITER)):  # as where several processes are the leader
                    logger.info(IN_MEMORY, f"another living process writes {folder.path}")
                    folder, writes = None, False
            except OSError as error:
                logger.warning(IN_MEMORY, error)
                writes = False
        before = [] if folder is None else folder.attempts(0)
        if folder is not None and writes and anew:
            folder.clear()
        # No two of them have the same number, so that another machine can see which are newer.
        restored = Restored(Ledger(spans)) if folder is None else restore(folder, 0, spans)
        attempt, segment = max([restored.attempt, *before]) + 1, Segment(None)
        self.costs, self.together = Costs(), True
        if handed is not None:
            restored = Restored(handed.ledger, last_sign=handed.ledger.settled.now)
            self.costs, self.together = handed.waits.costs, handed.waits.together
        elif folder is not None and restored.attempt >= 0:
            with suppress(OSError, ValueError):  # it was killed before it wrote it, or the file is damaged
                waits = read_waits(folder)
                self.costs, self.together = waits.costs, waits.together
        if not writes:
            folder = None
        if folder is not None:
            try:
                self._lock(folder.lock(attempt, 0))  # it shows readers that the attempt goes on
                folder.sweep(0, attempt)
                segment = first_segment(folder, attempt, 0)
            except OSError as error:
                logger.warning(IN_MEMORY, error)
                folder = None
        # No sign of life is later than what has been decided: what the job did since is not known here.
        self._latest = restored.last_sign
        self.account = Account(Journal(attempt, 0, segment), restored.ledger, lambda: self._latest)
        index = restored.index.successor(attempt)
        self._keeper = Keeper(self.account, folder, index, self._renew, None, _nothing, (), _never)
        self._keeper.start()

        self._folder = folder
        self._due = float("-inf")

    @property
    def journal(self) -> Journal | None:
        """Their journal; None if it is in memory only."""
        return None if self._folder is None else self.account.journal

    def _lock(self, lock: Lock) -> bool:
        if acquired := lock.acquire():
            self._locks.append(lock)
        return acquired

    def _release(self) -> None:
        for lock in self._locks:
            lock.release()

    def _renew(self) -> None:
        for lock in self._locks:
            lock.renew()

    def save(self, waits: JobWaits, *, last: bool = False) -> None:
        """Write what the job waited for, if that was long ago, or the `last` time."""
        if self._folder is not None and (last or time.monotonic() >= self._due):
            began = time.thread_time()
            write_waits(self._folder, waits)
            self._due = time.monotonic() + max(EVERY_S, _SHARE * (time.thread_time() - began))

    def save_now(self, now: JobNow) -> None:
        """Write what the ranks do."""
        if self._folder is not None:
            write_now(self._folder, now)

    def save_own(self, own: OwnTimes) -> None:
        """Write what the ranks do themselves inside of steps."""
        if self._folder is not None:
            write_own_times(self._folder, own)

    def refresh(self) -> None:
        """Bring the ledger up to what has been recorded."""
        self.account.refresh(math.inf)

    def record(self, events: Iterable[Event]) -> None:
        """Record events of the job, in order of time."""
        append, named, latest = self.account.append, self.account.journal.name, self._latest
        for time_, kind, phase, key, step, flags, _, name in events:
            append(kind, phase, flags, named(name) if name else 0, key, step, time_)
            if time_ > latest:
                latest = time_
        self._latest = latest

    def close(self) -> None:
        """Write what has been recorded. May wait for the disk."""
        self._keeper.stop()
        self._release()

    def orphan(self) -> None:
        """In a forked child: write no more, and give back the copy of the lock, which would outlive the parent."""
        self.account.orphan(Ledger)
        self._release()


def _nothing() -> None: ...


def _never() -> bool:
    return False

"""The thread that prepares spare segments, so that the journal need not continue in memory that a SIGKILL would lose.

It also frees the memory of those that are full, and does nothing else: a snapshot, an fsync or an archive may keep a
slow disk busy for seconds, and a loop of empty steps fills a segment in 0.2 s.
"""

from __future__ import annotations

import errno
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final

from otel_goodput._journal.journal import Journal, Segment
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._runtime import files
from otel_goodput._runtime.guard import contain, started
from otel_goodput._text.redact import redacting_logger

logger = redacting_logger(__name__)

FEWEST: Final = 3
MOST_SPARES: Final = 12  # if a fast loop leaves this thread little time


class Spares:
    """Prepares segments for one process's journal, and knows whether its disk can be written."""

    def __init__(
        self,
        journal: Journal,
        run: RunDirectory | None,  # None if the journal is in memory only
        laid: Callable[[], None],  # called after each round, so that the keeper can continue
        save: Callable[[], None],  # writes what waits in memory before spares take room; may raise OSError
        waiting: Callable[[], list[Segment]],  # the segments whose records wait in memory
        prepare: Callable[[], None] | None,  # creates the folder if that has failed before; may raise OSError again
    ) -> None:
        self.writable = prepare is None  # whether the last write to the disk succeeded
        self._journal = journal
        self._run = run
        self._laid = laid
        self._save = save
        self._waiting = waiting
        self._prepare = prepare
        self._numbers = count(1)  # the first segment already exists
        self._wanted = FEWEST
        self._stopped = False
        journal.rolled.set()
        self._laying = threading.Lock()
        self._thread = threading.Thread(target=self._loop, name="otel-goodput-spares", daemon=True)

    def start(self) -> None:
        if self._run is not None:
            started(self._thread, "no segments are prepared for the journal, a crash may lose its latest records")

    def _loop(self) -> None:
        while not self._stopped:
            self._journal.rolled.wait()
            self._journal.rolled.clear()
            try:
                for segment in self._journal.segments[:-1]:
                    segment.rest()
                self.lay()
            except Exception as error:
                contain("journal segments", error)
            self._laid()

    def lay(self) -> None:
        """Create spares up to the wanted number; double that number if nearly all had been taken.

        As long as records wait in memory there is no more than one, in which the journal continues: they come first.
        """
        if self._run is None:
            return
        with self._laying:
            journal = self._journal
            if self.writable and journal.current.number and len(journal.spares) <= 1:
                self._wanted = min(MOST_SPARES, 2 * self._wanted)
            while not self._stopped and len(journal.spares) < self._wanted:
                if journal.spares and self._waiting():
                    return
                try:
                    if self._prepare is not None:
                        self._prepare()
                        self._prepare = None
                    if not self.writable:
                        self._save()
                    spare = self._make(self._run)
                except OSError as error:
                    self.trouble(error)
                    return
                journal.spares.append(spare)
                if not self.writable:
                    self.writable = True
                    logger.warning(
                        "the journal's disk is writable again; the records that waited in memory are written now"
                    )
                if journal.current.path is None:
                    journal.leave()
                    return

    def move(self, run: RunDirectory, attempt: int) -> Segment:
        """Continue the journal in the folder of another run, as its attempt `attempt`; returns the next segment there.

        Raises OSError if that folder cannot be written; nothing has changed then.
        """
        with self._laying:
            spare = Segment(self.next_path(run, attempt))
            before, self._run = self._journal.move(attempt, spare), run
        with suppress(OSError):
            _discard(before)
        return spare

    def _make(self, run: RunDirectory) -> Segment:
        while True:
            try:
                return Segment(self.next_path(run))
            except FileExistsError:
                continue  # a foreign file has this name: try the next

    def next_path(self, run: RunDirectory, attempt: int | None = None) -> Path:
        """The path for the next segment, of this attempt or of another one."""
        attempt = self._journal.attempt if attempt is None else attempt
        return run.segment_path(attempt, self._journal.process, next(self._numbers))

    def trouble(self, error: OSError) -> None:
        """Handle a failed write: continue in memory and log it once. The next call of :meth:`lay` tries again."""
        if not self.writable:
            return
        self.writable = False
        reason = {errno.ENOSPC: "is full", errno.EROFS: "is read-only", errno.EDQUOT: "has no quota left"}.get(
            error.errno or 0, f"cannot be written ({error.strerror or error})"
        )
        logger.warning(
            "the journal's disk %s: %s. Training and live figures go on; records wait in memory until it can be "
            "written again; a crash before then loses them",
            reason,
            self._run.path if self._run else "",
        )

    def clear(self) -> None:
        """Stop, and remove the unused spares."""
        self._stopped = True
        self._journal.rolled.set()
        with self._laying:
            _discard(self._journal.spares)


def _discard(spares: deque[Segment]) -> None:
    while spares:
        spare = spares.popleft()
        spare.release()
        if spare.path is not None:
            files.remove(spare.path)

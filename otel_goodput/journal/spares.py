"""The thread that lays segments ready, so that the journal never has to go on where a SIGKILL would not leave it.

It does nothing else: a snapshot, a sync or an archive may keep a slow disk busy for seconds, and a loop of steps
without content fills a segment in 0.2 s.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Final

from otel_goodput import files
from otel_goodput.guard import contain
from otel_goodput.journal.journal import Journal, Segment
from otel_goodput.journal.rundir import RunDirectory
from otel_goodput.text.redact import redacting_logger

logger = redacting_logger(__name__)

FEWEST: Final = 3
MOST_SPARES: Final = 12  # where a loop leaves us little time


class Spares:
    """Lays segments ready for one process's journal, and knows whether its disk can be written.

    Args:
        journal: whose segments.
        run: the run's folder, None where the journal lives in memory only.
        laid: called after each round; what became of the journal can be followed up then.
        prepare: makes the run's folder, where that has failed so far; raises OSError as long as it does.

    Attributes:
        writable: whether the disk took what it was last given.
    """

    def __init__(
        self,
        journal: Journal,
        run: RunDirectory | None,
        laid: Callable[[], None] = lambda: None,
        prepare: Callable[[], None] | None = None,
    ) -> None:
        self.writable = prepare is None
        self._journal = journal
        self._run = run
        self._laid = laid
        self._prepare = prepare
        self._numbers = count(1)  # the first segment is made before us
        self._wanted = FEWEST
        self._stopped = False
        self._wake = threading.Event()
        self._wake.set()
        self._laying = threading.Lock()
        self._thread = threading.Thread(target=self._loop, name="otel-goodput-spares", daemon=True)

    def start(self) -> None:
        if self._run is not None:
            self._thread.start()

    def wake(self) -> None:
        """A spare was taken. Returns at once."""
        self._wake.set()

    def _loop(self) -> None:
        while not self._stopped:
            self._wake.wait()
            self._wake.clear()
            try:
                self.lay()
            except Exception as error:
                contain("journal segments", error)
            self._laid()

    def lay(self) -> None:
        """Make as many as are wanted; more once nearly all have been taken before we came."""
        if self._run is None:
            return
        with self._laying:
            journal = self._journal
            if self.writable and journal.current.number and len(journal.spares) <= 1:
                self._wanted = min(MOST_SPARES, 2 * self._wanted)
            while not self._stopped and len(journal.spares) < self._wanted:
                try:
                    self._prepared()
                    spare = self._make(self._run)
                except OSError as error:
                    self.trouble(error)
                    return
                journal.spares.append(spare)
                if not self.writable:
                    self.writable = True
                    logger.warning("the journal's disk is writable again; what waited in memory is written now")
                if journal.current.path is None:
                    journal.leave()

    def _prepared(self) -> None:
        """A file that stands in the folder's place is an error like any other."""
        if self._prepare is not None:
            self._prepare()
            self._prepare = None

    def _make(self, run: RunDirectory) -> Segment:
        while True:
            try:
                return Segment(self.next_path(run))
            except FileExistsError:
                continue  # of an attempt that had this number

    def next_path(self, run: RunDirectory) -> Path:
        """Where the next segment goes."""
        return run.segment_path(self._journal.attempt, self._journal.process, next(self._numbers))

    def trouble(self, error: OSError) -> None:
        """The disk refuses: go on in memory, say so once; whoever lays again tries again."""
        if not self.writable:
            return
        self.writable = False
        reason = {errno.ENOSPC: "is full", errno.EROFS: "is read-only", errno.EDQUOT: "has no quota left"}.get(
            error.errno or 0, f"cannot be written ({error.strerror or error})"
        )
        logger.warning(
            "the journal's disk %s: %s. Training and live figures go on; records wait in memory until it can be "
            "written again, a crash before then loses them",
            reason,
            self._run.path if self._run else "",
        )

    def clear(self) -> None:
        """Lay no more, and take away what nobody needed."""
        self._stopped = True
        self._wake.set()
        with self._laying:
            while self._journal.spares:
                spare = self._journal.spares.popleft()
                spare.release()
                if spare.path is not None:
                    files.remove(spare.path)

"""Opening a run's journal: which attempt this is, what came before, and what to say when something is in the way."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from otel_goodput.accounting import Ledger
from otel_goodput.clock import Clock
from otel_goodput.config import Config
from otel_goodput.errors import JournalError
from otel_goodput.journal import succession
from otel_goodput.journal.account import Account
from otel_goodput.journal.journal import Journal, Segment
from otel_goodput.journal.mirror import Mirror, spool
from otel_goodput.journal.recovery import Restored, restore
from otel_goodput.journal.rundir import Lock, RunDirectory, folder_name
from otel_goodput.journal.succession import CONTINUED, Before, Sequel
from otel_goodput.printable import without_credentials
from otel_goodput.semconv import Category

logger = logging.getLogger(__name__)

_STRANGERS: Final = 100


@dataclass
class Opened:
    """A journal ready for the first record.

    Attributes:
        run_id: as configured, or another one where a living process has that.
        run: its folder; None where there is none to be had at all.
        restored: the run so far, with the ledger to go on with.
        lock: held as long as this process writes.
        mirror: of a journal at a URL.
        continued: what to say of a run that had not finished and goes on; empty where there is nothing to say.
        before: the run that had finished, where this is a new one for that reason.
        prepare: tries again to make the folder where that has failed; raises OSError.
    """

    run_id: str
    attempt: int
    run: RunDirectory | None
    journal: Journal
    restored: Restored
    lock: Lock | None
    mirror: Mirror | None
    prepare: Callable[[], None] | None = None
    continued: str = ""
    before: Before | None = None

    def introduce(self, account: Account) -> None:
        """Note beside the account's figures where this run is from."""
        if self.continued:
            account.notes.add(CONTINUED, self.continued, (Category.INFRASTRUCTURE_RECOVERY,))
        if self.before is not None:
            Sequel(account, self.run_id, self.before)

    def recall(self) -> Ledger:
        """The account as the disk has it now; an empty one where there is no disk."""
        if self.run is None:
            return Ledger()
        return restore(self.run, self.journal.process, self.restored.ledger.settled.spans).ledger


def open_journal(config: Config, clock: Clock) -> Opened:
    """Open the journal of this process's attempt; whatever is in the way is said, and training goes on."""
    base = spool(config.directory) if config.remote else Path(config.directory).expanduser()
    process = config.process_index
    series = config.run_id
    while True:
        candidate = _candidate(config, base, series)
        run_id, run, mirror, restored = candidate.run_id, candidate.run, candidate.mirror, candidate.restored
        attempt = max([restored.attempt, *run.attempts(process)], default=-1) + 1
        identity = _identity(candidate, config, clock)
        try:
            run.create(identity)
            taken = _taken(run, attempt, process)
            lock = run.lock(attempt, process)
            if not taken and lock.acquire():
                run.sweep(process, attempt)
                first = _first_segment(run, attempt, process)
                break
        except OSError as error:
            logger.warning(
                "the journal cannot be written to %s (%s): live figures go on, but a restart will not know of this "
                "attempt "
                "unless the place becomes writable; choose another with OTEL_GOODPUT_DIR",
                run.path,
                error.strerror or error,
            )
            journal = Journal(attempt, process, Segment(None))
            opened = Opened(run_id, attempt, run, journal, restored, None, mirror)
            opened.prepare = partial(_prepare, opened, identity)
            return opened
        other = f"{config.run_id}~{os.getpid()}"
        if series == other:
            other += f"-{os.urandom(3).hex()}"
        logger.warning(
            "run %r is being written by another living process (pid %s) as process %d; this one records its own "
            "run %r. "
            "Give each process its index (JAX_PROCESS_ID, process_index=), or each run its own id "
            "(OTEL_GOODPUT_RUN_ID)",
            run_id,
            run.lock(max(0, attempt - 1), process).holder() or "?",
            process,
            other,
        )
        series = other
    opened = Opened(run_id, attempt, run, Journal(attempt, process, first), restored, lock, mirror)
    opened.continued = _say_what_was_before(opened, config, base, clock)
    opened.before = candidate.before
    if candidate.before is not None:
        logger.info("run %r had finished: this start is a new run, %r", candidate.before.run_id, run_id)
    return opened


@dataclass
class _Candidate:
    """A run that a start may belong to, what it holds so far, and the one that it follows if that had finished."""

    run_id: str
    run: RunDirectory
    mirror: Mirror | None
    restored: Restored
    series: str = ""
    before: Before | None = None


def _candidate(config: Config, base: Path, series: str) -> _Candidate:
    """The run called `series`, or the latest that followed it; a new one where that has finished."""

    def look(run_id: str) -> _Candidate:
        run = RunDirectory(base / folder_name(run_id))
        mirror = _mirror(config, run)
        return _Candidate(run_id, run, mirror, restore(run, config.process_index, config.windows))

    found = look(series)
    if not config.renewable:
        return found
    taken = succession.numbers(series, _folders(base, found.mirror))
    for number in taken:
        later = look(succession.numbered(series, number))
        if succession.belongs(later.run, series):
            found = later
            break
    number = max(taken, default=1)
    before: Before | None = None
    while succession.finished(found.restored):
        book = found.restored.book
        recovered = found.run.recovered_path(found.restored.attempt, config.process_index).exists()
        top = found.restored.ledger.settled.course.progress.top
        before = Before(found.run_id, top, 0 if recovered else book.unexported)
        number += 1
        found = look(succession.numbered(series, number))
        found.series, found.before = series, before
    return found


def _folders(base: Path, mirror: Mirror | None) -> set[str]:
    """Names of the runs' folders that there are, here and at the URL."""
    try:
        found = {path.name for path in base.iterdir()}
    except OSError:
        found = set()
    if mirror is not None:
        try:
            found.update(mirror.siblings())
        except Exception as error:  # every filesystem has errors of its own
            logger.warning("the runs at %s cannot be listed: %s", mirror.shown, without_credentials(str(error)))
    return found


def _first_segment(run: RunDirectory, attempt: int, process: int) -> Segment:
    """The first segment, beside whatever strange thing may stand in its place."""
    for serial in range(_STRANGERS):
        try:
            return Segment(run.segment_path(attempt, process, serial))
        except FileExistsError:
            continue
    raise FileExistsError(f"{run.journal} is full of foreign files")


def _prepare(opened: Opened, identity: dict[str, Any]) -> None:
    """Make the folder and take the lock after all."""
    if opened.run is not None:
        opened.run.create(identity)
        opened.lock = opened.run.lock(opened.attempt, opened.journal.process)
        opened.lock.acquire()


def _identity(candidate: _Candidate, config: Config, clock: Clock) -> dict[str, Any]:
    identity = {"run_id": candidate.run_id, "job_name": config.job_name, "created_at": clock() / 1e9}
    if candidate.before is not None:
        identity.update(series=candidate.series, follows=candidate.before.run_id)
    return identity


def _taken(run: RunDirectory, attempt: int, process: int) -> bool:
    """Whether the attempt before is still being written."""
    return attempt > 0 and run.alive(attempt - 1, process)


def _mirror(config: Config, run: RunDirectory) -> Mirror | None:
    if not config.remote:
        return None
    try:
        mirror = Mirror(config.directory, run)
        mirror.fetch()
    except (JournalError, OSError) as error:
        logger.warning("%s; the journal stays in %s", error, run.path)
        return None
    except Exception as error:  # every filesystem has errors of its own
        logger.warning(
            "the journal at %s cannot be read (%s: %s); what it holds is missing from the account",
            without_credentials(config.directory),
            type(error).__name__,
            without_credentials(str(error)),
        )
        return None
    return mirror


def _say_what_was_before(opened: Opened, config: Config, base: Path, clock: Clock) -> str:
    """Say which run this goes on with, if with any; returns what is to stand beside its figures."""
    run_id, restored = opened.run_id, opened.restored
    if restored.attempt < 0:
        return ""
    cursor = restored.ledger.settled
    ago = succession.age(restored, clock)
    if config.renewable:
        if cursor.begin is None:
            return ""
        number = next(succession.free(config.run_id, base))
        text = succession.continued(run_id, restored, clock, succession.numbered(config.run_id, number))
        logger.warning("%s", text)
        return text
    if cursor.ended and cursor.clean:
        logger.warning(
            "run %r had ended %s ago after %d attempt(s); this goes on with it as another one, and the time "
            "between counts as "
            "infrastructure recovery. For a new run give a new id (OTEL_GOODPUT_RUN_ID, run_id=)",
            run_id,
            ago,
            cursor.course.attempts,
        )
    else:
        logger.info("run %r goes on after %s, attempt %d", run_id, ago, restored.attempt + 2)
    return ""


def memory_journal(process: int = 0) -> tuple[Journal, Ledger]:
    """A journal without a file, for providers that bring no folder."""
    return Journal(0, process, Segment(None)), Ledger()

"""Opening a run's journal: which attempt this is, what came before, and what to say when something is in the way."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from otel_goodput import files
from otel_goodput.accounting import Ledger
from otel_goodput.clock import Clock
from otel_goodput.config import Config
from otel_goodput.envvars import OTEL_GOODPUT_RUN_ID
from otel_goodput.errors import JournalError
from otel_goodput.journal import records, succession
from otel_goodput.journal.account import Account
from otel_goodput.journal.journal import Journal, Segment
from otel_goodput.journal.lock import Lock
from otel_goodput.journal.mirror import Mirror, open_spool
from otel_goodput.journal.notes import Note
from otel_goodput.journal.recovery import Restored, restore
from otel_goodput.journal.rundir import RunDirectory, folder_name
from otel_goodput.journal.succession import CONTINUED, Before, Sequel
from otel_goodput.semconv import Category
from otel_goodput.text.redact import printable, redacting_logger, without_credentials

logger = redacting_logger(__name__)

NEWER: Final = "newer version"
ASIDE: Final = "set aside"

_STRANGERS: Final = 100
_LAST: Final = 999_999_999  # attempt that a file's name can tell
_BESIDE: Final = 5  # folders beside one another, each with files of a newer version


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
        remarks: what else is to stand beside its figures.
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
    remarks: list[Note] = field(default_factory=list)

    def introduce(self, account: Account) -> None:
        """Note beside the account's figures where this run is from."""
        for remark in self.remarks:
            account.notes.add(*remark)
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
    base = _base(config)
    process = config.process_index
    series = config.run_id
    while True:
        candidate = _candidate(config, base, series)
        run_id, run, mirror, restored = candidate.run_id, candidate.run, candidate.mirror, candidate.restored
        before = [restored.attempt, *run.attempts(process)]
        before += [number for elder in candidate.elders for number in elder.attempts(process)]
        attempt = min(max(before) + 1, _LAST)
        identity = _identity(candidate, config, clock)
        try:
            run.create(identity)
            taken = _taken(run, attempt, process)
            lock = run.lock(attempt, process)
            if not taken and lock.acquire():
                run.sweep(process, attempt)
                candidate.aside = _set_aside(restored)
                run.create(identity)  # what said who the run is may just have been set aside
                first = _first_segment(run, attempt, process)
                break
        except OSError as error:
            logger.warning(
                "the journal cannot be written to %s (%s): live figures go on, but a restart will not know of this "
                "attempt "
                "unless the place becomes writable; choose another with OTEL_GOODPUT_DIR",
                run.path,
                _reason(error, run.path),
            )
            journal = Journal(attempt, process, Segment(None))
            opened = Opened(run_id, attempt, run, journal, restored, None, mirror)
            opened.prepare = partial(_prepare, opened, identity)
            opened.remarks = _remarks(candidate)
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
    opened.remarks = _remarks(candidate)
    if candidate.before is not None:
        logger.info("run %r had finished: this start is a new run, %r", candidate.before.run_id, run_id)
    return opened


def _reason(error: OSError, folder: Path) -> str:
    """Why, and where if that is not the folder itself."""
    where = f": {error.filename}" if error.filename not in (None, str(folder)) else ""
    return f"{error.strerror or error}{where}"


def _base(config: Config) -> Path:
    """The folder on this machine that holds the runs."""
    if config.remote:
        return open_spool(config.directory)
    try:
        base = files.named(config.directory)
    except OSError:
        return Path(config.directory).absolute()  # whoever makes it says why that cannot be done
    if files.open_to_all(base):
        logger.warning(
            "everybody on this machine can replace what is in %s, a journal too: `chmod +t` keeps others from that, or "
            "choose another place with OTEL_GOODPUT_DIR",
            base,
        )
    return base


@dataclass
class _Candidate:
    """A run that a start may belong to, what it holds so far, and the one that it follows if that had finished."""

    run_id: str
    run: RunDirectory
    mirror: Mirror | None
    restored: Restored
    series: str = ""
    before: Before | None = None
    elders: list[RunDirectory] = field(default_factory=list)  # whose attempts ours are counted on from
    newer: RunDirectory | None = None  # with files of a newer version, which we are beside
    aside: list[Path] = field(default_factory=list)  # where damaged files are by now


def _candidate(config: Config, base: Path, series: str) -> _Candidate:
    """The run called `series`, or the latest that followed it; a new one where that has finished."""

    def look(run_id: str) -> _Candidate:
        run, newer = RunDirectory(base / folder_name(run_id)), None
        for _ in range(_BESIDE):
            mirror = _mirror(config, run)
            restored = restore(run, config.process_index, config.windows)
            if not restored.damages.newer:
                break
            newer, run = run, RunDirectory(run.path.with_name(f"{run.path.name}~v{records.VERSION}"))
        return _Candidate(run_id, run, mirror, restored, elders=_beside(base, folder_name(run_id)), newer=newer)

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
        index = found.restored.index
        recovered = files.exists(found.run.recovered_path(found.restored.attempt, config.process_index))
        top = found.restored.ledger.settled.steps.progress.top
        before = Before(found.run_id, top, 0 if recovered else index.own_unexported)
        number += 1
        found = look(succession.numbered(series, number))
        found.series, found.before = series, before
    return found


def _beside(base: Path, name: str) -> list[RunDirectory]:
    """The folder of that name, and those that other versions have made beside it."""
    form = re.compile(re.escape(name) + r"(~v\d+)*")
    try:
        return [RunDirectory(base / found) for found in files.names(base) if form.fullmatch(found)]
    except OSError:
        return []


def _set_aside(restored: Restored) -> list[Path]:
    """Give other names to the damaged files that we would replace; returns these."""
    aside = []
    for path in filter(files.exists, restored.spoilt):  # what is no file we would not replace either
        try:
            aside.append(files.set_aside(path, "damaged"))
        except OSError as error:
            logger.warning("journal: %s is damaged, and cannot be set aside: %s", path, error.strerror or error)
    return aside


def _remarks(candidate: _Candidate) -> list[Note]:
    """What is to be known of what was found; said aloud, too, where reading it has not done so."""
    remarks = []
    if candidate.newer is not None:
        text = (
            f"run {candidate.run_id!r} has files of a newer version of otel_goodput in {candidate.newer.path}, which "
            f"are left as they are: this attempt is recorded beside them, in {candidate.run.path}, with an account of "
            f"its own. Go on with the newer version, or give a new id ({OTEL_GOODPUT_RUN_ID.name})"
        )
        remarks.append(Note(NEWER, text))
    if candidate.aside:
        names = ", ".join(path.name for path in candidate.aside)
        remarks.append(Note(ASIDE, f"Damaged files of this run have been set aside in {candidate.run.path}: {names}"))
    for remark in remarks:
        logger.warning("%s", printable(remark.text))
    damage = candidate.restored.damages.note()
    return remarks if damage is None else [*remarks, damage]


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
    began = candidate.restored.ledger.settled.begin  # where that was written down before, and cannot be read
    moment = (began or clock()) / 1e9
    identity = {"run_id": candidate.run_id, "job_name": config.job_name, "created_at": moment}
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
            cursor.steps.attempts,
        )
    else:
        logger.info("run %r goes on after %s, attempt %d", run_id, ago, restored.attempt + 2)
    return ""

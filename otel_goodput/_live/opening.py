"""Opens a run's journal: finds which attempt this is and what came before, and reports what is in the way.

Longer than other files: every way in which an opening can fail has to leave training a journal.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

from otel_goodput._accounting import Ledger
from otel_goodput._journal import records
from otel_goodput._journal.account import Account
from otel_goodput._journal.facts import facts_of
from otel_goodput._journal.journal import Journal, Segment
from otel_goodput._journal.lock import Lock
from otel_goodput._journal.mirror import Mirror, open_spool
from otel_goodput._journal.notes import Note
from otel_goodput._journal.rundir import INSTEAD_OF, RunDirectory, folder_name
from otel_goodput._live.launches import (
    Agreement,
    Launches,
    PreviousRun,
    age,
    numbered,
    numbers,
    process_began,
    warn_if_continued,
)
from otel_goodput._runtime import files
from otel_goodput._runtime.host import Clock
from otel_goodput._settings.config import Config
from otel_goodput._settings.options import Settings
from otel_goodput._text.quantities import plural
from otel_goodput._text.redact import printable, redacting_logger, without_credentials
from otel_goodput._timeline.recovery import Restored, restore
from otel_goodput.semconv import PROCESS_COUNT, Category

logger = redacting_logger(__name__)

NEWER: Final = "newer version"  # kinds of notes
ASIDE: Final = "set aside"
CONTINUED: Final = "run continued"
TAKEN: Final = "index taken"

_STRANGERS: Final = 100
_LAST: Final = 999_999_999  # highest attempt number that a file name can hold
_LOOKS: Final = 5  # at a run that changes while it is looked at
_VERSIONS: Final = 5  # folders tried, if each one has files of a newer version


@dataclass
class Opened:
    """A journal ready for the first record."""

    run_id: str  # the configured one, or another if a living process is writing that run
    attempt: int
    run: RunDirectory | None  # its folder; None if there cannot be one
    journal: Journal
    restored: Restored  # the run so far, with the ledger to continue
    lock: Lock | None = None  # held as long as this process writes
    mirror: Mirror | None = None  # set if the journal is at a URL
    missing: dict[str, Any] | None = None  # what belongs in ``run.json``, if the folder could not be created
    before: PreviousRun | None = None  # the finished run, if this is a new run because that one had finished
    remarks: list[Note] = field(default_factory=list)  # on what it continues, and on what is on disk
    agreement: Agreement | None = None  # which other run this may have to be part of; None if that is no question
    instead_of: str = ""  # the run that it would be if another living process did not have its index there
    early: bool = False  # it is of this process alone: it is not known yet which one it is of its launch

    def introduce(self, account: Account) -> None:
        """Add to the account's notes what this run continues or follows."""
        for remark in self.remarks:
            account.notes.add(*remark)
        if self.before is not None:
            warn_if_continued(account, self.run_id, self.before)

    def prepare(self) -> None:
        """Try again to create the folder and take the lock, if that has failed. Raises OSError if it fails again."""
        if self.run is not None and self.missing is not None:
            self.run.create(self.missing)
            self.lock = self.run.lock(self.attempt, self.journal.process)
            self.lock.acquire()
            self.missing = None

    def release(self) -> None:
        """Give back the lock, so that another process may write the run."""
        if self.lock is not None:
            self.lock.release()

    def withdraw(self) -> None:
        """Remove the files of this attempt, and give back its lock."""
        if self.run is not None:
            self.run.withdraw(self.attempt, self.journal.process)
        self.release()

    def recall(self) -> Ledger:
        """Read the ledger back from disk; an empty one if nothing is on disk."""
        if self.run is None:
            return Ledger()
        return restore(self.run, self.journal.process, self.restored.ledger.settled.spans).ledger


def in_memory_journal(config: Config) -> Opened:
    """Return a journal without files, for an account that begins with this process and ends with it."""
    journal = Journal(0, config.process_index, Segment(None))
    return Opened(config.run_id, 0, None, journal, Restored(Ledger(config.windows)))


def open_journal(config: Config, clock: Clock, *, begun: bool = False, only: str = "") -> Opened:
    """Open the journal for a new attempt of this process. Problems are logged and never stop the training.

    With `only`, it is that of this run, or OSError is raised. `begun`: the job begins. Before that, a process that
    knows its launch but not its rank gets a run of its own, so that the processes of the launch, which all take
    themselves for the first one, do not meet in one.
    """
    base = _base(config)
    process = config.process_index
    launches = Launches(config, base)
    series, early = config.run_id, config.early and not begun
    if early and config.launch is not None:
        series += f"~{config.launch.label}-{os.getpid()}"
    agreement: Agreement | None = None
    looks, instead_of, taken_notes = _LOOKS, "", list[Note]()
    while True:
        candidate = _candidate(config, base, series, launches)
        run_id, run, mirror, restored = candidate.run_id, candidate.run, candidate.mirror, candidate.restored
        if only not in ("", run_id):
            raise FileExistsError(f"run {only!r} is not that of this launch any more")
        previous = max(restored.attempt, *candidate.attempts, *candidate.elsewhere, -1)
        attempt = min(_with_leader(config, run, previous + 1), _LAST)
        identity = _identity(candidate, config, clock, instead_of)
        try:
            run.create(identity)
            # A living process may still write the previous attempt.
            taken = previous >= 0 and run.lock(previous, process).held(watch=True)
            lock = run.lock(attempt, process)
            ours = not taken and lock.acquire()
            if looks and run.attempts(process) != candidate.attempts:
                lock.release()  # another process has just come or left
                looks -= 1
                continue
            if ours:
                run.sweep(process, attempt)
                for path in filter(files.exists, restored.spoilt):  # they would be replaced
                    try:
                        candidate.aside.append(files.set_aside(path, "damaged"))
                    except OSError as error:
                        why = error.strerror or error
                        logger.warning("journal: %s is damaged, and cannot be set aside: %s", path, why)
                run.create(identity)  # run.json may just have been set aside as damaged
                first = first_segment(run, attempt, process)
                break
        except OSError as error:
            if only:
                raise
            where = f": {error.filename}" if error.filename not in (None, str(run.path)) else ""
            logger.warning(
                "the journal cannot be written to %s (%s%s): live figures continue, but a restart will not know of "
                "this attempt unless the directory becomes writable; set OTEL_GOODPUT_DIR to another one",
                run.path,
                error.strerror or error,
                where,
            )
            journal = Journal(attempt, process, Segment(None))
            remarks = _remarks(candidate)
            return Opened(run_id, attempt, run, journal, restored, mirror=mirror, missing=identity, remarks=remarks)
        if only:
            raise FileExistsError(f"another living process writes run {only!r}")
        other = f"{config.run_id}~{os.getpid() if config.launch is None else config.launch.label}"
        if series != config.run_id:
            other += f"-{os.urandom(3).hex()}"
        text = (
            f"run {run_id!r} is being written by another running process (pid "
            f"{run.lock(max(0, previous), process).last_holder().pid or '?'}) as process {process}; "
            f"this process records its own run {other!r}. Give each process its index "
            f"({Settings.process_index.variable}, process_index=), or each run its own id ({Settings.run_id.variable})"
        )
        if begun and agreement is None:
            # The other one may not know yet either which process it is, and leave as soon as it does.
            wanted = partial(str, run_id)  # known already: it is only its place that is not free yet
            agreement = Agreement(other, "", wanted, text)
        else:
            logger.warning("%s", text)
            taken_notes.append(Note(TAKEN, text))
        series, instead_of = other, instead_of or run_id
    opened = Opened(run_id, attempt, run, Journal(attempt, process, first), restored, lock, mirror)
    opened.remarks = [*taken_notes[:1], *_remarks(candidate), *_on_what_was_before(opened, config, base, clock)]
    opened.instead_of = instead_of
    opened.before, opened.early = candidate.before, early
    if config.numbered and agreement is None and not early:
        if config.leads:
            launches.choose(run_id, clock)
        elif config.launch is not None:
            agreement = Agreement(run_id, without_credentials(str(config.directory)), launches.agreed)
    opened.agreement = agreement
    if candidate.before is not None:
        logger.info("run %r has finished, so this start records a new run, %r", candidate.before.run_id, run_id)
    return opened


def _base(config: Config) -> Path:
    """The local folder that holds the runs."""
    if config.remote:
        return open_spool(config.directory)
    try:
        base = files.named(config.directory)
    except OSError:
        return Path(config.directory).absolute()  # creating it will report why that fails
    if files.open_to_all(base):
        logger.warning(
            "every user of this machine can replace files in %s, including the journal: `chmod +t` prevents that, "
            "or choose another place with OTEL_GOODPUT_DIR",
            base,
        )
    return base


@dataclass
class _Candidate:
    """A run that this start may belong to, its content so far, and the finished run that it follows, if any."""

    run_id: str
    run: RunDirectory
    mirror: Mirror | None
    restored: Restored
    attempts: list[int]  # of this process, as it began to be read
    before: PreviousRun | None = None
    elsewhere: list[int] = field(default_factory=list)  # attempts in the folders of this and other versions
    newer: RunDirectory | None = None  # the folder with files of a newer version, if that is why this one exists
    aside: list[Path] = field(default_factory=list)  # new paths of damaged files


def _candidate(config: Config, base: Path, series: str, launches: Launches) -> _Candidate:
    """Find the run `series` or the latest run that followed it; a new run if that one has finished.

    A launch that a launcher restarted goes on with its run. What the leader has chosen for this launch counts for all.
    """

    def look(run_id: str) -> _Candidate:
        run, newer = RunDirectory(base / folder_name(run_id)), None
        for _ in range(_VERSIONS):
            mirror = _mirror(config, run)
            attempts = run.attempts(config.process_index)
            restored = restore(run, config.process_index, config.windows)
            if not restored.damages.newer:
                break
            newer, run = run, RunDirectory(run.path.with_name(f"{run.path.name}~v{records.VERSION}"))
        form = re.compile(re.escape(folder_name(run_id)) + r"(~v\d+)*")
        elsewhere: list[int] = []
        with suppress(OSError):
            versions = [RunDirectory(base / name) for name in files.names(base) if form.fullmatch(name)]
            elsewhere = [number for version in versions for number in version.attempts(config.process_index)]
        return _Candidate(run_id, run, mirror, restored, attempts, elsewhere=elsewhere, newer=newer)

    if not config.numbered:
        return look(series)
    same = launches.restarted()
    chosen = same or ("" if config.leads else launches.agreed())
    if chosen and series == config.run_id:
        return look(chosen)
    candidate = look(series)
    taken = numbers(series, _folders(base, candidate.mirror))
    for number in taken:
        later = look(numbered(series, number))
        if later.run.identity().get("series") == series:  # an id that a user chose may look the same
            candidate = later
            break
    number = max(taken, default=1)
    # A launcher that has restarted an earlier launch under this key has not restarted this one.
    anew = config.renewable or (launches.last() is not None and not config.exit_given)
    while anew and _finished(candidate, config):
        index = candidate.restored.index
        recovered = files.exists(candidate.run.file("recovered", candidate.restored.attempt, config.process_index))
        top = candidate.restored.ledger.settled.steps.progress.top
        before = PreviousRun(candidate.run_id, series, top, 0 if recovered else index.own_unexported)
        number += 1
        candidate = look(numbered(series, number))
        candidate.before = before
    return candidate


def _with_leader(config: Config, run: RunDirectory, own: int) -> int:
    """Return the number of this attempt, by the leader's attempts if this process was not in all of them.

    `own` is the number after those of this process's attempts. A leader that was alive after this process had started
    is in the same launch. The attempt of a dead leader that this process could have joined does not count: ranks may
    run one after the other, where a program stands in for them.
    """
    attempts = [] if config.leads else run.attempts(config.leader)
    if not attempts or attempts[-1] < own:
        return own
    last = attempts[-1]
    if run.alive(last, config.leader):
        return last
    facts = facts_of(run, last, config.leader)  # none if it died at once: then this process was not in that attempt
    processes = 0 if facts is None else facts.resource.get(PROCESS_COUNT)
    if not isinstance(processes, int) or config.process_index < processes:
        return own
    heads = (records.decode_header(segment.head) for segment in run.segments(config.leader, last))
    return last if max((head.heartbeat for head in heads), default=0) >= process_began() else last + 1


def _finished(candidate: _Candidate, config: Config) -> bool:
    """Whether the last attempt ended its job without an error, and no notice or signal had announced the end.

    The leader's account of the run says so, or this process's own if there is no other.
    """
    restored = candidate.restored
    if not config.leads and candidate.run.attempts(config.leader):
        restored = restore(candidate.run, config.leader, config.windows)
    cursor = restored.ledger.settled.clone()
    cursor.apply_all(restored.ledger.pending)
    return cursor.steps.life.begun and cursor.ended and cursor.clean and cursor.notice is None


def _remarks(candidate: _Candidate) -> list[Note]:
    """Return the notes on what is on disk; log those that reading it has not logged."""
    remarks: list[Note | None] = []
    if candidate.newer is not None:
        text = (
            f"run {candidate.run_id!r} has files of a newer version of otel_goodput in {candidate.newer.path}, which "
            f"are left unchanged. This attempt is recorded separately in {candidate.run.path}, with its own figures. "
            f"Use the newer version, or set a new run id ({Settings.run_id.variable})"
        )
        remarks.append(Note(NEWER, text))
    if candidate.aside:
        names = ", ".join(path.name for path in candidate.aside)
        remarks.append(Note(ASIDE, f"Damaged files of this run have been set aside in {candidate.run.path}: {names}"))
    overlap = candidate.restored.overlap
    for remark in filter(None, [*remarks, overlap]):
        logger.warning("%s", printable(remark.text))
    return [*filter(None, [*remarks, candidate.restored.damages.note(), overlap])]


def _folders(base: Path, mirror: Mirror | None) -> set[str]:
    """Names of all runs' folders, on this machine and at the URL."""
    names: set[str] = set()
    with suppress(OSError):
        names.update(path.name for path in base.iterdir())
    if mirror is not None:
        try:
            names.update(mirror.siblings())
        except Exception as error:  # each fsspec filesystem raises its own errors
            logger.warning("the runs at %s cannot be listed: %s", mirror.shown, without_credentials(str(error)))
    return names


def first_segment(run: RunDirectory, attempt: int, process: int) -> Segment:
    """Create the first segment, under the next free name if foreign files have its name."""
    for serial in range(_STRANGERS):
        try:
            return Segment(run.segment_path(attempt, process, serial))
        except FileExistsError:
            continue
    raise FileExistsError(f"{run.journal} is full of foreign files")


def _identity(candidate: _Candidate, config: Config, clock: Clock, instead_of: str = "") -> dict[str, Any]:
    began = candidate.restored.ledger.settled.begin  # in case run.json existed, but cannot be read
    moment = (began or clock()) / 1e9
    identity = {"run_id": candidate.run_id, "job_name": config.job_name, "created_at": moment}
    if candidate.before is not None:
        identity.update(series=candidate.before.series, follows=candidate.before.run_id)
    if instead_of:
        identity[INSTEAD_OF] = instead_of
    return identity


def _mirror(config: Config, run: RunDirectory) -> Mirror | None:
    if not config.remote:
        return None
    try:
        mirror = Mirror(config.directory, run)
        mirror.fetch(of_job=config.leads)
        return mirror
    except Exception as error:  # each fsspec filesystem raises its own errors
        logger.warning(
            "the journal stays in %s, and what is at %s is missing from the account: %s: %s",
            run.path,
            without_credentials(config.directory),
            type(error).__name__,
            without_credentials(str(error)),
        )
        return None


def _on_what_was_before(opened: Opened, config: Config, base: Path, clock: Clock) -> Iterator[Note]:
    """Log which run is continued, if any, and yield the note on it, if there is anything to say."""
    run_id, restored = opened.run_id, opened.restored
    cursor = restored.ledger.settled
    if restored.attempt < 0:
        return
    if config.renewable:
        if cursor.begin is not None and config.leads:
            ids = (numbered(config.run_id, number) for number in count(2))
            fresh = next(one for one in ids if not (base / folder_name(one)).exists())
            text = (
                f"run {run_id!r} had not finished when it was started again, {age(restored, clock)} after its last "
                f"sign of life: it continues as attempt {restored.attempt + 2}, and the time between counts as "
                f"infrastructure recovery. For a new run set {Settings.run_id.variable}={fresh}"
            )
            logger.warning("%s", text)
            yield Note(CONTINUED, text, (Category.INFRASTRUCTURE_RECOVERY,))
    elif cursor.ended and cursor.clean:
        logger.warning(
            "run %r had ended %s ago after %s; this start continues it as another attempt, and the time between counts "
            "as infrastructure recovery. To start a new run, set a new id (OTEL_GOODPUT_RUN_ID, run_id=)",
            run_id,
            age(restored, clock),
            plural(cursor.steps.attempts, "attempt"),
        )
    else:
        logger.info("run %r continues after %s, attempt %d", run_id, age(restored, clock), restored.attempt + 2)

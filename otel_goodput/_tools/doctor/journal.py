"""Checks the journal: whether it can be written, which runs are there, and how the next start continues them."""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import shutil
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from otel_goodput._accounting.totals import Totals
from otel_goodput._journal.mirror import check_spool, open_filesystem, spool
from otel_goodput._journal.notes import UNMARKED, Note, read_notes
from otel_goodput._journal.rundir import RunDirectory, folder_name, runs
from otel_goodput._resources.kubernetes import goes_with
from otel_goodput._runtime import files
from otel_goodput._settings.config import Config
from otel_goodput._settings.options import Settings
from otel_goodput._text.durations import NS
from otel_goodput._text.quantities import format_duration, plural
from otel_goodput._timeline.recovery import Restored, restore
from otel_goodput._tools.doctor.findings import Finding, ok, problem, warning
from otel_goodput._tools.doctor.plaintext import check_journal
from otel_goodput._tools.waiting import within
from otel_goodput.errors import JournalError
from otel_goodput.reports.text import dispatch_only
from otel_goodput.semconv import ClockState

SCARCE: Final = 1024 * files.MIB
TOO_LITTLE: Final = 16 * files.MIB  # the journal allocates segments of 1 MiB, and one in advance
SHOWN: Final = 5  # number of runs examined if the run id is unknown


def local_base(config: Config) -> Path:
    """Return the local folder that holds the runs; for a journal at a URL, its spool."""
    if config.remote:
        return spool(config.directory)
    try:
        return files.named(config.directory)
    except OSError:
        return Path(config.directory).absolute()


def check(config: Config, run_id: str, timeout_s: float) -> Iterator[Finding]:
    """Check whether the journal can be read and written; `run_id` is empty if unknown."""
    base = local_base(config)
    if config.remote:
        yield from check_journal(config.directory)
        yield from _remote(config.directory, run_id, timeout_s)
        yield _spool(config.directory, base)
    else:
        if files.is_folder(base / "journal"):
            do = "set OTEL_GOODPUT_DIR to the folder that contains the runs"
            yield warning("journal", f"{base} is the folder of one run: new runs go inside it", do)
        yield _local(base, "the journal")
    place = goes_with(os.environ)
    if place and config.settings[Settings.directory.variable].source == "default":
        what = f"the journal is in {base}, which is lost with {place}: a restart will not find it"
        do = f"set {Settings.directory.variable} to a bucket (gs://…) or to a folder on a volume that stays"
        yield warning("journal", what, do)


def _spool(url: str, base: Path) -> Finding:
    try:
        check_spool(url)
    except FileNotFoundError:
        pass
    except OSError as error:
        what = f"the spool of the journal is not {base}: {error.strerror} ({error.filename})"
        do = (
            "remove that file, or set TMPDIR to a directory of your own; until then each start uses another spool, "
            "and data left by a killed process is not found again"
        )
        return warning("journal", what, do)
    return _local(base, "the spool of the journal")


def _local(base: Path, thing: str) -> Finding:
    place = base
    while not _there(place) and place != place.parent:
        place = place.parent
    elsewhere = "choose another place with OTEL_GOODPUT_DIR"
    try:
        flaw = _try(place)
        free = shutil.disk_usage(place).free
    except OSError as error:
        what = f"{thing} cannot be written to {base}: {error.strerror or error} ({place})"
        do = f"make it writable, or {elsewhere}; otherwise a restart knows nothing of earlier attempts"
        return problem("journal", what, do, f"{thing} cannot be written")
    room = f"{free / 2**30:.1f} GiB free" if free >= SCARCE else f"{free / files.MIB:.0f} MiB free"
    if free < TOO_LITTLE:
        full = f"the disk is full for {thing}"
        return problem("journal", f"{full} in {base}: {room}", f"free some, or {elsewhere}", full)
    if free < SCARCE:
        return warning("journal", f"the disk is almost full for {thing} in {base}: {room}", "free some")
    if files.open_to_all(place):
        flaw = flaw or "every user of this machine can replace files there (`chmod +t` prevents that)"
    if flaw:
        return warning("journal", f"{thing} is written to {base}, but {flaw}", elsewhere)
    made = "" if place == base else ", created when a job starts"
    return ok("journal", f"{thing} is written to {base} ({room}{made})")


def _there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # no permission to enter a parent folder
        return False


def _try(folder: Path) -> str:
    """Try the journal's operations on an unnamed file; returns a warning, if any. Raises OSError if they fail."""
    with files.nameless(folder) as file:
        file.truncate(mmap.PAGESIZE)
        with mmap.mmap(file.fileno(), mmap.PAGESIZE) as page:
            page[:1] = b"x"
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return "files cannot be locked there: make sure that only one process writes a run"
    return ""


def _remote(url: str, run_id: str, timeout_s: float) -> Iterator[Finding]:
    def names() -> list[str]:
        filesystem, path = open_filesystem(url)  # some connect already here
        try:
            return [str(name).rstrip("/").rpartition("/")[2] for name in filesystem.ls(path, detail=False)]
        except FileNotFoundError:
            return []  # it is created when a job starts

    what, do = "", ""
    try:
        present = within(timeout_s, names)
    except TimeoutError:
        what, do = f"{url} does not answer within {timeout_s:g} s", "check the network connection"
    except JournalError as error:
        what = str(error)
        do = "until then the journal stays on this machine, and a restart on another one does not find it"
    except Exception as error:  # each fsspec filesystem raises its own errors
        what, do = f"{url} cannot be read: {type(error).__name__}: {error}", "check its credentials and options"
    if what:
        yield problem("journal", what, do, "the journal's URL cannot be used")
        return
    yield ok("journal", f"{url} can be read (writing is tested when a job starts)")
    if run_id and folder_name(run_id) in present:
        how = "a job with this id continues it (`otel-goodput report` reads it from there)"
        yield ok("run", f"run {run_id!r} is at {url}: {how}")


def present(config: Config, run_id: str) -> tuple[list[RunDirectory], int]:
    """Return the run with `run_id` if it is on this machine, else if that is empty the latest, and how many more."""
    base = local_base(config)
    if run_id:
        run = RunDirectory(base / folder_name(run_id))
        return ([run] if files.is_folder(run.journal) else []), 0
    try:
        newest = sorted(runs(base), key=_changed, reverse=True)
    except (JournalError, OSError):
        return [], 0
    return newest[:SHOWN], max(0, len(newest) - SHOWN)


def _changed(run: RunDirectory) -> float:
    try:
        return run.journal.stat().st_mtime
    except OSError:
        return -math.inf


def check_run(run: RunDirectory, process: int, *, renewable: bool) -> Iterator[Finding]:
    """Yield what should be known about `run` before its job starts again."""
    name = run.called()
    restored = restore(run, process)
    if (note := restored.damages.note()) is not None:
        yield warning("run", f"run {name!r}: {note.text}", "check the disk; `report` shows details")
    if restored.attempt < 0:
        yield ok("run", f"run {name!r} has no journal of process {process} yet")
        return
    attempt = restored.attempt + 1
    if run.alive(restored.attempt, process):
        pid = run.lock(restored.attempt, process).last_holder().pid or "unknown"
        yield warning(
            "run",
            f"run {name!r} is being written by a living process (pid {pid}), attempt {attempt}",
            "nothing to do if this is the job you mean; another job of this name records a separate run until this one "
            "ends. Give each run its own id (OTEL_GOODPUT_RUN_ID)",
        )
    else:
        yield _stopped(name, attempt, restored, renewable=renewable)
    totals = restored.ledger.totals(restored.last_sign)
    if totals.started:
        yield _measured(name, totals, read_notes(run, process))


def _stopped(name: str, attempt: int, restored: Restored, *, renewable: bool) -> Finding:
    cursor = restored.ledger.settled
    since = (time.time_ns() - restored.last_sign) / NS
    if since < -60:
        what = f"run {name!r} has a last sign of life {format_duration(-since)} in the future"
        return warning("run", what, "correct the machines' clocks")
    ago = format_duration(max(0.0, since))
    if cursor.ended and cursor.clean:
        ended = f"run {name!r} ended {ago} ago after {plural(attempt, 'attempt')}; "
        if renewable:
            return ok("run", f"{ended}the next job without a run id starts a new run")
        return warning(
            "run",
            f"{ended}the next job with this id continues it, and the time between counts as infrastructure recovery",
            "to start a new run, set a new id (OTEL_GOODPUT_RUN_ID, run_id=)",
        )
    return ok(
        "run",
        f"run {name!r} stopped {ago} ago in attempt {attempt} without ending its job; the next start continues it "
        f"(`otel-goodput recover` exports its remaining spans without a restart)",
    )


def _measured(name: str, totals: Totals, notes: Collection[Note]) -> Finding:
    """Return which clock timed the latest steps, and whether that is plausible."""
    if totals.clock == ClockState.UNKNOWN:
        kinds = " and ".join(note.kind[len(UNMARKED) :].strip() for note in notes if note.kind.startswith(UNMARKED))
        unmarked = f" ({kinds} cannot be marked)" if kinds else ""
        return warning(
            "run",
            f"run {name!r}: the end of the latest steps on the device is not known{unmarked}: where such steps are "
            "more than 1 % of the time, goodput, shares, step times and the progress at risk are not known",
            "pass an output of each step that is not donated, as with goodput.observe(loss); or, if the loop itself "
            f"waits for the device, set {Settings.device_clock.variable}=host",
        )
    if totals.clock == ClockState.DEVICE:
        return ok("run", f"run {name!r} has exact step times, measured on the device")
    answer = totals.to_json()
    if dispatch_only(answer):
        return warning(
            "run",
            f"the steps of run {name!r} take {format_duration(answer['step_time']['median_s'])} of the "
            f"{format_duration(answer['step_cadence_s'])} from one to the next, and it is not known when the device "
            "was done: if the step only dispatches work (as JAX does), the device's time counts as whatever the "
            "host waits in",
            "wait for the result inside the step, as with jax.block_until_ready(loss); if the steps really are that "
            "short, ignore this",
        )
    return ok("run", f"the steps of run {name!r} were timed on the host, and no work ran on a device")

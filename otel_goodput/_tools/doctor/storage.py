"""Checks the journal's directory: whether it can be written, and which runs it holds."""

from __future__ import annotations

import fcntl
import mmap
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from otel_goodput._journal.mirror import check_spool, open_filesystem, spool
from otel_goodput._journal.rundir import RunDirectory, folder_name, runs
from otel_goodput._resources.kubernetes import goes_with
from otel_goodput._runtime import files
from otel_goodput._runtime.deadline import close_all
from otel_goodput._settings.config import Config
from otel_goodput._settings.options import Settings
from otel_goodput._tools.doctor.findings import Finding, ok, problem, warning
from otel_goodput._tools.doctor.plaintext import check_journal
from otel_goodput.errors import JournalError

SCARCE: Final = 1024 * files.MIB
TOO_LITTLE: Final = 16 * files.MIB  # the journal allocates segments of 1 MiB, and one in advance
_URL: Final = "the journal's URL cannot be used"
SHOWN: Final = 5  # number of runs examined if the run id is unknown


def local_base(config: Config) -> Path:
    """Return the local folder that holds the runs; for a journal at a URL, its spool."""
    return spool(config.directory) if config.remote else _named(config.directory)


def _named(directory: str) -> Path:
    try:
        return files.named(directory)
    except OSError:
        return Path(directory).absolute()


def check(config: Config, run_id: str, timeout_s: float) -> Iterator[Finding]:
    """Check whether the journal can be read and written.

    `run_id` is empty if unknown; `timeout_s` limits the access to a URL.
    """
    base = local_base(config)
    if config.remote:
        yield from check_journal(config.directory)
        yield from _remote(config.directory, run_id, timeout_s)
    elif files.is_folder(base / "journal"):
        yield warning("journal", f"{base} is the folder of one run: new runs go inside it",
            "set OTEL_GOODPUT_DIR to the folder that contains the runs",
        )  # fmt: skip
    yield _spool(config.directory, base) if config.remote else _local(base, "the journal")
    place = goes_with(os.environ)
    if place and config.settings[Settings.directory.variable].source == "default":
        yield warning("journal", f"the journal is in {base}, which is lost with {place}: a restart will not find it",
            f"set {Settings.directory.variable} to a bucket (gs://…) or to a folder on a volume that stays",
        )  # fmt: skip


def _spool(url: str, base: Path) -> Finding:
    try:
        check_spool(url)
    except FileNotFoundError:
        pass
    except OSError as error:
        return warning("journal", f"the spool of the journal is not {base}: {error.strerror} ({error.filename})",
            "remove that file, or set TMPDIR to a directory of your own; until then each start uses another spool, "
            "and data left by a killed process is not found again",
        )  # fmt: skip
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
        return problem("journal", f"{thing} cannot be written to {base}: {error.strerror or error} ({place})",
            f"make it writable, or {elsewhere}; otherwise a restart knows nothing of earlier attempts",
            f"{thing} cannot be written",
        )  # fmt: skip
    room = f"{free / 2**30:.1f} GiB free" if free >= SCARCE else f"{free / files.MIB:.0f} MiB free"
    if free < TOO_LITTLE:
        return problem("journal", f"the disk is full for {thing} in {base}: {room}", f"free some, or {elsewhere}",
            f"the disk is full for {thing}",
        )  # fmt: skip
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
    """Try the journal's operations on an unnamed file in `folder`; returns a warning, or an empty string.

    Raises:
        OSError: the folder cannot hold a journal.
    """
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
    outcome: list[list[str] | Exception] = []

    def look() -> None:
        try:
            filesystem, path = open_filesystem(url)  # some connect already here
            try:
                outcome.append([str(name).rstrip("/").rpartition("/")[2] for name in filesystem.ls(path, detail=False)])
            except FileNotFoundError:
                outcome.append([])  # it is created when a job starts
        except Exception as error:  # each fsspec filesystem raises its own errors
            outcome.append(error)

    close_all([("journal", lambda _: look())], timeout_s)
    if not outcome:
        yield problem("journal", f"{url} does not answer within {timeout_s:g} s", "check the network connection", _URL)
        return
    names = outcome[0]
    if isinstance(names, JournalError):
        yield problem("journal", f"{names}",
            "until then the journal stays on this machine, and a restart on another one does not find it", _URL,
        )  # fmt: skip
        return
    if isinstance(names, Exception):
        what, do = f"{url} cannot be read: {type(names).__name__}: {names}", "check its credentials and options"
        yield problem("journal", what, do, _URL)
        return
    yield ok("journal", f"{url} can be read (writing is tested when a job starts)")
    if run_id and folder_name(run_id) in names:
        yield ok("run", f"run {run_id!r} is at {url}: a job with this id continues it "
            "(`otel-goodput report` reads it from there)",
        )  # fmt: skip


def present(config: Config, run_id: str) -> tuple[list[RunDirectory], int]:
    """Return the runs on this machine to examine, and the number of further ones.

    That is the run with `run_id` if it exists; if `run_id` is empty, the latest runs.
    """
    base = local_base(config)
    if run_id:
        run = RunDirectory(base / folder_name(run_id))
        return ([run] if files.is_folder(run.journal) else []), 0
    try:
        newest = sorted(runs(base), key=_age)
    except (JournalError, OSError):
        return [], 0
    return newest[:SHOWN], max(0, len(newest) - SHOWN)


def _age(run: RunDirectory) -> float:
    try:
        return time.time() - run.journal.stat().st_mtime
    except OSError:
        return float("inf")

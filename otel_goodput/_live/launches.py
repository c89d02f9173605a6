"""Decides which run a start belongs to.

A run without a configured id is named after its job. If it has finished, the next start is ``name-2``. With several
processes, the leader writes its choice to a small file in the directory of the runs, under a key that the launcher
gives to all (``placement.launch_key``). What is there may be of an earlier launch, because ports are used again: it
counts only if its leader is alive, or if it was written after this process had started.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from otel_goodput._accounting import Event, rules
from otel_goodput._accounting import events as ev
from otel_goodput._journal.account import Account
from otel_goodput._journal.lock import started
from otel_goodput._journal.mirror import open_filesystem
from otel_goodput._journal.rundir import RunDirectory, folder_name
from otel_goodput._journal.sidecars import checked_json, read_json, whole
from otel_goodput._runtime import files
from otel_goodput._runtime.host import Clock
from otel_goodput._settings.config import Config
from otel_goodput._settings.options import Settings
from otel_goodput._text.redact import redacting_logger, without_credentials
from otel_goodput._timeline.recovery import Restored
from otel_goodput.semconv import PHASES, Phase

logger = redacting_logger(__name__)

FOLDER: Final = ".launches"  # no run's folder begins with a dot
PATIENCE_S: Final = 60.0
KEPT_S: Final = 90 * 86_400.0  # s that a file is kept


class Chosen(NamedTuple):
    """The run that a leader has chosen for its launch, with the restarts counted then, and when, ns since the epoch."""

    run_id: str
    restarts: tuple[int, ...]
    at: int


class Launches:
    """What is written in the directory `base` of the runs about the launch that this process belongs to."""

    def __init__(self, config: Config, base: Path) -> None:
        self._leader = config.leader
        self._url = config.directory.rstrip("/") if config.remote else ""
        self._base = base
        self._launch = config.launch
        text = "" if config.launch is None else f"{config.run_id}\0{config.launch.text}"
        self._path = base / FOLDER / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"

    def last(self) -> Chosen | None:
        """Return what the leader wrote last; None if there is nothing, or it cannot be read."""
        if self._launch is None:
            return None
        try:
            self._fetch()
            written = read_json(self._path)
            restarts = tuple(whole(count) for count in written["restarts"])
            return Chosen(str(written["run_id"]), restarts, whole(written["at"]))
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def restarted(self) -> str:
        """Return the run that this launch was in before a launcher restarted it; empty if none is known."""
        last = self.last()
        return last.run_id if last and self._launch and self._launch.restarts > last.restarts else ""

    def agreed(self) -> str:
        """Return the run that the leader of this launch has chosen this time; empty if it has not yet."""
        last = self.last()
        if last is None or self._launch is None or last.restarts != self._launch.restarts:
            return ""
        if last.at < process_began():
            run = RunDirectory(self._base / folder_name(last.run_id))
            if not any(run.alive(attempt, self._leader) for attempt in run.attempts(self._leader)[-1:]):
                return ""
        return last.run_id

    def choose(self, run_id: str, clock: Clock) -> None:
        """As the leader, write down that this launch belongs to the run."""
        if self._launch is None:
            return
        chosen = {"launch": self._launch.text, "run_id": run_id, "restarts": self._launch.restarts, "at": clock()}
        try:
            files.make_folders(self._path.parent, self._base)
            for name in files.names(self._path.parent):
                path = self._path.parent / name
                with suppress(OSError):
                    if time.time() - path.lstat().st_mtime > KEPT_S:
                        files.remove(path)
            files.write_privately(self._path, checked_json(chosen))
            if self._url:
                filesystem, place = open_filesystem(self._url)
                filesystem.makedirs(f"{place}/{FOLDER}", exist_ok=True)
                filesystem.pipe_file(f"{place}/{FOLDER}/{self._path.name}", checked_json(chosen))
        except Exception as error:  # each fsspec filesystem raises its own errors
            logger.warning(
                "cannot save the run id of this launch, so its other processes choose a run by themselves: %s",
                without_credentials(str(error)),
            )

    def _fetch(self) -> None:
        """Bring what is at the URL, if the directory is one."""
        if not self._url:
            return
        with suppress(Exception):  # each fsspec filesystem raises its own errors
            filesystem, place = open_filesystem(self._url)
            data = filesystem.cat_file(f"{place}/{FOLDER}/{self._path.name}", end=files.SMALL)
            files.make_folders(self._path.parent, self._base)
            files.write_privately(self._path, data)


class Agreement:
    """The run that this process shall record, if that may be another than `run_id`, which it records at first.

    That is the run which the leader chooses, as `chosen` returns it. Or it is known, but another process holds the
    place there; `taken` is what to say if it stays. Processes that learn their rank late all begin as the first one,
    and leave that place when their jobs begin.

    Attributes:
        other: that run, as soon as it is known to be another; else empty.
        open: whether that may change until :data:`PATIENCE_S` have passed: what this process records is provisional.
    """

    def __init__(self, run_id: str, directory: str, chosen: Callable[[], str], taken: str = "") -> None:
        self.other = ""
        self.open = True
        self._run_id = run_id
        self._directory = directory
        self._chosen = chosen
        self._taken = taken
        self._until = time.monotonic() + PATIENCE_S

    def look(self) -> str:
        """Look which run the leader has chosen; returns what is to be said, once, if none is seen in time."""
        chosen = self._chosen()
        self.other = "" if chosen == self._run_id else chosen
        if chosen:
            self.open = bool(self.other)
        elif time.monotonic() > self._until:
            self.open = False
            return (
                f"the leader of this launch did not announce its run in {self._directory} within {PATIENCE_S:.0f} s, "
                f"so this process records run {self._run_id!r}. Use the same directory ({Settings.directory.variable}) "
                f"or the same run id ({Settings.run_id.variable}) in all processes"
            )
        return ""

    def fail(self) -> str:
        """Stay in the run that is recorded, for good or until its place is free; returns what is to be said, once."""
        self.open = bool(self._taken) and time.monotonic() <= self._until
        if self.open:
            return ""
        return self._taken or (
            f"this process records run {self._run_id!r}, but the leader of its launch chose {self.other!r}, which this "
            f"process can no longer join. Set the same run id ({Settings.run_id.variable}) in all processes"
        )


def process_began() -> int:
    """Return when this process started, ns since the epoch; if that is not known, when this package was imported."""
    try:
        ticks = int(started(str(os.getpid())))
        up = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
        return time.time_ns() - int(up * 1e9)
    except (OSError, ValueError, AttributeError):
        return _IMPORTED


_IMPORTED: Final = time.time_ns()


_RESTORE: Final = PHASES.index(Phase.CHECKPOINT_RESTORE)
RESTARTED: Final = "run begun anew"


def numbered(run_id: str, number: int) -> str:
    """The id of run number `number` in the series `run_id`."""
    return run_id if number < 2 else f"{run_id}-{number}"


def numbers(run_id: str, folders: Iterable[str]) -> list[int]:
    """The numbers of folders whose names look like runs of the series `run_id`, highest first."""
    form = re.compile(re.escape(folder_name(run_id)) + r"-([1-9]\d{0,8})")
    matches = (form.fullmatch(name) for name in folders)
    return sorted((number for match in matches if match and (number := int(match[1])) > 1), reverse=True)


def age(restored: Restored, clock: Clock) -> str:
    """Time since the last sign of life of a run, as text."""
    seconds = max(0.0, (clock() - restored.last_sign) / 1e9)
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


class PreviousRun(NamedTuple):
    """The finished run before a new one."""

    run_id: str
    series: str  # the id of the first run of the series that both belong to
    top: int  # its highest kept step, -1 if there is none
    unexported: int  # number of its spans that are not known to be exported

    def recall(self, base: str) -> None:
        """Warn about unexported spans. Unlike those of a continued run, no later attempt exports them."""
        if self.unexported:
            logger.warning(
                "%d spans of run %r, which had finished, have not been exported: `otel-goodput recover %s --run %s` "
                "exports them",
                self.unexported,
                self.run_id,
                shlex.quote(base),
                shlex.quote(self.run_id),
            )


def warn_if_continued(account: Account, run_id: str, before: PreviousRun) -> None:
    """Warn once if the new run `run_id` continues the training of the finished run before it after all."""

    def look(events: list[Event]) -> None:
        for event in events:
            why = ""
            if event.kind == ev.START and event.phase == _RESTORE:
                why = "it restores a checkpoint"
            elif event.kind == ev.START and event.phase == rules.STEP:
                if event.step > 1 or (event.step == 1 and before.top < 1):  # some loops count steps from 1
                    why = f"it begins at step {event.step}"
            elif event.kind != ev.END or event.phase != rules.JOB:
                continue
            account.listeners.listen_to_events(None)
            if why:
                text = (
                    f"run {run_id!r} is a new one, because run {before.run_id!r} had finished; but {why}. If it "
                    f"continues the training of that run, set {Settings.run_id.variable}={before.run_id}"
                )
                account.notes.add(RESTARTED, text)
                logger.warning("%s", text)
            return

    account.listeners.listen_to_events(look)

"""Which run a launch belongs to: the leader decides and writes it down, and the other processes look it up.

A launcher tells all of its processes the same variables (``placement.launch_key``), such as the address of the first
one. The leader writes a small file under that key, in the directory of the runs. What it holds may be of an earlier
launch, because ports are used again: it counts only if its leader is alive, or if it was written after this process
had started.
"""

from __future__ import annotations

import hashlib
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from otel_goodput._journal.mirror import open_filesystem
from otel_goodput._journal.rundir import RunDirectory, folder_name
from otel_goodput._journal.sidecars import checked_json, read_json, whole
from otel_goodput._runtime import files
from otel_goodput._runtime.host import Clock
from otel_goodput._settings.config import Config
from otel_goodput._settings.options import Settings
from otel_goodput._text.redact import redacting_logger, without_credentials

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
    """What is written about the launch that this process belongs to.

    Args:
        config: with the launch, and the name of its runs.
        base: the directory of the runs.
    """

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
        rises = last is not None and self._launch is not None and self._launch.restarts > last.restarts
        return last.run_id if last is not None and rises else ""

    def agreed(self) -> str:
        """Return the run that the leader of this launch has chosen this time; empty if it has not yet."""
        last = self.last()
        if last is None or self._launch is None or last.restarts != self._launch.restarts:
            return ""
        if last.at >= process_began():
            return last.run_id
        run = RunDirectory(self._base / folder_name(last.run_id))
        attempts = run.attempts(self._leader)
        return last.run_id if attempts and run.alive(attempts[-1], self._leader) else ""

    def choose(self, run_id: str, clock: Clock) -> None:
        """As the leader, write down that this launch belongs to the run."""
        if self._launch is None:
            return
        chosen = {"launch": self._launch.text, "run_id": run_id, "restarts": self._launch.restarts, "at": clock()}
        try:
            files.make_folders(self._path.parent, self._base)
            self._tidy()
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

    def _tidy(self) -> None:
        """Remove the files of launches long ago."""
        for name in files.names(self._path.parent):
            path = self._path.parent / name
            with suppress(OSError):
                if time.time() - path.lstat().st_mtime > KEPT_S:
                    files.remove(path)


class Agreement:
    """Looks in the background which run the leader has chosen, until that is known or :data:`PATIENCE_S` have passed.

    Attributes:
        other: the leader's run, if it is another than this process records; else empty.
        open: whether it is still looking: what this process records is provisional.
    """

    def __init__(self, launches: Launches, run_id: str, directory: str) -> None:
        self.other = ""
        self._launches = launches
        self._run_id = run_id
        self._directory = directory
        self._until = time.monotonic() + PATIENCE_S
        self.open = True

    def look(self) -> str:
        """Look which run the leader has chosen; returns what is to be said, once, if none is seen in time."""
        if not self.open:
            return ""
        agreed = self._launches.agreed()
        self.other = "" if agreed == self._run_id else agreed
        if agreed:
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
        """Stay in the run that is recorded although the leader chose another; returns what is to be said of that."""
        self.open = False
        return (
            f"this process records run {self._run_id!r}, but the leader of its launch chose {self.other!r}, which this "
            f"process can no longer join. Set the same run id ({Settings.run_id.variable}) in all processes"
        )


class Vacancy:
    """A run that this process would record, once the one that holds its place has left; attributes as of `Agreement`.

    Processes that learn their rank late all begin as the first one, and leave that place when their jobs begin.

    Args:
        run_id: of that run.
        text: what is to be said if the other process stays.
    """

    def __init__(self, run_id: str, text: str) -> None:
        self.other = run_id
        self.open = True
        self._text = text
        self._until = time.monotonic() + PATIENCE_S

    def look(self) -> str:
        """Nothing is to be said while there is hope."""
        return ""

    def fail(self) -> str:
        """Take note that the place is not free yet; returns what is to be said, once, if time is up."""
        if time.monotonic() <= self._until:
            return ""
        self.open = False
        return self._text


def process_began() -> int:
    """Return when this process started, ns since the epoch; if that is not known, when this package was imported."""
    try:
        status = files.read_named(Path("/proc/self/stat")).decode("ascii", "replace")
        ticks = int(status.rpartition(")")[2].split()[19])
        up = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
        return time.time_ns() - int(up * 1e9)
    except (OSError, ValueError, IndexError, AttributeError):
        return _IMPORTED


_IMPORTED: Final = time.time_ns()

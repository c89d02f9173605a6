"""The runs that a server shows: where they are, their list, and reports of those that live, at little cost."""

from __future__ import annotations

import json
import threading
import time
import zlib
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from otel_goodput._journal.mirror import Mirror, open_filesystem, plain
from otel_goodput._journal.rundir import RunDirectory, folder_name
from otel_goodput._runtime import files
from otel_goodput._text.redact import redacting_logger, shown, without_credentials
from otel_goodput._timeline.run_state import RUNNING, SILENT
from otel_goodput.errors import JournalError
from otel_goodput.reports import listing
from otel_goodput.reports.report import Report
from otel_goodput.reports.run import FollowedRun, RecordedRun, names_at
from otel_goodput.reports.tail import News

logger = redacting_logger(__name__)

REFRESH_S: Final = 10.0  # between two looks at a URL
_PAUSE: Final = 4  # a look that takes long is followed by a pause of this many times its length


class Directory:
    """The runs of a local directory, or one run's own folder. Nothing in it is ever written.

    Attributes:
        shown: how it is called in messages.
    """

    def __init__(self, place: str) -> None:
        self._place = place
        self.shown = shown(place)

    def runs(self) -> tuple[dict[str, RecordedRun], str]:
        """Return the runs by the name of their folder, and what a person must know where there are none."""
        folder = files.named(self._place)
        try:
            names = files.names(folder)
        except (FileNotFoundError, NotADirectoryError):
            return {}, f"{self.shown} does not exist yet: waiting for it"
        except OSError as error:
            return {}, f"{self.shown} cannot be read: {error.strerror}"
        if "journal" in names and files.is_folder(folder / "journal"):
            return {folder.name: RecordedRun(RunDirectory(folder))}, ""
        runs = {name: RecordedRun(RunDirectory(folder / name)) for name in names if _holds_a_run(folder / name)}
        return runs, "" if runs else f"{self.shown} holds no run yet: waiting for the first"

    def close(self) -> None:
        """Nothing is kept."""


def _holds_a_run(folder: Path) -> bool:
    """Whether this folder has a journal; links are not followed, for they may lead anywhere."""
    return not folder.is_symlink() and not (folder / "journal").is_symlink() and files.is_folder(folder / "journal")


class Remote:
    """The runs at a URL: a private copy, renewed every ten seconds while there are requests.

    Attributes:
        shown: the URL without credentials.

    Raises:
        JournalError: fsspec, or the package for this kind of URL, is missing, or the URL is invalid.
        OSError: the copy cannot be made.
    """

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self.shown = without_credentials(self._url)
        self._filesystem, self._base = open_filesystem(self._url)
        self._stack = ExitStack()
        self._copy = files.named(self._stack.enter_context(files.scratch()))
        self._mirrors: dict[str, Mirror] = {}
        self._problem = f"reading {self.shown}"
        self._wanted = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="otel-goodput-fetch", daemon=True)
        self._thread.start()

    def runs(self) -> tuple[dict[str, RecordedRun], str]:
        """As :meth:`Directory.runs`, of the copy."""
        self._wanted.set()
        return {
            name: RecordedRun(RunDirectory(self._copy / name), one) for name, one in list(self._mirrors.items())
        }, self._problem

    def close(self) -> None:
        """Remove the copy."""
        self._ended.set()
        self._wanted.set()
        self._thread.join(1)
        self._stack.close()

    def _loop(self) -> None:
        while not self._ended.is_set():
            self._wanted.clear()
            began = time.monotonic()
            try:
                self._fetch()
                self._problem = "" if self._mirrors else f"{self.shown} holds no run yet: waiting for the first"
            except Exception as error:  # each fsspec filesystem raises its own errors
                self._problem = f"{self.shown} cannot be read: {shown(str(error)) or type(error).__name__}"
            self._ended.wait(max(REFRESH_S, _PAUSE * (time.monotonic() - began)))
            self._wanted.wait()  # nobody looks: nothing is fetched

    def _fetch(self) -> None:
        self._filesystem.invalidate_cache()
        try:
            url, names = names_at(self._filesystem, self._base.rstrip("/"), self._url)
        except FileNotFoundError:  # there is none yet
            return
        for name in filter(plain, names):
            if self._ended.is_set():
                return
            try:
                mirror = self._mirrors.get(name) or Mirror(url, RunDirectory(self._copy / name))
                if name in self._mirrors or mirror.exists():
                    mirror.refresh()
                    self._mirrors[name] = mirror
            except Exception as error:  # one run that cannot be read does not keep the others away
                logger.warning("%s: run %r cannot be read: %s", self.shown, name, without_credentials(str(error)))


def place(named: str) -> Directory | Remote:
    """Return the place that a path or URL names. Raises as :class:`Remote`."""
    if "://" in named:
        return Remote(named)
    try:
        files.named(named)
    except OSError as error:
        raise JournalError(f"{shown(named)}: {error.strerror}") from error
    return Directory(named)


_FRESH_S: Final = 0.5  # a report or list of this age answers the next request, too
_KEPT_S: Final = 30.0  # a run without requests for this long is no longer followed


class Reading:
    """One run that is followed. Its methods may be called from any thread."""

    def __init__(self, run: RecordedRun) -> None:
        self._followed = FollowedRun(run.folder)
        self._lock = threading.Lock()
        self._report: Report | None = None
        self._read = float("-inf")
        self.requested_at = time.monotonic()

    def report(self) -> Report:
        """Return the report, at most half a second old. Raises JournalError as :meth:`RecordedRun.report`."""
        with self._lock:
            self.requested_at = time.monotonic()
            if self._report is None or self.requested_at - self._read > _FRESH_S:
                self._report = self._followed.report()
                self._read = time.monotonic()
            return self._report

    def news(self) -> News | None:
        """Return what is new up to the latest report since the last call; None if that is not known."""
        with self._lock:
            return None if self._report is None else self._followed.news(self._report)


class Readings:
    """The runs that are followed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readings: dict[str, Reading] = {}

    def of(self, run: RecordedRun) -> Reading:
        """Return the reading of a run; it begins with the first call."""
        now = time.monotonic()
        with self._lock:
            self._readings = {name: one for name, one in self._readings.items() if now - one.requested_at <= _KEPT_S}
            reading = self._readings.setdefault(str(run.folder.path), Reading(run))
            reading.requested_at = now
            return reading


_SHARE: Final = 20  # reading a living run again takes at most one part in this many of a core
_ELSEWHERE_S: Final = 10.0  # how often a run is looked at that may have fallen silent


@dataclass
class _Known:
    """A run in the list: what was read of it, and whether that may have changed."""

    run: RecordedRun
    row: dict[str, Any] = field(default_factory=dict)
    changed: int = -1
    due: float = 0.0  # by the monotonic clock: when it is read again


class Catalogue:
    """The runs of a place as rows for the index. Its methods may be called from any thread."""

    def __init__(self, place: Directory | Remote, readings: Readings) -> None:
        self._place = place
        self._readings = readings
        self._known: dict[str, _Known] = {}
        self._lock = threading.Lock()
        self._read_at = float("-inf")
        self._answer: dict[str, Any] = {}

    def answer(self, *, fresh: bool = False) -> dict[str, Any]:
        """Return ``{"place", "problem", "revision", "runs": [row]}``, the newest run first. Does not raise.

        `revision` changes with the list and with every row of a run that is not running. `fresh`: read all again.
        """
        with self._lock:
            if fresh or time.monotonic() - self._read_at > _FRESH_S:
                self._answer = self._read()
                self._read_at = time.monotonic()
            return self._answer

    def changes(self) -> dict[str, Any]:
        """Return the answer without the rows of runs that have ended or died; a client sees by
        the `revision` that it misses some, and requests the whole.
        """
        whole = self.answer()
        living = [row for row in whole["runs"] if row["state"] == RUNNING]
        return {**whole, "runs": living, **({"now": time.time()} if living else {})}

    def find(self, name: str) -> RecordedRun | None:
        """Return the run whose folder has this name, or whose id this is; None if there is none."""
        for fresh in (False, True):  # a run may be younger than the list
            self.answer(fresh=fresh)
            if (known := self._known.get(name) or self._known.get(folder_name(name))) is not None:
                return known.run
        return None

    def _read(self) -> dict[str, Any]:
        runs, problem = self._place.runs()
        self._known = {name: self._known.get(name) or _Known(run) for name, run in runs.items()}
        for name, known in self._known.items():
            self._renew(name, known)
        rows = [known.row for known in self._known.values()]
        rows.sort(key=lambda row: (-(row["latest"] or 0), row["name"]))
        settled = [row if row["state"] != RUNNING else row["name"] for row in rows]
        revision = zlib.crc32(json.dumps(settled).encode())
        return {"place": self._place.shown, "problem": problem, "revision": revision, "runs": rows}

    def _renew(self, name: str, known: _Known) -> None:
        try:
            changed = files.changed(known.run.folder.journal)
        except OSError:
            changed = -2
        now = time.monotonic()
        # While a run lives, its folder changes all the time; of others any change is news.
        if now < known.due and (changed == known.changed or known.row["state"] == RUNNING):
            return
        began = time.thread_time()
        if known.row.get("state") == RUNNING:
            known.row = self._followed(name, known)
        else:
            known.row = row(name, known.run)
        known.changed = changed
        spent = time.thread_time() - began
        state = known.row["state"]
        pause = 0.0 if state == RUNNING else _ELSEWHERE_S if state == SILENT else float("inf")
        known.due = now + max(pause, _SHARE * spent)

    def _followed(self, name: str, known: _Known) -> dict[str, Any]:
        """The row of a run that was running a moment ago, read at less cost."""
        latest = known.row["latest"]
        try:
            report = self._readings.of(known.run).report()
            if report.totals.attempts != known.row["attempts"]:
                return row(name, known.run)
            fresh = listing.row_from(report, known.run, known.row["run_id"], latest)
        except Exception:
            return row(name, known.run)  # which says why it cannot be read
        return {"name": name, **fresh.to_json(), "latest": latest}


def row(name: str, run: RecordedRun) -> dict[str, Any]:
    """Return a run's row in the index: that of ``otel-goodput runs --json``, and more. Does not raise.

    `name` is what addresses call it; `latest` when its latest attempt began, seconds since the epoch.
    """
    read = listing.row_of(run)
    return {"name": name, **read.to_json(), "latest": read.latest}

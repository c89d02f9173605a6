"""The runs that a server shows: where they are, their list, and each read once for all clients, if there are any."""

from __future__ import annotations

import gzip
import json
import threading
import time
import zlib
from base64 import b64encode
from collections import OrderedDict, deque
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from otel_goodput._journal.mirror import Mirror, open_filesystem, plain
from otel_goodput._journal.rundir import RunDirectory, folder_name
from otel_goodput._runtime import files
from otel_goodput._text.redact import redacting_logger, shown, without_credentials
from otel_goodput._timeline.run_state import DIED, RUNNING, SILENT, ended
from otel_goodput._timeline.time_index import TimeIndex
from otel_goodput._viewer.document import Redaction, document, figures, tail, window
from otel_goodput._viewer.streams import Topic, event
from otel_goodput.errors import GoodputError, JournalError
from otel_goodput.reports import SPANS, excerpt, listing
from otel_goodput.reports.detail import Detail
from otel_goodput.reports.excerpt import News
from otel_goodput.reports.report import Report
from otel_goodput.reports.run import FollowedRun, RecordedRun, names_at
from otel_goodput.reports.run_view import RunView

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


_REPORT_FRESH_S: Final = 0.5  # a report or list of this age answers the next request, too
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
            if self._report is None or self.requested_at - self._read > _REPORT_FRESH_S:
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


_LIST_SHARE: Final = 20  # reading a living run again takes at most one part in this many of a core
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
            if fresh or time.monotonic() - self._read_at > _REPORT_FRESH_S:
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
        known.due = now + max(pause, _LIST_SHARE * spent)

    def _followed(self, name: str, known: _Known) -> dict[str, Any]:
        """The row of a run that was running a moment ago, read at less cost."""
        latest = known.row["latest"]
        try:
            report = self._readings.of(known.run).report()
            if report.totals.attempts != known.row["attempts"]:
                return row(name, known.run)
            fresh = listing.row_from(report, known.run, latest)
        except Exception:
            return row(name, known.run)  # which says why it cannot be read
        return {"name": name, **fresh.to_json(), "latest": latest}


def row(name: str, run: RecordedRun) -> dict[str, Any]:
    """Return a run's row in the index: that of ``otel-goodput runs --json``, and more. Does not raise.

    `name` is what addresses call it; `latest` when its latest attempt began, seconds since the epoch.
    """
    read = listing.row_of(run)
    return {"name": name, **read.to_json(), "latest": read.latest}


_FRESH_S: Final = 10.0  # a document of a living run of this age answers the next request, too
# Documents of living runs take one part in this many of a core, for spans come without them; but after two minutes
# there is a new one, unless that is more than it may be at most.
_SHARE: Final = 100
_LONG_S: Final = 120.0
_SHARE_AT_MOST: Final = 20
_AGAIN_S: Final = 10.0  # how often a silent run is looked at: elsewhere it may go on
_SOON: Final = 0.5  # a document that takes longer (s of a core) is made while the page shows what it has
_RETRY_S: Final = 10.0  # after one that failed
_FEW: Final = 16  # processes that are read at once
_SHORT: Final = 24  # segments of the leader, likewise; every attempt has one at least
_QUICK_SPANS: Final = 5_000
_READING: Final = threading.BoundedSemaphore(1)  # one run at a time: reading thousands of files takes a core
_SELDOM: Final = ("processes",)  # of hundreds of processes: too much for each second, the document has it
_TAILS: Final = 256 * files.KIB  # of spans since the document, for clients that connect later
_MOST: Final = 32  # runs remembered
WINDOW_SPANS: Final = 20_000  # one by one, in the answer to a window


class _Made(NamedTuple):
    """A document: gzipped, its ETag, when it was made (unix s), and how long another one is not worth its price (s).

    `view` is what it was made of, without the detail. `partial`: it has only what can be read at once.
    """

    packed: bytes
    tag: str
    at: float
    pause: float
    view: RunView
    partial: bool
    slow: bool


class Terms(NamedTuple):
    """How a server shows runs.

    Attributes:
        spans: steps and phases that a page has one by one from the start.
        port: where the server listens; None: not known.
        idle_s: after how long without a request it stops; None: never.
    """

    spans: int = SPANS
    port: int | None = None
    idle_s: float | None = None


class Watch:
    """What a server keeps of one run. Its methods may be called from any thread; `topic` belongs to the event loop.

    Attributes:
        run: the run.
        key: what addresses call it.
    """

    def __init__(self, run: RecordedRun, readings: Readings, terms: Terms) -> None:
        self.run = run
        self._readings = readings
        self._terms = terms
        self.key = quote(run.folder.path.name, safe="")
        self._making = threading.Lock()
        self._event_lock = threading.Lock()
        self._looking_up = threading.Lock()
        self._index = TimeIndex(run.folder)
        self._redacted = Redaction()
        self._made: _Made | None = None
        self._changed = -1, (0, 0)
        self._state = ""
        self._lives = ("", 0)  # state and number of attempts
        self._wanted = 0.0  # since when (unix s) another document is worth its price
        self._retry = float("-inf")  # by the monotonic clock
        self._reading: threading.Thread | None = None
        self._progress: tuple[float, float, str] | None = None
        self._event = b""
        self._again = 0.0
        self._tails: deque[tuple[int, bytes]] = deque()  # spans since the document: until when (ns), and the event

    @cached_property
    def topic(self) -> Topic:
        """What changes in the run."""
        return Topic(self._changes, lambda: b"".join(one for _, one in tuple(self._tails)))

    def document(self) -> tuple[bytes, str]:
        """Return the page's document, gzipped, and its ETag. A run that cannot be read has one that says so."""
        made = self._latest()
        return made.packed, made.tag

    def window(self, begin: int, end: int) -> bytes:
        """Return what happened between two moments (ns from the document's origin) one by one, gzipped."""
        view = self._latest().view
        overview = view.overview
        started = view.report.totals.started_at
        origin = overview.begin or (view.at if started is None else started)
        begin, end = origin + begin, origin + end
        with self._looking_up:
            died = self._state == DIED
            at = time.time_ns() if self._state == RUNNING else view.at
            detail, until = excerpt.window(self._index, overview, begin, end, at=at, died=died, most=WINDOW_SPANS)
        return gzip.compress(window(view, detail, begin, until), 1, mtime=0)

    def _latest(self) -> _Made:
        with self._making:
            self._look()
            made = self._made
            if made is None:
                made = self._made = self._make(quick=self._long())
            elif made.at < self._wanted and not made.slow:
                made = self._made = self._make()
        self._read_on()
        return made

    def _long(self) -> bool:
        """Whether reading all of the run takes longer than somebody waits for a page."""
        folder = self.run.folder
        return len(folder.segments(0)) > _SHORT or len(folder.pace_paths(None)) > _FEW

    def _make(self, *, quick: bool = False) -> _Made:
        at, began = time.time(), time.thread_time()
        if not self.topic.listeners:
            self._follow()  # so that the first spans sent by themselves follow those of the document
        spans = min(_QUICK_SPANS, self._terms.spans) if quick else self._terms.spans
        view = RunView.open(self.run, spans=spans, quick=quick, progress=self._show_progress)
        self._state = _state(view.report)
        server = {"port": self._terms.port, "idle_s": self._terms.idle_s}
        data = document(view, live=self._state == RUNNING, server=server, partial=quick)
        packed = gzip.compress(data, 1 if quick else 5, mtime=0)
        bare = replace(view, detail=Detail(), processes=[], attempts=[])
        spent = time.thread_time() - began
        slow = quick or spent > _SOON
        return _Made(packed, f'"{sha256(packed).hexdigest()[:32]}"', at, _pause(spent), bare, quick, slow)

    def _follow(self) -> None:
        reading = self._readings.of(self.run)
        with suppress(GoodputError, OSError, ValueError):  # the document says why it cannot be read
            reading.report()
            reading.news()

    def _read_on(self) -> None:
        """Start to read in the background what takes long, if it is wanted; the stream announces it."""
        with self._making:
            made = self._made
            if made is None or not made.slow or not (made.partial or made.at < self._wanted) or self._reading:
                return
            if time.monotonic() < self._retry:
                return
            # A daemon: the server may end while it reads, and nothing is written.
            self._reading = threading.Thread(target=self._read_whole, name="otel-goodput-read", daemon=True)
            self._reading.start()

    def _read_whole(self) -> None:
        try:
            with _READING:
                made = self._make()
            with self._making:
                self._made = made
            if made.view.left_out:
                with self._looking_up:
                    self._index.between(0, 0)  # learns when each segment begins, before somebody waits for a window
        except Exception as error:  # the next request tries again
            self._retry = time.monotonic() + _RETRY_S
            logger.warning("%s cannot be read: %s", self.key, shown(str(error) or type(error).__name__))
        finally:
            self._progress, self._reading = None, None
            self._again = 0.0

    def _show_progress(self, done: float, total: float, what: str) -> None:
        self._progress = done, total, what

    def _look(self) -> None:
        """Learn whether there is something new."""
        try:
            changed = files.changed(self.run.folder.journal)
        except OSError:
            changed = -2
        # Names are added to the folder; later statements about disruptions are added to a file that may be there.
        version = changed, files.version(self.run.folder.reasons_path)
        moved, self._changed = version != self._changed, version
        # While a run lives, its folder changes all the time: processes write their paces there.
        if moved and self._state != RUNNING:
            self._wanted = time.time()
        elif self._made is not None and self._state in (RUNNING, SILENT, ""):
            due = self._made.at + max(_FRESH_S, self._made.pause)
            if time.time() >= due:
                self._wanted = max(self._wanted, due)

    def _changes(self) -> bytes:
        """Return the event of this second."""
        with self._event_lock:
            before = self._changed
            self._look()
            self._read_on()
            made, progress = self._made, self._progress if self._reading else None
            still = before == self._changed and self._state != RUNNING and not progress
            if self._event and still and time.monotonic() < self._again:
                return self._event
            reading = self._readings.of(self.run)
            report = reading.report()
            state = _state(report)
            lives = state, report.totals.attempts
            if lives != self._lives:
                self._lives, self._state, self._wanted = lives, state, time.time()
            self._again = time.monotonic() + (_AGAIN_S if state == SILENT else float("inf"))
            news: dict[str, Any] = {"live": state == RUNNING, "news": self._wanted}
            if made is not None and made.slow:
                news["news"] = made.at  # the page requests what is there
            if progress is not None:
                news["reading"] = dict(zip(("done", "total", "what"), progress, strict=True))
            news |= figures(report, _SELDOM, self._redacted)
            started = report.totals.started_at
            if started is not None:
                news["end"] = report.totals.at - started
            self._event = event(json.dumps(news, separators=(",", ":")).encode(), "run")
            if made is not None and state == RUNNING:
                self._event += self._tail(made, reading.news())
            return self._event

    def _tail(self, made: _Made, news: News | None) -> bytes:
        """Return the event with the spans of this second, made once for all clients."""
        while self._tails and self._tails[0][0] <= made.view.at:
            self._tails.popleft()
        if news is None:
            self._tails.clear()
            return b""
        packed = gzip.compress(tail(made.view, news), 1, mtime=0)
        spans = event(b'"' + b64encode(packed) + b'"', "tail")  # events are text
        self._tails.append((news.until, spans))
        while sum(len(one) for _, one in self._tails) > _TAILS:
            self._tails.popleft()
        return spans


def _pause(spent: float) -> float:
    """Return how long another document is not worth its price (both s)."""
    return max(_SHARE_AT_MOST * spent, min(_SHARE * spent, _LONG_S))


def _state(report: Report) -> str:
    return ended(report.totals) or report.state


class Watches:
    """The runs that are looked at; those that nobody has looked at for long are forgotten."""

    def __init__(self, readings: Readings, terms: Terms) -> None:
        self._readings = readings
        self._terms = terms
        self._watches: OrderedDict[str, Watch] = OrderedDict()

    def of(self, run: RecordedRun) -> Watch:
        """Return the watch of a run. Called in the event loop."""
        name = str(run.folder.path)
        watch = self._watches.get(name)
        if watch is None:
            watch = self._watches[name] = Watch(run, self._readings, self._terms)
        self._watches.move_to_end(name)
        for old in list(self._watches):
            if len(self._watches) <= _MOST:
                break
            if not self._watches[old].topic.listeners:
                del self._watches[old]
        return watch

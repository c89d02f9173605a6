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
from dataclasses import replace
from functools import cached_property
from hashlib import sha256
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from otel_goodput._journal.mirror import Mirror, open_filesystem, plain
from otel_goodput._journal.rundir import ListedRun, RunDirectory, folder_name
from otel_goodput._runtime import files
from otel_goodput._text.redact import redacting_logger, shown, without_credentials
from otel_goodput._timeline.run_state import DIED, RUNNING, SILENT, ended
from otel_goodput._timeline.time_index import TimeIndex
from otel_goodput._viewer import incidents
from otel_goodput._viewer.document import Redaction, document, figures, origin, tail, window
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
    """The runs of a local directory, or one run's own folder, `shown` in messages. Nothing in it is ever written."""

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
        runs = {}
        for name in names:
            run, journal = folder / name, folder / name / "journal"
            # Links are not followed, for they may lead anywhere.
            if not run.is_symlink() and not journal.is_symlink() and files.is_folder(journal):
                runs[name] = RecordedRun(RunDirectory(run))
        return runs, "" if runs else f"{self.shown} holds no run yet: waiting for the first"

    def close(self) -> None:
        """Nothing is kept."""


class Remote:
    """The runs at a URL: a private copy, renewed every ten seconds while there are requests.

    Raises JournalError if the package for this kind of URL is missing or the URL is invalid, OSError if the copy
    cannot be made.
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
        self._wanted.set()
        mirrors = list(self._mirrors.items())
        return {name: RecordedRun(RunDirectory(self._copy / name), one) for name, one in mirrors}, self._problem

    def close(self) -> None:
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


# --- one run ----------------------------------------------------------------------------------------------------------

_REPORT_FRESH_S: Final = 0.5  # a report or list of this age answers the next request, too
_FOLLOWED_S: Final = 30.0  # a run without requests for this long is no longer followed
_LIST_SHARE: Final = 20  # reading a living run again for the list takes at most one part in this many of a core
_ELSEWHERE_S: Final = 10.0  # how often a run is looked at for the list that may have fallen silent
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
_SIGNS_S: Final = 2.0  # from one look for stacks and profiles to the next
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
    """How a server shows runs."""

    spans: int = SPANS  # steps and phases that a page has one by one from the start
    port: int | None = None  # where the server listens; None: not known
    idle_s: float | None = None  # after how long without a request it stops; None: never


class _Followed:
    """A run whose report is requested now and then. Its methods may be called from any thread."""

    def __init__(self, run: RecordedRun) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._followed: FollowedRun | None = None
        self._report: Report | None = None
        self._begun = self._read = self._requested_at = float("-inf")

    def report(self, since: float = float("-inf")) -> Report:
        """Return the report, at most half a second old, and not read before `since` (s, monotonic).

        Raises JournalError as :meth:`RecordedRun.report`.
        """
        with self._lock:
            self._requested_at = now = time.monotonic()
            if self._followed is None:
                self._followed, self._report = FollowedRun(self._run.folder), None
            if self._report is None or now - self._read > _REPORT_FRESH_S or self._begun < since:
                self._report = self._followed.report()
                self._begun, self._read = now, time.monotonic()
            return self._report

    @property
    def leader(self) -> Report | None:
        """The latest report of process 0 alone."""
        followed = self._followed
        return None if followed is None else followed.leader

    def news(self) -> News | None:
        """Return what is new up to the latest report since the last call; None if that is not known."""
        with self._lock:
            return None if self._report is None or self._followed is None else self._followed.news(self._report)

    def rest(self) -> None:
        """Follow the run no longer if nobody has requested it for long."""
        with self._lock:
            if time.monotonic() - self._requested_at > _FOLLOWED_S:
                self._followed = self._report = None


class Watch:
    """What a server keeps of one run. Its methods may be called from any thread; `topic` belongs to the event loop."""

    def __init__(self, name: str, run: RecordedRun, terms: Terms) -> None:
        self.run = run
        self.name = name  # of its folder
        self.key = quote(name, safe="")  # what addresses call it
        self.row: dict[str, Any] = {}  # of the list, which renew_row() reads
        self._row_changed, self._row_due = -1, 0.0  # what it was read of; when it is read again, by the monotonic clock
        self._terms = terms
        self.followed = _Followed(run)
        self._making = threading.Lock()
        self._event_lock = threading.Lock()
        self._looking_up = threading.Lock()
        self._changed = -1, (0, 0)
        self._shown = -1, (0, 0)  # what the event is of
        self._state = ""
        # State, number of attempts, whether the job has records of its own, and the signs of stacks and profiles.
        self._lives = ("", 0, False, tuple[Any, ...]())
        self._signs, self._signs_due = tuple[Any, ...](), float("-inf")
        self._wanted = 0.0  # since when (unix s) another document is worth its price
        self._retry = float("-inf")  # by the monotonic clock
        self._reading: threading.Thread | None = None
        self._progress: tuple[float, float, str] | None = None
        self._event = b""
        self._again = 0.0
        self.forget()

    def forget(self) -> None:
        self._made: _Made | None = None
        self._indexes = dict[bool, TimeIndex]()  # of the leader's journal, and of that of the job
        self._tails = deque[tuple[int, bytes]]()  # spans since the document: until when (ns), and the event

    @cached_property
    def _redacted(self) -> Redaction:
        return Redaction()  # not of each run of the list: most are never looked at

    @cached_property
    def topic(self) -> Topic:
        return Topic(self._changes, lambda: b"".join(one for _, one in tuple(self._tails)))

    def renew_row(self) -> None:
        """Read the row of the list again, if it may have changed: that of ``otel-goodput runs --json``, and more.

        `name` is what addresses call the run; `latest` when its latest attempt began, seconds since the epoch.
        """
        changed, now = self._folder_changed(), time.monotonic()
        lived = self.row.get("state") == RUNNING
        # While a run lives, its folder changes all the time; of others any change is news.
        if now < self._row_due and (changed == self._row_changed or lived):
            return
        began = time.thread_time()
        row = None
        if lived:
            with suppress(Exception):  # at less cost, if that is possible
                report = self.followed.report()
                if report.totals.attempts == self.row["attempts"]:
                    row = listing.row_from(report, self.run, self.row["latest"])
        row = row or listing.row_of(self.run)
        self.row = {"name": self.name, **row.to_json(), "latest": row.latest}
        self._row_changed = changed
        pause = {RUNNING: 0.0, SILENT: _ELSEWHERE_S}.get(row.state, float("inf"))
        self._row_due = now + max(pause, _LIST_SHARE * (time.thread_time() - began))

    def _folder_changed(self) -> int:
        try:
            return files.changed(self.run.folder.journal)
        except OSError:
            return -2

    def document(self) -> tuple[bytes, str]:
        """Return the page's document, gzipped, and its ETag. A run that cannot be read has one that says so."""
        made = self._latest()
        return made.packed, made.tag

    def window(self, begin: int, end: int, *, of_leader: bool = False) -> bytes:
        """Return what happened between two moments (ns from the document's origin) one by one, gzipped.

        It is what the job did, or process 0 if there is no account of the job's steps or `of_leader`.
        """
        view = self._latest().view
        begin, end = origin(view) + begin, origin(view) + end
        with self._looking_up:
            died = self._state == DIED
            about = view.leader if of_leader and view.leader is not None else view
            at = time.time_ns() if self._state == RUNNING and about.leader is None else about.at
            index, overview = self._index_of(about), about.overview
            detail, until = excerpt.window(index, overview, begin, end, at=at, died=died, most=WINDOW_SPANS)
        return gzip.compress(window(view, detail, begin, until, of_leader=of_leader), 1, mtime=0)

    def _index_of(self, view: RunView) -> TimeIndex:
        return self._indexes.setdefault(view.leader is None, TimeIndex(view.journal))

    def _latest(self) -> _Made:
        with self._making:
            self._look()
            made = self._made
            if made is None:
                folder = self.run.folder
                # Whether reading all of the run takes longer than somebody waits for a page.
                long = len(folder.segments(0)) > _SHORT or len(ListedRun(folder.path).there) > _FEW
                made = self._made = self._make(quick=long)
            elif made.at < self._wanted and not made.slow:
                made = self._made = self._make()
        self._read_on()
        return made

    def _make(self, *, quick: bool = False) -> _Made:
        at, began = time.time(), time.thread_time()
        records = False  # while a job goes on, what is sent of it is that of its own records
        with suppress(GoodputError, OSError, ValueError):  # the document says why it cannot be read
            report = self.followed.report()
            records = report.ranks is not None and _state(report) == RUNNING
            if not self.topic.listeners:  # the first spans sent by themselves follow those of the document
                self.followed.news()
        spans = min(_QUICK_SPANS, self._terms.spans) if quick else self._terms.spans
        view = RunView.open(self.run, spans=spans, quick=quick, records=records, progress=self._show_progress)
        self._state = _state(view.report)
        self._again = 0.0  # an event that was made before may have another state, and be sent after the document
        server = {"port": self._terms.port, "idle_s": self._terms.idle_s}
        data = document(view, live=self._state == RUNNING, server=server, partial=quick)
        packed = gzip.compress(data, 1 if quick else 5, mtime=0)
        bare = _bare(view)
        spent = time.thread_time() - began
        slow = quick or spent > _SOON
        pause = max(_SHARE_AT_MOST * spent, min(_SHARE * spent, _LONG_S))
        return _Made(packed, f'"{sha256(packed).hexdigest()[:32]}"', at, pause, bare, quick, slow)

    def _read_on(self) -> None:
        """Start to read in the background what takes long, if it is wanted; the stream announces it."""
        with self._making:
            made = self._made
            wanted = made is not None and made.slow and (made.partial or made.at < self._wanted)
            if not wanted or self._reading or time.monotonic() < self._retry:
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
                    # It learns when each segment begins, before somebody waits for a window.
                    self._index_of(made.view).between(0, 0)
        except Exception as error:  # the next request tries again
            self._retry = time.monotonic() + _RETRY_S
            logger.warning("%s cannot be read: %s", self.key, shown(str(error) or type(error).__name__))
        finally:
            self._progress, self._reading = None, None
            self._again = 0.0

    def _show_progress(self, done: float, total: float, what: str) -> None:
        self._progress = done, total, what

    def _look(self) -> None:
        # Names are added to the folder; later statements about disruptions are added to a file that may be there.
        version = self._folder_changed(), files.version(self.run.folder.reasons_path)
        moved, self._changed = version != self._changed, version
        # While a run lives, its folder changes all the time: processes write their paces there.
        if moved and self._state != RUNNING:
            self._wanted = time.time()
        elif self._made is not None and self._state in (RUNNING, SILENT, ""):
            due = self._made.at + max(_FRESH_S, self._made.pause)
            if time.time() >= due:
                self._wanted = max(self._wanted, due)

    def _changes(self) -> bytes:
        with self._event_lock:
            now = time.monotonic()
            self._look()
            self._read_on()
            made, progress = self._made, self._progress if self._reading else None
            version, lived = self._changed, self._state == RUNNING
            still = version == self._shown and not lived and not progress
            if self._event and still and now < self._again:
                return self._event
            # While a run lives, its folder changes all the time. Of others, what has changed is what is to be shown.
            report = self.followed.report() if lived or version == self._shown else self.followed.report(now)
            self._shown = version
            state, of_job = _state(report), report.ranks is not None
            lives = state, report.totals.attempts, of_job, self._incident_signs()
            if lives != self._lives:
                self._lives, self._state, self._wanted = lives, state, time.time()
            self._again = 0.0  # unless what follows goes well
            news: dict[str, Any] = {"live": state == RUNNING, "news": self._wanted}
            if made is not None and made.slow:
                news["news"] = made.at  # the page requests what is there
            if progress is not None:
                news["reading"] = dict(zip(("done", "total", "what"), progress, strict=True))
            news |= self._figures(report, None if made is None else made.view)
            started = report.totals.started_at
            if started is not None:
                news["end"] = report.totals.at - started
            self._event = event(json.dumps(news, separators=(",", ":")).encode(), "run")
            if made is not None and state == RUNNING and of_job == (made.view.leader is not None):
                self._event += self._tail(made, self.followed.news())
            if state == self._state:  # else a document was made meanwhile, and this comes too late
                self._again = time.monotonic() + (_AGAIN_S if state == SILENT else float("inf"))
            return self._event

    def _incident_signs(self) -> tuple[Any, ...]:
        """Return what differs once stacks or profiles are new: while training stands still, nothing else changes."""
        now = time.monotonic()
        if now >= self._signs_due:
            self._signs = incidents.signs(self.run.folder)
            self._signs_due = time.monotonic() + max(_SIGNS_S, _LIST_SHARE * (time.monotonic() - now))
        return self._signs

    def _figures(self, report: Report, shown: RunView | None) -> dict[str, Any]:
        """Return what is new of the figures: those of the job, if there are any, and of its leader."""
        leader = self.followed.leader or report
        if report.ranks is not None and (shown is None or shown.job is not None):
            own = figures(leader, _SELDOM, self._redacted)
            return {**figures(report, _SELDOM, self._redacted), "leader": own}
        overall = None if shown is None else shown.overall
        if overall is not None:  # of the job there is more only with the document
            leader = replace(leader, process=overall.process or leader.process)
        latest = figures(leader, _SELDOM, self._redacted)
        return {"leader": latest} if overall is not None and overall.ranks else latest

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


def _bare(view: RunView) -> RunView:
    """Return a view with what is needed for more of it later."""
    leader = None if view.leader is None else _bare(view.leader)
    return replace(view, detail=Detail(), processes=[], attempts=[], leader=leader)


def _state(report: Report) -> str:
    return ended(report.totals) or report.state


# --- all runs of a place ----------------------------------------------------------------------------------------------


class Catalogue:
    """The runs of a place. Its methods may be called from any thread, but for `looked_at`."""

    def __init__(self, place: Directory | Remote, terms: Terms) -> None:
        self._place = place
        self._terms = terms
        self._known: dict[str, Watch] = {}
        self._looked_at = OrderedDict[str, Watch]()  # those that keep something large
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
        """Return the answer with the rows of running runs only; the `revision` shows a client that it misses some."""
        whole = self.answer()
        living = [row for row in whole["runs"] if row["state"] == RUNNING]
        return {**whole, "runs": living, **({"now": time.time()} if living else {})}

    def find(self, name: str) -> Watch | None:
        """Return what is kept of the run whose folder has this name, or whose id this is; None if there is none."""
        for fresh in (False, True):  # a run may be younger than the list
            self.answer(fresh=fresh)
            if (known := self._known.get(name) or self._known.get(folder_name(name))) is not None:
                return known
        return None

    def looked_at(self, watch: Watch) -> None:
        """Forget most of the runs that nobody has looked at for long. Called in the event loop."""
        self._looked_at[watch.name] = watch
        self._looked_at.move_to_end(watch.name)
        for old in list(self._looked_at.values()):
            if len(self._looked_at) <= _MOST:
                break
            if not old.topic.listeners:
                del self._looked_at[old.name]
                old.forget()

    def _read(self) -> dict[str, Any]:
        runs, problem = self._place.runs()
        self._known = {name: self._known.get(name) or Watch(name, run, self._terms) for name, run in runs.items()}
        for one in self._known.values():
            one.renew_row()
            one.followed.rest()
        rows = [one.row for one in self._known.values()]
        rows.sort(key=lambda row: (-(row["latest"] or 0), row["name"]))
        settled = [row if row["state"] != RUNNING else row["name"] for row in rows]
        revision = zlib.crc32(json.dumps(settled).encode())
        return {"place": self._place.shown, "problem": problem, "revision": revision, "runs": rows}

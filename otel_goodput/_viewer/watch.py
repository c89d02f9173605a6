"""One run that is shown: read once for all clients, and only while there are any."""

from __future__ import annotations

import gzip
import json
import threading
import time
from base64 import b64encode
from collections import OrderedDict, deque
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from hashlib import sha256
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from otel_goodput._runtime import files
from otel_goodput._text.redact import redacting_logger, shown
from otel_goodput._timeline.run_state import DIED, RUNNING, SILENT, ended
from otel_goodput._timeline.time_index import TimeIndex
from otel_goodput._viewer.catalogue import Readings
from otel_goodput._viewer.document import Redaction, document, figures, tail, window
from otel_goodput._viewer.streams import Topic, event
from otel_goodput.errors import GoodputError
from otel_goodput.reports import SPANS, excerpt
from otel_goodput.reports.detail import Detail
from otel_goodput.reports.report import Report
from otel_goodput.reports.run import RecordedRun
from otel_goodput.reports.run_view import RunView
from otel_goodput.reports.tail import News

logger = redacting_logger(__name__)

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

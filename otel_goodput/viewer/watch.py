"""One run that is looked at: read once for all who look, and only as long as somebody does."""

from __future__ import annotations

import gzip
import hashlib
import json
import threading
import time
from collections import OrderedDict
from functools import cached_property
from typing import Any, Final
from urllib.parse import quote

from otel_goodput import files
from otel_goodput.journal.rundir import RunDirectory
from otel_goodput.reports import text
from otel_goodput.reports.advice import sentence
from otel_goodput.reports.journalled import of_run
from otel_goodput.reports.session import Session
from otel_goodput.reports.standing import ENDED, RUNNING
from otel_goodput.viewer.document import document
from otel_goodput.viewer.streams import Topic, event

_FRESH_S: Final = 10.0  # a document of a living run of this age is good for the next who asks
_SHARE: Final = 20  # documents of living runs take at most one part in this many of a core
_MOST: Final = 32  # documents kept
SPANS: Final = 200_000  # exact spans in a document
WINDOW_SPANS: Final = 50_000  # in the answer to a window


class Watch:
    """What a server keeps of one run. Its methods may be called from any thread; `topic` belongs to the event loop.

    Attributes:
        run: the run's folder.
        key: what addresses call it.
    """

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self.key = quote(run.path.name, safe="")
        self._lock = threading.Lock()
        self._packed: tuple[bytes, str] | None = None
        self._changed = -1
        self._lives = True
        self._due = 0.0

    @cached_property
    def topic(self) -> Topic:
        """What changes in the run."""
        return Topic(self._changes)

    def document(self) -> tuple[bytes, str]:
        """Return the page's document, gzipped, and its ETag.

        Raises:
            JournalError: there is no journal, or none that can be read.
            OSError: it cannot be read.
        """
        with self._lock:
            changed = files.changed(self.run.journal)
            now = time.monotonic()
            if self._packed is None or changed != self._changed or (self._lives and now >= self._due):
                began = time.thread_time()
                session = Session.open(self.run, spans=SPANS)
                self._lives = session.report.standing is not None and session.report.standing.state != ENDED
                data = document(session, live=True)
                tag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
                self._packed = gzip.compress(data, 5, mtime=0), tag
                self._changed = changed
                self._due = now + max(_FRESH_S, _SHARE * (time.thread_time() - began))
            return self._packed

    def window(self, begin: int, end: int) -> bytes:
        """Return the exact spans between two moments (ns from the document's origin), gzipped.

        Raises as :meth:`document`.
        """
        return gzip.compress(window(self.run, begin, end, most=WINDOW_SPANS), 1, mtime=0)

    def _changes(self) -> bytes:
        report = of_run(self.run).to_json()
        told: dict[str, Any] = {
            "at": time.time(),
            "live": report["state"] == RUNNING,
            "report": report,
            "headline": text.headline(report),
            "verdict": sentence(report) if report["elapsed_s"] else "",
        }
        with self._lock:
            told["document"] = self._renewed()
        if not told["live"]:
            del told["at"]  # nothing changes any more
        return event(json.dumps(told, separators=(",", ":")).encode(), "run")


class Watches:
    """The runs that are looked at, the least recent ones forgotten."""

    def __init__(self) -> None:
        self._watches: OrderedDict[str, Watch] = OrderedDict()

    def of(self, run: RunDirectory) -> Watch:
        """Return the watch of a run."""
        name = str(run.path)
        found = self._watches.get(name)
        if found is None:
            found = self._watches[name] = Watch(run)
        self._watches.move_to_end(name)
        for old in list(self._watches):
            if len(self._watches) <= _MOST:
                break
            if not self._watches[old].topic.listeners:
                del self._watches[old]
        return found

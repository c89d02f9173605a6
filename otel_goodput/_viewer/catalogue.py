"""The list of all runs of a place, kept up to date at little cost: only what lives or has changed is read again."""

from __future__ import annotations

import json
import threading
import time
import zlib
from dataclasses import dataclass, field
from typing import Any, Final

from otel_goodput._journal.rundir import folder_name
from otel_goodput._runtime import files
from otel_goodput._timeline.run_state import RUNNING, SILENT
from otel_goodput._viewer.places import Directory, Remote
from otel_goodput._viewer.reading import Readings
from otel_goodput.reports import listing
from otel_goodput.reports.run import RecordedRun

_FRESH_S: Final = 0.5  # an answer of this age is good for the next who asks
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
    """The runs of a place as rows for the index. May be asked from any thread."""

    def __init__(self, place: Directory | Remote, readings: Readings) -> None:
        self._place = place
        self._readings = readings
        self._known: dict[str, _Known] = {}
        self._lock = threading.Lock()
        self._asked = float("-inf")
        self._answer: dict[str, Any] = {}

    def answer(self) -> dict[str, Any]:
        """Return ``{"place", "problem", "revision", "runs": [row]}``, the newest run first. Does not raise.

        `revision` changes with the list and with every row of a run that is not running.
        """
        with self._lock:
            if time.monotonic() - self._asked > _FRESH_S:
                self._answer = self._read()
                self._asked = time.monotonic()
            return self._answer

    def changes(self) -> dict[str, Any]:
        """Return the answer without the rows of runs that have ended or died: whoever misses them by the `revision`
        asks for the whole.
        """
        whole = self.answer()
        living = [row for row in whole["runs"] if row["state"] == RUNNING]
        return {**whole, "runs": living, **({"now": time.time()} if living else {})}

    def find(self, name: str) -> RecordedRun | None:
        """Return the run whose folder has this name, or whose id this is; None if there is none."""
        self.answer()
        known = self._known
        found = known.get(name) or known.get(folder_name(name))
        return None if found is None else found.run

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
            found = listing.row_from(report, known.run, known.row["run_id"], latest)
        except Exception:
            return row(name, known.run)  # which says why it cannot be read
        return {"name": name, **found.to_json(), "latest": latest}


def row(name: str, run: RecordedRun) -> dict[str, Any]:
    """Return a run's row in the index: that of ``otel-goodput runs --json``, and more. Does not raise.

    `name` is what addresses call it; `latest` when its latest attempt began, seconds since the epoch.
    """
    found = listing.row_of(run)
    return {"name": name, **found.to_json(), "latest": found.latest}

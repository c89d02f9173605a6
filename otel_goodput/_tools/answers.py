"""What programs are answered about the runs of one folder or URL: bounded, redacted, and only read.

A run is named by its id or the name of its folder, and looked up among those that are there: no path is made of it.
Texts in an answer come from the files of the runs. They are made printable, and have no credentials.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from otel_goodput._journal.rundir import folder_name
from otel_goodput._text.redact import shown
from otel_goodput._viewer import incidents
from otel_goodput._viewer.document import Redaction
from otel_goodput._viewer.watch import Directory, Remote
from otel_goodput._viewer.watch import place as runs_at
from otel_goodput.errors import GoodputError, JournalError
from otel_goodput.reports import comparison, comparison_text, listing
from otel_goodput.reports.records import slowest
from otel_goodput.reports.run import RecordedRun
from otel_goodput.reports.stacks import standstill

MOST: Final = 40_000  # characters of an answer, some 10,000 tokens
LONGEST: Final = 2_000  # characters of a text in it
RUNS: Final = 100  # of a list
STEPS: Final = 100  # the slowest
DEEPEST: Final = 12
FETCH_S: Final = 60.0  # until the runs at a URL are here
LEFT_OUT: Final = "left_out"
NAMES: Final = 64  # entries of an object; one with more is as a list
_EVERY_S: Final = 0.1


class Answers:
    """Answers questions about runs. All methods return text, and raise GoodputError or OSError if there is no answer.

    They may be called from any thread; one is at work at a time.
    """

    def __init__(self, place: str) -> None:
        self._place: Directory | Remote = runs_at(place)
        self._lock = threading.Lock()
        self._redacted = Redaction()

    def close(self) -> None:
        self._place.close()

    def runs(self, limit: int) -> str:
        """List the latest runs."""
        with self._lock:
            known, problem = self._there()
            latest = listing.entries(known.values())[: max(1, min(RUNS, limit))]
            rows = [listing.row_of(one.run).to_json() for one in latest]
            more = max(0, len(known) - len(rows))
            return self._json({"place": self._place.shown, "problem": problem, "runs": rows, "more_runs": more})

    def report(self, run: str, process: int | None, *, as_json: bool) -> str:
        """Return the report of a run, or of one process of it."""
        with self._lock:
            report = self._run(run).report(process=process)
            if not as_json:
                return self._lines(str(report).splitlines())
            return self._json(dict(report.to_json()))

    def incidents(self, run: str) -> str:
        """Return what is or was wrong with a run, the latest first."""
        with self._lock:
            chosen = self._run(run)
            answer: dict[str, Any] = dict(chosen.report().to_json())
            texts = incidents.sentences(answer)
            every = [{**one, "text": text} for one, text in zip(answer["incidents"], texts, strict=True)]
            return self._json(
                {
                    "run_id": answer["run_id"],
                    "state": answer["state"],
                    "open": sum(one["ended"] is None for one in every),
                    "incidents": every[::-1],
                }
            )

    def stacks(self, run: str, attempt: int | None) -> str:
        """Return where the ranks of a run stood still; `attempt` is counted from 1, None: the latest."""
        with self._lock:
            chosen = self._run(run)
            if attempt is not None and attempt < 1:
                raise JournalError("attempts are counted from 1")
            still = standstill(chosen, None if attempt is None else attempt - 1)
            answer = incidents.short(still.to_json())
            if not still.dumps:
                answer["text"] = "there are no stacks: ranks leave them when training stands still"
            if still.unread:
                answer["unread"] = [f"{name}: {error}" for name, error in still.unread]
            return self._json(answer)

    def slowest_steps(self, run: str, count: int, process: int | None) -> str:
        """Return the slowest steps of a process of a run, by their net time."""
        with self._lock:
            chosen = self._run(run)
            of = chosen.first() if process is None else process
            steps = slowest(chosen.detail(of), max(1, min(STEPS, count)))
            return self._json({"run_id": chosen.run_id, "process": of, "slowest_steps": steps.to_json()})

    def profiles(self, run: str) -> str:
        """Return the latest profiles of a run: functions by their own time, and what grew."""
        with self._lock:
            chosen = self._run(run)
            return self._json({"run_id": chosen.run_id, "profiles": incidents.profiles_of(chosen.folder)})

    def compare(self, first: str, second: str, *, as_json: bool) -> str:
        """Compare two runs."""
        with self._lock:
            if not first or not second:
                raise JournalError("name two runs")
            sides = [comparison.side_of(self._run(name), None) for name in (first, second)]
            compared = comparison.Comparison(*sides)
            if not as_json:
                return self._lines(comparison_text.render(compared).splitlines())
            return self._json(compared.to_json())

    # --- runs ---------------------------------------------------------------------------------------------------------

    def _there(self) -> tuple[Mapping[str, RecordedRun], str]:
        until = time.monotonic() + FETCH_S
        while True:
            known, problem = self._place.runs()
            if known or isinstance(self._place, Directory) or not problem.startswith("reading"):
                return known, problem
            if time.monotonic() >= until:
                return known, problem
            time.sleep(_EVERY_S)

    def _run(self, name: str) -> RecordedRun:
        """Return the run of this id or folder; the newest if `name` is empty."""
        known, problem = self._there()
        if not name:
            if latest := listing.entries(known.values()):
                return latest[0].run
            raise JournalError(problem or f"{self._place.shown} holds no run with a journal")
        if (run := known.get(name) or known.get(folder_name(name))) is not None:
            return run
        for run in known.values():
            if run.run_id == name:
                return run
        raise JournalError(f"there is no run {name[:LONGEST]!r} in {self._place.shown}")

    # --- texts --------------------------------------------------------------------------------------------------------

    def _lines(self, lines: list[str]) -> str:
        """Return lines of a text, as many as an answer may have."""
        text = [self._line(line) for line in lines]
        size, kept = 0, 0
        while kept < len(text) and size + len(text[kept]) < MOST:
            size += len(text[kept]) + 1
            kept += 1
        left = len(text) - kept
        return "\n".join([*text[:kept], *([f"({left} more lines are left out)"] if left else [])])

    def _line(self, text: str) -> str:
        line = shown(self._redacted(text))
        return line if len(line) <= LONGEST else f"{line[:LONGEST]}… ({len(line) - LONGEST} more characters)"

    def _json(self, answer: dict[str, Any]) -> str:
        return fitted(self._plain(self._redacted.all(answer)))

    def _plain(self, value: Any, depth: int = 0) -> Any:
        if isinstance(value, str):
            return self._line(value)
        if isinstance(value, (dict, list)) and depth >= DEEPEST:
            return "…"
        if isinstance(value, dict):
            return {self._line(name): self._plain(one, depth + 1) for name, one in value.items()}
        return [self._plain(one, depth + 1) for one in value] if isinstance(value, list) else value


def fitted(answer: dict[str, Any], most: int = MOST) -> str:
    """Return an answer as JSON of at most `most` characters: of the longest lists in it, the end is left out.

    ``left_out`` says of which, and how many entries. Raises GoodputError if that is not enough.
    """
    cut: dict[str, int] = {}
    while len(text := json.dumps(answer | ({LEFT_OUT: cut} if cut else {}), ensure_ascii=False)) > most:
        every = list(_collections(answer))
        lists = [one for one in every if isinstance(one[1], list) or len(one[1]) > NAMES] or every
        if not lists:
            raise GoodputError("the answer is too long")
        where, values = max(lists, key=lambda one: len(json.dumps(one[1])))
        kept = len(values) // 2
        names = [*values][kept:] if isinstance(values, dict) else range(len(values) - 1, kept - 1, -1)
        for name in names:
            del values[name]
        cut[where] = cut.get(where, 0) + len(names)
    return text


def _collections(value: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the lists and objects in an answer that have several entries, but for the answer itself."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, one in entries:
        path = f"{where}[]" if isinstance(name, int) else f"{where}.{name}".lstrip(".")
        if isinstance(one, (list, dict)) and len(one) > 1:
            yield path, one
        yield from _collections(one, path)

"""Entries of ml-goodput-measurement, as rows of a timeline: what it wrote to Cloud Logging, or keeps in its cache.

Their keys, and that a step ends where the next one starts, are those of ml-goodput-measurement 0.2.3.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from otel_goodput._runtime import files
from otel_goodput._text.durations import NS
from otel_goodput.reports.timeline import Row
from otel_goodput.semconv import ELASTIC_SCALE_UP, ELASTIC_SLICE_DOWN, Phase

Entry = Mapping[str, Any]

_JOB_NAME: Final = "job_name"
_JOB_START: Final = "job_start_time"
_SLICES: Final = "elastic_slice_counts_timestamp"

_PHASES: Final = (
    Phase.JOB, Phase.ACCELERATOR_INIT, Phase.TRAINING_PREP, Phase.DATA_LOADING, Phase.STEP, Phase.CUSTOM,
    Phase.ELASTIC_WAIT, Phase.ELASTIC_REINIT,
)  # fmt: skip
_CALLED: Final = {Phase.ACCELERATOR_INIT: "tpu_init", Phase.CUSTOM: "custom_badput_event"}  # where that is another name
# By the keys of their times: phases, and whether they start. A step ends where the next one starts.
_EDGES: Final = {
    f"{_CALLED.get(phase, phase)}_{edge}_time": (phase, edge == "start")
    for phase in _PHASES
    for edge in ("start", "end")
    if (phase, edge) != (Phase.STEP, "end")
}
_NAMES: Final[Mapping[str, str]] = {
    Phase.STEP: "step_count",
    Phase.CUSTOM: "custom_badput_event_type",
    Phase.ELASTIC_WAIT: "elastic_wait_event_type",
}


def rows_of(entries: Iterable[Entry], job_name: str | None = None) -> Sequence[Row]:
    """Return the rows of one job, in order of their start; `job_name` may be None if all `entries` are of one.

    A new start of the job is a new attempt.

    Raises:
        ValueError: there are no entries of the job, or several jobs and no name.
    """
    mine = _of_one_job(list(entries), job_name)
    times = [(time, at, key) for at, entry in enumerate(mine) for key, time in _times(entry)]
    if times and times[0][0] > times[-1][0]:
        times.reverse()  # gcloud prints the newest first; entries of the same time keep their order
    times.sort(key=itemgetter(0))
    rows: list[dict[str, Any]] = []
    attempt = 0

    def begin(phase: str, name: str | int, time: int | None) -> dict[str, Any]:
        row: dict[str, Any] = {"kind": phase, "start_ns": time, "attempt": max(1, attempt), "blocking": True}
        if phase == Phase.STEP:
            row["step"] = name
        elif name:
            row["name"] = name
        rows.append(row)
        return row

    def end(row: dict[str, Any], time: int | None, given_up: bool) -> None:
        row["end_ns"] = time
        if given_up:
            row["completed"] = False

    open_phases: Pairs[dict[str, Any]] = Pairs(begin, end)
    for time, at, key in times:
        entry = mine[at]
        if key == _SLICES:
            counts = {name: entry.get(f"{name}_slices", 0) for name in ("active", "available", "total")}
            rows.append({"kind": "slice_counts", "start_ns": time, "attempt": max(1, attempt), **counts})
            continue
        phase, starts = _EDGES[key]
        try:
            name = _name(phase, entry)
        except (TypeError, ValueError, OverflowError):
            continue  # a step without a number
        if key == _JOB_START:
            attempt += 1
            open_phases = Pairs(begin, end)  # what the process before left open was never ended
        (open_phases.start if starts else open_phases.end)(phase, name, time)
    return rows


def _of_one_job(entries: Sequence[Entry], job_name: str | None) -> list[Entry]:
    names = dict.fromkeys(str(entry[_JOB_NAME]) for entry in entries if _JOB_NAME in entry)
    if not names:
        raise ValueError("there is no entry of ml-goodput-measurement: they have a job_name")
    wanted = next(iter(names)) if job_name is None else job_name
    if wanted not in names or (job_name is None and len(names) > 1):
        raise ValueError(f"there are entries of {', '.join(map(repr, names))}; choose one with --job")
    return [entry for entry in entries if entry.get(_JOB_NAME) == wanted]


def _times(entry: Entry) -> Iterator[tuple[str, int]]:
    """Each time in the entry, with its key, ns."""
    for key in (*_EDGES, _SLICES):
        value = entry.get(key)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 4e9:
            yield key, round(value * NS)


def _name(phase: str, entry: Entry) -> str | int:
    key = _NAMES.get(phase, "")
    if phase == Phase.STEP:
        return int(entry.get(key, -1))
    name = str(entry.get(key) or "unknown") if key else ""
    return waited_for(name) if phase == Phase.ELASTIC_WAIT else name


def read_entries(path: Path | None) -> Iterator[Entry]:
    """Yield the entries of a file, or of standard input if `path` is None.

    It is JSON lines, or an array as ``gcloud logging read --format=json`` prints it; an entry stands by itself, or is
    the ``jsonPayload`` of a LogEntry.

    Raises:
        ValueError: it is not JSON, or not of objects.
        OSError: it cannot be read.
    """
    source = path or "standard input"
    if path is None:
        data = sys.stdin.buffer.read()
    else:
        with files.open_given(path) as file:
            data = file.read()
    try:
        lines = filter(bytes.strip, data.splitlines())
        entries = json.loads(data) if data.lstrip().startswith(b"[") else list(map(json.loads, lines))
    except ValueError as error:
        raise ValueError(f"{source} is neither JSON lines nor a JSON array: {error}") from error
    for entry in entries:
        if not isinstance(entry, dict):
            raise ValueError(f"{source} holds {entry!r:.80}, which is not an object")
        payload = entry.get("jsonPayload")
        yield payload if isinstance(payload, dict) else entry


P = TypeVar("P")


def waited_for(event_type: str) -> str:
    """What a wait for slices is for, of ``semconv.ELASTIC_WAITS``, from ml-goodput-measurement's type of it."""
    return ELASTIC_SCALE_UP if ELASTIC_SCALE_UP in event_type.lower() else ELASTIC_SLICE_DOWN


@dataclass(frozen=True, eq=False)
class _Opened(Generic[P]):
    """An open phase: of ``semconv.Phase``, with a name or number, opened by a thread; and what stands for it."""

    phase: str
    name: str | int
    thread: int
    stands: P

    def over(self, phase: str, name: str | int, thread: int) -> bool:
        """Whether it is over when another one starts."""
        if Phase.JOB in (phase, self.phase):
            return phase == Phase.JOB
        if self.thread != thread:
            return False
        # Nothing blocks a step that starts. A wait for slices ends what was tried.
        return phase in (Phase.STEP, Phase.ELASTIC_WAIT) or (self.phase, self.name) == (phase, name)


class Pairs(Generic[P]):
    """Matches ends with starts. Times are ns since the epoch; None is now.

    `begin` is called with the phase, its name or number, and the time of its start, and returns what stands for it;
    `end` with that, the time, and whether the phase was given up.
    """

    def __init__(
        self, begin: Callable[[str, str | int, int | None], P], end: Callable[[P, int | None, bool], None]
    ) -> None:
        self._begin = begin
        self._end = end
        self._lock = threading.RLock()
        self._opened: list[_Opened[P]] = []  # the innermost last
        self.unmatched = 0  # ends without a start, which are ignored

    def start(self, phase: str, name: str | int = "", time: int | None = None) -> None:
        """A phase starts, and ends what cannot be open any more."""
        mine = threading.get_ident()
        with self._lock:
            for one in reversed(tuple(self._opened)):
                if one.over(phase, name, mine):
                    self._close(one, time, given_up=not one.phase == phase == Phase.STEP)
            self._opened.append(_Opened(phase, name, mine, self._begin(phase, name, time)))

    def end(self, phase: str, name: str | int = "", time: int | None = None) -> bool:
        """A phase ends; with the job everything does. Returns whether it had started; else nothing is done."""
        mine = threading.get_ident()
        with self._lock:
            matches = [one for one in self._opened if (one.phase, one.name) == (phase, name)]
            if not matches:
                self.unmatched += 1
                return False
            last = next((one for one in reversed(matches) if one.thread == mine), matches[-1])
            for one in reversed(tuple(self._opened)) if phase == Phase.JOB else ():
                if one is not last:
                    self._close(one, time, given_up=one.phase != Phase.STEP)
            self._close(last, time, given_up=False)
            return True

    def _close(self, one: _Opened[P], time: int | None, *, given_up: bool) -> None:
        self._opened.remove(one)
        self._end(one.stands, time, given_up)

"""Entries of ml-goodput-measurement, as rows of a timeline: what it wrote to Cloud Logging, or keeps in its cache.

Their keys, and that a step ends where the next one starts, are those of ml-goodput-measurement 0.2.3.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

from otel_goodput._recording.pairs import Pairs, waited_for
from otel_goodput._runtime import files
from otel_goodput._text.durations import NS
from otel_goodput.reports.timeline import Row
from otel_goodput.semconv import Phase

Entry = Mapping[str, Any]

_JOB_NAME: Final = "job_name"
_JOB_START: Final = "job_start_time"
_SLICES: Final = "elastic_slice_counts_timestamp"


class _Kind(NamedTuple):
    """How a kind of phase is recorded: the keys of its times, the key of its name, and what it is."""

    start: str
    end: str
    name: str
    phase: str


_KINDS: Final = (
    _Kind(_JOB_START, "job_end_time", "", Phase.JOB),
    _Kind("tpu_init_start_time", "tpu_init_end_time", "", Phase.ACCELERATOR_INIT),
    _Kind("training_prep_start_time", "training_prep_end_time", "", Phase.TRAINING_PREP),
    _Kind("data_loading_start_time", "data_loading_end_time", "", Phase.DATA_LOADING),
    _Kind("step_start_time", "", "step_count", Phase.STEP),
    _Kind(
        "custom_badput_event_start_time", "custom_badput_event_end_time", "custom_badput_event_type", Phase.CUSTOM
    ),
    _Kind("elastic_wait_start_time", "elastic_wait_end_time", "elastic_wait_event_type", Phase.ELASTIC_WAIT),
    _Kind("elastic_reinit_start_time", "elastic_reinit_end_time", "", Phase.ELASTIC_REINIT),
)  # fmt: skip
_KIND_OF: Final[dict[str, tuple[_Kind, bool]]] = {
    key: (one, starts) for one in _KINDS for key, starts in ((one.start, True), (one.end, False)) if key
}


def rows_of(entries: Iterable[Entry], job_name: str | None = None) -> Sequence[Row]:
    """The rows of one job, in order of their start. A new start of the job is a new attempt.

    Args:
        entries: in any order.
        job_name: which job; may be None if all are of one.

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
        kind, starts = _KIND_OF[key]
        try:
            name = _name(kind, entry)
        except (TypeError, ValueError, OverflowError):
            continue  # a step without a number
        if key == _JOB_START:
            attempt += 1
            open_phases = Pairs(begin, end)  # what the process before left open was never ended
        (open_phases.start if starts else open_phases.end)(kind.phase, name, time)
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
    for key in (*_KIND_OF, _SLICES):
        value = entry.get(key)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 4e9:
            yield key, round(value * NS)


def _name(kind: _Kind, entry: Entry) -> str | int:
    if kind.phase == Phase.STEP:
        return int(entry.get(kind.name, -1))
    name = str(entry.get(kind.name) or "unknown") if kind.name else ""
    return waited_for(name) if kind.phase == Phase.ELASTIC_WAIT else name


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
        entries = json.loads(data) if data.lstrip().startswith(b"[") else list(map(json.loads, _lines(data)))
    except ValueError as error:
        raise ValueError(f"{source} is neither JSON lines nor a JSON array: {error}") from error
    for entry in entries:
        if not isinstance(entry, dict):
            raise ValueError(f"{source} holds {entry!r:.80}, which is not an object")
        payload = entry.get("jsonPayload")
        yield payload if isinstance(payload, dict) else entry


def _lines(data: bytes) -> list[bytes]:
    return [line for line in data.splitlines() if line.strip()]

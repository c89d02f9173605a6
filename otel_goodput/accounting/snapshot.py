"""Serializes a cursor to bytes and back, so that the cost of a restart does not grow with the run's length.

A snapshot is a JSON head followed by the net times of sealed chunks as raw integers. So writing it neither holds the
GIL for long nor takes much memory, even after millions of steps.

The keys of the head are those of the file format, see docs/journal.md; tables say which attribute each holds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from math import isfinite
from typing import Any, Final

from otel_goodput.accounting import proof, rules
from otel_goodput.accounting.bins import Bins
from otel_goodput.accounting.cursor import Cursor
from otel_goodput.accounting.device import DeviceSegment
from otel_goodput.accounting.disruption import Disruption
from otel_goodput.accounting.execution import Execution
from otel_goodput.accounting.landmarks import Landmarks
from otel_goodput.accounting.overlay import Overlay
from otel_goodput.accounting.progress import Blob, Progress
from otel_goodput.accounting.resuming import Resume, Stretch, Watch
from otel_goodput.accounting.rolling import Rolling
from otel_goodput.accounting.stalls import LOOPS, REMEMBERED, Loop
from otel_goodput.accounting.step_segments import Life, StepSegment
from otel_goodput.accounting.step_summary import StepSummary
from otel_goodput.accounting.windows import Window, WindowSet
from otel_goodput.semconv import REASONS

FORMAT: Final = 1
PART: Final = 256  # elements of a list that are encoded at once
CHECK: Final = 32  # size in bytes of the digest at the beginning; it covers everything after it


class NewerFormat(ValueError):
    """The snapshot has a newer format than this version reads."""


# Attributes that are stored unchanged, by their key.
_RUN: Final = {
    "started_at": "begin",
    "now": "now",
    "alive": "alive",
    "ended": "ended",
    "clean": "clean",
    "window_lengths": "spans",
    "totals": "totals",
    "custom_names": "names",
    "notice": "notice",
    "clock_skewed": "skewed",
    "recompilations": "recompilations",
    "loading_overlapped": "overlapped",
    "suspended": "suspended",
    "open_job": "job",
    "clock_shift": "shift",
    "device_free_at": "freed",
    "fallback_clock": "fallback",
    "clock": "clock",
    "time_between_steps": "_between",
    "error": "error",
    "ended_by": "ended_by",
    "startup_before": "startup_before",
    "restored_before": "restored_before",
}
_STEPS: Final = {
    "executed": "executed",
    "lost": "lost",
    "interrupted_time": "interrupted",
    "last_step": "last_step",
    "latest_key": "latest",
    "previous_step": "previous",
    "device_observed": "observed",
    "durable_step": "safe",
    "attempts": "attempts",
    "disruptions": "disruptions",
    "disruption_count": "disrupted",
    "job_started_at": "job_begin",
    "first_step_time": "first_step",
    "step_ended_at": "step_end",
    "current_loop": "loop",
    "step_limit": "limit",
    "number_offset": "offset",
    "skipped_batches": "skipped",
    "skipped_wall_time": "skipped_wall",
    "doubtful_steps": "doubtful",
}


def dump(cursor: Cursor) -> tuple[dict[str, Any], list[Blob]]:
    """Return the cursor as (JSON-able head, blobs)."""
    steps = cursor.steps
    lives: list[Life] = []
    for life in (*(segment.life for segment in steps.segments), steps.life):
        if not lives or life is not lives[-1]:
            lives.append(life)
    life_at = {id(life): at for at, life in enumerate(lives)}
    segment_at = {id(segment): at for at, segment in enumerate(steps.segments)}
    progress, blobs = steps.progress.dump()
    summary, profiles = steps.summary.dump() if steps.summary is not None else (None, [])

    def place(execution: Execution) -> list[Any]:
        return [segment_at[id(execution.step_segment)], execution.to_state()]

    head: dict[str, Any] = {
        "format": FORMAT,
        "run": {key: getattr(cursor, name) for key, name in _RUN.items()},
        "steps": {key: getattr(steps, name) for key, name in _STEPS.items()},
        "kept_steps": progress,
        "jobs": [life.to_state() for life in lives],
        "step_segments": [[life_at[id(segment.life)], segment.to_state()] for segment in steps.segments],
        "recompiled_functions": dict(steps.recompiled),
        "recent_starts": list(steps.recent),
        "latest_disruptions": [entry.to_state() for entry in steps.latest_disruptions],
        "earlier_disruptions": [entry.to_state() for entry in steps.earlier],
        "bins": steps.bins.to_state() if steps.bins else None,
        "step_summary": summary,
        "overview": cursor.landmarks.to_state() if cursor.landmarks else None,
        "windows": [window.to_state() for window in cursor.windows],
        "rolling_windows": cursor.rolling.to_state() if cursor.rolling else None,
        "pending_saves": list(steps.saves.items()),
        "checkpoints": steps.checkpoints.to_state(),
        "open_restores": list(steps.restores.items()),
        "resumed": steps.resume.to_state() if steps.resume is not None else None,
        "watched": steps.watch.to_state() if steps.watch is not None else None,
        "numbering": [list(stretch) for stretch in steps.stretches],
        "discarded": list(steps.discarded.items()),
        "open_phases": list(cursor.blockers.items()),
        "open_overlapping_phases": list(cursor.overlapping.items()),
        "open_elastic_phases": list(cursor.elastic.items()),
        "open_overlapped_loads": list(cursor.loads),
        "open_windows": cursor.open_windows.to_state(),
        "conditions": cursor.overlay.to_state(),
        "running_steps": [place(execution) for execution in steps.running.values()],
        "recoverable_steps": [place(execution) for execution in steps.recoverable.values()],
        "loops": [[number, loop.to_state()] for number, loop in steps.loops.items()],
        "stalled_steps": [[at, stall.to_state()] for at, stall in steps.stalls.items()],
        "open_steps": [execution.key for execution in cursor.hosts],
        "device_queue": [
            [None, segment.owner, *segment[1:]]
            if isinstance(segment.owner, int)
            else [segment.owner.key, None, *segment[1:]]
            for segment in cursor.device
        ],
    }
    return head, [*blobs, *profiles]


def load(head: dict[str, Any], blobs: bytes, spans: tuple[int, ...] | None = None) -> Cursor:
    """Rebuild a cursor from what :func:`dump` returned.

    Args:
        head, blobs: what `dump` returned, with the blobs joined.
        spans: lengths of the rolling windows from now on, ns. If they differ from the snapshot's, the rolling windows
            start empty.

    Raises:
        NewerFormat: the format is newer than this version reads.
        ValueError: the format is not supported.
    """
    form = head.get("format")
    if isinstance(form, int) and form > FORMAT:
        raise NewerFormat(f"snapshot format {form}, this otel_goodput reads format {FORMAT}")
    if form != FORMAT:
        raise ValueError(f"snapshot format {form}, expected {FORMAT}")
    cursor = Cursor()
    steps = cursor.steps
    for key, name in _RUN.items():
        setattr(cursor, name, head["run"][key])
    for key, name in _STEPS.items():
        setattr(steps, name, head["steps"][key])
    for number in (steps.job_begin, steps.first_step, steps.step_end):
        _optional(number)
    cursor.finished = cursor.ended and cursor.clean and cursor.notice is None
    cursor.spans = tuple(cursor.spans)
    cursor.overlay = Overlay.from_state(head["conditions"])
    cursor.open_windows = WindowSet.from_state(head["open_windows"])
    cursor.name_index = {name: at for at, name in enumerate(cursor.names, rules.FIXED)}
    cursor.windows = steps.windows = [Window.from_state(state) for state in head["windows"]]
    steps.rolling = Rolling.from_state(head["rolling_windows"]) if head["rolling_windows"] else None
    steps.progress = Progress.load(head["kept_steps"], blobs)
    lives = [Life.from_state(state) for state in head["jobs"]]
    steps.life = lives[-1]
    steps.segments = [StepSegment.from_state(state, lives[at]) for at, state in head["step_segments"]]
    steps.recompiled = head["recompiled_functions"]
    steps.recent.extend(head["recent_starts"])
    proof.whole(steps.recent)
    steps.latest_disruptions = [_disruption(state) for state in head["latest_disruptions"]]
    steps.earlier = tuple(_disruption(state) for state in head["earlier_disruptions"])
    if steps.life.begun:
        steps.await_regain()
    if head["step_summary"] is not None:
        steps.summary = StepSummary.load(head["step_summary"], blobs)
        steps.bins = Bins.from_state(head["bins"]) if head["bins"] is not None else None
        cursor.landmarks = Landmarks.from_state(head["overview"])
        if (steps.bins is None) is not (cursor.begin is None):
            raise ValueError("a snapshot holds bins of no run, or a run without bins")
        if len(steps.summary) != len(steps.progress):
            raise ValueError("a snapshot does not hold a profile of each kept step")
        for segment in steps.segments:
            proof.whole((number for spot in segment.spots for number in spot), 0)
        if steps.bins is not None:
            steps.bins.prove_categories(rules.FIXED + len(cursor.names))
            steps.bins.prove(spot for segment in steps.segments for spot in segment.spots)
    steps.saves, steps.discarded = dict(head["pending_saves"]), dict(head["discarded"])
    steps.checkpoints.restore(head["checkpoints"])
    steps.restores = dict(head["open_restores"])
    steps.resume = Resume.from_state(head["resumed"]) if head["resumed"] is not None else None
    steps.watch = Watch.from_state(head["watched"]) if head["watched"] is not None else None
    steps.stretches = tuple(Stretch(*state) for state in head["numbering"])
    if steps.resume is not None and steps.resume.walking and not steps.stretches:
        raise ValueError("a snapshot does not say since when a loop has been skipping batches")
    cursor.blockers = dict(head["open_phases"])
    cursor.overlapping = dict(head["open_overlapping_phases"])
    cursor.elastic = {key: (rank, category) for key, (rank, category) in head["open_elastic_phases"]}
    cursor.loads = set(head["open_overlapped_loads"])
    for executions, kind in ((steps.running, "running_steps"), (steps.recoverable, "recoverable_steps")):
        for at, state in head[kind]:
            execution = Execution.from_state(state, steps.segments[at])
            executions[execution.key] = execution
    steps.loops = {number: Loop.from_state(state) for number, state in head["loops"]}
    for at, state in head["stalled_steps"]:
        steps.stalls[at] = Execution.from_state(state, steps.segments[-1])
    if len(steps.loops) > LOOPS or steps.loop not in steps.loops or len(steps.stalls) > REMEMBERED:
        raise ValueError("the loops of a snapshot contradict each other")
    proof.whole((steps.limit, steps.loop, *steps.loops, *steps.stalls))
    cursor.hosts = [steps.running[key] for key in head["open_steps"]]
    for key, category, begin, end in head["device_queue"]:
        cursor.device.append(DeviceSegment(category if key is None else steps.running[key], begin, end))
    _prove(cursor)
    if spans is not None and spans != cursor.spans:
        cursor.change_spans(spans)
    cursor.choose()
    return cursor


def _prove(cursor: Cursor) -> None:
    """Raise ValueError if the parts of an account contradict each other."""
    steps, categories = cursor.steps, rules.FIXED + len(cursor.names)
    used = [
        *cursor.blockers.values(),
        *cursor.overlapping.values(),
        *(category for _, category in cursor.elastic.values()),
        *steps.discarded,
    ]
    used += [one.owner for one in cursor.device if isinstance(one.owner, int)]
    used += [fate for one in (*steps.running.values(), *steps.recoverable.values()) if (fate := one.fate) is not None]
    for window in cursor.windows:
        used += [*window.totals, *window.discarded]
    if steps.rolling is not None:
        steps.rolling.prove_categories(categories)
    if len(cursor.totals) != categories or max(used, default=0) >= categories:
        raise ValueError("a snapshot holds time of categories that do not exist")
    if len(cursor.name_index) != len(cursor.names) or not steps.disruptions.keys() <= set(REASONS):
        raise ValueError("a snapshot holds names twice, or reasons that do not exist")
    length = len(steps.progress)
    for segment in steps.segments:
        if not segment.low <= segment.high <= length or (segment.first_index or 0) > length:
            raise ValueError("a snapshot holds steps that are not among the kept ones")
    if steps.rolling is not None and (cursor.begin is None or steps.rolling.spans != cursor.spans):
        raise ValueError("the rolling windows of a snapshot are of another run")


def _optional(number: Any) -> Any:
    if number is not None:
        proof.whole((number,))
    return number


def _disruption(state: list[Any]) -> Disruption:
    disruption = Disruption(*state)
    for name in ("kept_step", "first_step", "regained", "startup", "restored"):
        _optional(getattr(disruption, name))
    return disruption


def _texts(value: Any) -> Iterator[bytes]:
    """The JSON text of `value` in parts: the encoder takes ten times the memory of the text that it makes."""
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        before = b"{"
        for name, inner in value.items():
            yield b"%b%b:" % (before, json.dumps(name).encode())
            yield from _texts(inner)
            before = b","
        yield b"}" if value else b"{}"
    elif isinstance(value, (list, tuple)) and len(value) > PART:
        before = b"["
        for at in range(0, len(value), PART):
            yield before + json.dumps(value[at : at + PART], separators=(",", ":"))[1:-1].encode()
            before = b","
        yield b"]"
    else:
        yield json.dumps(value, separators=(",", ":")).encode()


def pieces(head: dict[str, Any], blobs: list[Blob]) -> list[bytes | Blob]:
    """Return what to write, in order: a checksum of everything after it, the size of the head, the head, the blobs."""
    text = list(_texts(head))
    parts: list[bytes | Blob] = [sum(map(len, text)).to_bytes(8, "little"), *text, *blobs]
    check = sha256()
    for part in parts:
        check.update(part)
    return [check.digest(), *parts]


def _finite(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError(f"{text} is no time")
    return number


def from_bytes(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Split a snapshot into its head and its joined blobs.

    Raises:
        ValueError: the data is cut short, damaged, or not a snapshot.
    """
    check, data = data[:CHECK], data[CHECK:]
    if sha256(data).digest() != check:
        raise ValueError("its checksum is wrong")
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 + size or not size:
        raise ValueError("the snapshot is cut short")
    head = json.loads(data[8 : 8 + size], parse_constant=_finite, parse_float=_finite)
    if not isinstance(head, dict):
        raise ValueError("not a snapshot")
    return head, data[8 + size :]

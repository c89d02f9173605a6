"""A cursor as bytes and back: what makes a restart independent of the run's length.

A snapshot is a JSON head, followed by the net times of sealed chunks as raw 64-bit integers, so that writing it does
not hold the interpreter for long even after millions of steps.
"""

from __future__ import annotations

import json
from typing import Any, Final

from otel_goodput.accounting import rules
from otel_goodput.accounting.cursor import Cursor, Open
from otel_goodput.accounting.disruption import Disruption
from otel_goodput.accounting.execution import Execution
from otel_goodput.accounting.lenses import Lens
from otel_goodput.accounting.progress import Progress
from otel_goodput.accounting.rolling import Rolling
from otel_goodput.accounting.stretches import Life, Stretch

FORMAT: Final = 1

# Attributes of a cursor that are plain data.
_PLAIN: Final = (
    "begin",
    "now",
    "alive",
    "ended",
    "clean",
    "spans",
    "next_edge",
    "excluded",
    "opened",
    "totals",
    "names",
    "executed",
    "interrupted",
    "lost",
    "lost_time",
    "last_step",
    "safe",
    "attempts",
    "disruptions",
    "notice",
    "skewed",
    "recompilations",
    "overlapped",
    "slices",
    "slice_time",
    "loads",
)


def dump(cursor: Cursor) -> tuple[dict[str, Any], list[bytes]]:
    """The cursor as (JSON-able head, blobs)."""
    head: dict[str, Any] = {name: getattr(cursor, name) for name in _PLAIN}
    lives: list[Life] = []
    for stretch in cursor.stretches:
        if not lives or stretch.life is not lives[-1]:
            lives.append(stretch.life)
    if not lives or lives[-1] is not cursor.life:
        lives.append(cursor.life)
    life_at = {id(life): at for at, life in enumerate(lives)}
    stretch_at = {id(stretch): at for at, stretch in enumerate(cursor.stretches)}
    opened = list(cursor.open.items())
    open_at = {id(phase): at for at, (_, phase) in enumerate(opened)}
    progress, blobs = cursor.progress.dump()
    head |= {
        "format": FORMAT,
        "progress": progress,
        "lives": [[life.number, life.compiles_seen, life.steps_started] for life in lives],
        "stretches": [[life_at[id(stretch.life)], stretch.to_state()] for stretch in cursor.stretches],
        "history": [entry.to_state() for entry in cursor.history],
        "lenses": [lens.to_state() for lens in cursor.lenses],
        "rolling": cursor.rolling.to_state() if cursor.rolling else None,
        "open": [[key, phase.phase, phase.category, phase.step, phase.safe] for key, phase in opened],
        "blockers": [open_at[id(phase)] for phase in cursor.blockers],
        "elastic": [open_at[id(phase)] for phase in cursor.elastic],
        "running": [[stretch_at[id(execution.stretch)], execution.to_state()] for execution in cursor.running.values()],
        "hosts": [execution.key for execution in cursor.hosts],
        "device": [execution.key for execution in cursor.device],
    }
    return head, blobs


def load(head: dict[str, Any], blobs: bytes, spans: tuple[int, ...] | None = None) -> Cursor:
    """The cursor that :func:`dump` was given.

    Args:
        head, blobs: what `dump` returned, the blobs joined.
        spans: rolling windows from now on (ns), where they differ from the snapshot's; theirs begin anew then.

    Raises:
        ValueError: the snapshot is of another format.
    """
    if head.get("format") != FORMAT:
        raise ValueError(f"snapshot format {head.get('format')}, expected {FORMAT}")
    cursor = Cursor(tuple(head["spans"]))
    for name in _PLAIN:
        setattr(cursor, name, head[name])
    cursor.spans = tuple(head["spans"])
    cursor.slices = tuple(head["slices"]) if head["slices"] else None
    cursor.name_index = {name: at for at, name in enumerate(cursor.names, rules.FIXED)}
    cursor.progress = Progress.load(head["progress"], blobs)
    lives = []
    for number, compiles_seen, steps_started in head["lives"]:
        life = Life(number)
        life.compiles_seen, life.steps_started = compiles_seen, steps_started
        lives.append(life)
    cursor.life = lives[-1]
    cursor.stretches = [Stretch.from_state(state, lives[at]) for at, state in head["stretches"]]
    cursor.history = [Disruption(*state) for state in head["history"]]
    cursor.lenses = [Lens.from_state(state) for state in head["lenses"]]
    cursor.rolling = Rolling.from_state(head["rolling"]) if head["rolling"] else None
    opened = []
    for key, phase, category, step, safe in head["open"]:
        entry = Open(phase, category, step)
        entry.safe = safe
        opened.append(entry)
        cursor.open[key] = entry
    cursor.blockers = [opened[at] for at in head["blockers"]]
    cursor.elastic = [opened[at] for at in head["elastic"]]
    for at, state in head["running"]:
        execution = Execution.from_state(state, cursor.stretches[at])
        cursor.running[execution.key] = execution
    cursor.hosts = [cursor.running[key] for key in head["hosts"]]
    cursor.device.extend(cursor.running[key] for key in head["device"])
    if spans is not None and spans != cursor.spans:
        cursor.change_spans(spans)
    cursor.choose()
    return cursor


def to_bytes(head: dict[str, Any], blobs: list[bytes]) -> bytes:
    """Head and blobs in one piece."""
    text = json.dumps(head, separators=(",", ":")).encode()
    return b"".join((len(text).to_bytes(8, "little"), text, *blobs))


def from_bytes(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Raises:
    ValueError: the data is cut or is no snapshot.
    """
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 + size or not size:
        raise ValueError("the snapshot is cut short")
    head = json.loads(data[8 : 8 + size])
    if not isinstance(head, dict):
        raise ValueError("not a snapshot")
    return head, data[8 + size :]

"""Snapshots that somebody forged, with a sound checksum: they are not used, or all that a job then does works."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import pytest
from recorded import NS, Recording

import otel_goodput as goodput
from otel_goodput.accounting import Event, Ledger, rules, snapshot, step_bins
from otel_goodput.accounting import events as ev
from otel_goodput.journal.recovery import restore
from otel_goodput.journal.rundir import RunDirectory

Place = tuple[Any, ...]

HOSTILE: tuple[Any, ...] = (
    -1, 0, 1, 63, 64, 10**6, 1 << 40, 1 << 62, 1 << 63, 1 << 70, -(1 << 62), -(1 << 70), 0.5, 1e300, True, False, None,
    "", "x", [], [[]], {}, [0], [1, 2], [[0, 1]], [None], [["x", 1]], [-1, -1],
)  # fmt: skip
OF_AN_OVERVIEW = (
    "bins", "step_summary", "overview", "step_segments", "kept_steps", "latest_disruptions", "earlier_disruptions",
    "running_steps", "recoverable_steps",
)  # fmt: skip


@pytest.fixture
def past(record: Callable[..., Recording], base: int, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    """A run with a restart, a rollback, failures, saves, an exclusion and a notice, of steps as long as minutes."""
    monkeypatch.setattr(step_bins, "BINS", 16)  # so that there are bins of many steps
    for attempt in range(2):
        recording = record(process_count=1, process_index=0, windows=["1h"])
        at = base + attempt * 4000 * NS
        with goodput.job(start_time=at, end_time=at + 3900 * NS):
            for place, number in enumerate((*range(attempt * 20, 30), *range(25, 40))):
                begin = at + (10 + place * 60) * NS
                with goodput.data_loading(start_time=begin, end_time=begin + NS):
                    pass
                with goodput.step(number, start_time=begin + NS, end_time=begin + (50 if place % 9 else 59) * NS):
                    pass
                if place % 10 == 9:
                    save = goodput.checkpoint_save(number, start_time=begin + 50 * NS, end_time=begin + 55 * NS)
                    with save:
                        pass
            with goodput.exclusion(start_time=at + 3000 * NS, end_time=at + 3010 * NS):
                pass
        goodput.shutdown()
    return RunDirectory(recording.folder)


def places(value: Any, path: Place = ()) -> Iterator[Place]:
    """The place of each value in `value`, containers included."""
    if path:
        yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield from places(one, (*path, key))


def forged(head: dict[str, Any], source: random.Random, known: list[Place]) -> tuple[str, dict[str, Any]]:
    """The head with one value replaced, or one taken away."""
    spoilt = deepcopy(head)
    path = source.choice(known)
    where = spoilt["ledger"]["account"]
    for key in path[:-1]:
        where = where[key]
    value = source.choice(HOSTILE)
    if source.random() < 0.1:
        del where[path[-1]]
        return f"without {path}", spoilt
    where[path[-1]] = value
    return f"{path} = {value!r}", spoilt


def sealed(head: dict[str, Any], blobs: bytes) -> bytes:
    text = json.dumps(head).encode()
    body = len(text).to_bytes(8, "little") + text + blobs
    return hashlib.sha256(body).digest() + body


def go_on(ledger: Ledger, at: int, attempt: int) -> None:
    """What a next attempt does: it goes back as far as it can, and trains on."""
    events = [Event(at, ev.ATTEMPT, step=attempt), Event(at, ev.START, rules.JOB, 1)]
    for place, number in enumerate((*range(35, 45), *range(110), 7, 90)):
        begin, key = at + place * 50 * NS, 100 + 3 * place
        events += [
            Event(begin, ev.START, rules.DATA_LOADING, key),
            Event(begin + NS, ev.END, rules.DATA_LOADING, key),
            Event(begin + NS, ev.START, rules.STEP, key + 1, number),
            Event(begin + 40 * NS, ev.END, rules.STEP, key + 1, flags=0 if place % 50 else ev.FAILED),
        ]
        if place % 40 == 0:
            events.append(Event(begin + 41 * NS, ev.START, rules.SAVE, key + 2, number))
            events.append(Event(begin + 42 * NS, ev.END, rules.SAVE, key + 2))
    for first in range(0, len(events), 150):
        ledger.feed(events[first : first + 300])
        totals, overview = ledger.totals(), ledger.overview()
        assert totals.run.elapsed >= 0 and len(overview.bins) <= 1024
    end = events[-1].time
    ledger.feed([Event(end, ev.END, rules.JOB, 1)])
    head, blobs = ledger.dump()
    Ledger.load(json.loads(json.dumps(head)), b"".join(bytes(blob) for blob in blobs)).overview(end)


@pytest.mark.parametrize("cases", [60, pytest.param(2000, marks=[pytest.mark.attack, pytest.mark.timeout(1800)])])
def test_no_value_that_is_forged_breaks_the_next_attempt(past: RunDirectory, cases: int) -> None:
    path = past.snapshot_path(0)
    head, blobs = snapshot.from_bytes(path.read_bytes())
    cursor = head["ledger"]["account"]
    summary = cursor["step_summary"]
    assert cursor["bins"]["buckets"] and summary["bins"] and summary["executions"] and cursor["overview"]["jobs"]
    source = random.Random("forged")
    # A field is as likely as another, however many values it has.
    known = {name: list(places(cursor[name], (name,))) for name in OF_AN_OVERVIEW if cursor[name]}
    wrong, used = [], 0
    for _ in range(cases):
        what, spoilt = forged(head, source, source.choice(list(known.values())))
        path.write_bytes(sealed(spoilt, blobs))
        restored = restore(past)
        if restored.damages:
            continue
        used += 1
        try:
            go_on(restored.ledger, restored.last_sign + NS, restored.attempt + 1)
        except Exception as error:
            wrong.append(f"{what}: {type(error).__name__}: {error}")
    assert used, "some values are as good as others"
    assert not wrong, f"{len(wrong)} of {cases}: {wrong[:12]}"

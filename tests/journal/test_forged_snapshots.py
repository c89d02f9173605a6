"""Snapshots that somebody forged, with a sound checksum: they are not used, or all that a job then does works."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import pytest
from recorded import NS, Recording

import otel_goodput as goodput
from otel_goodput._accounting import Event, Ledger, rules, step_summary
from otel_goodput._accounting import events as ev
from otel_goodput._accounting.codec import Blobs
from otel_goodput._journal import records, state_file
from otel_goodput._journal.records import Record
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._timeline.recovery import FORM, restore, write_snapshot

Place = tuple[Any, ...]

HOSTILE: tuple[Any, ...] = (
    -1, 0, 1, 63, 64, 10**6, 1 << 40, 1 << 62, 1 << 63, 1 << 70, -(1 << 62), -(1 << 70), 0.5, 1e300, True, False, None,
    "", "x", [], [[]], {}, [0], [1, 2], [[0, 1]], [None], [["x", 1]], [-1, -1],
)  # fmt: skip


@pytest.fixture
def past(record: Callable[..., Recording], base: int, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    """A run with a restart, a rollback, failures, saves, an exclusion and a notice, of steps as long as minutes."""
    monkeypatch.setattr(step_summary, "BINS", 16)  # so that there are bins of many steps
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


@pytest.fixture
def amidst(past: RunDirectory, base: int) -> RunDirectory:
    """The same run with a snapshot of a third attempt in the middle of everything that a job can do at once."""
    restored = restore(past, 0, [3600 * NS])
    at = base + 9000 * NS
    records_of_snapshot = [
        Record(ev.ATTEMPT, 0, 0, "", 0, 2, at),
        Record(ev.START, rules.JOB, records.EXPORT, "", 1, ev.NO_STEP, at),
        Record(ev.CLOCK, 1, 0, "", 0, ev.NO_STEP, at),
        Record(ev.SLICES, 0, 4, "", 3, 4, at),
    ]
    for number in range(40, 60):
        begin, key = at + number * NS, 1000 + number
        records_of_snapshot.append(Record(ev.START, rules.STEP, records.EXPORT * (number % 2), "", key, number, begin))
        records_of_snapshot.append(Record(ev.OBSERVED, 0, 0, "", key, ev.NO_STEP, begin))
        left = ev.FAILED | ev.LEFT if number == 50 else 0
        records_of_snapshot.append(
            Record(ev.END, rules.STEP, ev.ON_DEVICE | left, "", key, ev.NO_STEP, begin + NS // 4)
        )
        if number < 57:
            records_of_snapshot.append(Record(ev.DEVICE_END, 0, 0, "", key, ev.NO_STEP, begin + NS // 2))
        if number == 45:
            records_of_snapshot.append(Record(ev.START, rules.SAVE, records.EXPORT, "", 2, number, begin + NS // 2))
            records_of_snapshot.append(Record(ev.END, rules.SAVE, ev.PENDING, "", 2, ev.NO_STEP, begin + NS // 2 + 1))
    end = at + 60 * NS
    records_of_snapshot += [
        Record(ev.NOTICE, 1, 0, "SIGTERM", 0, ev.NO_STEP, end),
        Record(ev.START, rules.CUSTOM_PHASE, records.EXPORT, "eval", 3, ev.NO_STEP, end + 1),
        Record(ev.START, rules.DATA_LOADING, ev.NONBLOCKING, "", 4, ev.NO_STEP, end + 2),
        Record(ev.START, rules.ELASTIC_WAIT, records.EXPORT, "slice_down", 5, ev.NO_STEP, end + 3),
        Record(ev.START, rules.EXCLUSION, records.EXPORT, "", 6, ev.NO_STEP, end + 4),
    ]
    index = restored.index.successor(2)
    for record in records_of_snapshot:
        index.follow([record])
    restored.ledger.feed(records.events_of(records_of_snapshot))
    write_snapshot(past, 0, restored.ledger.dump(), index, ["", "eval"], (2, 0, 0))
    assert not restore(past).damages
    return past


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
    where = spoilt
    for key in path[:-1]:
        where = where[key]
    value = source.choice(HOSTILE)
    if source.random() < 0.1:
        del where[path[-1]]
        return f"without {path}", spoilt
    where[path[-1]] = value
    return f"{path} = {value!r}", spoilt


def sealed(head: dict[str, Any], blobs: bytes) -> bytes:
    return b"".join(state_file.pieces(FORM, json.dumps(head).encode(), [blobs]))


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


def members(head: dict[str, Any]) -> dict[Place, list[Place]]:
    """The places inside each part of a head: each part is as likely as another, however many values it has."""
    ledger = head["ledger"]
    parts: list[Place] = [("ledger", name) for name in ledger]
    parts += [("ledger", part, name) for part in ("account", "timeline") for name in ledger[part]]
    parts += [("ledger", "account", "steps", name) for name in ledger["account"]["steps"]]
    parts += [("spans", name) for name in head["spans"]] + [("names",), ("position",)]
    members_by_part = {}
    for part in parts:
        value: Any = head
        for key in part:
            value = value[key]
        members_by_part[part] = list(places(value, part))
    return members_by_part


@pytest.mark.parametrize("when", ["past", "amidst"])
@pytest.mark.parametrize("cases", [30, pytest.param(2000, marks=[pytest.mark.attack, pytest.mark.timeout(1800)])])
def test_no_value_that_is_forged_breaks_the_next_attempt(request: pytest.FixtureRequest, when: str, cases: int) -> None:
    run: RunDirectory = request.getfixturevalue(when)
    path = run.file("snapshot", 0)
    head, blobs = state_file.opened(path.read_bytes(), FORM)
    account = head["ledger"]["account"]
    steps = account["steps"]
    bins = steps["step_summary"]["bins"]
    assert steps["bins"]["buckets"] and bins["bins"] and bins["executions"] and account["overview"]["jobs"]
    if when == "amidst":
        assert head["ledger"]["waiting_events"] and steps["pending_saves"] and account["conditions"]
    source = random.Random("forged")
    known = members(head)
    wrong, used = [], 0
    for _ in range(cases):
        what, spoilt = forged(head, source, source.choice(list(known.values())))
        path.write_bytes(sealed(spoilt, blobs))
        restored = restore(run, 0, [3600 * NS])
        if restored.damages:
            continue
        used += 1
        try:
            go_on(restored.ledger, restored.last_sign + NS, restored.attempt + 1)
            restored.index.successor(restored.attempt + 1).to_plain(Blobs())
        except Exception as error:
            wrong.append(f"{what}: {type(error).__name__}: {error}")
    assert used, "some values are as good as others"
    assert not wrong, f"{len(wrong)} of {cases}: {wrong[:12]}"


def test_each_member_of_a_ledger_is_checked(amidst: RunDirectory) -> None:
    """Taken away or of another type, it is refused."""
    head, blobs = state_file.opened(amidst.file("snapshot", 0).read_bytes(), FORM)
    checked = 0
    for path in inner_members(head["ledger"]):
        for wrong in (None, {"a": {"a": object()}}):
            spoilt = where = dict(head["ledger"])
            for key in path[:-1]:
                where[key] = dict(where[key])
                where = where[key]
            if wrong is None and path[-1] in LATER:
                continue
            if wrong is None:
                del where[path[-1]]
            else:
                where[path[-1]] = wrong
            with pytest.raises(ValueError, match=r"\w"):
                Ledger.load(spoilt, blobs)
            checked += 1
    assert checked > 200


LATER = {"usual_before_profile", "singles", "outside"}  # older versions do not store these


def inner_members(value: dict[str, Any], path: Place = ()) -> Iterator[Place]:
    for key, one in value.items():
        yield (*path, key)
        if isinstance(one, dict):
            yield from inner_members(one, (*path, key))

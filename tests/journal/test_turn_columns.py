"""Turns of a loop that are read together are those that are read one by one."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from otel_goodput._accounting import events as ev
from otel_goodput._accounting import rules
from otel_goodput._accounting.events import KEYS, Event, TurnColumns, each_of, following
from otel_goodput._accounting.rank_cursor import RankCursor
from otel_goodput._journal import numpy_arithmetic, turn_columns
from otel_goodput._journal.journal import Journal, Segment
from otel_goodput._journal.numpy_arithmetic import NumpyArithmetic
from otel_goodput._journal.records import (
    EXPORT,
    EXPORTED,
    HEADER_SIZE,
    LOADING,
    PARENT,
    ROOT,
    SIZE,
    STEPPING,
    TRACE,
    TURN,
    TURN_BODY,
    TURN_STRIDE,
    seal,
)
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._timeline.damage import Damages
from otel_goodput._timeline.ranks import digest_of
from otel_goodput._timeline.reader import all_events, all_turns

BASE = 1_790_000_000_000_000_000
MS = 1_000_000


class Writer:
    """A process that records what chance wants, by its journal."""

    def __init__(self, run: RunDirectory, attempt: int, begin: int, rng: random.Random) -> None:
        self.run, self.rng, self.now, self.number = run, rng, begin, rng.randrange(5)
        self.journal = Journal(attempt, 0, Segment(None))
        self.append(ev.ATTEMPT, 0, 0, attempt)
        self.job = rng.getrandbits(64)
        self.append(ev.START, rules.JOB, self.job)
        self.key = rng.getrandbits(64)
        self.append(ev.START, rules.DATA_LOADING, self.key, self.number)
        self.append(ev.END, rules.DATA_LOADING, self.key, self.number)
        self.key = following(self.key)
        self.append(ev.START, rules.STEP, self.key, self.number)

    def append(self, kind: int, phase: int, key: int, step: int = -1, flags: int = 0, at: int | None = None) -> None:
        self.journal.append(kind, phase, flags, 0, key, step, self.now if at is None else at)

    def turns(self, count: int) -> None:
        rng = self.rng
        for _ in range(count):
            self.now += rng.choice((0, 1, 30, 30, 30)) * MS + rng.randrange(9)
            self.number += 1
            self.journal.leave_step(self.key, self.number, self.now)
            self.now += rng.randrange(5) * MS
            self.journal.turn(following(self.key), self.number, self.now)
            self.key = following(following(self.key))

    def dispatched(self, count: int) -> None:
        """Turns whose steps are observed on the device, which is behind the host by up to some steps."""
        rng, free, waiting = self.rng, self.now, list[tuple[int, int]]()
        depth, slow = rng.choice((0, 1, 3)), rng.random() < 0.3
        for _ in range(count):
            free = max(free, self.now) + rng.choice((30, 30, 31)) * MS + rng.randrange(9) + slow * 20 * MS
            waiting.append((self.key, free))
            if len(waiting) > depth:
                self.now = max(self.now, waiting[0][1])
            self.now += rng.randrange(2) * MS
            self.number += 1
            exported = EXPORT * (rng.random() < 0.1)
            self.append(LOADING, rng.randrange(10) // 9, self.key, self.number, ev.ON_DEVICE | exported)
            self.leave_device(waiting, depth)
            if rng.random() < 0.1:
                self.append(rng.choice((EXPORTED, PARENT, TRACE, ROOT)), rng.randrange(256), self.key, self.number)
            self.now += rng.randrange(3) * MS
            self.append(STEPPING, rng.randrange(10) // 9, following(self.key), self.number)
            self.leave_device(waiting, depth)
            self.key = following(following(self.key))
        if rng.random() < 0.8:
            self.leave_device(waiting, 0)

    def leave_device(self, waiting: list[tuple[int, int]], depth: int) -> None:
        while len(waiting) > depth and (not depth or self.rng.random() < 0.7):
            key, end = waiting.pop(0)
            if self.rng.random() < 0.99:
                self.append(ev.DEVICE_END, rules.STEP, key, -1, 0, end)
            elif self.rng.random() < 0.5:
                self.append(ev.UNOBSERVED, rules.STEP, key)

    def disturb(self) -> None:
        """Do something that is no turn."""
        rng = self.rng
        what = rng.choice(("exported", "long", "late", "between", "save", "jump", "back", "device", "loop"))
        if what == "exported":
            self.now += 30 * MS
            self.number += 1
            self.append(LOADING, 0, self.key, self.number)
            self.now += MS
            self.append(STEPPING, 0, following(self.key), self.number)
            self.key = following(following(self.key))
        elif what == "long":
            self.now += 100_000 * MS
        elif what in ("late", "between"):  # another thread records what has begun before
            key = rng.getrandbits(64)
            since = self.now - rng.choice((0, 40, 900)) * MS - rng.randrange(9)
            self.append(ev.START, rules.CUSTOM_PHASE, key, -1, rng.choice((0, ev.OVERLAPPING)), since)
            self.turns(rng.randrange(2))
            self.append(ev.END, rules.CUSTOM_PHASE, key, -1, 0, since + rng.randrange(1, 50) * MS)
        elif what == "save":
            key = rng.getrandbits(64)
            self.append(ev.START, rules.SAVE, key, self.number)
            self.now += 20 * MS
            self.append(ev.END, rules.SAVE, key)
        elif what == "device" and rng.random() < 0.1:
            self.append(ev.OBSERVED, 0, self.key)
            self.append(ev.DEVICE_END, rules.STEP, self.key, -1, 0, self.now + 5)
        elif what == "loop":
            self.key = rng.getrandbits(64)
        elif what == "jump":
            self.number += rng.randrange(5)
        elif what == "back" and rng.random() < 0.2:
            self.now -= rng.randrange(50) * MS

    def close(self, end: bool) -> None:
        """Leave the journal on the disk."""
        if end:
            self.append(ev.END, rules.JOB, self.job)
        (segment,) = self.journal.segments
        count = (next(segment.places) - HEADER_SIZE) // SIZE
        if self.rng.random() < 0.7:
            segment.beat(self.now)
        data = bytearray(segment.buffer[: HEADER_SIZE + count * SIZE])
        cut = self.rng.randrange(count) if self.rng.random() < 0.5 else count
        parts = [data[:HEADER_SIZE] + data[HEADER_SIZE : HEADER_SIZE + cut * SIZE]]
        if cut < count:  # as if the segment had been full then
            head = turn_columns_head(self.journal.attempt)
            parts.append(bytearray(head) + data[HEADER_SIZE + cut * SIZE :])
        for number, part in enumerate(parts):
            if self.rng.random() < 0.3 and len(part) > HEADER_SIZE:  # the disk has changed a bit
                part[self.rng.randrange(HEADER_SIZE, len(part))] ^= 1 << self.rng.randrange(8)
            self.run.segment_path(self.journal.attempt, 0, number).write_bytes(part)


def turn_columns_head(attempt: int) -> bytes:
    from otel_goodput._journal.records import encode_header

    return encode_header(attempt, 0, 1, 1)


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few turns in a row are read together."""
    monkeypatch.setattr(turn_columns, "_RUNS", turn_columns._runs(4))
    monkeypatch.setattr(turn_columns, "FEWEST", 4)
    monkeypatch.setattr("otel_goodput._accounting.rank_updates.FEWEST", 3)
    monkeypatch.setattr("otel_goodput._accounting.rank_cursor.FEWEST", 2)
    monkeypatch.setattr("otel_goodput._timeline.dispatched.FEWEST", 3)


def written(folder: Path, rng: random.Random, *, device: bool = False) -> RunDirectory:
    run = RunDirectory(folder)
    run.create({"run_id": "run", "job_name": "job", "created_at": BASE / 1e9})
    now = BASE
    for attempt in range(rng.choice((1, 1, 2, 3))):
        writer = Writer(run, attempt, now, rng)
        for _ in range(rng.randrange(9)):
            (writer.dispatched if device else writer.turns)(rng.choice((1, 5, 20, 60)))
            writer.disturb()
        writer.turns(rng.randrange(9))
        writer.close(rng.random() < 0.4)
        now = writer.now + rng.choice((-5, 10, 500)) * MS
    return run


def same_digests(items: Sequence[Event | TurnColumns], events: Sequence[Event], seed: int) -> None:
    """Assert that what a rank did is the same, read as columns and one by one."""
    columns, single = digest_of(items), digest_of(events)
    assert (columns is None) == (single is None)
    if columns is not None and single is not None:
        assert columns.parts.steps == single.parts.steps, seed
        assert columns.parts.pieces == single.parts.pieces, seed
        assert columns.opened == single.opened
        assert columns._replace(parts=single.parts) == single, seed


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.release) for part in (1, 2))])
def test_what_is_read_together_is_what_is_read_one_by_one(
    part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = one_by_one = 0
    # In the last two, a segment has nothing but a sign of life; the record behind the last turns is damaged.
    for seed in (*range(part, 60, 3), 149, 166):
        rng = random.Random(seed)
        run = written(tmp_path / str(seed), rng)
        monkeypatch.setattr(numpy_arithmetic, "MANY", rng.choice((0, 1 << 60)))
        mine, theirs = Damages(), Damages()
        items, events = [*all_turns(run, 0, mine)], [*all_events(run, 0, theirs)]
        assert [*each_of(items)] == events, seed
        assert (mine.listed, mine.more) == (theirs.listed, theirs.more), seed
        same_digests(items, events, seed)
        together += sum(len(one.numbers) for one in items if isinstance(one, TurnColumns))
        one_by_one += len(events)
    assert together > one_by_one / 4 / 3


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.release) for part in (1, 2))])
def test_so_are_those_of_steps_on_the_device(part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numpy")
    monkeypatch.setattr(numpy_arithmetic, "MANY", 0)
    together = one_by_one = applied = 0
    apply = RankCursor.apply_dispatched_columns

    def counting(*what: Any) -> int:
        nonlocal applied
        done = apply(*what)
        applied += done
        return done

    monkeypatch.setattr(RankCursor, "apply_dispatched_columns", counting)
    for seed in range(part, 90, 3):
        rng = random.Random(seed)
        run = written(tmp_path / str(seed), rng, device=True)
        mine, theirs = Damages(), Damages()
        items, events = [*all_turns(run, 0, mine)], [*all_events(run, 0, theirs)]
        moments = [[one for one in some if one.kind != ev.DEVICE_END] for some in ([*each_of(items)], events)]
        assert moments[0] == moments[1], seed
        assert (mine.listed, mine.more) == (theirs.listed, theirs.more), seed
        same_digests(items, events, seed)
        together += sum(len(one.numbers) for one in items if isinstance(one, TurnColumns))
        one_by_one += len(events)
    assert together > one_by_one / 5 / 4
    assert applied > together / 10


def test_exported_steps_are_read_with_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numpy")
    monkeypatch.setattr(numpy_arithmetic, "MANY", 0)
    run = RunDirectory(tmp_path)
    run.create({"run_id": "run", "job_name": "job", "created_at": BASE / 1e9})
    writer = Writer(run, 0, BASE, random.Random(0))
    for number in range(1, 100):
        writer.now += 30 * MS
        step, load = writer.key, following(writer.key)
        writer.append(LOADING, number % 2, step, writer.number + number, ev.ON_DEVICE | EXPORT * (number % 3 == 0))
        writer.append(ev.DEVICE_END, rules.STEP, step, at=writer.now - MS)
        writer.append(STEPPING, number % 5 == 0, load, writer.number + number)
        writer.append(EXPORTED, 1, step)
        writer.key = following(load)
    (segment,) = writer.journal.segments
    used = next(segment.places)
    path, data = run.segment_path(0, 0, 0), bytearray(segment.buffer[:used])
    path.write_bytes(data)
    items = [*all_turns(run)]
    assert [len(one.numbers) for one in items if isinstance(one, TurnColumns)] == [95]
    same_digests(items, [*all_events(run)], 0)
    # Whatever kind of record it is, what is damaged divides them.
    for kind in (EXPORTED, LOADING, STEPPING, ev.DEVICE_END):
        harmed, at = bytearray(data), used - 200 * SIZE
        while harmed[at] != kind:
            at += SIZE
        harmed[at + 20] ^= 1
        path.write_bytes(harmed)
        mine, theirs = Damages(), Damages()
        items, events = [*all_turns(run, 0, mine)], [*all_events(run, 0, theirs)]
        assert len([one for one in items if isinstance(one, TurnColumns)]) > 1, kind
        assert (mine.listed, mine.more) == (theirs.listed, theirs.more)
        assert mine.listed
        same_digests(items, events, kind)


@pytest.mark.parametrize("read", ["numpy", "plain"])
def test_turns_are_verified(read: str) -> None:
    reads: Callable[[bytes], TurnColumns | None] = turn_columns.turn_columns
    if read == "numpy":
        reads = turn_columns.with_numpy(NumpyArithmetic(pytest.importorskip("numpy")))

    def rows(count: int, *, step: int = 1, stride: int = TURN_STRIDE, length: int = 30 * MS) -> bytearray:
        bodies = [
            TURN_BODY.pack(TURN, 0, 0, 0, 7 + at * stride & KEYS, at + 5, 9 + at * step, BASE + at * length)
            for at in range(count)
        ]
        return bytearray(b"".join(map(seal, bodies)))

    turns = reads(bytes(rows(9)))
    assert turns is not None
    assert turns.numbers == range(9, 18) and turns.key == 7
    assert [*turns.begun] == [BASE + at * 30 * MS for at in range(9)]
    assert [*turns.ended] == [begun - at - 5 for at, begun in enumerate(turns.begun)]
    assert all(type(time) is int for column in (turns.ended, turns.begun) for time in column)
    assert [one.key for one in islice(turns.events(), 0, None, 4)] == [7 + at * TURN_STRIDE & KEYS for at in range(9)]
    for other in (rows(9, step=2), rows(9, stride=TURN_STRIDE + 1), rows(9, length=3), rows(9, length=-30 * MS)):
        assert reads(bytes(other)) is None
    for bit in range(9 * SIZE * 8):
        harmed = rows(9)
        harmed[bit >> 3] ^= 1 << (bit & 7)
        assert reads(bytes(harmed)) is None
    # Checksums are right, but it is another record.
    other = rows(9)
    other[3 * SIZE : 4 * SIZE] = seal(TURN_BODY.pack(TURN, 1, 0, 0, 7 + 3 * TURN_STRIDE & KEYS, 8, 12, BASE + 90 * MS))
    assert reads(bytes(other)) is None

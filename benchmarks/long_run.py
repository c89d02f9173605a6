"""Writes the folder of a long run of many processes, in seconds: real segments, snapshot and digests, made up times."""

from __future__ import annotations

import gzip
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final
from zlib import crc32

from otel_goodput._accounting import Event, Ledger, rules
from otel_goodput._accounting import events as ev
from otel_goodput._accounting.overview import Overview
from otel_goodput._journal import records
from otel_goodput._journal.digest import write_digest
from otel_goodput._journal.records import BODY, CAPACITY, HEADER_SIZE, Record
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._timeline.recovery import write_snapshot
from otel_goodput._timeline.span_index import SpanIndex

NS: Final = 1_000_000_000
MS: Final = 1_000_000
BEGIN: Final = 1_795_000_000 * NS
ATTEMPTS: Final = 10
SAVE: Final = 1_000  # steps from one checkpoint to the next
NAMES: Final = ("", "eval", "train_step")
_BATCH: Final = 1 << 14


def events(steps: int, attempts: int = ATTEMPTS, seed: int = 0) -> Iterator[Event]:
    """A run of `steps` steps of a second: all attempts but the last are killed and go back to the last checkpoint."""
    chance = random.Random(seed)
    now, key, step = BEGIN, 1, 0

    def phase(of: int, length: int, number: int = ev.NO_STEP, name: str = "") -> Iterator[Event]:
        nonlocal now, key
        key += 1
        yield Event(now, ev.START, of, key, number, 0, 0, name)
        now += length
        yield Event(now, ev.END, of, key, number, 0, 0, name if of == rules.COMPILE else "")

    for attempt in range(attempts):
        last = steps if attempt + 1 == attempts else steps * (attempt + 1) // attempts + chance.randrange(1, SAVE)
        yield Event(now, ev.ATTEMPT, step=attempt)
        job, key = key, key + 1
        yield Event(now, ev.START, rules.JOB, job)
        yield from phase(rules.PHASE_INDEX["training_prep"], 40 * NS)
        yield from phase(rules.PHASE_INDEX["compile"], 30 * NS, name="train_step")
        while step < last:
            yield from phase(rules.DATA_LOADING, chance.randrange(2, 30) * MS + (chance.random() < 1e-3) * 3 * NS)
            slow = 4 if chance.random() < 1e-4 else 1
            yield from phase(rules.STEP, slow * (950 * MS + chance.randrange(40 * MS)), step)
            step += 1
            if step % SAVE == 0:
                yield from phase(rules.SAVE, 3 * NS, step - 1)
            if step % (5 * SAVE) == 0:
                yield from phase(rules.CUSTOM_PHASE, 60 * NS, name="eval")
        if attempt + 1 < attempts:
            key += 1
            yield Event(now, ev.START, rules.STEP, key, step)  # it is killed in this step
            now += 300 * NS
            step = step // SAVE * SAVE
        else:
            yield Event(now, ev.END, rules.JOB, job)


class _Segments:
    """Writes records as segments, packed as a journal packs them."""

    def __init__(self, run: RunDirectory, process: int, names: Sequence[str]) -> None:
        self.run, self.process, self.names = run, process, names
        self.attempt = self.number = -1
        self._body: list[bytes] = []
        self._last = 0

    def take(self, event: Event) -> None:
        if event.kind == ev.ATTEMPT:
            self.close()
            self.attempt, self.number = event.step, 0
            for identity, name in enumerate(self.names[1:], 1):
                self._body += records.encode_name(identity, name.encode())
        flags = event.arg if event.kind == ev.SLICES else event.flags
        body = BODY.pack(
            event.kind, event.phase, flags, self.names.index(event.name), event.key, event.step, event.time
        )
        self._body.append(body + (crc32(body) & 0xFFFF).to_bytes(2, "little"))
        self._last = event.time
        if len(self._body) == CAPACITY:
            self._write()
            self.number += 1

    def _write(self) -> None:
        head = bytearray(records.encode_header(self.attempt, self.process, self.number, 1))
        beat = records.encode_heartbeat(self._last, len(self._body))
        head[records.HEARTBEAT_AT : records.HEARTBEAT_AT + len(beat)] = beat
        assert len(head) == HEADER_SIZE
        path = self.run.segment_path(self.attempt, self.process, self.number)
        data = (bytes(head) + b"".join(self._body)).ljust(HEADER_SIZE + CAPACITY * records.SIZE, b"\0")
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(data, 1))
        self._body.clear()

    def close(self) -> tuple[int, int, int]:
        """Write what is left; returns the position behind the last record."""
        position = self.attempt, max(0, self.number), len(self._body)
        if self._body:
            self._write()
        return position


def write(directory: Path, steps: int, processes: int = 1, *, name: str = "long") -> RunDirectory:
    """Write a run of `steps` steps; of the processes but the first only what they remember of themselves."""
    run = RunDirectory(directory / name)
    run.create({"run_id": name, "job_name": name, "created_at": BEGIN / NS, "process_count": processes})
    return write_events(run, events(steps), processes)


def write_events(
    run: RunDirectory, events: Iterable[Event], processes: int = 1, names: Sequence[str] = NAMES
) -> RunDirectory:
    """Write the journal of a run that `events` happened in; `names` are those of its events, the first is empty."""
    overview, position = write_process(run, 0, events, names)
    chance = random.Random(1)
    for process in range(1, processes):
        bins = [
            {category: ns * chance.randrange(90, 100) // 100 for category, ns in one.items()} for one in overview.bins
        ]
        write_digest(run, process, replace(overview, bins=bins), position[0], overview.last_sign, position)
    return run


def write_process(
    run: RunDirectory, process: int, events: Iterable[Event], names: Sequence[str] = NAMES
) -> tuple[Overview, tuple[int, int, int]]:
    """Write what one process leaves; return its overview, and the position behind its last record."""
    segments, ledger, batch, last = _Segments(run, process, names), Ledger(), list[Event](), BEGIN
    for event in events:
        segments.take(event)
        batch.append(event)
        last = event.time
        if len(batch) == _BATCH:
            ledger.feed(batch)
            batch.clear()
    ledger.feed(batch)
    position = segments.close()
    index = SpanIndex(position[0])
    index.follow([Record(ev.HEARTBEAT, 0, 0, "", 0, ev.NO_STEP, last)])
    write_snapshot(run, process, ledger.dump(), index, names, position)
    overview = ledger.overview(last)
    for attempt in range(position[0] + 1):
        run.lock(attempt, process).path.touch()
    write_digest(run, process, overview, position[0], last, position)
    return overview, position

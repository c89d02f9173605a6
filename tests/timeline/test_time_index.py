"""A window of a journal is read without the rest of it, with the names that were defined before."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest
from recorded import Recording

import otel_goodput as goodput
from otel_goodput._accounting import events as ev
from otel_goodput._accounting.events import KEYS
from otel_goodput._accounting.rules import CUSTOM_PHASE, STEP
from otel_goodput._journal import records
from otel_goodput._journal.records import CAPACITY, HEADER_SIZE, SIZE
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._timeline.reader import ordered
from otel_goodput._timeline.time_index import TimeIndex

BEGIN = 10**18
MS = 10**6
SEGMENTS = 12
STEPS = CAPACITY // 2 - 10  # of a segment


def sealed(kind: int, phase: int, key: int, step: int, at: int, name: int = 0) -> bytes:
    return records.seal(records.BODY.pack(kind, phase, 0, name, key, step, at))


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run of 200,000 steps of 1 ms in many packed segments; each has an evaluation named in the first one."""
    run = RunDirectory(tmp_path_factory.mktemp("runs") / "run")
    run.make()
    at, key = BEGIN, 1
    for number in range(SEGMENTS):
        body = [sealed(ev.ATTEMPT, 0, 0, 0, at)] if not number else []
        if not number:
            body += records.encode_name(1, b"evaluation on the whole of the data set")
        body += [
            sealed(ev.START, CUSTOM_PHASE, key, ev.NO_STEP, at, name=1),
            sealed(ev.END, CUSTOM_PHASE, key, ev.NO_STEP, at + MS),
        ]
        at, key = at + MS, key + 1
        for step in range(STEPS):
            body.append(sealed(ev.START, STEP, key, number * STEPS + step, at))
            body.append(sealed(ev.END, STEP, key, ev.NO_STEP, at + MS - 1))
            at, key = at + MS, key + 1
        data = records.encode_header(0, 0, number, 1) + b"".join(body)
        path = run.segment_path(0, 0, number)
        path.with_name(path.name + ".gz").write_bytes(
            gzip.compress(data.ljust(HEADER_SIZE + CAPACITY * SIZE, b"\0"), 1)
        )
    return run


def test_only_what_is_needed_is_unpacked(long: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    unpacked: list[Path] = []
    whole = records.contents

    def contents(path: Path) -> records.Contents:
        unpacked.append(path)
        return whole(path)

    monkeypatch.setattr(records, "contents", contents)
    index = TimeIndex(long)
    middle = BEGIN + (7 * (STEPS + 1) + 100) * MS
    result = index.between(middle, middle + 10 * MS - 1)
    assert len(unpacked) <= 3 and not result.cut and not result.missing and result.until == middle + 10 * MS - 1
    (part,) = result.parts
    numbers = [record.step for record in part.records if record.kind == ev.START]
    assert numbers == list(range(7 * STEPS + 99, 7 * STEPS + 109)) and part.attempt == 0
    begin = BEGIN + 7 * (STEPS + 1) * MS
    result = index.between(begin - 2 * MS, begin + 2 * MS)
    names = {record.name for part in result.parts for record in part.records if record.phase == CUSTOM_PHASE}
    assert "evaluation on the whole of the data set" in names


def test_what_belongs_to_a_phase_of_the_window_is_in_it(long: RunDirectory) -> None:
    """Of a step that is open at an edge both ends are known, also from the next segment."""
    edge = BEGIN + 3 * (STEPS + 1) * MS + MS // 2
    (part,) = TimeIndex(long).between(edge, edge + MS).parts
    keys = [record.key for record in part.records]
    assert len(keys) == 4 and len(set(keys)) == 2
    assert part.records[0].time < edge


@pytest.mark.parametrize("busy", [0, records.BUSY])
def test_steps_of_a_window_whose_shared_end_is_recorded_behind_it(tmp_path: Path, busy: int) -> None:
    run = RunDirectory(tmp_path / "run")
    run.make()
    turns = [(at * records.TURN_STRIDE & KEYS, BEGIN + at * MS) for at in range(60)]
    body = [sealed(ev.ATTEMPT, 0, 0, 0, BEGIN)]
    for number, (key, at) in enumerate(turns):
        body += [sealed(ev.START, STEP, key, number, at), sealed(ev.END, STEP, key, ev.NO_STEP, at + MS // 2)]
    end = turns[-1][1] + MS // 4
    ends = records.BODY.pack(records.DEVICE_ENDS, len(turns), busy, 0, 0, MS if busy else MS // 4, end)
    data = records.encode_header(0, 0, 0, 1) + b"".join([*body, records.seal(ends)])
    run.segment_path(0, 0, 0).write_bytes(data.ljust(HEADER_SIZE + CAPACITY * SIZE, b"\0"))
    (part,) = TimeIndex(run).between(BEGIN + 20 * MS, BEGIN + 30 * MS - 1).parts
    assert {record.key for record in part.records if record.kind == ev.DEVICE_END} == {key for key, _ in turns[20:30]}
    lengths = {one.key: one.arg - one.time for one in ordered(records.events_of(part.records)) if one.kind == ev.START}
    assert lengths == {key: MS // 4 for key, _ in turns[20:30]}


def test_it_is_bounded_and_says_so(long: RunDirectory) -> None:
    result = TimeIndex(long).between(BEGIN, BEGIN + 10 * STEPS * MS, most=1000)
    assert result.cut and sum(len(part.records) for part in result.parts) <= 1000
    assert BEGIN < result.until < BEGIN + 2 * STEPS * MS
    (part,) = result.parts
    whole = TimeIndex(long).between(BEGIN, result.until).parts[0]
    assert [one for one in part.records if one.time <= result.until] == [
        one for one in whole.records if one.time <= result.until
    ]


def test_nothing_there(long: RunDirectory, tmp_path: Path) -> None:
    assert not TimeIndex(long).between(BEGIN - 10**12, BEGIN - 10**11).parts
    assert not TimeIndex(RunDirectory(tmp_path)).between(0, 10**19).parts
    with pytest.raises(ValueError, match="ends before"):
        TimeIndex(long).between(2, 1)


def test_a_live_one_and_its_attempts(record: Callable[..., Recording], base: int) -> None:
    for attempt in range(2):
        recording = record()
        index = TimeIndex(RunDirectory(recording.folder))
        begin = base + attempt * 10**12
        with goodput.job(start_time=begin):
            with goodput.custom(f"part {attempt}", start_time=begin + 10, end_time=begin + 20):
                pass
            result = index.between(base, base + 10**13)
            assert [part.attempt for part in result.parts] == list(range(attempt + 1))
            assert f"part {attempt}" in {one.name for one in result.parts[-1].records}
            with goodput.step(5, start_time=begin + 30, end_time=begin + 40):
                pass
            result = index.between(begin + 30, begin + 35)
            assert 5 in {one.step for one in result.parts[-1].records}
        goodput.shutdown()


def test_a_damaged_segment_is_reported(long: RunDirectory, tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    run.make()
    for segment in long.segments()[:3]:
        (run.journal / segment.path.name).write_bytes(segment.path.read_bytes())
    path = run.segments()[1].path
    path.write_bytes(path.read_bytes()[:5000])
    result = TimeIndex(run).between(BEGIN, BEGIN + 3 * STEPS * MS)
    assert [name for name, _ in result.missing] == [path.name]
    assert result.parts

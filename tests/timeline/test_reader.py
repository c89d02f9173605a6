"""One reader of journals: what it yields is what an independent reader finds, however the journal was spoilt."""

from __future__ import annotations

import gzip
import os
import random
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from journal import fuzz
from journal.again import Training
from journal.test_golden import NAMES, unpack

from otel_goodput._accounting import events as ev
from otel_goodput._accounting.events import events_of, following
from otel_goodput._journal import records
from otel_goodput._journal.journal import Journal, Segment
from otel_goodput._journal.records import Record
from otel_goodput._journal.rundir import RunDirectory, runs
from otel_goodput._timeline.damage import Damages
from otel_goodput._timeline.reader import Reader
from otel_goodput._timeline.span_index import SpanIndex
from otel_goodput._timeline.time_index import TimeIndex

from . import witness

KINDS = [kind for kind in records.KINDS if kind != records.NAME]
BASE = 1_790_000_000_000_000_000


def same(run: RunDirectory, process: int = 0) -> int:
    """Assert that records and events are those of the witness; return how many."""
    expected = witness.with_attempts(witness.segments(run.journal, process))
    places = [(one.attempt, one.number) for one in expected]
    parts = list(Reader(run, process).records(Damages()))
    assert [(part.attempt, part.segment.number) for part in parts] == places
    assert [list(map(tuple, part.entries)) for part in parts] == [list(map(tuple, one.records)) for one in expected]
    assert [list(map(tuple, records.events_of(part.entries))) for part in parts] == [
        [witness.as_event(record) for record in one.records if record.kind < witness.NAME] for one in expected
    ]
    return sum(len(one.records) for one in expected)


def nameless(decoded: list[Record]) -> list[Record]:
    return [one._replace(name="") for one in decoded]


def positions(run: RunDirectory) -> None:
    """Assert that reading on from anywhere yields the rest."""
    for part in Reader(run).records(Damages()):
        at = part.attempt, part.segment.number
        for record in (0, len(part.entries) // 2, records.CAPACITY):
            reader = Reader(run)
            reader.reached.attempt, reader.reached.position = part.attempt, (*at, record)
            reader.reached.begun = True
            rest = [one for one in reader.records(Damages()) if one.entries]
            assert all((one.attempt, one.segment.number) >= at for one in rest)
            if (part.attempt, part.segment.number) != at or not rest:
                continue
            first = rest[0].entries if (rest[0].attempt, rest[0].segment.number) == at else []
            assert nameless(first) == nameless(part.entries[len(part.entries) - len(first) :])


@pytest.mark.parametrize("name", NAMES)
def test_golden(name: str, tmp_path: Path) -> None:
    unpack(name, tmp_path)
    run = RunDirectory(tmp_path / "run")
    assert same(run) > 20
    positions(run)
    windowed(run)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run of two attempts that were killed in a step."""
    training = Training(tmp_path_factory.mktemp("killed"))
    for _ in range(2):
        training.start("kill")
    (run,) = runs(training.folder / "goodput")
    return run


def windowed(run: RunDirectory) -> None:
    """Assert that a window has the STARTs and ENDs of its time, and those that belong to them."""
    index, kinds = TimeIndex(run), (ev.START, ev.END)
    whole = [
        (part.attempt, one) for part in Reader(run).records(Damages()) for one in part.entries if one.kind in kinds
    ]
    times = sorted(one.time for _, one in whole)
    for begin, end in ((0, times[-1]), (times[len(times) // 3], times[len(times) // 2])):
        keys = {(attempt, one.key) for attempt, one in whole if begin <= one.time <= end}
        parts = index.between(begin, end).parts
        read = [(part.attempt, one) for part in parts for one in part.records if one.kind in kinds]
        assert [one for one in read if (one[0], one[1].key) in keys] == [
            (attempt, one) for attempt, one in whole if (attempt, one.key) in keys
        ]
        assert begin or read == whole


def test_killed(killed: RunDirectory) -> None:
    assert same(killed) > 25
    positions(killed)
    windowed(killed)


def test_the_last_segment_read_is_none_that_was_left_out(killed: RunDirectory) -> None:
    """A restart leaves out the segment that it could not account for: one after the other, never the same again."""
    *others, last = [one.path for one in Reader(killed).segments]
    for left_out, read in (([last], others[-1]), ([*others, last], None), ([], last)):
        reader = Reader(killed)
        parts = list(reader.records(Damages(), left_out))
        assert [part.segment.path for part in parts if not part.entries] == left_out
        assert (None if reader.segment is None else reader.segment.path) == read


def written(place: Path, files: dict[str, bytes]) -> RunDirectory:
    shutil.rmtree(place, ignore_errors=True)
    for name, data in files.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return RunDirectory(place)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a run of three attempts, made by a process of its own."""
    place = tmp_path_factory.mktemp("template")
    code = "import sys, pathlib; from journal import fuzz; fuzz.template(pathlib.Path(sys.argv[1]))"
    tests = str(Path(__file__).parents[1])
    subprocess.run(
        [sys.executable, "-c", code, str(place)], check=True, timeout=120, env={**os.environ, "PYTHONPATH": tests}
    )
    files = {}
    for path in sorted((place / "run" / "journal").glob("*.segment")):
        data = path.read_bytes()
        if any(data[: records.HEADER_SIZE]):
            files[f"journal/{path.name}"] = data[: records.HEADER_SIZE + (records.used(data) + 40) * records.SIZE]
    (first, *_) = files
    files[f"{first}.gz"] = gzip.compress(files.pop(first), 1)
    return files


def flip(data: bytes, source: random.Random) -> bytes:
    at = source.randrange(len(data))
    return data[:at] + bytes([data[at] ^ source.randrange(1, 256)]) + data[at + 1 :]


def forge(data: bytes, source: random.Random) -> bytes:
    if data[:2] == b"\x1f\x8b":
        return fuzz.spoil_packed(data, source)
    return fuzz.spoil_segment(data, source)


@pytest.mark.parametrize("spoil", [flip, forge])
def test_spoilt(
    spoil: Callable[[bytes, random.Random], bytes], template: dict[str, bytes], killed: RunDirectory, tmp_path: Path
) -> None:
    kept = {
        f"journal/{path.name}": path.read_bytes().rstrip(b"\0") + bytes(99) for path in killed.journal.glob("*.segment")
    }
    for files in (template, kept):
        source = random.Random(f"{spoil.__name__} {len(files)}")
        for _ in range(40):
            name = source.choice(sorted(files))
            same(written(tmp_path / "run", {**files, name: spoil(files[name], source)}))


# --- journals that hypothesis makes -----------------------------------------------------------------------------------

moments = st.integers(BASE, BASE + 40)
bodies = st.one_of(
    st.builds(
        lambda kind, phase, flags, name, key, step, time: records.BODY.pack(kind, phase, flags, name, key, step, time),
        st.sampled_from([*KINDS, ev.START, ev.START, ev.END, ev.END]),
        st.integers(0, 12), st.sampled_from([0, 1, 2, 4, 16, 256, 4096]), st.integers(0, 2), st.integers(0, 4),
        st.integers(-1, 5), moments,
    ),
    st.builds(lambda time, step, seen: records.BODY.pack(ev.ATTEMPT, 0, 0, 0, seen, step, time), moments,
              st.integers(0, 3), st.one_of(st.just(0), moments)),
)  # fmt: skip
sealed = st.one_of(bodies.map(records.seal), st.binary(min_size=32, max_size=32), st.just(bytes(32)))
named = st.builds(
    lambda identity, text: b"".join(records.encode_name(identity, text.encode())),
    st.integers(1, 2),
    st.text(max_size=30),
)
contents = st.lists(st.one_of(sealed, sealed, sealed, named), max_size=12).map(b"".join)
beats = st.one_of(
    st.just(b""), st.builds(records.encode_heartbeat, moments, st.integers(0, 14)), st.binary(max_size=16)
)


@st.composite
def journals(draw: st.DrawFn) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for attempt in range(draw(st.integers(1, 3))):
        for number in draw(st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True)):
            head = bytearray(records.encode_header(attempt, 0, number, 1))
            beat = draw(beats)
            head[28 : 28 + len(beat)] = beat
            data = bytes(head) + draw(contents)
            data = data[: len(data) - draw(st.integers(0, 40))] if draw(st.booleans()) else data
            name = f"journal/a{attempt:04d}-p0000-{number:06d}.segment"
            if draw(st.booleans()):
                name, data = f"{name}.gz", gzip.compress(data, 1)
            files[name] = data
    return files


@given(files=journals())
def test_made(files: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> None:
    run = written(tmp_path_factory.getbasetemp() / "made", files)
    same(run)
    positions(run)


numbers = st.integers(0, 2**32 - 3) | st.integers(2**32 - 30, 2**40)
loads = st.integers(0, 10**6) | st.integers(2**32 - 2, 2**34) | st.integers(-5, 0)


TURN, EXPORTED, DISTURBED = range(3)  # kinds of turns
kinds = st.sampled_from([TURN] * 8 + [EXPORTED, DISTURBED])


@given(number=numbers, turns=st.lists(st.tuples(st.integers(0, 10**7), loads, kinds), max_size=40))
def test_a_turn_is_what_its_two_halves_are(number: int, turns: list[tuple[int, int, int]]) -> None:
    """Whatever comes between them, or beside them, live and from the disk."""
    one, two = (Journal(0, 0, Segment(None)) for _ in range(2))
    time, key = BASE, 1
    for took, load, kind in turns:
        time += took
        flags = records.EXPORT if kind == EXPORTED else 0
        for journal in (one, two):
            if journal is one and kind != EXPORTED:
                journal.leave_step(key, number, time)
            else:
                journal.append(records.LOADING, 0, flags, 0, key, number, time)
            if kind == DISTURBED:
                journal.append(ev.SLICES, 0, 1, 0, 1, 1, time)
        time, key = time + load, following(key)
        if kind != EXPORTED:
            one.turn(key, number, time)
        else:
            one.append(records.STEPPING, 0, flags, 0, key, number, time)
        two.append(records.STEPPING, 0, flags, 0, key, number, time)
        number, key = number + 1, following(key)
    raw = [bytes(journal.current.buffer) for journal in (one, two)]
    decoded = [list(records.decode_segment(data, records.Names())) for data in raw]
    assert decoded[0] == decoded[1]
    live = [events_of(journal.drain()[0]) for journal in (one, two)]
    events = [
        [(one.time, one.kind, one.phase, one.key, one.kind == ev.START and one.step) for one in some]
        for some in (*live, *map(records.events_of, decoded))
    ]
    assert events[0] == events[1] == events[2] == events[3]
    spans = []
    for data in raw:
        index = SpanIndex(0)
        index.follow(records.UNCHECKED.iter_unpack(data[records.HEADER_SIZE :]), [""])
        spans.append([(entry.key, entry.phase, entry.step, entry.start) for entry in index.opened])
    assert spans[0] == spans[1]


def test_a_number_that_no_record_holds_spoils_no_other_record() -> None:
    journal = Journal(0, 0, Segment(None))
    with pytest.raises(struct.error):
        journal.leave_step(1, 2**63, BASE)
    journal.turn(following(1), 5, BASE + 1)
    journal.append(ev.SLICES, 0, 1, 0, 1, 1, BASE + 2)
    assert [one.kind for one in events_of(journal.drain()[0])] == [ev.END, ev.START, ev.SLICES]

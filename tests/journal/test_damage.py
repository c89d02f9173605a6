"""Journals that are cut, torn, foreign, of another version: a restart never fails, and errs by no more than it must.

Longer than other files: each test spoils the same little run.
"""

from __future__ import annotations

import gzip
import json
import logging
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from recorded import NS, Recording, copied, sum_ns

import otel_goodput as goodput
from otel_goodput._accounting import Event, Ledger
from otel_goodput._accounting import events as ev
from otel_goodput._journal import records
from otel_goodput._journal.records import SEGMENT_BYTES
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._recording.finished import unexported_spans
from otel_goodput._timeline.damage import HOLES
from otel_goodput._timeline.reader import all_events
from otel_goodput._timeline.recovery import restore
from otel_goodput.reports.run import RecordedRun

SEGMENT = "a0000-p0000-000000.segment"


def tell_a_little(base: int) -> None:
    """Some records in the order of time, of every kind, the job left open."""
    job = goodput.job(start_time=base)
    job.__enter__()
    with goodput.training_prep(start_time=base + NS, end_time=base + 2 * NS):
        pass
    goodput.slice_counts(1, 2, 2, time=base + 2 * NS)
    for number in range(6):
        with goodput.step(number, start_time=base + (3 + number) * NS, end_time=base + (4 + number) * NS):
            pass
    with goodput.custom("a name of more than one part of 24 bytes", start_time=base + 10 * NS, end_time=base + 11 * NS):
        pass
    with goodput.checkpoint_save(5, start_time=base + 11 * NS, end_time=base + 12 * NS):
        pass
    with goodput.step(3, start_time=base + 12 * NS, end_time=base + 14 * NS):
        pass
    goodput.step(4, start_time=base + 14 * NS).__enter__()


@pytest.fixture
def little(record: Callable[..., Recording], base: int, tmp_path: Path) -> Iterator[RunDirectory]:
    """A run whose only process died with a small journal, a copy of it that may be spoilt."""
    recording = record()
    tell_a_little(base)
    spoilt = tmp_path / "spoilt" / "run"
    spoilt.parent.mkdir()
    copied(recording.folder, spoilt)
    for lock in spoilt.rglob("*.lock"):
        lock.unlink()
    for path in spoilt.rglob("*.segment"):
        if path.name != SEGMENT:
            path.unlink()
    segment = spoilt / "journal" / SEGMENT
    data = segment.read_bytes()
    segment.write_bytes(data[: used(data) + 4096])  # most of it was never written
    yield RunDirectory(spoilt)


def used(data: bytes) -> int:
    """Bytes up to the end of the last record."""
    body = len(data.rstrip(b"\0")) - records.HEADER_SIZE
    return records.HEADER_SIZE + -(-body // records.SIZE) * records.SIZE


def answer(run: RunDirectory) -> dict[str, Any]:
    """The account at the last sign of life, with everything that a restart would do."""
    restored = restore(run)
    totals = restored.ledger.totals(restored.last_sign)
    report = totals.to_json()
    assert sum_ns(report) == round(report["elapsed_s"] * NS)
    assert not [value for value in report["seconds"].values() if isinstance(value, float) and value < 0]
    return report


def whole(data: bytes) -> bytes:
    """Without a record that is cut."""
    return data[: records.HEADER_SIZE + (len(data) - records.HEADER_SIZE) // records.SIZE * records.SIZE]


def expected(data: bytes) -> dict[str, Any]:
    """The account of the records that are whole."""
    ledger, last = Ledger(), 0
    names = records.Names()
    for event in records.events_of(records.decode_segment(whole(data), names)):
        ledger.feed([event])
        last = max(last, event.time)
    return ledger.totals(last).to_json()


@pytest.mark.filterwarnings("default")
def test_cut_at_every_byte(little: RunDirectory, caplog: pytest.LogCaptureFixture) -> None:
    """Rule P5: cut anywhere, it replays, and errs by no more than the unfinished tail."""
    caplog.set_level(logging.ERROR)
    path = little.journal / SEGMENT
    data = path.read_bytes()
    end = used(data)
    assert 20 * records.SIZE < end < 60 * records.SIZE
    complete = answer(little)
    reports = dict[bytes, dict[str, Any]]()
    for cut in range(end + 1):
        path.write_bytes(data[:cut])
        report = answer(little)
        if cut < records.HEADER_SIZE:
            assert report["elapsed_s"] == 0.0 and report["attempts"] == 0
        else:
            records_left = whole(data[:cut])
            if records_left not in reports:
                reports[records_left] = expected(records_left)
            assert report == reports[records_left]
    assert report == complete


@pytest.mark.parametrize("rest", ["zeros", "ones", "noise"])
def test_the_last_record_is_torn(rest: str, little: RunDirectory) -> None:
    """The mapped file is as long as ever, but what was being written is half there."""
    path = little.journal / SEGMENT
    data = path.read_bytes()
    end = used(data)
    source = random.Random(1)
    for torn in range(end - 3 * records.SIZE, end):
        fill = {"zeros": b"\0", "ones": b"\xff", "noise": bytes([source.randrange(1, 256)])}[rest]
        place = (torn - records.HEADER_SIZE) // records.SIZE
        until = records.HEADER_SIZE + (place + 1) * records.SIZE
        damaged = data[:torn] + fill * (until - torn) + bytes(len(data) - until)
        path.write_bytes(damaged)
        if damaged[:until] == data[:until]:
            assert answer(little) == expected(data[:until])
        else:
            assert answer(little) == expected(data[: until - records.SIZE])


@pytest.mark.parametrize("one_in", [6, pytest.param(1, marks=[pytest.mark.attack, pytest.mark.timeout(600)])])
def test_any_byte_changed(little: RunDirectory, one_in: int) -> None:
    """Each byte of the header, a sixth of each record (of an attack: all) turned over: nothing raises, sums hold."""
    path = little.journal / SEGMENT
    data = path.read_bytes()
    for at in range(used(data)):
        if at >= records.HEADER_SIZE and (at - records.HEADER_SIZE) // records.SIZE % one_in != at % one_in:
            continue  # each record has another sixth of its bytes turned over
        path.write_bytes(data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])
        answer(little)
        restored = restore(little)
        assert len(owed_spans_of(little)) < 100
        if at >= records.HEADER_SIZE:
            assert restored.attempt == 0


def owed_spans_of(run: RunDirectory) -> list[Any]:
    from opentelemetry.sdk.resources import Resource

    return [one.span for one in unexported_spans(run, restore(run).index, "run", 0, Resource({}), 1)]


@pytest.mark.parametrize(
    ("gap", "tail"),
    [
        pytest.param(gap, tail, marks=[pytest.mark.release] * ((i + k) % 2), id=f"{gap} records, {tail} bytes")
        for i, gap in enumerate((0, 1, 100, 511, 1000, 30_000))
        for k, tail in enumerate((0, 1, 17, 4096, 600_000))
    ],
)
def test_what_was_never_written_reads_as_zeros(gap: int, tail: int, little: RunDirectory) -> None:
    """Whether the file system has stored the zeros between records and behind them, or knows that there are none."""
    segment = little.journal / SEGMENT
    data = segment.read_bytes()
    middle, end = records.HEADER_SIZE + 5 * records.SIZE, used(data)
    again = middle + gap * records.SIZE
    size = min(again + end - middle + tail, SEGMENT_BYTES)
    results = []
    for stored in (True, False):
        with segment.open("wb") as file:
            if stored:
                file.write(bytes(size))
                file.seek(0)
            file.write(data[:middle])
            file.seek(again)
            file.write(data[middle:end])
            file.truncate(size)
        restored = restore(little)
        kept = [event for event in all_events(little) if event.kind == ev.END]
        results.append(
            (answer(little), restored.reached.position, restored.reached.holes, restored.damages.listed, kept)
        )
    assert results[0] == results[1]
    assert results[0][1] == (0, 0, (end - middle) // records.SIZE + 5 + gap) and len(results[0][4]) > 5
    assert bool(results[0][3]) == (gap >= HOLES)


def test_noise_in_place_of_the_records(little: RunDirectory) -> None:
    path = little.journal / SEGMENT
    data = path.read_bytes()
    source = random.Random(7)
    for _ in range(20):
        noise = source.randbytes(records.SIZE * 400)
        path.write_bytes(data[: records.HEADER_SIZE] + noise)
        answer(little)


def test_valid_records_in_any_order(little: RunDirectory) -> None:
    """Rule P7: whatever sequence of sound records it holds, nothing raises and nothing gets negative."""
    path = little.journal / SEGMENT
    data = path.read_bytes()
    head, body = data[: records.HEADER_SIZE], data[records.HEADER_SIZE : used(data)]
    pieces = [body[at : at + records.SIZE] for at in range(0, len(body), records.SIZE)]
    source = random.Random(11)
    for _ in range(200):
        chosen = [source.choice(pieces) for _ in range(source.randrange(1, 80))]
        path.write_bytes(head + b"".join(chosen))
        answer(little)


# --- foreign files ----------------------------------------------------------------------------------------------------


def _directory(path: Path) -> None:
    path.mkdir()


FOREIGN: dict[str, tuple[str, Callable[[Path], object]]] = {
    "a text": (SEGMENT, lambda path: path.write_text("notes of the user\n" * 100)),
    "an empty file": (SEGMENT, lambda path: path.touch()),
    "a short file": (SEGMENT, lambda path: path.write_bytes(b"OGOO")),
    "a directory": (SEGMENT, _directory),
    "a dangling link": (SEGMENT, lambda path: path.symlink_to("nowhere")),
    "no gzip": (SEGMENT + ".gz", lambda path: path.write_bytes(b"no gzip at all")),
    "a cut gzip": (
        SEGMENT + ".gz",
        lambda path: path.write_bytes(gzip.compress(records.encode_header(0, 0, 0, 1) * 99)[:60]),
    ),
    "another name": ("README", lambda path: path.write_text("do not delete")),
    "another version": (
        SEGMENT,
        lambda path: path.write_bytes(records.HEADER.pack(records.MAGIC, 99, 0, 0, 0, 1, 0).ljust(4096, b"\1")),
    ),
    "another process": ("a0000-p0001-000000.segment", lambda path: path.write_bytes(records.encode_header(0, 1, 0, 1))),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_foreign_files(
    what: str, record: Callable[..., Recording], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name, make = FOREIGN[what]
    journal = tmp_path / "runs" / "run" / "journal"
    journal.mkdir(parents=True)
    make(journal / name)
    recording = record()
    if what == "another version":
        recording.folder = recording.folder.with_name("run~v1")
    messages = [line.getMessage() for line in caplog.records]
    if what in ("an empty file", "another name", "another process", "a dangling link"):
        assert len(messages) <= 1
    else:
        assert any(name in text for text in messages)
    if what == "another version":
        assert any("version 99" in text and "version 1" in text for text in messages)
    for text in messages:
        assert "Traceback" not in text
    for attempt in range(2):
        with goodput.job(), goodput.step(attempt):
            pass
        goodput.shutdown()
        report = recording.report_on_disk()
        assert report["attempts"] == attempt + 1 and report["steps"]["kept"] == attempt + 1
        folder, recording = recording.folder, record()
        recording.folder = folder
    if what != "an empty file":  # that is what a spare segment of a dead attempt looks like
        assert (journal / name).exists() or (journal / name).is_symlink(), "it is the user's: nobody deletes it"


def test_a_segment_of_another_version_between_ours(
    record: Callable[..., Recording], caplog: pytest.LogCaptureFixture
) -> None:
    """An upgrade and back: nothing of what the newer version wrote is touched, the numbers go on after it."""
    first = record()
    with goodput.job(), goodput.step(0):
        pass
    goodput.shutdown()
    other = first.folder / "journal" / "a0001-p0000-000000.segment"
    other.write_bytes(records.HEADER.pack(records.MAGIC, 2, 0, 1, 0, 1, 0).ljust(1 << 16, b"\1"))
    before = contents(first.folder)
    for attempt in (2, 3):
        second = record()
        assert "journal version 2" in caplog.text and "run~v1" in caplog.text
        assert second.recorder.attempt == attempt and second.recorder.run_id == "run"
        with goodput.job(), goodput.step(attempt):
            pass
        goodput.shutdown()
        assert contents(first.folder) == before
    second.folder = first.folder.with_name("run~v1")
    report = second.report_on_disk()
    assert report["steps"]["kept"] == 2 and report["attempts"] == 2
    assert {note["kind"] for note in report["warnings"]} >= {"newer version"}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- the snapshot -----------------------------------------------------------------------------------------------------


@pytest.fixture
def snapped(record: Callable[..., Recording]) -> RunDirectory:
    """A run of two attempts with a snapshot; its journal is complete, so the snapshot can be done without."""
    recording = record()
    for attempt in range(2):
        with goodput.job():
            for number in range(600):
                with goodput.step(attempt * 300 + number):
                    pass
            with goodput.custom("eval"), goodput.checkpoint_save(400):
                pass
        goodput.shutdown()
        if not attempt:
            recording = record()
    return RunDirectory(recording.folder)


def test_the_snapshot_says_what_the_journal_says(snapped: RunDirectory, caplog: pytest.LogCaptureFixture) -> None:
    path = snapped.file("snapshot", 0)
    caplog.clear()
    report, events = RecordedRun(snapped).report().to_json(), list(all_events(snapped))
    assert not caplog.records, "it is sound"
    path.unlink()
    assert RecordedRun(snapped).report().to_json() == report
    ledger = Ledger()
    ledger.feed(events)
    offline = ledger.totals(max(event.time for event in events)).to_json()
    # A report has a zero where the account has no time.
    report["seconds"] = {category: seconds for category, seconds in report["seconds"].items() if seconds}
    for disruption in report["disruption_list"]:
        assert disruption["process"] is None, "which process ended first only the journals of all processes tell"
    assert {key: report[key] for key in offline} == offline


def spoilt_snapshots(data: bytes, flips: int) -> Iterator[tuple[str, bytes]]:
    yield "empty", b""
    yield "zeros", bytes(len(data))
    yield "no snapshot", b"hello world, this is no snapshot"
    for name, value in (
        ("null", None),
        ("list", []),
        ("number", 5),
        ("text", "x"),
        ("object", {}),
        ("parts", {"ledger": {}, "spans": {}}),
        ("lists", {"ledger": [], "spans": [], "names": [], "position": []}),
        ("nulls", {"ledger": None, "spans": None, "names": None, "position": None}),
    ):
        text = json.dumps(value).encode()
        yield name, len(text).to_bytes(8, "little") + text
    source = random.Random(3)
    for cut in (7, 8, 9, *(source.randrange(len(data)) for _ in range(15)), len(data) - 1):
        yield f"cut at {cut}", data[:cut]
    for at in (*range(8), *(source.randrange(8, len(data)) for _ in range(flips)), len(data) - 1):
        yield f"byte {at}", data[:at] + bytes([data[at] ^ 1 << source.randrange(8)]) + data[at + 1 :]


@pytest.mark.parametrize("flips", [20, pytest.param(400, marks=[pytest.mark.attack, pytest.mark.timeout(600)])])
def test_a_spoilt_snapshot_is_not_used(snapped: RunDirectory, caplog: pytest.LogCaptureFixture, flips: int) -> None:
    """It is recognized, whatever became of it: the journal is read instead, and says the same."""
    path = snapped.file("snapshot", 0)
    data = path.read_bytes()
    caplog.clear()
    report = RecordedRun(snapped).report().to_json()
    assert not caplog.records, "it is sound"
    wrong = []
    for what, spoilt in spoilt_snapshots(data, flips):
        path.write_bytes(spoilt)
        caplog.clear()
        try:
            same = RecordedRun(snapped).report().to_json() == report
        except Exception as error:
            wrong.append(f"{what}: {type(error).__name__}: {error}")
            continue
        if not same:
            wrong.append(f"{what}: another account")
        elif "snapshot" not in caplog.text:
            wrong.append(f"{what}: nothing is said")
    assert not wrong, f"{len(wrong)}: {wrong[:10]}"


def test_a_restart_with_a_spoilt_snapshot(snapped: RunDirectory, record: Callable[..., Recording]) -> None:
    before = RecordedRun(snapped).report().to_json()
    snapped.file("snapshot", 0).write_bytes(b"\1" * 5000)
    recording = record()
    assert recording.recorder.attempt == 2
    with goodput.job(), goodput.step(before["max_productive_step"] + 1):
        pass
    goodput.shutdown()
    for report in (recording.report(), recording.report_on_disk()):
        assert report["attempts"] == 3 and report["steps"]["kept"] == before["steps"]["kept"] + 1


def test_events_read_back_are_those_written(little: RunDirectory, base: int) -> None:
    """The journal's own word for it, record by record."""
    events = [event for event in all_events(little) if event.time >= base]
    assert events == sorted(events, key=lambda event: event.time) or len(events) == len(set(events))
    assert {event.name for event in events if event.name} == {"a name of more than one part of 24 bytes"}
    assert all(isinstance(event, Event) for event in events)

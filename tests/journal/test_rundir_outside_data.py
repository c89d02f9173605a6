"""Whatever lies in a run's folder, training starts: what cannot be read is set aside or left alone, and reported."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from recorded import NS, Recording, copied

import otel_goodput as goodput
from otel_goodput._accounting import events as ev
from otel_goodput._journal import records, state_file
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._timeline import recovery
from otel_goodput._timeline.recovery import restore
from otel_goodput._tools.cli import main

SEGMENT = "a0000-p0000-000000.segment"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of one attempt, which has a snapshot, a note and everything else."""
    directory = tmp_path_factory.mktemp("model")
    with goodput.Recorder(
        "line", run_id="run", directory=directory, exporters="none", windows=["1h"],
        process_count=2, process_index=0, flops_per_step=1e12, peak_flops=1e15,
    ) as recorder:  # fmt: skip
        with recorder.job():
            for number in range(5):
                with recorder.step(number):
                    pass
        recorder._account.notes.add("a kind", "a text")
    return directory / "run"


@pytest.fixture
def past(model: Path, tmp_path: Path) -> Path:
    """A copy of it, where the test goes on."""
    return copied(model, tmp_path / "runs" / "run")


def train(record: Callable[..., Recording]) -> Recording:
    """Another attempt, which must come to its end and have its own step in the account."""
    recording = record(process_count=2, process_index=0, windows=["1h"])
    with goodput.job(), goodput.step(100):
        pass
    report = recording.report()
    goodput.shutdown()
    assert report["max_productive_step"] >= 100
    return recording


def resealed(whole: dict[str, Any], blobs: bytes = b"", form: state_file.Form = recovery.FORM) -> bytes:
    """A snapshot with a sound checksum."""
    return b"".join(state_file.pieces(form, json.dumps(whole).encode(), [blobs]))


# --- JSON -------------------------------------------------------------------------------------------------------------

NESTED = b"[" * 100_000
JSON: dict[str, bytes] = {
    "infinite": b'{"run_id": "run", "created_at": 1e999}',
    "not a number": b'{"run_id": "run", "created_at": NaN}',
    "negative": b'{"run_id": "run", "created_at": -5, "process_count": -5}',
    "enormous": b'{"run_id": "run", "created_at": %s, "process_count": 1e300}' % (b"9" * 3000),
    "nested": NESTED,
    "nested objects": b'{"run_id":' * 20_000,
    "a list": b"[1, 2]",
    "lists inside": b'{"run_id": [1], "job_name": {}, "created_at": "x", "process_count": "two", "series": []}',
    "no utf-8": b'{"run_id": "\xff\xfe"}',
    "a surrogate": b'{"run_id": "\\udcff", "job_name": "\\udcff"}',
    "empty": b"",
    "zeros": bytes(100),
    "null": b"null",
    "a control character": b'{"run_id": "a\\u001b[2Jb", "job_name": "\\u0000"}',
}
FILES = ("run.json", "journal/productivity.json", "journal/p0000.notes", "journal/p0001.pace", "journal/p0000.snapshot")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("what", JSON)
def test_any_json(
    what: str, name: str, past: Path, record: Callable[..., Recording], capsys: pytest.CaptureFixture[str]
) -> None:
    (past / name).write_bytes(JSON[what])
    assert main(["report", str(past), "--json"]) in (0, 3)
    json.loads(capsys.readouterr().out)
    assert main(["report", str(past)]) in (0, 3)
    recording = train(record)
    assert recording.recorder.attempt == 1
    assert recording.report_on_disk()["steps"]["kept"] == 6


def test_damaged_files_are_set_aside(
    past: Path, record: Callable[..., Recording], caplog: pytest.LogCaptureFixture
) -> None:
    """What stood there is still there, under another name; the run goes on with all that can be read."""
    spoilt = {name: b"{ spoilt " + name.encode() for name in FILES if not name.endswith(".pace")}
    created = RunDirectory(past).created_at()
    for name, data in spoilt.items():
        (past / name).write_bytes(data)
    recording = train(record)
    for name, data in spoilt.items():
        aside = past / f"{name}.damaged-1"
        assert aside.read_bytes() == data and aside.name in caplog.text
    report = recording.report_on_disk()
    assert report["run_id"] == "run" and report["attempts"] == 2 and report["steps"]["kept"] == 6
    assert any(note["kind"] == "set aside" for note in report["warnings"])
    began = RunDirectory(past).created_at()
    assert created is not None and began is not None and abs(began - created) < 60 * NS


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        f"a0000-p0000-{10**30}.segment",
        f"a{10**30}-p0000-000000.segment",
        f"a0000-p{10**30}-000000.segment",
        "a999999999-p0000-000000.segment",
        "a4294967295-p0000-000000.segment",
        "a٠٠٠٣-p0000-000000.segment",
        f"p{10**30}.pace",
        f"a{10**30}-p0000.lock",
    ],
)
def test_any_number_in_a_name(name: str, past: Path, record: Callable[..., Recording]) -> None:
    (past / "journal" / name).write_bytes(records.encode_header(0, 0, 7, 1) + bytes(640))
    for _ in range(2):
        train(record)
    assert (past / "journal" / name).exists()


@pytest.mark.parametrize("run_id", [os.fsdecode(b"run\xff"), "a\x00b", "../../etc", "x" * 5000, "\x1b[2J", "é" * 300])
def test_any_id(run_id: str, record: Callable[..., Recording], tmp_path: Path) -> None:
    recording = record(run_id=run_id)
    with goodput.job(), goodput.step(0):
        pass
    goodput.shutdown()
    assert recording.folder.parent == tmp_path / "runs"
    assert recording.report_on_disk()["steps"]["kept"] == 1


# --- records ----------------------------------------------------------------------------------------------------------


def add(folder: Path, *bodies: bytes) -> None:
    """Sound records behind those of the first attempt, in a segment of their own."""
    head = records.encode_header(0, 0, 1, 1)
    data = head + b"".join(records.seal(body) for body in bodies)
    (folder / "journal" / "a0000-p0000-000001.segment").write_bytes(data.ljust(8192, b"\0"))
    assert RunDirectory(folder).segments()[-1].number == 1


def body(
    kind: int, phase: int = 0, flags: int = 0, name: int = 0, key: int = 1, step: int = 0, time: int = NS
) -> bytes:
    return records.BODY.pack(kind, phase, flags, name, key, step, time)


NEWER = {
    "a kind": body(200),
    "a kind of spans": body(99),
    "a reason": body(ev.NOTICE, 77),
    "a phase": body(ev.START, 99),
    "the end of a phase": body(ev.END, 99),
    "a clock": body(ev.CLOCK, 50),
}


@pytest.mark.parametrize("what", NEWER)
def test_what_a_newer_version_wrote(
    what: str, past: Path, record: Callable[..., Recording], capsys: pytest.CaptureFixture[str]
) -> None:
    """A record that this version does not know: the files stay as they are, recording goes on next to them."""
    add(past, NEWER[what])
    before = contents(past)
    for attempt in (1, 2):
        recording = train(record)
        assert recording.recorder.attempt == attempt and recording.recorder.run_id == "run"
        assert contents(past) == before
    aside = past.with_name("run~v1")
    assert {path.name[:5] for path in (aside / "journal").glob("*.segment*")} == {"a0001", "a0002"}
    capsys.readouterr()
    assert main(["report", str(past)]) == 3
    output = capsys.readouterr()
    assert "newer version" in output.out and "record 0" in output.out
    assert main(["report", str(aside)]) == 0


def test_a_newer_snapshot(past: Path, record: Callable[..., Recording]) -> None:
    path = past / "journal" / "p0000.snapshot"
    head, blobs = state_file.opened(path.read_bytes(), recovery.FORM)
    newer = recovery.FORM._replace(version=recovery.FORM.version + 1)
    path.write_bytes(resealed(head, blobs, newer))
    before = contents(past)
    assert train(record).recorder.attempt == 1
    assert contents(past) == before and past.with_name("run~v1").is_dir()
    assert main(["report", str(past)]) == 0, "the journal has all that the figures need"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


EXTREME = (-(2**63), -1, 0, 1, 2**62, 2**63 - 1)


@pytest.mark.parametrize(
    ("number", "time"),
    [
        pytest.param(number, time, marks=[pytest.mark.release] * ((i + k) % 2))
        for i, number in enumerate(EXTREME)
        for k, time in enumerate(EXTREME)
    ],
)
def test_extreme_numbers(number: int, time: int, past: Path, record: Callable[..., Recording]) -> None:
    """Sound records whatever they say."""
    parts = [body(kind, 0, 0xFFFF, 0, 2**64 - 1, number, time) for kind in records.KINDS if kind < records.NAME]
    parts += [body(ev.START, phase, 0, 5, phase + 7, number, time) for phase in range(records.KINDS[ev.START])]
    parts += [body(records.NAME, 255, 65535), body(records.PARENT, 9, step=-1), body(records.EXPORTED, 255)]
    add(past, *parts)
    assert restore(RunDirectory(past)).attempt == 0
    assert main(["report", str(past), "--json"]) in (0, 3)
    recording = record(process_count=2, process_index=0, windows=["1h", "24h"])
    with goodput.job(), goodput.step(3):
        pass
    goodput.shutdown()
    assert recording.recorder.attempt == 1


# --- snapshots with a sound checksum ----------------------------------------------------------------------------------

WRONG: tuple[Any, ...] = (None, "x", 1.5, -1, 10**40, [], {}, [[1]], True, {"a": [None]}, [None, "x"])


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something stands in a head, one of each list."""
    yield path
    pairs = value.items() if isinstance(value, dict) else list(enumerate(value))[:1] if isinstance(value, list) else ()
    for name, inner in pairs:
        yield from places(inner, (*path, name))


def test_a_snapshot_of_wrong_types(past: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever stands in the place of whatever else: there is an account, and it can be continued."""
    caplog.set_level(logging.CRITICAL)
    path = past / "journal" / "p0000.snapshot"
    head, blobs = state_file.opened(path.read_bytes(), recovery.FORM)
    run = RunDirectory(past)
    tried = 0
    for number, place in enumerate(place for place in places(head) if place):
        spoilt = json.loads(json.dumps(head))
        inner = spoilt
        for name in place[:-1]:
            inner = inner[name]
        inner[place[-1]] = WRONG[number % len(WRONG)]
        path.write_bytes(resealed(spoilt, blobs))
        restored = restore(run, 0, [3600 * NS])
        restored.ledger.feed([ev.Event(10**18, ev.ATTEMPT, step=1), ev.Event(10**18, ev.START, key=1)])
        json.dumps(restored.ledger.totals(10**18 + NS).to_json())
        restored.ledger.dump()
        tried += 1
    assert tried > 100


def test_a_header_that_is_another_files(past: Path, record: Callable[..., Recording]) -> None:
    (past / "journal" / "a0001-p0000-000000.segment").write_bytes(records.encode_header(0, 0, 9, 1))
    assert train(record).recorder.attempt == 2

"""One byte turned over anywhere in a run's folder: the figures are the same, or it says what is uncertain."""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import warm
from recorded import NS, Recording, copied

import otel_goodput as goodput
from otel_goodput._journal import records
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._journal.sidecars import checked_json
from otel_goodput._timeline.reader import all_events
from otel_goodput._timeline.recovery import restore
from otel_goodput._tools.cli import main
from otel_goodput.reports.run import RecordedRun

from .test_damage import used


@pytest.fixture
def whole(record: Callable[..., Recording], base: int, tmp_path: Path) -> Path:
    """A copy of the folder of a run of three attempts, the last one killed; it has every kind of file."""
    options: dict[str, Any] = {"process_count": 2, "process_index": 0, "flops_per_step": 1e12, "peak_flops": 1e15}
    recording = record(**options)
    copies = tmp_path / "copies"
    for attempt in range(3):
        begin = base + attempt * 1000 * NS
        job = goodput.job(start_time=begin)
        job.__enter__()
        for number in range(40):
            start = begin + (5 + number) * NS
            with goodput.step(attempt * 30 + number, start_time=start, end_time=start + NS // 2):
                pass
        with goodput.custom("evaluation", start_time=begin + 50 * NS, end_time=begin + 60 * NS):
            pass
        with goodput.checkpoint_save(attempt * 30, start_time=begin + 60 * NS, end_time=begin + 65 * NS):
            pass
        recording.recorder._account.notes.add("a kind", "a text")
        if attempt < 2:
            goodput.shutdown()
            recording = record(**options)
    recorder = recording.recorder
    recorder._keeper.tick()
    recorder._account.refresh()
    recorder._account.journal.current.beat(time.time_ns())
    assert recorder._paces is not None
    recorder._paces.exchange(recorder._account, at_once=True)
    copied(recording.folder, copies / "run")
    goodput.shutdown()
    shutil.copy(copies / "run/journal/p0000.pace", copies / "run/journal/p0001.pace")
    for lock in (copies / "run").rglob("*.lock"):
        lock.write_bytes(b"")
    for updates in (copies / "run").rglob("*.updates"):  # no record, and it comes when it comes
        updates.unlink()
    # One that has been put away, and without what was never written, for a byte of that tells nothing.
    sealed = copies / "run/journal/a0000-p0000-000000.segment"
    sealed.with_name(sealed.name + ".gz").write_bytes(gzip.compress(sealed.read_bytes(), 1))
    sealed.unlink()
    for path in (copies / "run/journal").glob("*.segment"):
        if not any(path.read_bytes()[: records.HEADER_SIZE]):
            path.unlink()
    return copies / "run"


def figures(answer: dict[str, Any]) -> dict[str, Any]:
    no_figures = ("damage", "warnings", "configurations")  # the last: facts that are damaged are left out
    return {name: value for name, value in answer.items() if name not in no_figures}


@pytest.mark.parametrize(
    ("question", "trials"),
    [
        ("latest", 80),
        ("windows", 30),
        pytest.param("latest", 1000, marks=pytest.mark.attack),
        pytest.param("windows", 500, marks=pytest.mark.attack),
    ],
)
def test_one_byte(question: str, trials: int, whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--at", "1h"] if question == "windows" else []
    assert main(["report", str(whole), "--json", *options]) == 0
    right = figures(json.loads(capsys.readouterr().out))
    source = random.Random(f"flips {question} {trials}")
    paths = sorted(path for path in whole.rglob("*") if path.is_file() and path.suffix != ".lock")
    assert {path.suffix for path in paths} == {
        *(".json", ".gz", ".segment", ".snapshot", ".pace", ".notes", ".digest", ".facts"),
    }
    wrong, damaged = [], 0
    for trial in range(trials):
        path = paths[trial % len(paths)]
        data = path.read_bytes()
        end = used(data) if path.suffix == ".segment" else len(data)
        at, turned = source.randrange(end), source.randrange(1, 256)
        path.write_bytes(data[:at] + bytes([data[at] ^ turned]) + data[at + 1 :])
        status = main(["report", str(whole), "--json", *options])
        output = capsys.readouterr().out
        path.write_bytes(data)
        answer = json.loads(output) if output else {}
        if status == 3:
            damaged += 1
            if not answer["damage"] or not any(note["kind"].startswith("damage") for note in answer["warnings"]):
                wrong.append(f"{path.name} at {at}: a status, but no word")
        elif status != 0 and output:
            wrong.append(f"{path.name} at {at}: status {status}")
        elif status == 0 and figures(answer) != right:
            tail = path.name.startswith("a0002") and at >= end - records.SIZE
            if not tail:  # what was being written when the process died looks the same
                wrong.append(f"{path.name} at {at}: others, and no word")
    assert not wrong, f"{len(wrong)} of {trials}: {wrong[:10]}"
    assert damaged > trials / 10


def test_every_byte_of_a_header(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Identity and signs of life are covered, too."""
    right = figures(RecordedRun(RunDirectory(whole)).report().to_json())
    path = whole / "journal/a0002-p0000-000000.segment"
    data = path.read_bytes()
    assert records.decode_header(data).heartbeat and records.decode_header(data).reached
    for at in range(records.HEADER_SIZE):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :])
        status = main(["report", str(whole), "--json"])
        answer = figures(json.loads(capsys.readouterr().out))
        assert status == 3 if at < records.HEARTBEAT_AT + 16 else answer == right, at


def test_how_much_is_uncertain(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The seconds around what is lost, and all of the phase whose beginning it was."""
    path = whole / "journal/a0002-p0000-000000.segment"
    data = path.read_bytes()
    events = [record for record in records.decode_segment(data, records.Names()) if record.kind < records.NAME]
    lost = next(record for record in events if record.name == "evaluation")
    end = next(record for record in events if record.key == lost.key and record.kind != lost.kind)
    place = next(
        at
        for at in range(records.used(data))
        if data[records.HEADER_SIZE + at * 32 :][:32][6:14] == lost.key.to_bytes(8, "little")
    )
    at = records.HEADER_SIZE + place * records.SIZE + 20
    path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    assert main(["report", str(whole), "--json"]) == 3
    (damage,) = json.loads(capsys.readouterr().out)["damage"]
    assert damage["where"] == f"{path.name}, record {place}"
    assert damage["from"] <= lost.time / NS and damage["to"] >= end.time / NS
    assert 10 <= damage["uncertain_s"] < 30
    assert main(["report", str(whole)]) == 3
    assert f"record {place}" in capsys.readouterr().out
    assert main(["recover", str(whole), "--exporters", "none"]) == 3
    assert main(["plan", str(whole)]) == 3


def test_a_missing_segment(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = whole / "journal/a0002-p0000-000000.segment"
    data = path.read_bytes()
    second = records.encode_header(2, 0, 2, 1)
    path.with_name("a0002-p0000-000002.segment").write_bytes(second + data[records.HEADER_SIZE :])
    assert main(["report", str(whole), "--json"]) == 3
    assert any("segment 1 is missing" in one["what"] for one in json.loads(capsys.readouterr().out)["damage"])


def test_it_is_reported_after_the_next_start_too(
    whole: Path, record: Callable[..., Recording], capsys: pytest.CaptureFixture[str]
) -> None:
    """When a snapshot stands for what could not be read, the figures still rest on it."""
    path = whole / "journal/a0002-p0000-000000.segment"
    data = bytearray(path.read_bytes())
    data[records.HEADER_SIZE + 20 * records.SIZE + 7] ^= 1
    path.write_bytes(data)
    for _ in range(2):
        record(directory=whole.parent, process_count=2, process_index=0)
        with goodput.job(), goodput.step(200):
            pass
        goodput.shutdown()
        assert main(["report", str(whole), "--json"]) == 3
        notes = json.loads(capsys.readouterr().out)["warnings"]
        assert len([note for note in notes if note["kind"].startswith("damage")]) == 1


# --- what is no damage ------------------------------------------------------------------------------------------------


def tails(data: bytes) -> Iterator[tuple[str, bytes]]:
    end = used(data)
    rest = bytes(len(data) - end)
    yield "half a record", data[: end - 9] + bytes(9) + rest
    yield "a record of noise", data[: end - records.SIZE] + bytes([7]) * records.SIZE + rest
    yield "some records of noise behind the last", data[:end] + bytes([9]) * 5 * records.SIZE + rest[5 * records.SIZE :]
    yield "a hole", data[: end - 2 * records.SIZE] + bytes(records.SIZE) + data[end - records.SIZE : end] + rest
    yield "cut off", data[: end - 5]


def test_a_death_is_no_damage(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What was being written, then zeros."""
    path = whole / "journal/a0002-p0000-000000.segment"
    data = path.read_bytes()
    reached = records.HEADER_SIZE + records.decode_header(data).reached * records.SIZE
    # By its last sign of life it had all its records for sure; so that some came later:
    early = records.encode_heartbeat(records.decode_header(data).heartbeat, 10)
    assert reached >= used(data) - records.SIZE
    begin = records.HEARTBEAT_AT
    older = data[:begin] + early + data[begin + len(early) :]
    for what, torn in tails(older):
        path.write_bytes(torn)
        assert main(["report", str(whole), "--json"]) == 0, what
        assert not json.loads(capsys.readouterr().out)["damage"]
    for what, torn in tails(data):
        path.write_bytes(torn)
        if what != "a hole" and "behind" not in what:
            assert main(["report", str(whole), "--json"]) == 3, f"{what}: it had been there"
            capsys.readouterr()


KILLED = """
import os, signal, sys
import otel_goodput as goodput
goodput.configure("killed", directory=sys.argv[1], exporters="none", run_id="run")
goodput.job().__enter__()
for number in range(100_000):
    with goodput.step(number):
        if number == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("steps", [3, 3_000])
def test_a_real_death(steps: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        done = warm.run([sys.executable, "-c", KILLED, str(tmp_path), str(steps)], check=False, timeout=120)
        assert done.returncode == -9
    assert main(["report", str(tmp_path), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["attempts"] == 2 and not answer["damage"]
    assert main(["report", str(tmp_path), "--json", "--at", "1h"]) == 0


def test_a_living_job_is_not_damaged(record: Callable[..., Recording]) -> None:
    """Read while it is written, over and over."""
    recording = record()
    run = RunDirectory(recording.folder)
    with goodput.job():
        until = time.monotonic() + 2
        number = 0
        while time.monotonic() < until:
            for _ in range(500):
                with goodput.step(number):
                    number += 1
            assert not restore(run).damages.listed
    goodput.shutdown()
    assert not restore(run).damages.listed


def test_a_header_without_a_checksum_is_damaged(whole: Path) -> None:
    """Zeros in the place of the checksum are no sign of a version that wrote none."""
    path = whole / "journal/a0002-p0000-000000.segment"
    right = figures(RecordedRun(RunDirectory(whole)).report().to_json())
    data = path.read_bytes()
    path.write_bytes(data[:24] + bytes(4) + data[28:36] + bytes(28) + data[64:])
    report = RecordedRun(RunDirectory(whole)).report()
    assert figures(report.to_json()) != right and report.damaged
    assert [(one.where, one.what) for one in report.damage] == [(path.name, "its header is damaged")]


# --- several runs -----------------------------------------------------------------------------------------------------


def test_one_unreadable_run_does_not_keep_the_others(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    place = whole.parent
    for name in ("other", "ruined", "closed"):
        shutil.copytree(whole, place / name)
        (place / name / "run.json").write_bytes(checked_json({"run_id": name}))
    for path in (place / "ruined/journal").iterdir():
        path.write_bytes(b"nothing that can be read")
    if os.geteuid():
        (place / "closed").chmod(0)
    assert main(["report", str(place), "--json"]) == 3
    answers = {one["run_id"]: one for one in json.loads(capsys.readouterr().out)["runs"]}
    assert answers["run"]["attempts"] == 3 and answers["other"]["attempts"] == 3
    assert "damaged" in answers["ruined"]["error"]
    assert main(["report", str(place)]) in (0, 3)
    assert "3 attempts" in capsys.readouterr().out
    assert main(["recover", str(place), "--exporters", "none"]) != 0
    assert len(list(all_events(RunDirectory(whole)))) > 100
    (place / "closed").chmod(0o700)

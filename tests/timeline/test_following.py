"""A follower of a journal that grows says what a restart would read, whenever it looks."""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import warm
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import NS, Recording
from waits import until

import otel_goodput as goodput
from otel_goodput._accounting import events as ev
from otel_goodput._accounting.rules import CUSTOM_PHASE, JOB, STEP
from otel_goodput._journal import records
from otel_goodput._journal.records import HEADER_SIZE, SEGMENT_BYTES, SIZE
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._timeline.recovery import Follower, restore


def compared(follower: Follower) -> None:
    """The account, and what goes with it, are those of a restart."""
    restored = restore(follower.run, follower.process)
    at = max(restored.last_sign, follower.state.last_sign)
    assert follower.state.ledger.totals(at).to_json() == restored.ledger.totals(at).to_json()
    assert follower.state.ledger.totals(at, dead=True).to_json() == restored.ledger.totals(at, dead=True).to_json()
    assert (follower.state.attempt, follower.state.last_sign) == (restored.attempt, restored.last_sign)


WRITER = """
import os, signal, sys, threading
import otel_goodput as goodput
from otel_goodput._live import keeper
keeper.SNAPSHOT_S = 0.5
first, last, ending = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
goodput.configure("followed", directory=sys.argv[1], run_id="run", exporters="none", integrations="none")

def others():
    for number in range(300):
        with goodput.data_loading(blocking=False):
            pass

with goodput.job():
    threads = [threading.Thread(target=others) for _ in range(2)]
    for thread in threads:
        thread.start()
    with goodput.custom("evaluation"):
        pass
    for number in range(first, last):
        with goodput.step(number):
            if number % 1000 == 999:
                with goodput.custom(f"part {number // 1000}"):
                    pass
    for thread in threads:
        thread.join()
    if ending == "kill":
        print("killed", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
"""


def start(directory: Path, first: int, last: int, ending: str) -> warm.Process:
    environment = {**os.environ, "OTEL_GOODPUT_STRICT": ""}
    return warm.Process(
        [sys.executable, "-c", WRITER, str(directory), str(first), str(last), ending],
        env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip


@pytest.mark.timeout(300)
def test_a_process_that_writes_dies_and_begins_again(tmp_path: Path) -> None:
    """Several segments, snapshots that move on, SIGKILL, and another attempt, polled all the while."""
    run = RunDirectory(tmp_path / "run")
    follower = Follower(run)
    follower.poll()
    assert follower.state.attempt == -1 and follower.state.ledger.totals().kept == 0
    seen = 0
    for first, last, ending in ((0, 40_000, "kill"), (39_000, 60_000, "end")):
        process = start(tmp_path, first, last, ending)
        try:
            while process.poll() is None:
                seen += follower.poll()
                time.sleep(0.02)
        finally:
            process.kill()
            assert process.stderr is not None
            errors = process.stderr.read().decode()
            process.stderr.close()
        assert process.wait(60) == (-signal.SIGKILL if ending == "kill" else 0), errors
        seen += follower.poll()
        compared(follower)
    assert follower.state.attempt == 1 and follower.state.ledger.totals().ended
    assert follower.state.ledger.totals().kept >= 59_000
    assert len(run.segments()) >= 4
    assert seen > 60_000 or follower.restored > 1
    assert follower.recent[-1].attempt == 1
    names = {placed.record.name for placed in follower.recent} - {""}
    assert names <= {"evaluation", *(f"part {number}" for number in range(60))}


def test_steps_are_seen_as_they_are_written(record: Callable[..., Recording]) -> None:
    recording = record()
    follower = Follower(RunDirectory(recording.folder))
    with goodput.job():
        for number in range(5):
            with goodput.step(number):
                follower.poll()
            assert follower.poll() == 1
            compared(follower)
    assert follower.restored == 1
    goodput.shutdown()
    follower.poll()
    assert follower.state.ledger.totals().ended
    compared(follower)


def test_an_idle_journal_costs_next_to_nothing(record: Callable[..., Recording]) -> None:
    recording = record()
    with goodput.job(), goodput.step(1):
        pass
    goodput.shutdown()
    follower = Follower(RunDirectory(recording.folder))
    follower.poll()
    best = min(timed(follower.poll) for _ in range(200))
    assert best < 0.001


def timed(what: Callable[[], object]) -> float:
    began = time.perf_counter()
    what()
    return time.perf_counter() - began


# --- any journal, written in any pieces -------------------------------------------------------------------------------

BEGIN = 10**18


def record_of(kind: int, phase: int, key: int, step: int, at: int, flags: int = 0, name: int = 0) -> bytes:
    return records.seal(records.BODY.pack(kind, phase, flags, name, key, step, at))


def lifetime(attempt: int, steps: int, begin: int) -> list[bytes]:
    """The records of one attempt."""
    parts = [
        record_of(ev.ATTEMPT, 0, 0, attempt, begin),
        *records.encode_name(1, b"a name longer than one record holds"),
    ]
    key = attempt * 1000 + 1
    parts.append(record_of(ev.START, JOB, key, ev.NO_STEP, begin + 1))
    for number in range(steps):
        at = begin + 10 + number * 100
        parts.append(record_of(ev.START, STEP, key + 2 * number + 1, attempt * 3 + number, at))
        if number % 3 == 1:
            parts.append(record_of(ev.START, CUSTOM_PHASE, key + 2 * number + 2, number, at + 10, name=1))
            parts.append(record_of(ev.END, CUSTOM_PHASE, key + 2 * number + 2, ev.NO_STEP, at + 20))
        parts.append(record_of(ev.END, STEP, key + 2 * number + 1, ev.NO_STEP, at + 60))
    return parts


@st.composite
def writings(draw: st.DrawFn) -> list[tuple[str, Any]]:
    """What happens to the files one after another."""
    actions: list[tuple[str, Any]] = []
    begin = BEGIN
    for attempt in range(draw(st.integers(1, 3))):
        body = lifetime(attempt, draw(st.integers(0, 8)), begin)
        begin += 10**6
        number, place = 0, 0
        held: list[tuple[int, int, bytes]] = []
        for at, one in enumerate(body):
            if place and number < 4 and draw(st.integers(0, 9)) == 0:
                number, place = number + 1, 0  # the segment is left
            if draw(st.integers(0, 6)) == 0 and at:
                held.append((number, place, one))  # a thread has the place, and writes later or never
            else:
                actions.append(("write", (attempt, number, place, one)))
            place += 1
            if draw(st.booleans()) and held:
                actions.append(("write", (attempt, *held.pop(0))))
            what = draw(st.integers(0, 8))
            if what < 4:
                actions.append(("poll", None))
            elif what == 4:
                actions.append(("beat", (attempt, number, begin - 10**6 + 10 * at)))
            elif what == 5 and number:
                actions.append(("pack", (attempt, draw(st.integers(0, number - 1)))))
            elif what == 6:
                actions.append(("replace", (attempt, number)))
        late: bool = draw(st.booleans())
        if late:
            actions += [("write", (attempt, *one)) for one in held]
    return actions


@settings(max_examples=2 * settings.default.max_examples // 5, deadline=None)
@given(writings())
def test_whatever_is_written_in_whatever_pieces(writings: list[tuple[str, Any]]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        run = RunDirectory(Path(place).resolve())
        follower = Follower(run)
        run.make()
        for what, about in writings:
            if what == "poll":
                follower.poll()
                compared(follower)
                continue
            attempt, number, *more = about
            path = run.segment_path(attempt, 0, number)
            packed = path.with_name(path.name + ".gz")
            if what == "write" and packed.exists():
                continue  # nobody writes there any more
            if not path.exists() and not packed.exists():
                if what != "write":
                    continue
                path.write_bytes(records.encode_header(attempt, 0, number, 1).ljust(SEGMENT_BYTES, b"\0"))
            if what == "write":
                with path.open("r+b") as file:
                    file.seek(HEADER_SIZE + more[0] * SIZE)
                    file.write(more[1])
            elif what == "beat" and path.exists():
                with path.open("r+b") as file:
                    file.seek(records.HEARTBEAT_AT)
                    file.write(records.encode_heartbeat(more[0], 0))
            elif what == "pack" and path.exists():
                packed.write_bytes(gzip.compress(path.read_bytes(), 1))
                path.unlink()
            elif what == "replace" and path.exists():
                other = path.with_suffix(".part")
                other.write_bytes(path.read_bytes())
                other.rename(path)
        follower.poll()
        compared(follower)


def test_an_index_of_the_process_is_its_own(record: Callable[..., Recording]) -> None:
    recording = record()
    follower = Follower(RunDirectory(recording.folder), 3)
    with goodput.job():
        follower.poll()
        assert follower.state.attempt == -1


def test_hostile_records_are_left_out(record: Callable[..., Recording]) -> None:
    """With checksums, and times beyond all: it says what a restart makes of them."""
    recording = record()
    run = RunDirectory(recording.folder)
    with goodput.job(), goodput.step(1):
        pass
    goodput.shutdown()
    follower = Follower(run)
    follower.poll()
    segment = run.segments()[-1]
    data = bytearray(segment.path.read_bytes())
    end = records.used(bytes(data))
    hostile = [
        record_of(kind, 4, 2**64 - 1, -(2**63), moment, 0xFFFF)
        for kind in (1, 2, 3, 5, 8, 12)
        for moment in (-(2**63), 2**63 - 1)
    ]
    data[HEADER_SIZE + end * SIZE : HEADER_SIZE + (end + len(hostile)) * SIZE] = b"".join(hostile)
    segment.path.write_bytes(data)
    for _ in range(3):
        follower.poll()
    assert follower.state.ledger.totals().kept >= 0
    until(lambda: follower.poll() == 0)


def test_it_goes_on_where_a_copy_has_been_renamed_into_place(record: Callable[..., Recording], base: int) -> None:
    """As a mirror of a URL does it: each time another file of the same name."""
    recording = record()
    run = RunDirectory(recording.folder)
    with goodput.job(start_time=base):
        for number in range(10):
            with goodput.step(number, start_time=base + number * NS, end_time=base + number * NS + NS // 2):
                pass
    goodput.shutdown()
    (segment,) = run.segments()
    whole = segment.path.read_bytes()
    run.file("snapshot", 0).unlink()
    follower = Follower(run)
    for count in (3, 9, 15, records.used(whole)):
        part = whole[: HEADER_SIZE + count * SIZE]
        other = segment.path.with_name("p0000.copy")
        other.write_bytes(part)
        other.rename(segment.path)
        follower.poll()
        compared(follower)
    assert follower.state.ledger.totals().kept == 10


def test_a_segment_that_cannot_be_read_is_left_out_once(record: Callable[..., Recording]) -> None:
    """As by a restart, and the rest of the journal is not read again at each look."""
    recording = record()
    run = RunDirectory(recording.folder)
    with goodput.job():
        for number in range(3):
            with goodput.step(number):
                pass
    goodput.shutdown()
    run.file("snapshot", 0).unlink()
    follower = Follower(run)
    follower.poll()
    assert follower.state.ledger.totals().kept == 3
    (segment,) = run.segments()
    packed = gzip.compress(segment.path.read_bytes())
    segment.path.with_name(segment.path.name + ".gz").write_bytes(packed[: len(packed) * 3 // 4])
    segment.path.unlink()
    for _ in range(5):
        follower.poll()
        compared(follower)
    assert follower.state.ledger.totals().kept == 0 and follower.restored == 2


def test_a_step_that_only_the_header_says_is_over(recording: Recording) -> None:
    """Its record is written after the data load: until then, and after it, a follower has its end once."""
    follower = Follower(RunDirectory(recording.folder))
    looks: list[tuple[int, int]] = []

    def batches() -> Iterator[int]:
        for number in range(200):
            if number % 50 == 49:
                for _ in range(2):
                    follower.poll()
                    compared(follower)
                looks.append((number, follower.state.ledger.totals().executed))
            yield number

    with goodput.job():
        for _ in goodput.steps(batches()):
            pass
    assert looks == [(number, number) for number in (49, 99, 149, 199)]
    recording.recorder.totals()
    follower.poll()
    compared(follower)
    assert follower.state.ledger.totals().to_json()["steps"] == recording.report()["steps"]
    begun = [one.record.step for one in follower.recent if one.record.kind == ev.START and one.record.phase == STEP]
    assert begun == sorted(set(begun))

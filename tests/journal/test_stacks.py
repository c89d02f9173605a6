"""The file of stacks: what is written is read, and whatever else is in it does no harm."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_goodput._journal.rundir import STACKS, RunDirectory
from otel_goodput._journal.stacks import (
    ARMED,
    DEEPEST,
    DUMP,
    LAID,
    MARK,
    MOST_THREADS,
    MOST_WRITTEN,
    MOVED_ON,
    OUTERMOST,
    Frame,
    StacksFile,
    header,
    parse,
    place_of,
    read_stacks,
    settled,
    stacks_of,
)  # fmt: skip

TIMEOUT = """Timeout (0:00:30)!
Thread 0x00007f52f1bc0b80 (most recent call first):
  File "/app/data set.py", line 41 in read
  File "/app/train.py", line 7 in <module>

Thread 0x00007f52f1bc0b81 [pin_memory] (most recent call first):
  File "/usr/lib/python3.14/threading.py", line ??? in wait
  ...
Thread 0x00007f52f1bc0b82 (most recent call first):
  <no Python frame>
"""
MEMBERS = {"time": 5, "since": 2, "limit": 3, "step": 7, "phase": "step", "training": "7f52f1bc0b80"}


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory(tmp_path / "run")
    run.make()
    return run


@pytest.fixture
def file(run: RunDirectory) -> Iterator[StacksFile]:
    file = StacksFile(run.file("stacks", 0, 3))
    yield file
    file.close()


def test_what_the_interpreter_writes_is_read(run: RunDirectory, file: StacksFile) -> None:
    file.arm(lambda: None, **MEMBERS, threads={"7f52f1bc0b80": "MainThread"})
    assert not file.written and read_stacks(run, 0, 3) == []
    with open(file.descriptor, "wb", closefd=False, buffering=0) as stream:
        stream.write(TIMEOUT.encode())
    assert file.written and file.take() and not file.take()
    file.add(MOVED_ON, time=9)
    [dump] = read_stacks(run, 0, 3)
    assert (dump.time, dump.since, dump.step, dump.by_timer, dump.moved_on, dump.process) == (5, 2, 7, True, 9, 3)
    assert dump.line == "data set.py:41"
    main, pin, empty = dump.threads
    assert main.training and main.name == "MainThread" and main.frames[0] == Frame("/app/data set.py", 41, "read")
    assert (pin.name, pin.cut, pin.frames[0].line, pin.training) == ("pin_memory", True, 0, False)
    assert empty.frames == ()
    assert run.stacks() == [(0, 3)]


def test_records_of_the_timer_replace_each_other(run: RunDirectory, file: StacksFile) -> None:
    stopped: list[int] = []
    for number in range(50):
        file.arm(lambda: stopped.append(1), **MEMBERS, threads={str(at): "a name" for at in range(number % 7)})
    assert len(stopped) <= 2  # it is stopped only if the record becomes longer
    size = len(file.path.read_bytes().rstrip(b"\0"))
    assert size < 2048 and settled(file.path.read_bytes()) == b""
    file.add(DUMP, TIMEOUT, **MEMBERS)
    file.arm(lambda: None, **MEMBERS)
    assert [one.by_timer for one in read_stacks(run, 0, 3)] == [False]
    assert parse(settled(file.path.read_bytes()), 0, 3) == read_stacks(run, 0, 3)
    assert b'"armed"' not in settled(file.path.read_bytes())


def test_a_file_without_stacks_is_removed(run: RunDirectory) -> None:
    for stands in (False, True):
        file = StacksFile(run.file("stacks", 0, 0))
        file.arm(lambda: None, **MEMBERS)
        if stands:
            file.add(DUMP, TIMEOUT, **MEMBERS)
        file.close()
        assert file.path.exists() is stands
    assert file.path.stat().st_size < LAID and file.path.stat().st_mode & 0o777 == 0o600
    again = StacksFile(file.path)  # as after all descriptors were closed
    again.add(DUMP, TIMEOUT, **MEMBERS)
    again.close()
    assert len(read_stacks(run, 0, 0)) == 2


def test_the_file_is_bounded(run: RunDirectory, file: StacksFile) -> None:
    text = TIMEOUT * 200
    for number in range(100):
        file.add(DUMP, text, **{**MEMBERS, "time": number})
    assert file.path.stat().st_size <= MOST_WRITTEN
    assert read_stacks(run, 0, 3)[-1].time == 99


def test_a_deep_stack_and_many_threads() -> None:
    ready, end = threading.Barrier(21), threading.Event()

    def recur(depth: int) -> None:
        if depth:
            recur(depth - 1)
        else:
            ready.wait()
            end.wait()

    before = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    threads = [threading.Thread(target=recur, args=(10_000 if not at else 3,), daemon=True) for at in range(20)]
    try:
        threading.stack_size(64 << 20)
        for thread in threads:
            thread.start()
        ready.wait()
        began = time.perf_counter()
        text = stacks_of(sys._current_frames(), threads[0].ident)
        assert time.perf_counter() - began < 1
    finally:
        end.set()
        for thread in threads:
            thread.join()
        threading.stack_size(0)
        sys.setrecursionlimit(before)
    [dump] = parse(header(DUMP, **{**MEMBERS, "training": f"{threads[0].ident:x}"}) + text.encode(), 0, 0)
    deep = dump.threads[0]
    assert deep.training and deep.cut and len(deep.frames) == DEEPEST + OUTERMOST
    assert deep.frames[DEEPEST // 2].function == "recur" and deep.frames[-1].function == "_bootstrap"
    assert len(dump.threads) >= 20 and len(text) < 100_000


def test_names_are_written_in_one_line_of_ascii() -> None:
    name = f"/app/läb\n{MARK}{{}}.py"
    frames: dict[int, object] = {}
    scope = {"frames": frames, "sys": sys}
    exec(compile("frames[1] = sys._getframe()", name, "exec"), scope)
    text = stacks_of(frames, 1)  # type: ignore[arg-type]
    assert text.isascii()
    [dump] = parse(header(DUMP, **{**MEMBERS, "training": "1"}) + text.encode(), 0, 0)
    assert dump.threads[0].frames[0].path.startswith("/app/l\\xe4b\\x0a#goodput")


@pytest.mark.parametrize("seed", range(3))
def test_hostile_content_does_no_harm(seed: int) -> None:
    source = random.Random(seed)
    whole = header(ARMED, 1, **MEMBERS) + TIMEOUT.encode() + header(MOVED_ON, time=9)
    for end in range(0, len(whole), 7):
        parse(whole[:end], 0, 0)
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(source.randrange(1, 20)):
            data[source.randrange(len(data))] = source.randrange(256)
        for dump in parse(bytes(data), 0, 0):
            assert dump.threads and dump.time >= 0 and isinstance(dump.line, str)
    parse(source.randbytes(10_000), 0, 0)
    for odd in (
        '{"kind": []}',
        "[]",
        "{" * 100_000,
        '{"kind": "dump", "time": 1e999, "threads": 3, "about": {"a": {}}}',
    ):
        parse(f"{MARK}{odd}\n{TIMEOUT}".encode(), 0, 0)


def test_a_huge_file_is_read_in_part(run: RunDirectory, file: StacksFile) -> None:
    file.add(DUMP, TIMEOUT, **MEMBERS)
    lines = b'  File "/app/train.py", line 7 in f\n' * 30_000
    with file.path.open("ab") as stream:
        for number in range(9):
            stream.write(f"Thread 0x{number:016x} (most recent call first):\n".encode() + lines)
    assert file.path.stat().st_size > STACKS
    began = time.perf_counter()
    [dump] = read_stacks(run, 0, 3)
    assert time.perf_counter() - began < 5
    assert max(len(thread.frames) for thread in dump.threads) == 200
    many = "".join(f"Thread 0x{number:016x} (most recent call first):\n" for number in range(5000))
    assert len(parse(header(DUMP, **MEMBERS) + many.encode(), 0, 0)[0].threads) == MOST_THREADS


def test_the_users_line() -> None:
    site = "/opt/venv/lib/python3.12/site-packages/torch/distributed"
    frames = [
        Frame(f"{site}/distributed_c10d.py", 2957, "all_reduce"),
        Frame(f"{site}/c10d_logger.py", 81, "wrapper"),
        Frame("/app/lib/train.py", 88, "train_step"),
        Frame("/app/train.py", 131, "<module>"),
    ]
    place = place_of(frames)
    assert place is not None and (place.line, place.function, place.foreign) == ("train.py:88", "all_reduce", True)
    queue = [Frame("/usr/lib/python3.11/threading.py", 327, "wait"), Frame("/usr/lib/python3.11/queue.py", 171, "get")]
    place = place_of([*queue, Frame("C:\\app\\load.py", 3, "load")])
    assert place is not None and (place.line, place.function) == ("load.py:3", "get")
    place = place_of([Frame("/app/load.py", 3, "load")])
    assert place is not None and (place.function, place.foreign) == ("load", False)
    inside = [Frame("/src/otel_goodput/_recording/step_loop.py", 9, "__next__"), Frame("/app/train.py", 5, "main")]
    place = place_of(inside, "/src/otel_goodput")
    assert place is not None and (place.line, place.function, place.foreign) == ("train.py:5", "main", False)
    place = place_of(queue)
    assert place is not None and (place.line, place.function) == ("threading.py:327", "wait")
    assert place_of([]) is None

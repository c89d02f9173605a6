"""Closing under one deadline, in this process and, where threads are scarce, in others."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from otel_goodput._runtime.deadline import ShutdownSignal, close_all, reserve


@pytest.fixture
def stuck() -> Iterator[threading.Event]:
    """Closers that wait for it hang until the test is over."""
    over = threading.Event()
    yield over
    over.set()


def test_all_run_at_the_same_time_and_get_the_time_left() -> None:
    meeting = threading.Barrier(3)
    given: list[int] = []

    def close(ms: int) -> None:
        meeting.wait(30)  # would never be over if they ran one after the other
        given.append(ms)

    started = time.monotonic()
    assert close_all([("a", close), ("b", close), ("c", close)], 30) == []
    assert time.monotonic() - started < 25
    assert len(given) == 3
    assert all(0 < ms <= 30_000 for ms in given)


def test_the_stuck_are_named_and_the_others_are_done(stuck: threading.Event) -> None:
    done: list[str] = []
    started = time.monotonic()
    left = close_all(
        [
            ("stuck 1", lambda _: stuck.wait()),
            ("good", lambda _: done.append("good")),
            ("stuck 2", lambda _: stuck.wait()),
        ],
        0.3,
    )
    assert left == ["stuck 1", "stuck 2"]
    assert done == ["good"]
    assert 0.3 <= time.monotonic() - started < 10  # one deadline, not one for each


def test_errors_are_logged_once_and_count_as_finished(caplog: pytest.LogCaptureFixture) -> None:
    def fail(ms: int) -> None:
        raise OSError("disk")

    def leave(ms: int) -> None:
        sys.exit(3)

    with caplog.at_level(logging.WARNING):
        assert close_all([("fails", fail), ("leaves", leave)], 30) == []
    assert sorted(record.getMessage() for record in caplog.records) == [
        "closing fails failed: OSError: disk",
        "closing leaves failed: SystemExit: 3",
    ]


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_no_time_at_all(seconds: float, stuck: threading.Event) -> None:
    assert close_all([("stuck", lambda _: stuck.wait())], seconds) == ["stuck"]
    assert close_all([], seconds) == []


def test_reserved_threads_are_used_again_and_stuck_ones_replaced(stuck: threading.Event) -> None:
    assert reserve(2) >= 2
    for _ in range(20):
        assert close_all([("a", lambda _: None), ("b", lambda _: None)], 30) == []
    assert close_all([("stuck", lambda _: stuck.wait())], 0.05) == ["stuck"]
    assert reserve(2) >= 2
    assert close_all([("a", lambda _: None)], 30) == []


def test_an_end_wakes_those_who_wait_and_tells_what_is_left() -> None:
    stopping = ShutdownSignal()
    assert not stopping.begun and stopping.left(100.0) == 100.0
    threading.Timer(0.1, stopping.begin, (0.3,)).start()
    began = time.monotonic()
    stopping.wait(60.0)
    assert time.monotonic() - began < 30 and stopping.begun
    assert 0.0 < stopping.left(100.0) <= 0.3 and stopping.left(0.01) == pytest.approx(0.01)
    stopping.wait(60.0)  # as long as there is time, and no longer
    assert 0.4 <= time.monotonic() - began + 0.01 < 30
    assert stopping.left(100.0) <= 0.0
    stopping.wait(60.0)


# A stack that cannot be had stands for the interpreter that starts no threads any more (Python 3.12 at exit).
NO_MORE_THREADS = """
import atexit, sys, threading, time
from otel_goodput._runtime import deadline

def no_more_threads():
    threading.stack_size(2**46)
    try:
        threading.Thread(target=print).start()
    except RuntimeError:
        return
    sys.exit("threads can still be started")
"""

RESERVED = (
    NO_MORE_THREADS
    + """
def close():
    meeting = threading.Barrier(2)
    closers = [("stuck", lambda ms: threading.Event().wait()), ("a", lambda ms: meeting.wait(60)),
               ("b", lambda ms: meeting.wait(60))]
    print(deadline.close_all(closers, 2.0), flush=True)

assert deadline.reserve(3) == 3
no_more_threads()
assert deadline.reserve(9) == 3
atexit.register(close)
"""
)

IN_LINE = (
    NO_MORE_THREADS
    + """
def close():
    done = []
    closers = [("a", lambda ms: done.append(ms)), ("fails", lambda ms: 1 / 0),
               ("slow", lambda ms: time.sleep(ms / 1000 + 0.05)), ("late", lambda ms: done.append(ms))]
    print(deadline.close_all(closers, 0.5), len(done), flush=True)

no_more_threads()
atexit.register(close)
"""
)

STUCK_AT_EXIT = """
import atexit, threading
from otel_goodput._runtime import deadline

def close():
    print(deadline.close_all([("stuck", lambda ms: threading.Event().wait())], 0.2), flush=True)

deadline.reserve(1)
atexit.register(close)
"""

IN_A_CHILD = """
import os
from otel_goodput._runtime import deadline
assert deadline.reserve(2) == 2
child = os.fork()
if child == 0:
    left = deadline.close_all([("a", lambda ms: None), ("b", lambda ms: None)], 30)
    os._exit(len(left))
assert os.waitpid(child, 0)[1] == 0
print(deadline.close_all([("a", lambda ms: None)], 30), flush=True)
"""


@pytest.mark.parametrize(
    ("program", "printed"),
    [
        pytest.param(RESERVED, "['stuck']", id="reserved"),
        pytest.param(IN_LINE, "['late'] 1", id="in line"),
        pytest.param(STUCK_AT_EXIT, "['stuck']", id="stuck at exit"),
        pytest.param(IN_A_CHILD, "[]", id="in a forked child"),
    ],
)
def test_in_a_process_of_its_own(program: str, printed: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == printed

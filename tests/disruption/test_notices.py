"""What becomes of an announcement: recorded once, called back, flushed; and a failure on the way harms nothing."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from otel_goodput._disruption.notices import Notices

from .processes import Program


class Recorded:
    def __init__(self) -> None:
        self.received: list[tuple[str, int, dict[str, Any]]] = []
        self.left: list[str | None] = []
        self.flushed: list[float] = []
        self.notices = Notices(
            lambda *notice: self.received.append(notice),
            self.flushed.append,
            grace_s=7.0,
            on_withdrawal=lambda left, moment, about: self.left.append(left),
        )


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    recorded = Recorded()
    yield recorded
    recorded.notices.close()


def test_a_notice_is_recorded_called_back_and_flushed(recorded: Recorded) -> None:
    called = []
    recorded.notices.on_preemption(lambda: called.append(threading.current_thread().name))
    recorded.notices.announce("preemption", 5, source="here")
    assert recorded.notices.settled(10)
    assert recorded.received == [("preemption", 5, {"source": "here"})]
    assert called == ["goodput-callbacks"] and recorded.flushed == [7.0]


def test_the_same_announcement_is_recorded_once(recorded: Recorded) -> None:
    called = []
    recorded.notices.on_preemption(lambda: called.append(1))
    for moment in range(5):
        recorded.notices.announce("signal", moment, signal="SIGTERM")
    recorded.notices.announce("signal", 9, signal="SIGINT")
    assert recorded.notices.settled(10)
    assert [moment for _, moment, _ in recorded.received] == [0, 9] and len(called) == 2


def test_a_callback_is_called_once_however_often_it_was_registered(recorded: Recorded) -> None:
    called: list[int] = []

    @recorded.notices.on_preemption
    def save() -> None:
        called.append(1)

    recorded.notices.on_preemption(save)
    recorded.notices.announce("signal", 1)
    assert recorded.notices.settled(10) and called == [1]


def test_a_signal_after_a_preemption_is_the_preemption(recorded: Recorded) -> None:
    recorded.notices.announce("preemption", 1)
    recorded.notices.announce("signal", 2)
    assert recorded.notices.wait_recorded(10)
    assert [(reason, moment) for reason, moment, _ in recorded.received] == [("preemption", 1), ("preemption", 2)]


def test_a_preemption_after_a_signal_is_the_reason(recorded: Recorded) -> None:
    recorded.notices.announce("signal", 1)
    recorded.notices.announce("preemption", 2)
    assert recorded.notices.wait_recorded(10)
    assert [reason for reason, _, _ in recorded.received] == ["signal", "preemption"]


def test_what_is_withdrawn_may_come_again(recorded: Recorded) -> None:
    recorded.notices.withdraw("maintenance", 0)  # nothing to withdraw
    recorded.notices.announce("signal", 1)
    recorded.notices.announce("maintenance", 2)
    recorded.notices.withdraw("maintenance", 3)
    recorded.notices.announce("maintenance", 4)
    assert recorded.notices.wait_recorded(10)
    assert [reason for reason, _, _ in recorded.received] == ["signal", "maintenance", "maintenance"]
    assert recorded.left == ["signal"]


def test_errors_are_one_warning_each_and_hold_up_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def fail(*_: object) -> None:
        raise OSError("no")

    called = []
    notices = Notices(fail, fail)

    @notices.on_preemption
    def save() -> None:
        raise ValueError("disk on fire")

    notices.on_preemption(lambda: called.append(1))
    for reason in ("signal", "maintenance", "preemption"):
        notices.announce(reason, 1)
    assert notices.settled(10) and len(called) == 3
    messages = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(messages) == 3
    assert sum("save failed" in line and "disk on fire" in line for line in messages) == 1
    notices.close()


def test_neither_a_slow_save_nor_a_dead_backend_holds_up_the_next_notice() -> None:
    release = threading.Event()
    reasons: list[str] = []
    notices = Notices(lambda reason, *_: reasons.append(reason), lambda _: release.wait(20))
    notices.on_preemption(lambda: release.wait(20))
    notices.announce("maintenance", 1)
    notices.announce("preemption", 2)
    assert notices.wait_recorded(10) and reasons == ["maintenance", "preemption"]
    begin = time.monotonic()
    assert not notices.settled(0.05) and time.monotonic() - begin < 5
    release.set()
    assert notices.settled(10)
    notices.close()


def test_nothing_is_recorded_after_the_end(recorded: Recorded) -> None:
    recorded.notices.announce("signal", 1)
    recorded.notices.close()
    recorded.notices.announce("preemption", 2)
    teller = recorded.notices._teller._thread
    teller.join(10)
    assert not teller.is_alive()
    assert len(recorded.received) == 1


def test_the_end_waits_for_what_was_announced(recorded: Recorded) -> None:
    saved = []

    def save() -> None:
        time.sleep(0.05)
        saved.append(recorded.notices.close(10))  # from a callback: does not wait for itself

    recorded.notices.on_preemption(save)
    recorded.notices.announce("signal", 1)
    assert recorded.notices.close(10)
    assert saved == [False] and len(recorded.received) == 1


def test_the_end_waits_no_longer_than_it_may() -> None:
    release = threading.Event()
    notices = Notices(lambda *_: None, lambda _: None)
    notices.on_preemption(lambda: release.wait(20))
    notices.announce("signal", 1)
    begin = time.monotonic()
    assert not notices.close(0.05) and time.monotonic() - begin < 5
    release.set()


def test_announcing_from_a_handler_that_interrupts_an_announcement() -> None:
    """No lock that the interrupted thread may hold: tens of thousands of interruptions at arbitrary places."""
    program = Program(
        """
reasons = []
notices = Notices(lambda reason, moment, about: reasons.append(about["n"]), lambda _: None)
numbers = iter(range(10**9))
def handler(*_):
    for _ in range(3): notices.announce("signal", 1, n=-next(numbers))
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.0005)
until_then = time.monotonic() + 0.7
count = 0
while time.monotonic() < until_then:
    notices.announce("signal", 1, n=0)
    count += 1
signal.setitimer(signal.ITIMER_REAL, 0)
assert notices.wait_recorded(20)
say("done", count > 100, len(reasons) > 100)
"""
    )
    ended = program.end()
    assert ended.status == 0 and ended.lines == ["done True True"] and not ended.errors

"""The thread of an uploader: started and stopped by anybody, as often as they like."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import pytest
from waits import until

from otel_goodput.compat.monitoring import Uploader


def at_once(count: int, work: Callable[[], object]) -> None:
    gate = threading.Barrier(count)

    def each() -> None:
        gate.wait()
        work()

    threads = [threading.Thread(target=each) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)


def test_several_threads_start_and_stop_it(recwarn: pytest.WarningsRecorder, caplog: pytest.LogCaptureFixture) -> None:
    uploads: list[int] = []
    others = set(threading.enumerate())  # of tests before, which may have been given up
    uploader = Uploader("goodput", 3600, lambda: uploads.append(threading.get_ident()))
    for _ in range(50):
        at_once(4, uploader.start)
        begun = [thread for thread in threading.enumerate() if thread not in others]
        assert [thread.name for thread in begun] == ["otel-goodput-goodput"]
        at_once(4, lambda: uploader.stop(last=True, seconds=5))
        assert not uploader.running
    assert 50 <= len(uploads) <= 200, "each stop uploads"
    elsewhere = {thread.ident for thread in others - {threading.main_thread()}}
    logged = [one for one in caplog.records if one.levelno >= logging.WARNING and one.thread not in elsewhere]
    assert not logged and not recwarn.list


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("interval", [float("inf"), 1e300, 0, -1, float("nan")])
def test_any_interval(interval: float) -> None:
    uploads: list[int] = []
    uploader = Uploader("goodput", interval, lambda: uploads.append(1))
    uploader.start()
    if not interval > 1:
        until(lambda: len(uploads) > 1)
    uploader.stop(last=True, seconds=5)
    assert uploads


def test_a_new_start_does_not_take_the_last_upload_from_the_one_before() -> None:
    """The first is given up at the stop, still in an upload; the second begins meanwhile."""
    began, go, uploads = threading.Event(), threading.Event(), []

    def upload() -> None:
        uploads.append(threading.get_ident())
        began.set()
        go.wait(20)

    uploader = Uploader("goodput", 0.1, upload)
    uploader.start()
    assert began.wait(20)
    first = uploads[0]
    uploader.stop(last=True, seconds=0)
    uploader._interval = 3600
    uploader.start()
    go.set()
    until(lambda: uploads.count(first) == 2)
    uploader.stop(last=False, seconds=5)

"""What watching does in a healthy loop, in counts: no other process on the machine changes them."""

from __future__ import annotations

import gc
import itertools
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from recorded import Record

import otel_goodput as goodput
from otel_goodput import Recorder, testing
from otel_goodput._incidents import profiler
from otel_goodput._live.keeper import Keeper

OFF: dict[str, Any] = {"incidents": "off", "watchdog": "off", "profile": "off"}
VARIANTS: tuple[dict[str, Any], ...] = (OFF, {})


def calls(work: Callable[[], object]) -> int:
    """How many functions are called meanwhile, of Python and of C."""
    count = 0

    def note(_: FrameType, event: str, __: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


class Loop:
    """A loop of which the test is the keeper."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._steps = iter(goodput.steps(range(10**6)))

    def tick(self) -> None:
        """Some steps, and a tick of the keeper."""
        self.step()
        self.recorder._keeper.tick()

    def step(self) -> None:
        for _ in itertools.islice(self._steps, 12):
            pass


@pytest.fixture
def start(record: Record, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Loop]:
    monkeypatch.setattr(Keeper, "start", lambda _: None)
    numbers = itertools.count()
    return lambda **options: Loop(record(**options, run_id=f"run-{next(numbers)}", integrations="none").recorder)


def test_a_tick_in_which_nothing_is_due(start: Callable[..., Loop]) -> None:
    counts = []
    for options in VARIANTS:
        loop = start(**options)
        with goodput.job():
            for _ in range(20):
                loop.tick()
            now = []
            for _ in range(5):
                loop.step()
                loop.recorder._account.refresh()
                loop.recorder._observers.requests._looked = time.monotonic()
                now.append(calls(loop.recorder._line.hooks.tick))
        loop.recorder.shutdown()
        counts.append(min(now))
    off, on = counts
    assert on - off <= 45, counts


def test_a_look_takes_a_part_of_the_account(start: Callable[..., Loop]) -> None:
    loop = start()
    watch = loop.recorder._observers.incidents
    assert watch is not None
    with goodput.job():
        counts = []
        for at in range(100):
            watch._due = 0 if at < 10 else sys.maxsize
            loop.tick()
        for _ in range(3):
            watch._due = 0
            counts.append(calls(watch.tick))
        whole = calls(loop.recorder._account.totals)
    assert min(counts) <= 700 and min(counts) < whole / 2, (counts, whole)


def test_no_thread_and_no_pause_is_added(start: Callable[..., Loop], monkeypatch: pytest.MonkeyPatch) -> None:
    """The baseline of profiles is sampled where the keeper pauses anyway."""
    monkeypatch.setattr(profiler, "WARM_S", 0.0)
    threads, pauses = list[set[str]](), list[list[str]]()
    sleep = time.sleep
    for options in VARIANTS:
        loop, within = start(**options), list[str]()

        def noted(seconds: float, within: list[str] = within) -> None:
            frame: FrameType | None = sys._getframe()
            while frame is not None and frame.f_code.co_name not in ("look", "_follow_up"):
                frame = frame.f_back
            within.append("" if frame is None else frame.f_code.co_name)
            sleep(seconds)

        with goodput.job():
            for _ in range(5):
                loop.tick()
            with monkeypatch.context() as patch:
                patch.setattr(time, "sleep", noted)
                for _ in range(20):
                    loop.tick()
            threads.append({one.name for one in threading.enumerate() if "goodput" in one.name})
        pauses.append(within)
        sampled = loop.recorder._observers.profiler._measured
        assert options == OFF or (sampled is not None and 8 <= sampled.samples <= 12)
        loop.recorder.shutdown()
    off, on = threads
    assert on <= off and {one for within in pauses for one in within} == {"_follow_up"}, (threads, pauses)


def test_a_look_leaves_little() -> None:
    """Objects that are held have the garbage collector run."""
    left = []
    for options in VARIANTS:
        numbers = itertools.count()

        def held(run: testing.Recording, looks: int, numbers: itertools.count[int] = numbers) -> int:
            for number in itertools.islice(numbers, looks):
                with goodput.step(number):
                    run.advance(5.1)
                run.recorder._keeper.tick()
            gc.collect()
            return len(gc.get_objects())

        with testing.run(step_sampling=10**6, **options) as run, goodput.job():
            held(run, 90)  # then, as much is remembered as ever
            before = held(run, 30)
            left.append(held(run, 30) - before)
    off, on = left
    assert on - off <= 3 * 30, left

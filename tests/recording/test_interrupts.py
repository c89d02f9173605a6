"""A Ctrl-C, or any other BaseException, at any instruction of ours: no phase stays open, and the sums stay exact."""

from __future__ import annotations

import contextlib
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from opentelemetry import trace
from recorded import Recording, sum_ns

import otel_goodput as goodput
from otel_goodput._accounting import Event
from otel_goodput._accounting import events as ev
from otel_goodput.semconv import PHASES, Phase

# What comes while an object is taken away the interpreter tells, and goes on.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

PACKAGE = str(Path(goodput.__file__).parent)
STEP = PHASES.index(Phase.STEP)


def loop() -> None:
    for _ in goodput.steps(range(2)):
        pass


def loop_left() -> None:
    for _ in goodput.steps(range(2)):
        break


def step() -> None:
    with goodput.step(goodput_step()):
        pass


def load() -> None:
    with goodput.data_loading():
        pass


def loading() -> None:
    for _ in goodput.loading(range(2)):
        pass


def part() -> None:
    with goodput.step(goodput_step()), goodput.part("forward"):
        pass


def custom() -> None:
    with goodput.custom("eval"):
        pass


def save() -> None:
    with goodput.checkpoint_save(0):
        pass


def restore() -> None:
    with goodput.checkpoint_restore():
        pass


def decorated() -> None:
    @goodput.custom("decorated")
    def function() -> None:
        pass

    function()


def nested() -> None:
    for number, _ in goodput.steps(range(2)):
        with goodput.part("forward"):
            pass
        with goodput.custom("eval"), goodput.data_loading():
            pass
        with goodput.checkpoint_save(number, durable=False) as saved:
            pass
        saved.durable()


WORK: list[Callable[[], None]] = [
    loop, loop_left, step, load, loading, part, custom, save, restore, decorated, nested,
]  # fmt: skip
_numbers = iter(range(1_000_000, 2_000_000))


def goodput_step() -> int:
    return next(_numbers)


class Interrupt(BaseException):
    """Neither an Exception nor one that the interpreter knows."""


KINDS: tuple[type[BaseException], ...] = (KeyboardInterrupt, SystemExit, Interrupt)


class At:
    """Raises at the instruction numbered `place` of those of ours that are executed."""

    def __init__(self, place: int, kind: type[BaseException]) -> None:
        self.seen = 0
        self._place = place
        self._kind = kind

    def __enter__(self) -> At:
        # Python 3.12 hands out instructions only where some frame, whichever, asked for them before tracing began.
        sys._getframe().f_trace_opcodes = True
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _call(self, frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._look

    def _look(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "opcode":
            self.seen += 1
            if self.seen == self._place:
                sys.settrace(None)
                raise self._kind
        return self._look


def instructions(work: Callable[[], None]) -> int:
    with At(-1, Interrupt) as counted:
        work()
    return counted.seen


def go_on() -> None:
    """What comes next: a step, as a rule; it must be the only phase that is open in it."""
    number = goodput_step()
    with goodput.step(number), goodput.custom("looked at"):
        pass
    assert getattr(trace.get_current_span(), "name", "") == "job"


def check(recording: Recording, interrupts: int) -> None:
    """From the journal: whatever was begun was ended before the next step began, and that one lasted as it should."""
    goodput.shutdown()  # which lets the account catch up
    opened: dict[int, Event] = {}
    looked = 0
    events = recording.events()
    for event in events:
        if event.kind == ev.START:
            if event.name == "looked at":
                looked += 1
                around = [PHASES[other.phase] for other in opened.values()]
                assert around == ["job", "step"], f"{around} open after interrupt {looked}"
            opened[event.key] = event
        elif event.kind == ev.END:
            opened.pop(event.key, None)
    assert not opened and looked == interrupts
    report = recording.report()
    assert sum_ns(report) == round(report["elapsed_s"] * 1e9)
    assert recording.report_on_disk()["seconds"] == report["seconds"]
    assert report["in_flight_step"] is None and report["ended"]
    # Each of them completed, and only what was interrupted did not.
    begun = Counter(event.phase for event in events if event.kind == ev.START)
    assert report["steps"]["executed"] >= looked
    assert report["steps"]["executed"] + report["steps"]["lost"] >= begun[STEP] - interrupts


@pytest.mark.parametrize("work", WORK, ids=lambda work: work.__name__)
def test_at_any_instruction(work: Callable[[], None], recording: Recording) -> None:
    chance = random.Random(work.__name__)
    raised = 0
    with goodput.job():
        for _ in range(3):  # names are known to the journal, modules are imported
            work()
        count = instructions(work)
        places = sorted(chance.sample(range(1, count + 1), min(count, 130)))
        for place in places:
            with contextlib.suppress(*KINDS), At(place, KINDS[place % 3]):
                work()
                raised -= 1
            raised += 1
            go_on()
    assert raised > len(places) * 0.4, "the interrupts came through"
    check(recording, len(places))


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers")
def test_by_a_signal_at_any_time(recording: Recording) -> None:
    """As a Ctrl-C comes: wherever the interpreter looks for signals."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    chance = random.Random(7)
    before = signal.signal(signal.SIGALRM, interrupt)
    came = 0
    try:
        with goodput.job():
            for number in range(2_600):
                work = WORK[number % len(WORK)]
                try:
                    signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-6, 150e-6))
                    work()
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except KeyboardInterrupt:
                    came += 1
                go_on()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert came > 500
    check(recording, 2_600)

"""The device clock on real asynchronous dispatch, compared with a watcher of the test's own that blocks.

Longer than other files: the watcher that it compares with runs along with every loop.
"""

from __future__ import annotations

import itertools
import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
import warm
from exported import Spans
from waits import until

from everyday.lateness import Lateness
from otel_goodput import Recorder
from otel_goodput._integrations import watcher

jax = pytest.importorskip("jax")
numpy = pytest.importorskip("numpy")
pytestmark = pytest.mark.jax
NO_READER = (  # .ci/run knows the ending
    "a jax that reads its profiles is for Python 3.11 and later"
    if sys.version_info < (3, 11)
    else "this jax cannot read its profiles"
)


class Blocking:
    """When each array became ready, by a thread that waits for them one after the other."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._arrays: SimpleQueue[Any] = SimpleQueue()
        self.ends: list[int] = []
        self.starts: list[int] = []
        self._thread = threading.Thread(target=self._wait)
        self._thread.start()

    def put(self, start: int, array: Any) -> None:
        self.starts.append(start)
        self._arrays.put(array)

    def _wait(self) -> None:
        while (array := self._arrays.get()) is not None:
            array.block_until_ready()
            self.ends.append(self._clock())

    def busy(self) -> tuple[int, int]:
        """ns in which the device was at work, and those behind in which it idled, as far as who only asks cannot tell:
        a step's end is looked for in a part of its length.
        """
        self._arrays.put(None)
        self._thread.join()
        begun = [max(start, free) for start, free in zip(self.starts, [0, *self.ends], strict=False)]
        lengths = [end - begin for begin, end in zip(begun, self.ends, strict=True)]
        coarse = sorted(lengths)[len(lengths) // 2] // watcher.COARSEST
        return sum(lengths), sum(min(begin - end, coarse) for begin, end in zip(begun[1:], self.ends, strict=False))


@pytest.fixture
def spans() -> Spans:
    return Spans()


@pytest.fixture
def recorder(tmp_path: Path, spans: Spans) -> Iterator[Recorder]:
    made = Recorder("device", directory=tmp_path, exporters="none", span_processors=[spans.processor])
    yield made
    made.shutdown()


def step_of(milliseconds: float, **options: Any) -> tuple[Callable[[Any], Any], Any]:
    """A training step that keeps the device busy for about so long, compiled, and its first state."""
    state = jax.numpy.ones((256, 256)) * 1e-3

    def build(turns: int) -> Callable[[Any], Any]:
        def step(a: Any) -> tuple[Any, Any]:
            a = jax.lax.fori_loop(0, turns, lambda _, b: jax.numpy.tanh(b @ b), a)
            return a, a.sum()

        return jax.jit(step, **options)

    def taken(step: Callable[[Any], Any]) -> float:
        began = time.perf_counter()
        step(jax.numpy.array(state))[1].block_until_ready()
        return time.perf_counter() - began

    probe = build(50)
    taken(probe)
    step = build(max(1, round(50 * milliseconds / 1e3 / min(taken(probe) for _ in range(3)))))
    taken(step)
    return step, state


def test_a_slow_loader_behind_an_asynchronous_step(tmp_path: Path) -> None:
    """The host's clock would call nearly all of it data loading; the device was busy nearly all the time."""
    train, state = step_of(40)
    with Lateness() as late:
        account, spans, (busy, idle) = loop(tmp_path, train, state)
    for ours in (account, spans):
        assert late.agree(ours, min(max(ours, busy), busy + idle), 0.03, wakes=25), (
            f"over what the device was busy: {account / busy}, {spans / busy}; {idle / busy} idle; {late}"
        )


def loop(directory: Path, train: Callable[[Any], Any], state: Any) -> tuple[int, int, tuple[int, int]]:
    """ns of an asynchronous loop: on steps, the sum of the spans' device durations, and the device's busy time."""
    spans = Spans()
    recorder = Recorder("device", directory=directory, exporters="none", span_processors=[spans.processor])
    assert recorder.tracer is not None
    blocking = Blocking(recorder.tracer.clock)
    loading = 0.0
    waiting = None
    with recorder.job():
        for number in range(25):
            with recorder.data_loading():
                began = time.perf_counter()
                time.sleep(0.02)
                loading += time.perf_counter() - began
            with recorder.step(number) as step:
                start = recorder.tracer.clock()
                state, loss = train(state)
                step.observe(loss)
                blocking.put(start, loss)
            if waiting is not None:
                waiting.block_until_ready()
            waiting = loss
        loss.block_until_ready()
    busy = blocking.busy()
    recorder.shutdown()
    totals = recorder.totals()
    assert totals.observed and totals.kept == 25
    assert totals.run.categories["data_loading"] < loading * 1e9 / 2
    durations = [(span.attributes or {})["goodput.step.device_duration"] for span in spans.named("step")]
    assert len(durations) == 25
    on_steps = totals.run.categories["productive"] + totals.run.categories["program_startup"]
    return on_steps, sum(map(int, durations)), busy  # type: ignore[arg-type]


def planes(directory: Path) -> list[Any]:
    """What jax's profiler has written there."""
    [profile] = directory.rglob("*.xplane.pb")
    return list(jax.profiler.ProfileData.from_file(str(profile)).planes)


def annotated(directory: Path) -> dict[int, float]:
    """When the steps in a profile were begun, ns by its clock, by their numbers."""
    return {
        int(number): event.start_ns
        for plane in planes(directory)
        for line in plane.lines
        for event in line.events
        if event.name == "step"
        for name, number in event.stats
        if name == "step_num"
    }


def executed(directory: Path) -> list[tuple[float, float]]:
    """The stretches, from and to ns by the profile's clock, in which XLA's threads executed operations."""
    intervals = sorted(
        (event.start_ns, event.start_ns + event.duration_ns)
        for plane in planes(directory)
        for line in plane.lines
        if line.name.startswith("tf_XLA")
        for event in line.events
        if not event.name.startswith(("Threadpool", "end:"))
    )
    stretches = intervals[:1]
    for start, end in intervals:
        begin, until = stretches[-1]
        if start <= until:
            stretches[-1] = begin, max(until, end)
        else:
            stretches.append((start, end))
    return stretches


class Naps:
    """In the watcher's module in the place of `time`: how late its own naps end is the machine's, not the watcher's."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._naps: list[tuple[int, int, int]] = []  # when one began, was due to end, and ended, ns

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def sleep(self, seconds: float) -> None:
        began = self._clock()
        time.sleep(seconds)
        if threading.current_thread() is not threading.main_thread():  # who drains its queue naps, too
            self._naps.append((began, began + round(seconds * 1e9), self._clock()))

    def late(self, moments: list[int]) -> int:
        """ns by which those took longer than they do as a rule in which one of these moments (ns) was."""
        usual = sorted(woken - due for _, due, woken in self._naps)[len(self._naps) // 4] if self._naps else 0
        return sum(
            max(0, woken - due - usual)
            for began, due, woken in self._naps
            if any(began < moment <= woken for moment in moments)
        )


@pytest.mark.skipif(getattr(jax.profiler, "ProfileData", None) is None, reason=NO_READER)
# jaxlib makes types that Python from 3.12 on warns of; an error in their place aborts the process.
@pytest.mark.filterwarnings("ignore:builtin type .* has no __module__:DeprecationWarning")
def test_it_agrees_with_the_profiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exact answer: the profiler's own execution events, in a process where nothing else runs on the device."""
    train, state = step_of(40)
    profile = tmp_path / "profile"
    recorder = Recorder("profiled", directory=tmp_path / "goodput", exporters="none")
    assert recorder.tracer is not None
    naps = Naps(recorder.tracer.clock)
    monkeypatch.setattr(watcher, "time", naps)
    called = []
    jax.profiler.start_trace(profile)
    with Lateness() as late, recorder.job():
        before = None
        for number in range(25):
            with recorder.data_loading():
                time.sleep(0.02)
            called.append(recorder.tracer.clock())
            with recorder.step(number) as step:
                state, loss = train(state)
                step.observe(loss)
            if before is not None:
                before.block_until_ready()
            before = loss
        loss.block_until_ready()
    jax.profiler.stop_trace()
    recorder.shutdown()
    totals = recorder.totals()
    assert totals.kept == 25
    begun = annotated(profile)
    assert begun.keys() == set(range(25)), "the profile shows the same steps"
    stretches = executed(profile)
    busy = sum(end - start for start, end in stretches)
    # Between its dispatch and its first operation, and between its operations, a step waits for XLA's threads to run.
    waits, idle = 0.0, []
    for (_, end), (start, _) in itertools.pairwise([(begun[0], begun[0]), *stretches]):
        dispatched = max((at for at in begun.values() if at <= start), default=start)
        waits += start - max(end, dispatched)
        if dispatched > end:
            idle.append(end)
    offset = min(at - called[number] for number, at in begun.items())  # between the clocks
    late.seen = naps.late([round(end - offset) for end in (*idle, stretches[-1][1])])
    on_steps = totals.run.categories["productive"] + totals.run.categories["program_startup"]
    assert late.agree(on_steps, min(max(on_steps, busy), busy + waits), 0.03, wakes=25), (
        f"account over what the profiler saw: {on_steps / busy}, waiting {waits / busy}; {late}"
    )


class Known:
    """What a step of known length gives: it is ready at `end` (ns by `clock`)."""

    def __init__(self, clock: Callable[[], int], end: int) -> None:
        self.clock = clock
        self.end = end

    def is_deleted(self) -> bool:
        return False

    def is_ready(self) -> bool:
        return self.clock() >= self.end


LENGTHS = {
    "steady": [20] * 80,
    "varied": [20 + (7 * at) % 5 - 2 for at in range(80)],
    "two kinds": [20, 10] * 40,
    "now and then a short one": [20, 20, 20, 20, 8] * 16,
    "now and then a long one": [20, 20, 20, 20, 70] * 12,
    "getting shorter": [30 - at // 4 for at in range(80)],
    "short": [4] * 200,
}
BOTH_WAYS = {"steady", "short"}  # of the others each is host-bound or device-bound, in turns; both before a release


@pytest.mark.parametrize(
    ("lengths", "ahead"),
    [
        pytest.param(
            lengths,
            ahead,
            marks=[pytest.mark.release] * (name not in BOTH_WAYS and (at + way) % 2),
            id=f"{name}-{bound}",
        )
        for at, (name, lengths) in enumerate(LENGTHS.items())
        for way, (bound, ahead) in enumerate({"host-bound": 0, "device-bound": 2}.items())
    ],
)
def test_steps_of_known_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lengths: list[int], ahead: int) -> None:
    """`ahead`: how many steps are dispatched while one is on the device; with none it idles half a step in between."""
    recorder = Recorder("known", directory=tmp_path, exporters="none")
    assert recorder.tracer is not None
    clock = recorder.tracer.clock
    naps = Naps(clock)
    monkeypatch.setattr(watcher, "time", naps)
    busy, unsure, unseen, ends = 0, 0, 0, [0]  # of the step before each
    with Lateness() as late, recorder.job():
        for number, length in enumerate(lengths):
            if number >= ahead:
                over = ends[1 + number - ahead] if ahead else ends[number] + length * 500_000
                time.sleep(max(0, over - clock()) / 1e9)
            called = clock()
            with recorder.step(number) as step:
                start = max(ends[-1], clock())
                unsure += max(0, start - max(ends[-1], called))  # somewhere in between the step begins
                ends.append(start + length * 1_000_000)
                busy += length * 1_000_000
                step.observe(Known(clock, ends[-1]))
                unseen += max(0, clock() - ends[-1])  # it was over before anybody could know of it
        time.sleep(max(0, ends[-1] - clock()) / 1e9)
    recorder.shutdown()
    totals = recorder.totals()
    assert totals.kept == len(lengths) and recorder._observers.device_clock.lost == 0
    on_steps = totals.run.categories["productive"] + totals.run.categories["program_startup"]
    theirs = min(max(on_steps, busy), busy + unsure + unseen)
    late.seen = naps.late(ends[1:])
    assert late.agree(on_steps, theirs, 0.03, wakes=len(lengths)), f"{on_steps / busy}; {late}"


NEVER = 10**30


def test_what_is_never_ready_counts_by_the_hosts_clock(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "DEADLINE", 50_000_000)
    assert recorder.tracer is not None
    with recorder.job():
        with recorder.step(0) as step:
            time.sleep(0.02)
            step.observe(Known(recorder.tracer.clock, NEVER))
        until(lambda: recorder.totals().kept)
        with recorder.custom("evaluation"):
            time.sleep(0.02)
    totals = recorder.totals()
    assert recorder._observers.device_clock.lost == 1 and totals.kept == 1 and totals.in_flight_step is None
    assert totals.run.categories["productive"] >= 20_000_000 and totals.run.custom["evaluation"] >= 20_000_000


def test_a_queue_of_steps_in_flight_is_bounded(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "IN_FLIGHT", 4)
    assert recorder.tracer is not None
    with recorder.job():
        for number in range(10):
            with recorder.step(number) as step:
                step.observe(Known(recorder.tracer.clock, NEVER))
        until(lambda: recorder._observers.device_clock.lost >= 6)
        assert recorder._observers.device_clock.lost == 6, "the oldest"
    recorder.shutdown()
    assert recorder._observers.device_clock.lost == 10 and recorder.totals().kept == 10


DELETED = """
import gc, sys, threading, time
import otel_goodput as goodput
import jax
goodput.configure("deleted", directory=sys.argv[1], exporters="none")
sys.setswitchinterval(1e-6)
gc.set_threshold(1)  # before Python 3.12, garbage is collected inside C code, too; jax's callback lets threads switch
arrays = []
stop = False
def delete():
    while not stop or arrays:
        while arrays:
            arrays.pop(0).delete()
threads = [threading.Thread(target=delete) for _ in range(2)]
for thread in threads:
    thread.start()
with goodput.job():
    for number in range(2000):
        with goodput.step(number) as step:
            x = jax.numpy.ones(3) + number
            step.observe(x)
            arrays.append(x)
stop = True
for thread in threads:
    thread.join()
goodput.shutdown()
print(goodput.report().to_json()["steps"]["kept"])
"""


def test_arrays_that_are_deleted_while_they_are_watched(tmp_path: Path) -> None:
    """Asked whether a deleted array is ready, jax crashes the process."""
    done = warm.run(
        [sys.executable, "-c", DELETED, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        jax=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["2000"]


FREED = """
import sys, time
import otel_goodput as goodput
import jax
goodput.configure("freed", directory=sys.argv[1], exporters="none")
train = jax.jit(lambda a: jax.lax.fori_loop(0, 20, lambda _, b: jax.numpy.tanh(b @ b), a))
train(jax.numpy.ones((256, 256))).block_until_ready()
on_device = 0.0
with goodput.job():
    for trial in range(6):
        state = jax.numpy.ones((256, 256))
        state.block_until_ready()
        began = time.perf_counter()
        for number in range(10):
            with goodput.step(10 * trial + number):
                state = train(state)
        state.block_until_ready()
        on_device += time.perf_counter() - began
        for array in jax.live_arrays():
            array.delete()
        time.sleep(0.2)
goodput.shutdown()
report = goodput.report().to_json()
print(report["steps"]["kept"], report["clock"], report["seconds"]["productive"], on_device)
"""


def test_a_program_that_deletes_all_arrays_to_free_memory(tmp_path: Path) -> None:
    """As between two trials in one process: the marker's own array and marks in flight are deleted, too."""
    command = [sys.executable, "-c", FREED, str(tmp_path)]
    with Lateness() as late:
        done = warm.run(command, capture_output=True, text=True, timeout=120, check=False, jax=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    kept, clock, *times = done.stdout.split()
    assert (kept, clock) == ("60", "device")
    productive, on_device = (float(time) * 1e9 for time in times)
    assert late.agree(productive, on_device, 0.1, wakes=6), late  # the last step of each trial is waited for


def test_what_is_on_the_device_is_in_flight(recorder: Recorder) -> None:
    train, state = step_of(300)
    with recorder.job():
        with recorder.step(0) as step:
            _, loss = train(state)
            step.observe(loss)
        time.sleep(0.02)
        totals = recorder.totals()
        assert totals.in_flight_step == 0 and totals.run.categories["in_flight"] > 0
        loss.block_until_ready()
        until(lambda: recorder.totals().kept)
    assert recorder.totals().kept == 1


def test_what_has_ended_counts_while_its_end_is_being_recorded(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is in flight any more then, and nothing is recorded yet."""
    taken, record = threading.Event(), watcher.Watcher._record

    def slowly(self: watcher.Watcher, *args: Any) -> None:
        taken.set()
        time.sleep(0.05)
        record(self, *args)

    monkeypatch.setattr(watcher.Watcher, "_record", slowly)
    assert recorder.tracer is not None
    with recorder.job(), recorder.step(0) as step:
        step.observe(Known(recorder.tracer.clock, 0))
    assert taken.wait(10)
    assert recorder.totals().kept == 1


def test_of_a_tree_the_smallest_counts(recorder: Recorder) -> None:
    train, state = step_of(5)
    with recorder.job():
        for _ in recorder.steps(range(5)):
            state, loss = train(state)
            recorder.observe({"params": [state], "metrics": {"loss": loss, "name": "text"}})
        loss.block_until_ready()
    recorder.shutdown()
    totals = recorder.totals()
    assert totals.observed and totals.kept == 5 and recorder._observers.device_clock.lost == 0


def messages(caplog: pytest.LogCaptureFixture, word: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if word in record.getMessage()]


class Foreign:
    """An array of another framework: it has a size and a shape, and cannot be asked."""

    size, shape, dtype = 4, (2, 2), "float32"

    def __repr__(self) -> str:
        return "foreign"


@pytest.mark.parametrize(
    "what", [None, 3.5, "loss", {"loss": 1.0}, [], numpy.ones(3), {"loss": numpy.ones(())}, Foreign()], ids=repr
)
def test_what_is_no_array(recorder: Recorder, caplog: pytest.LogCaptureFixture, what: Any) -> None:
    with recorder.job():
        for number in range(3):
            with recorder.step(number) as step:
                step.observe(what)
    assert len(messages(caplog, "no jax array")) == 1
    totals = recorder.totals()
    assert totals.kept == 3 and totals.pending == 0, "its mark says when it was over"


def test_a_deleted_array(recorder: Recorder, caplog: pytest.LogCaptureFixture) -> None:
    with recorder.job():
        for number in range(3):
            gone = jax.numpy.ones(3)
            gone.delete()
            with recorder.step(number) as step:
                step.observe(gone)
    assert len(messages(caplog, "donated")) == 1
    assert recorder.totals().kept == 3


def test_donated_state_is_warned_of_once_and_harms_nothing(
    recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    train, state = step_of(20, donate_argnums=0)
    state = jax.numpy.array(state)
    with recorder.job():
        for number in range(6):
            with recorder.step(number) as step:
                state, loss = train(state)
                step.observe(state)
        loss.block_until_ready()
    recorder.shutdown()
    assert len(messages(caplog, "donated")) == 1
    assert recorder.totals().kept == 6 and recorder._observers.device_clock.lost >= 4


def test_an_observation_learns_what_is_donated(recorder: Recorder) -> None:
    """Of an output with a counter that the next step takes over, the loss is found by itself."""

    @jax.jit
    def count(n: Any, a: Any) -> Any:
        a = jax.lax.fori_loop(0, 60, lambda _, b: jax.numpy.tanh(b @ b), a)
        return a, jax.numpy.stack([a.sum(), a.max()]), n + 1

    donating = jax.jit(count.__wrapped__, donate_argnums=(0, 1))
    n, a = jax.numpy.zeros((), "int32"), jax.numpy.ones((200, 200))
    device = recorder._observers.device_clock

    def train(number: int) -> None:
        nonlocal n, a
        with recorder.step(number) as step:
            a, metrics, n = donating(n, a)
            step.observe((a, metrics, n))

    number = 0
    with recorder.job():
        while device.lost == 0:  # the counter may be ready before the next step takes it
            assert number < 2000
            train(number)
            number += 1
        a.block_until_ready()
        until(lambda: not device._watcher.queue, pause=0.001)
        lost = device.lost
        for more in range(10):
            train(number + more)
        a.block_until_ready()
    recorder.shutdown()
    assert device.lost == lost and recorder.totals().kept == number + 10


ENDS = """
import sys, os
import otel_goodput as goodput
goodput.configure("ends", directory=sys.argv[1], exporters="none")
import jax, jax.numpy as jnp
@jax.jit
def train(a):
    a = jax.lax.fori_loop(0, int(sys.argv[3]), lambda _, b: jnp.tanh(b @ b), a)
    return a, a.sum()
a = jnp.ones((256, 256))
job = goodput.job()
job.__enter__()
for number in range(4):
    with goodput.step(number) as step:
        a, loss = train(a)
        step.observe(loss)
if sys.argv[2] == "raise":
    raise RuntimeError("on purpose")
if sys.argv[2] == "exit":
    sys.exit(3)
if sys.argv[2] == "leave":
    os._exit(4)
"""


@pytest.mark.parametrize(
    ("how", "status"), [("end", 0), pytest.param("raise", 1, marks=pytest.mark.release), ("exit", 3), ("leave", 4)]
)
def test_it_does_not_stand_in_the_way_of_the_end(tmp_path: Path, how: str, status: int) -> None:
    """Steps are on the device when the process ends: no abort, no wait for long."""
    began = time.monotonic()
    done = warm.run(
        [sys.executable, "-c", ENDS, str(tmp_path), how, "600"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        jax=True,
    )
    assert done.returncode == status, done.stderr
    assert "Fatal" not in done.stderr and "abort" not in done.stderr.lower()
    assert time.monotonic() - began < 60
    report = json.loads(
        warm.run(
            [sys.executable, "-m", "otel_goodput", "report", str(tmp_path), "--json"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            jax=True,
        ).stdout
    )
    seconds = report["seconds"]
    known = sum(sum(value.values()) if isinstance(value, dict) else value for value in seconds.values())
    assert round(known * 1e9) == round(report["elapsed_s"] * 1e9)


def test_observing_after_the_end_is_warned_about(recorder: Recorder, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), recorder.job():
        with recorder.step(0) as step:
            pass
        step.observe(jax.numpy.ones(3))
    assert len(messages(caplog, "not an open step")) == 1


def test_a_traced_step_counts_and_observes_by_itself(recorder: Recorder, spans: Spans) -> None:
    train, state = step_of(5)
    traced = recorder.traced_step(train, start=7)
    with recorder.job():
        for _ in range(5):
            state, loss = traced(state)
        loss.block_until_ready()
    recorder.shutdown()
    steps = spans.named("step")
    assert [(span.attributes or {})["goodput.step"] for span in steps] == [7, 8, 9, 10, 11]
    assert all("goodput.step.device_duration" in (span.attributes or {}) for span in steps)
    assert recorder.totals().kept == 5


def test_an_error_in_a_traced_step_passes(recorder: Recorder) -> None:
    def wrong() -> None:
        raise ZeroDivisionError

    with recorder.job(), pytest.raises(ZeroDivisionError):
        recorder.traced_step(wrong)()
    assert recorder.totals().lost == 1

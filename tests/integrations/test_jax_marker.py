"""Marks on real jax: nothing is added to the loops; a thread of the test blocks on their outputs.

Longer than other files: jax is loaded once for all its loops.
"""

from __future__ import annotations

import gc
import importlib
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
import warm

from everyday.lateness import Lateness
from otel_goodput import Recorder
from otel_goodput._accounting import events as ev
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._timeline.reader import all_events

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.jax

NS = 1_000_000_000


@pytest.fixture(autouse=True)
def _marking(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("OTEL_GOODPUT_DEVICE_CLOCK", "auto")
    gc.disable()  # a collection of all that the tests hold takes half a second, in a step or in the witness
    yield
    gc.enable()


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    jax.numpy.zeros(()).block_until_ready()  # a device is in use
    made = Recorder("marked", directory=tmp_path, exporters="none")
    yield made
    made.shutdown()


class Witness:
    """Blocks on one output after the other; on what is as little as a mark behind some of them, too."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._outputs: SimpleQueue[Any] = SimpleQueue()
        self._spans: list[tuple[str, int, int]] = []
        self._marked: dict[int, int] = {}  # by the number of a span when what is behind it was ready, ns
        self._thread = threading.Thread(target=self._wait)
        self._thread.start()

    def put(self, name: str, dispatched: int, output: Any) -> None:
        """`output` was dispatched for `name` from `dispatched` (ns) on."""
        self._outputs.put((name, dispatched, output))

    def mark(self, output: Any) -> None:
        """`output` is of a computation that takes no time, dispatched behind the one that was put last."""
        self._outputs.put(("", 0, output))

    def _wait(self) -> None:
        while (put := self._outputs.get()) is not None:
            name, dispatched, output = put
            output.block_until_ready()
            if name:
                self._spans.append((name, dispatched, self._clock()))
            else:
                self._marked[len(self._spans) - 1] = self._clock()

    def busy(self, by: int | None = None, read_at: Mapping[int, int] | None = None) -> dict[str, int]:
        """ns that the device was at work, by name.

        Args:
            by: somebody else has seen then (ns) that it was done with all.
            read_at: when somebody had read an output, by its number; what was at work counts until then.
        """
        self._outputs.put(None)
        self._thread.join()
        for number, at in (read_at or {}).items():
            name, dispatched, end = self._spans[number]
            self._spans[number] = name, dispatched, max(end, at)
        if by is not None:
            name, dispatched, end = self._spans[-1]
            self._spans[-1] = name, dispatched, min(end, by)
        by_name: dict[str, int] = {}
        free = 0
        for name, dispatched, end in self._spans:
            by_name[name] = by_name.get(name, 0) + end - max(dispatched, free)
            free = end
        return by_name

    def bounds(self) -> dict[str, tuple[int, int]]:
        """ns that the device was at work at least and at most, by name, as far as who sets marks can know.

        A mark that is behind the work has a way of its own, on a busy machine of many ms, which the device is done with
        before what follows begins. Ours and this one's are set at the same place, ours first.
        """
        self.busy()
        by_name: dict[str, tuple[int, int]] = {}
        free = marked = 0
        for number, (name, dispatched, end) in enumerate(self._spans):
            over = self._marked.get(number, end)
            least, most = by_name.get(name, (0, 0))
            by_name[name] = least + max(0, end - max(dispatched, marked)), most + over - max(dispatched, free)
            free, marked = end, over
        return by_name


def work_of(milliseconds: float, **options: Any) -> Callable[[Any], Any]:
    """A compiled function of a state that keeps the device busy for about so long."""

    def build(turns: int) -> Callable[[Any], Any]:
        def work(a: Any) -> tuple[Any, Any]:
            a = jax.lax.fori_loop(0, turns, lambda _, b: jax.numpy.tanh(b @ b), a)
            return a, a.sum()

        return jax.jit(work, **options)

    def taken(work: Callable[[Any], Any]) -> float:
        began = time.perf_counter()
        work(fresh())[1].block_until_ready()
        return time.perf_counter() - began

    probe = build(50)
    taken(probe)
    work = build(max(1, round(50 * milliseconds / 1e3 / min(taken(probe) for _ in range(3)))))
    taken(work)
    return work


def fresh() -> Any:
    return jax.numpy.ones((128, 128)) * 1e-3


def productive(recorder: Recorder) -> int:
    categories = recorder.totals().run.categories
    return categories["productive"] + categories["program_startup"]


Measured = dict[str, tuple[int, int]]  # ns in the account, ns that the witness saw


def agree(measure: Callable[[Recorder], Measured], directory: Path) -> None:
    """The account says what the witness says."""
    recorder = Recorder("witnessed", directory=directory, exporters="none")
    try:
        with Lateness() as late:
            pairs = measure(recorder)
    finally:
        recorder.shutdown()
    totals = recorder.totals()
    assert (
        totals.clock == "device" and totals.pending == totals.lost == 0 and recorder._observers.device_clock.lost == 0
    )
    assert all(late.agree(ours, theirs, 0.05, wakes=totals.kept) for ours, theirs in pairs.values()), (
        f"account and witness, ns: {pairs}; {late}"
    )


@pytest.mark.parametrize("read", [0, 10, 1], ids=["never", "every 10", "always"])
def test_a_loop_with_donated_state(tmp_path: Path, read: int) -> None:
    """Its loss is read never, now and then, or always; naive, the first of them is 80 % off."""
    train = work_of(15, donate_argnums=0)

    def measure(recorder: Recorder) -> Measured:
        state = fresh()
        assert recorder.tracer is not None
        clock = recorder.tracer.clock
        witness = Witness(clock)
        read_at: dict[int, int] = {}  # a step that waits for its loss goes on until it has it
        with recorder.job():
            for number, _ in recorder.steps(range(40)):
                begun = clock()
                state, loss = train(state)
                witness.put("step", begun, loss)
                if read and number % read == 0:
                    float(loss)
                    read_at[int(number)] = clock()
            state.block_until_ready()
        assert recorder.totals().kept == 40
        ours, busy, read_too = productive(recorder), witness.busy()["step"], witness.busy(read_at=read_at)["step"]
        return {"step": (ours, min(max(ours, busy), read_too))}

    agree(measure, tmp_path)


def test_what_is_dispatched_in_a_phase_is_the_phases(tmp_path: Path) -> None:
    train, evaluate = work_of(10, donate_argnums=0), work_of(60)
    tiny = jax.jit(lambda scalar: scalar + 1)
    tiny(fresh().sum()).block_until_ready()  # compiled: the witness knows of no compilations

    def measure(recorder: Recorder) -> Measured:
        state, held_out = fresh(), fresh()
        assert recorder.tracer is not None
        clock = recorder.tracer.clock
        witness = Witness(clock)
        with recorder.job():
            for number, _ in recorder.steps(range(30)):
                begun = clock()
                state, loss = train(state)
                witness.put("step", begun, loss)
                if number % 10 == 4:
                    with recorder.custom("evaluation"):
                        witness.mark(tiny(loss))
                        begun = clock()
                        _, score = evaluate(held_out)
                        witness.put("evaluation", begun, score)
                    witness.mark(tiny(score))
            last = tiny(loss)
            witness.mark(last)
            last.block_until_ready()
        totals, bounds = recorder.totals(), witness.bounds()
        assert totals.kept == 30
        figures = {"step": productive(recorder), "evaluation": totals.run.custom["evaluation"]}
        return {name: (ours, min(max(ours, bounds[name][0]), bounds[name][1])) for name, ours in figures.items()}

    agree(measure, tmp_path)


def test_a_compilation_in_the_first_step_is_start_up(recorder: Recorder) -> None:
    """Ours is none: what is compiled here is the step alone, and its time is not productive."""

    # Compiling takes long, so that it shows; the marks' own would be named in the journal.
    def deep(a: Any) -> Any:
        for number in range(15):
            a = jax.numpy.tanh(a @ a) + number
        return a, a.sum()

    train = jax.jit(deep)
    state = jax.numpy.ones((24, 24))
    with recorder.job():
        for _ in recorder.steps(range(5)):
            state, loss = train(state)
        loss.block_until_ready()
    totals = recorder.totals()
    recorder.shutdown()
    assert totals.clock == "device" and totals.kept == 5
    events = list(all_events(RunDirectory(next(path for path in recorder_folder(recorder).iterdir() if path.is_dir()))))
    assert not [event for event in events if event.name == "goodput_marker"]
    [compiled] = [event for event in events if event.kind == ev.END and event.name == "deep"]
    begun = next(event.time for event in events if event.kind == ev.START and event.key == compiled.key)
    assert totals.run.categories["program_startup"] == pytest.approx(compiled.time - begun, rel=0.1)
    assert totals.run.categories["productive"] < (compiled.time - begun) / 2


def recorder_folder(recorder: Recorder) -> Path:
    return Path(recorder.config.directory)


def test_a_function_that_returns_nothing(recorder: Recorder, caplog: pytest.LogCaptureFixture) -> None:
    """As those that change a model in place."""
    work, model = work_of(10), {"state": fresh()}

    def train() -> None:
        model["state"], _ = work(model["state"])

    traced = recorder.traced_step(train)
    with recorder.job():
        for _ in range(10):
            traced()
        model["state"].block_until_ready()
    totals = recorder.totals()
    assert totals.clock == "device" and totals.kept == 10 and not caplog.records


def test_observing_overrides(recorder: Recorder, tmp_path: Path) -> None:
    work = work_of(5)
    state = fresh()
    assert recorder.tracer is not None
    marker = None
    with recorder.job():
        for _ in recorder.steps(range(10)):
            state, loss = work(state)
            recorder.observe(loss)
        [marker] = recorder._observers.device_clock._markers
        state.block_until_ready()
    assert recorder._observers.device_clock._order._marks == 0, "no mark was set"
    assert marker.prepared and recorder.totals().clock == "device"


def contexts() -> dict[str, Callable[[], Any]]:
    return {
        "x64": lambda: jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64(),
        "precision": lambda: jax.default_matmul_precision("float32"),
        "no transfers": lambda: jax.transfer_guard("disallow"),
        "leaks": lambda: jax.checking_leaks(),
        "nans": lambda: jax.debug_nans(True),
        "mesh": lambda: getattr(jax, "set_mesh", getattr(jax.sharding, "use_mesh", None))(
            jax.sharding.Mesh(jax.devices()[:1], "x")
        ),
    }


@pytest.mark.parametrize("name", contexts())
def test_it_is_compiled_once_whatever_the_context(recorder: Recorder, name: str, tmp_path: Path) -> None:
    work = work_of(1)
    state = fresh()
    with recorder.job():
        with recorder.step(0):
            state, _ = work(state)
        recorder._observers.device_clock._watcher.drain(10)
        with contexts()[name]():
            for number in range(1, 6):
                with recorder.step(number):
                    time.sleep(0.005)
        state.block_until_ready()
    assert recorder.totals().clock == "device" and recorder.totals().kept == 6
    recorder.shutdown()
    events = all_events(RunDirectory(next(path for path in tmp_path.iterdir() if path.is_dir())))
    assert not [event.name for event in events if event.name == "goodput_marker"]


def test_inside_a_trace_and_without_jit_nothing_is_marked(recorder: Recorder) -> None:
    """A phase in a function that is traced says nothing of a device; steps without jit are the next mark's."""
    work, set_before = work_of(1), 0
    order = recorder._observers.device_clock._order

    def traced(a: Any) -> Any:
        nonlocal set_before
        set_before = order._marks
        with recorder.step(7):
            a = a + 1
        with recorder.custom("inside"):
            a = a * 2
        assert order._marks == set_before
        return a

    with recorder.job():
        for number in range(3):
            with recorder.step(number):
                work(fresh())
        recorder._observers.device_clock._watcher.drain(10)
        jax.jit(traced)(fresh())
        jax.grad(lambda a: traced(a).sum())(fresh())
        with jax.disable_jit():
            before = order._marks
            with recorder.step(8):
                jax.numpy.ones(3) + 1
            assert order._marks == before
        with recorder.step(9):
            work(fresh())
    totals = recorder.totals()
    assert totals.clock == "device" and totals.pending == 0


def test_after_the_backends_were_cleared(recorder: Recorder) -> None:
    """As an elastic job does: marks of the old backend would be ready at once."""
    work = work_of(5)
    with recorder.job():
        for number in range(3):
            with recorder.step(number):
                work(fresh())
        recorder._observers.device_clock._watcher.drain(10)
        with recorder.elastic_reinit():
            importlib.import_module("jax.extend.backend").clear_backends()
            work, state = work_of(20), fresh()
            loss = work(state)[1].block_until_ready()  # compiled: the witness knows of no compilations
            tiny = jax.jit(lambda loss: loss + 1)
            tiny(loss).block_until_ready()
        assert recorder.tracer is not None
        device = recorder._observers.device_clock
        while not device._markers[0].prepared:  # the keeper may be looking just then, and found nothing to do before
            recorder.tracer.tick()
            device._watcher.drain(10)
        clock = recorder.tracer.clock
        witness = Witness(clock)
        before = productive(recorder)
        with Lateness() as late:
            for number in range(3, 33):
                with recorder.step(number):
                    begun = clock()
                    state, loss = work(state)
                    witness.put("step", begun, loss)
            last = tiny(loss)
            state.block_until_ready()
            over = clock()
            busy = witness.busy(by=over)["step"]
            last.block_until_ready()
            late.seen = clock() - over  # so long a device on a busy machine takes for as little as a mark is
    assert recorder.totals().clock == "device" and recorder.totals().kept == 33
    spent = productive(recorder) - before
    assert late.agree(spent, busy, 0.06, wakes=30), f"{spent} of {busy} ns; {late}"


EIGHT = """
import sys, time
import otel_goodput as goodput
goodput.configure("eight", directory=sys.argv[1], exporters="none")
import json, threading, queue
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
assert len(jax.devices()) == 8
over = NamedSharding(Mesh(np.array(jax.devices()), ("d",)), P("d"))
turns = 60
@jax.jit
def train(a):
    a = jax.lax.fori_loop(0, turns, lambda _, b: jnp.tanh(jnp.einsum("nij,njk->nik", b, b)), a)
    return a, a.sum((1, 2))  # on each device its own: collectives in flight may wait for each other for ever
state = jax.device_put(jnp.ones((8, 64, 64)) * 1e-3, over)
train(state)[1].block_until_ready()
outputs, ends, starts = queue.SimpleQueue(), [], []
def wait():
    while (output := outputs.get()) is not None:
        output.block_until_ready()
        ends.append(time.monotonic_ns())
thread = threading.Thread(target=wait)
thread.start()
with goodput.job():
    for number, _ in goodput.steps(range(30)):
        starts.append(time.monotonic_ns())
        state, loss = train(state)
        outputs.put(loss)
    state.block_until_ready()
    by = time.monotonic_ns()
outputs.put(None)
thread.join()
ends[-1] = min(ends[-1], by)
busy = sum(end - max(start, free) for start, end, free in zip(starts, ends, [0, *ends]))
totals = goodput.totals()
spent = totals.run.categories["productive"] + totals.run.categories["program_startup"]
print(json.dumps([spent, busy, totals.clock, totals.kept]))
"""


@pytest.mark.release
def test_eight_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One program over all of them: single ones are ready while the step is at work."""
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
    with Lateness() as late:
        done = warm.run(
            [sys.executable, "-c", EIGHT, str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            jax=True,
        )
    assert done.returncode == 0, done.stderr
    spent, busy, clock, kept = json.loads(done.stdout)
    assert clock == "device" and kept == 30
    assert late.agree(spent, busy, 0.05, wakes=30), f"{spent} of {busy} ns; {late}"


PART = """
import sys, time
import otel_goodput as goodput
goodput.configure("part", directory=sys.argv[1], exporters="none")
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
assert len(jax.devices()) == 4
over = NamedSharding(Mesh(np.array(jax.devices()), ("d",)), P("d"))
train = jax.jit(lambda a: jax.lax.fori_loop(0, 150, lambda _, b: jnp.tanh(jnp.einsum("nij,njk->nik", b, b)), a))
on_two = [jax.device_put(jnp.ones((4, 64, 64)) * 1e-3, device) for device in jax.devices()[1:3]]
on_one, on_all = jnp.ones((4, 64, 64)) * 1e-3, jax.device_put(jnp.ones((4, 64, 64)) * 1e-3, over)
def productive():
    time.sleep(0.05)
    goodput.flush()
    return goodput.totals().run.categories["productive"]
busy = before = 0
PARTS = {"one": [[on_one]] * 2, "one, then all": [[on_one], [on_all]], "two apart": [on_two] * 2}[sys.argv[2]]
for states in PARTS:
    jax.block_until_ready([train(state) for state in states])
with goodput.job():
    # Which devices are used is known once a result was late, and until then a step may share the next one's mark: the
    # second half is measured, after one part between.
    for part, states in enumerate([*PARTS, PARTS[0], *PARTS]):
        if part == len(PARTS) + 1:
            before, busy = productive(), 0
        began = time.perf_counter_ns()
        for number in range(60):
            with goodput.step(60 * part + number):
                states = [train(state) for state in states]
        jax.block_until_ready(states)
        busy += time.perf_counter_ns() - began
    spent = productive() - before
goodput.shutdown()
report = goodput.report().to_json()
print(report["clock"], report["steps"]["kept"], spent, busy)
"""


@pytest.mark.parametrize("where", [pytest.param("one", marks=pytest.mark.release), "one, then all", "two apart"])
def test_a_program_that_uses_a_part_of_the_devices(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mark on all devices is no mark of the work on one of them, and the other way round.

    A mark on the wrong devices is wrong each time; one that is late because the machine is busy is not.
    """
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
    seen = []
    for attempt in range(3):
        with Lateness() as late:
            done = warm.run(
                [sys.executable, "-c", PART, str(tmp_path / str(attempt)), where],
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
                jax=True,
            )
        assert done.returncode == 0 and not done.stderr, done.stderr
        clock, kept, spent, busy = done.stdout.split()
        assert (clock, kept) == ("device", "300")
        seen.append(f"{spent} of {busy} ns; {late}")
        if late.agree(int(spent), int(busy), 0.1, wakes=30):
            return
    pytest.fail("; ".join(seen))


FORKS = """
import os, sys
import otel_goodput as goodput
import jax, jax.numpy as jnp
state = jnp.ones((64, 64)) * 1e-3
# Only now: where a backend is in use already, the marker is ready before the first of six steps that take no time.
goodput.configure("forks", directory=sys.argv[1], exporters="none")
with goodput.job():
    for number, _ in goodput.steps(range(6)):
        state = state @ state
        if number == 2:
            child = os.fork()
            if not child:
                with goodput.step(99):
                    pass
                goodput.totals()
                os._exit(5)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
    state.block_until_ready()
print(goodput.totals().clock, goodput.totals().kept)
"""


@pytest.mark.filterwarnings("ignore")
def test_a_forked_child_marks_nothing(tmp_path: Path) -> None:
    done = warm.run(
        [sys.executable, "-W", "ignore", "-c", FORKS, str(tmp_path)],
        capture_output=True, text=True, timeout=120, check=False, jax=True)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["device", "6"]


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
    with goodput.step(number):
        a, loss = train(a)
if sys.argv[2] == "raise":
    raise RuntimeError("on purpose")
if sys.argv[2] == "exit":
    sys.exit(3)
"""


@pytest.mark.parametrize(
    ("how", "status"), [("end", 0), ("raise", 1), pytest.param("exit", 3, marks=pytest.mark.release)]
)
def test_it_does_not_stand_in_the_way_of_the_end(tmp_path: Path, how: str, status: int) -> None:
    """A thread waits for marks in C++ while the process ends: no abort, no wait for long."""
    began = time.monotonic()
    done = warm.run(
        [sys.executable, "-c", ENDS, str(tmp_path), how, "500"],
        capture_output=True, text=True, timeout=120, check=False, jax=True)  # fmt: skip
    assert done.returncode == status, done.stderr
    assert "Fatal" not in done.stderr and "abort" not in done.stderr.lower()
    assert time.monotonic() - began < 60

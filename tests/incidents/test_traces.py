"""Traces by the profilers of jax (the real one) and PyTorch (a stand-in; `make everyday` takes the real one)."""

from __future__ import annotations

import stat
import sys
import threading
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import waits
from recorded import Record

import otel_goodput as goodput
from otel_goodput._incidents import profiler as module
from otel_goodput._incidents import traces
from otel_goodput._incidents.profiler import REQUEST, Profiler
from otel_goodput._incidents.traces import Unavailable
from otel_goodput._journal.profiles import JAX, TORCH, Profile
from otel_goodput._journal.rundir import RunDirectory


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory(tmp_path / "run")
    run.create({})
    return run


class Elsewhere:
    """A trace that a thread of its own begins, and ends when it is told to, or when it has to give way."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._end = threading.Event()
        self._begun = threading.Event()
        self.taken: bool | None = None
        self.error: Unavailable | None = None
        self._thread = threading.Thread(target=self._take, args=(kind, folder))
        self._thread.start()
        self._begun.wait(30)

    def _take(self, kind: str, folder: Path) -> None:
        try:
            trace = traces.begin(kind, folder)
        except Unavailable as error:
            self.error = error
            return
        finally:
            self._begun.set()
        while not (self._end.wait(0.005) or trace.disturbed):
            pass
        self.taken = trace.stop()

    def end(self) -> bool | None:
        self._end.set()
        self._thread.join(30)
        return self.taken


def files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def jax() -> Any:
    jax = pytest.importorskip("jax")
    jax.numpy.zeros(()).block_until_ready()
    return jax


@cache
def multiply(jax: Any) -> Any:
    return jax.jit(lambda value: jax.numpy.tanh(value @ value))


def numbers(jax: Any, turns: int) -> Any:
    value = jax.numpy.arange(64.0).reshape(8, 8) / 64
    for _ in range(turns):
        value = multiply(jax)(value)
    return value.tolist()


@pytest.mark.jax
def test_jax_is_traced_from_the_background_and_computes_the_same(jax: Any, run: RunDirectory, _short: None) -> None:
    expected = numbers(jax, 50)
    over = threading.Event()
    taken: list[tuple[Profile, str]] = []
    step, computed, trains = 0, [], threading.get_ident()
    noted: list[bool] = []
    profiler = Profiler(lambda: (run, 0), 0, time.time_ns, lambda: trains, lambda: step, "trace", noted.append)

    def done(profile: Profile, file: str) -> None:
        taken.append((profile, file))
        over.set()

    assert profiler.start("slowdown", steps=3, done=done) == ""
    while not over.is_set():
        computed.append(numbers(jax, 50))
        step += 1
    assert len(computed) > 3 and computed == [expected] * len(computed)
    [(profile, _)] = taken
    assert noted == [True, False]
    folder = run.path / profile.trace
    assert profile.kind == JAX and profile.trace == "profiles/p0000-a0000-000001-jax"
    assert stat.S_IMODE(folder.stat().st_mode) == stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
    assert {path.name.partition(".")[2] for path in files_in(folder)} == {"trace.json.gz", "xplane.pb"}
    profiler.close(5)


@pytest.fixture
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SAMPLED_S", 0.1)
    monkeypatch.setattr(module, "SAMPLES", 5)


@pytest.mark.jax
def test_the_programs_own_jax_trace_is_not_disturbed(jax: Any, tmp_path: Path) -> None:
    state = sys.modules["jax._src.profiler"]._profile_state  # type: ignore[attr-defined]
    plain = type(state)
    ours = Elsewhere(JAX, tmp_path / "ours")
    with jax.profiler.trace(str(tmp_path / "program")):  # ours gives way
        assert type(state) is plain
        second = Elsewhere(JAX, tmp_path / "second")
        numbers(jax, 5)
    assert files_in(tmp_path / "program") and not files_in(tmp_path / "ours")
    assert ours.end() is False and "takes a trace" in str(second.error)
    with pytest.raises(RuntimeError):
        jax.profiler.stop_trace()  # as without ours
    third = Elsewhere(JAX, tmp_path / "third")
    with pytest.raises(RuntimeError):
        jax.profiler.stop_trace()  # ours is not the program's to stop
    third.end()
    fourth = Elsewhere(JAX, tmp_path / "fourth")
    numbers(jax, 5)
    assert fourth.end() and files_in(tmp_path / "fourth") and type(state) is plain


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """What is used of PyTorch's profiler, of which one may run at a time."""
    inner = SimpleNamespace(_is_profiler_enabled=False)

    class Inner:
        def __init__(self, **_: Any) -> None: ...

        def _prepare_trace(self) -> None:
            if inner._is_profiler_enabled:
                raise RuntimeError("Profiler is already enabled on this thread")

        def __enter__(self) -> Any:
            self._prepare_trace()
            inner._is_profiler_enabled = True
            return self

        def __exit__(self, *_: object) -> None:
            inner._is_profiler_enabled = False

        def export_chrome_trace(self, path: str) -> None:
            Path(path).write_text("{}")

    inner.profile = Inner
    configuration = SimpleNamespace(_ExperimentalConfig=lambda profile_all_threads: profile_all_threads)
    fake = SimpleNamespace(
        autograd=SimpleNamespace(profiler=inner),
        profiler=object(),
        cuda=SimpleNamespace(is_available=lambda: False),
        _C=SimpleNamespace(_profiler=configuration),
    )
    monkeypatch.setitem(sys.modules, "torch", fake)
    yield fake


def test_the_programs_own_torch_trace_is_not_disturbed(torch: Any, tmp_path: Path) -> None:
    plain = torch.autograd.profiler.profile._prepare_trace
    ours = Elsewhere(TORCH, tmp_path)
    with torch.autograd.profiler.profile():  # ours gives way
        second = Elsewhere(TORCH, tmp_path)
    assert ours.end() is False and "takes a trace" in str(second.error) and not files_in(tmp_path)
    third = Elsewhere(TORCH, tmp_path)
    assert third.end() and [path.name for path in files_in(tmp_path)] == [traces.FILE]
    assert torch.autograd.profiler.profile._prepare_trace is plain


def test_old_libraries_are_left_alone(
    torch: Any, run: RunDirectory, monkeypatch: pytest.MonkeyPatch, _short: None
) -> None:
    torch._C._profiler = None
    monkeypatch.setattr(traces, "jax_started", lambda: False)
    monkeypatch.setattr(module, "NO_STEP_S", 0.1)
    taken: list[Profile] = []
    profiler = Profiler(lambda: (run, 0), 0, time.time_ns, threading.get_ident, lambda: 3, "auto")
    for kind in (TORCH, JAX):
        refused = profiler.start(REQUEST, kind=kind, seconds=0.1, done=lambda profile, _: taken.append(profile))
        assert refused == ""
        waits.until(lambda: not profiler.busy)
    assert [one.trace for one in taken] == ["", ""] and all(one.samples for one in taken)
    assert "only the thread that begins" in taken[0].note
    assert "jax is not in use" in taken[1].note


def test_old_traces_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "BYTES", 1000)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    place = tmp_path / "profiles"
    for number, size in enumerate((1, 300, 300, 300, 300)):
        folder = place / f"p0000-a0000-{number:06d}-jax" / "plugins"
        folder.mkdir(parents=True)
        (folder / "trace").write_bytes(bytes(size))
        (folder / "link").symlink_to(outside)
    (place / "p0001-a0000-000001-jax").mkdir()
    traces.make_room(place, "p0000-")
    left = sorted(path.name for path in place.iterdir())
    assert left == [f"p0000-a0000-{number:06d}-jax" for number in (2, 3, 4)] + ["p0001-a0000-000001-jax"]
    assert (outside / "kept").exists()
    monkeypatch.setattr(traces, "TRACES", 1)
    traces.make_room(place, "p0000-")
    assert len(list(place.iterdir())) == 2
    traces.make_room(tmp_path / "none", "p0000-")


def test_the_steps_of_a_trace_are_accounted_apart(torch: Any, record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    """A profiler that makes steps much longer, of a real job: live, and read from the disk afterwards."""
    monkeypatch.setattr(module, "SAMPLED_S", 0.0)
    monkeypatch.setattr(module, "SAMPLES", 0)
    recording = record()
    over = threading.Event()
    running = torch.autograd.profiler
    with goodput.job():
        for number, _ in goodput.steps(enumerate(iter(int, 1))):
            time.sleep(0.2 if running._is_profiler_enabled else 0.001)
            if number == 20:
                observed = recording.recorder._observers.profiler
                assert observed.start(REQUEST, kind=TORCH, steps=2, done=lambda *_: over.set()) == ""
            if over.is_set():
                break
    recording.recorder.shutdown()
    live, dead = recording.report()["seconds"], recording.report_on_disk()["seconds"]
    assert live == dead
    assert 0 < live["custom"]["profiling"] < 60

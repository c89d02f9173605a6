"""PyTorch on CUDA and XPU, against a stand-in for the interface of its events."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from otel_goodput import Recorder

from .stand_ins import Queue, fake_torch

MS = 1_000_000


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in [name for name in sys.modules if name.partition(".")[0] == "jax"]:
        monkeypatch.delitem(sys.modules, name)  # other tests in this process use it
    stream = Queue(time.time_ns)
    torch = fake_torch(stream)
    torch.stream = stream
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setenv("OTEL_GOODPUT_DEVICE_CLOCK", "auto")
    yield torch


@pytest.fixture
def recorder(tmp_path: Path, torch: Any) -> Iterator[Recorder]:
    made = Recorder("torch", directory=tmp_path, exporters="none", integrations="none")
    torch.stream.clock = made._account.clock
    yield made
    made.shutdown()


def check_stream(recorder: Recorder, stream: Queue, begun: int) -> None:
    """All that the stream did since `begun` was productive, and nothing behind the moment at which the job ended.

    A machine that wakes the job late also wakes the watcher late, which then finds the last mark ready too late: no
    later than its end is known.
    """
    totals = recorder.totals()
    late = stream.clock() - stream.free
    productive = totals.run.categories["productive"] + totals.run.categories["program_startup"]
    assert totals.clock == "device" and totals.kept == 20
    busy = stream.free - begun
    assert 0.95 * busy <= productive <= 1.05 * busy + late


def test_steps_on_the_stream(recorder: Recorder, torch: Any) -> None:
    with recorder.job():
        for number, _ in recorder.steps(range(20)):
            if not number:
                torch.initialized = True  # by the first tensor on the GPU
                begun = torch.stream.clock()
            work = torch.stream.dispatch(10 * MS)
        time.sleep(max(0, work.end - torch.stream.clock()) / 1e9)
    check_stream(recorder, torch.stream, begun)


def test_steps_on_an_xpu(recorder: Recorder, torch: Any) -> None:
    """Its module is as that of CUDA, but that an older one tells nothing of captures."""
    torch.xpu = SimpleNamespace(is_initialized=lambda: torch.started, Event=torch.cuda.Event)
    torch.started = False
    with recorder.job():
        for number, _ in recorder.steps(range(20)):
            if not number:
                torch.started = True
                begun = torch.stream.clock()
            work = torch.stream.dispatch(10 * MS)
        time.sleep(max(0, work.end - torch.stream.clock()) / 1e9)
    check_stream(recorder, torch.stream, begun)


def test_on_the_cpu_it_is_synchronous(recorder: Recorder, torch: Any) -> None:
    with recorder.job():
        for _ in recorder.steps(range(5)):
            time.sleep(0.001)
    assert recorder.totals().clock == "host"


def test_a_traced_step_that_returns_nothing(recorder: Recorder, torch: Any) -> None:
    torch.initialized = True

    def train() -> None:
        work.append(torch.stream.dispatch(10 * MS))

    work: list[Any] = []
    traced = recorder.traced_step(train)
    with recorder.job():
        for _ in range(10):
            traced()
        time.sleep(max(0, work[-1].end - torch.stream.clock()) / 1e9)
    totals = recorder.totals()
    assert totals.clock == "device" and totals.kept == 10


def test_nothing_is_queried_or_recorded_while_a_graph_is_captured(recorder: Recorder, torch: Any) -> None:
    """The stand-in refuses both, as CUDA does by spoiling the capture."""
    torch.initialized = True
    with recorder.job():
        for number, _ in recorder.steps(range(10)):
            work = torch.stream.dispatch(10 * MS)
            if number in (3, 4):
                graph = torch.cuda.CUDAGraph()
                graph.capture_begin()
                time.sleep(0.03)
                with recorder.custom("warm-up"):
                    pass
                graph.capture_end()
        time.sleep(max(0, work.end - torch.stream.clock()) / 1e9)
    totals = recorder.totals()
    assert totals.kept == 10 and totals.clock == "device" and recorder._observers.device_clock.lost == 0


def test_a_capture_that_cannot_begin_is_none(recorder: Recorder, torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(torch.cuda.CUDAGraph, "capture_begin", refuse)
    torch.initialized = True
    with recorder.job():
        for number, _ in recorder.steps(range(10)):
            work = torch.stream.dispatch(10 * MS)
            if number == 3:
                with pytest.raises(RuntimeError, match="out of memory"):
                    torch.cuda.CUDAGraph().capture_begin()
        time.sleep(max(0, work.end - torch.stream.clock()) / 1e9)
    totals = recorder.totals()
    assert totals.kept == 10 and totals.clock == "device" and recorder._observers.device_clock.lost == 0


def test_what_was_changed_is_taken_back(recorder: Recorder, torch: Any) -> None:
    before = dict(torch.cuda.CUDAGraph.__dict__)
    torch.initialized = True
    with recorder.job(), recorder.step(0):
        pass
    recorder.flush()
    assert torch.cuda.CUDAGraph.__dict__["capture_begin"] is not before["capture_begin"]
    recorder.shutdown()
    assert dict(torch.cuda.CUDAGraph.__dict__) == before

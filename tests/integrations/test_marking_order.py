"""The device clock on a device whose queue is known exactly: in order, out of order, failing."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otel_goodput import Recorder
from otel_goodput.integrations import async_runtimes
from otel_goodput.integrations.markers import Mark

from .stand_ins import Queue, QueueMarker

MS = 1_000_000


class Device:
    """A recorder whose only runtime is a queue."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch, early: int = 0, processes: int = 1) -> None:
        monkeypatch.setenv("OTEL_GOODPUT_DEVICE_CLOCK", "auto")
        self.queue = Queue(time.time_ns)
        self.marker = QueueMarker(self.queue, early)
        monkeypatch.setattr(async_runtimes, "ASYNC_RUNTIMES", (self.marker.runtime,))
        self.spans = InMemorySpanExporter()
        self.recorder = Recorder(
            "queue", directory=directory, exporters="none", integrations="none", process_count=processes,
            process_index=0, span_processors=[SimpleSpanProcessor(self.spans)],
        )
        self.queue.clock = self.recorder._account.clock
        self.spent = 0  # ns from the begin of each work's dispatch, or the end of the one before, to its end
        self._behind: list[int] = []

    def train(self, milliseconds: float, ahead: int = 2) -> None:
        """Dispatch a step; wait until no more than `ahead` are on the device."""
        began = max(self.queue.free, self.queue.clock())
        self._behind.append(self.queue.dispatch(round(milliseconds * MS)).end)
        self.spent += self._behind[-1] - began
        if len(self._behind) > ahead:
            self.wait_until(self._behind.pop(0))

    def wait_until(self, end: int) -> None:
        time.sleep(max(0, end - self.queue.clock()) / 1e9)

    def finish(self) -> None:
        self.wait_until(self.queue.free)


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    made = Device(tmp_path, monkeypatch)
    yield made
    made.recorder.shutdown()


def test_nothing_has_to_be_added(device: Device) -> None:
    """Dispatch alone is in the steps; what the device does is theirs."""
    with device.recorder.job():
        for _ in device.recorder.steps(range(30)):
            device.train(10)
        device.finish()
    totals = device.recorder.totals()
    productive = totals.run.categories["productive"] + totals.run.categories["program_startup"]
    assert totals.kept == 30 and totals.clock == "device" and totals.pending == 0
    assert productive == pytest.approx(device.queue.busy, rel=0.03)
    assert device.recorder._observers.lost == 0
    device.recorder.shutdown()
    steps = [span for span in device.spans.get_finished_spans() if span.name == "step"]
    on_device = [(span.attributes or {})["goodput.step.device_duration"] for span in steps]
    assert sum(on_device) == pytest.approx(device.queue.busy, rel=0.03)  # type: ignore[arg-type]


def test_short_steps_share_a_mark(device: Device) -> None:
    with device.recorder.job():
        for _ in device.recorder.steps(range(300)):
            device.train(1)
        device.finish()
    totals = device.recorder.totals()
    productive = totals.run.categories["productive"] + totals.run.categories["program_startup"]
    assert device.marker.marks < 200, "one mark for several"
    assert totals.kept == 300 and totals.clock == "device"
    assert productive == pytest.approx(device.spent, rel=0.05)


def test_with_several_processes_every_step_is_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is launched must depend on nothing but the step's number."""
    device = Device(tmp_path, monkeypatch, processes=2)
    with device.recorder.job():
        for _ in device.recorder.steps(range(300)):
            device.train(0.1)
        device.finish()
    device.recorder.shutdown()
    assert device.marker.marks == 300


def test_a_long_load_behind_a_step_that_shares_a_mark(device: Device) -> None:
    """The device was idle meanwhile: the time is the load's."""
    with device.recorder.job():
        for number in range(60):
            with device.recorder.data_loading():
                time.sleep(0.05 if number % 10 == 9 else 0)
            with device.recorder.step(number):
                device.train(1, ahead=1)
        device.finish()
    totals = device.recorder.totals()
    productive = totals.run.categories["productive"] + totals.run.categories["program_startup"]
    assert totals.run.categories["data_loading"] >= 6 * 45 * MS, dict(totals.run.categories)
    assert productive < 2 * device.queue.busy


def test_a_device_out_of_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Marks that are ready while the work before them is not: nothing is claimed from then on, which is said once."""
    device = Device(tmp_path, monkeypatch, early=15 * MS)
    with device.recorder.job():
        for _ in device.recorder.steps(range(20)):
            device.train(20)
        device.finish()
    totals = device.recorder.totals()
    assert totals.clock == "unknown" and totals.run.goodput is None
    assert sum("do not keep the order" in record.getMessage() or "does not keep" in record.getMessage()
               for record in caplog.records) == 1  # fmt: skip
    assert device.marker.closed and device.marker.marks < 20
    device.recorder.shutdown()


def test_a_transfer_for_later_is_no_disorder(
    device: Device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A batch that is still on its way to the device once does not say that marks come out of order."""
    late = device.queue.mark()
    late.end = device.queue.clock() + 60 * MS
    looks = 0

    def results() -> list[Mark]:
        nonlocal looks
        looks += 1
        return [late] if looks == 1 else [*honest(), late]

    honest = device.marker.results
    monkeypatch.setattr(device.marker, "results", results)
    with device.recorder.job():
        for _ in device.recorder.steps(range(10)):
            device.train(5)
        device.finish()
    assert device.recorder.totals().clock == "device" and not caplog.records


def test_a_marker_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Training goes on, the steps have no known end, and it is not tried for ever."""
    monkeypatch.delenv("OTEL_GOODPUT_STRICT")
    device = Device(tmp_path, monkeypatch)
    device.marker.error = RuntimeError("out of memory")
    with device.recorder.job():
        for _ in device.recorder.steps(range(20)):
            device.train(2)
        device.finish()
    totals = device.recorder.totals()
    assert totals.executed == 20 and totals.clock == "unknown" and device.marker.closed
    assert sum("out of memory" in (record.exc_text or record.getMessage()) for record in caplog.records) <= 1
    device.recorder.shutdown()


def test_figures_settle_after_the_job(device: Device) -> None:
    """Asked right after the job, what is on the device is waited for; while it runs nobody waits."""
    with device.recorder.job():
        for _ in device.recorder.steps(range(5)):
            device.train(60, ahead=5)
        began = time.monotonic()
        totals = device.recorder.totals()
        assert time.monotonic() - began < 0.06 and totals.kept < 5 and totals.lost == 0 and totals.pending > 0
    totals = device.recorder.totals()
    assert totals.kept == 5 and totals.pending == totals.lost == 0
    assert device.queue.clock() >= device.queue.free


def test_waiting_for_what_never_ends_is_bounded(device: Device) -> None:
    with device.recorder.job():
        for _ in device.recorder.steps(range(5)):
            device.train(600_000, ahead=5)
    began = time.monotonic()
    totals = device.recorder.totals()
    assert time.monotonic() - began < 4 and totals.lost == 0 and totals.pending == 5
    began = time.monotonic()
    device.recorder.totals()
    assert time.monotonic() - began < 1, "not once more"


def test_a_phase_has_what_it_dispatched(device: Device) -> None:
    """An evaluation dispatched asynchronously is the evaluation's, not the next step's."""
    with device.recorder.job():
        for number, _ in device.recorder.steps(range(8)):
            device.train(10, ahead=8)
            if number % 4 == 3:
                with device.recorder.custom("evaluation"):
                    device.train(40, ahead=8)
        device.finish()
    totals = device.recorder.totals()
    productive = totals.run.categories["productive"] + totals.run.categories["program_startup"]
    assert totals.kept == 8 and totals.clock == "device"
    assert totals.run.custom["evaluation"] == pytest.approx(80 * MS, rel=0.06)
    assert productive == pytest.approx(80 * MS, rel=0.06)


def test_a_save_inside_a_step_is_not_on_the_device(device: Device) -> None:
    """What the step dispatched before it is marked before it: the device idles while the save writes."""
    with device.recorder.job():
        saving, before = 0, device.queue.clock()
        for number in range(6):
            with device.recorder.step(number):
                device.train(10, ahead=0)
                began = device.queue.clock()
                with device.recorder.checkpoint_save(number):
                    time.sleep(0.03)
                saving += device.queue.clock() - began
        spent = device.queue.clock() - before - saving
    totals = device.recorder.totals()
    productive = totals.run.categories["productive"] + totals.run.categories["program_startup"]
    assert totals.run.categories["checkpoint_save"] == pytest.approx(saving, rel=0.03)
    assert productive == pytest.approx(spent, rel=0.05)


def test_a_load_inside_a_step_is_a_load(device: Device) -> None:
    with device.recorder.job():
        loading, before = 0, device.queue.clock()
        for number in range(8):
            with device.recorder.step(number):
                began = device.queue.clock()
                with device.recorder.data_loading():
                    time.sleep(0.03)
                loading += device.queue.clock() - began
                device.train(10, ahead=0)
        spent = device.queue.clock() - before - loading
    totals = device.recorder.totals()
    productive = totals.run.categories["productive"] + totals.run.categories["program_startup"]
    assert totals.run.categories["data_loading"] == pytest.approx(loading, rel=0.03)
    assert productive == pytest.approx(spent, rel=0.05)


def test_only_the_training_thread_marks(device: Device) -> None:
    """A mark from another thread would say nothing of what this one dispatched."""

    def prefetch() -> None:
        with device.recorder.data_loading():
            pass
        with device.recorder.custom("aside"):
            pass

    with device.recorder.job(), device.recorder.step(0):
        thread = threading.Thread(target=prefetch)
        thread.start()
        thread.join()
        assert device.marker.marks == 0
        device.train(1)

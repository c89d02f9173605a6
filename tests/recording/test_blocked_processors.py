"""A span processor that does not return: it holds up other processors, and nothing else."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from waits import until

from otel_goodput import Recorder
from otel_goodput._journal.records import decode_header

GRACE_S = 8.0
STEPS = 10


class Blocking(SpanProcessor):
    """Returns from the end of a step only once it is released."""

    def __init__(self) -> None:
        self.blocked, self.released = threading.Event(), threading.Event()
        self.names: list[str] = []

    def on_end(self, span: ReadableSpan) -> None:
        if span.name == "step":
            self.blocked.set()
            self.released.wait()
        self.names.append(span.name)


@pytest.fixture
def blocking() -> Iterator[Blocking]:
    processor = Blocking()
    yield processor
    processor.released.set()


def begin(directory: Path, blocking: Blocking) -> Recorder:
    return Recorder(
        "blocked", run_id="run", directory=directory, exporters="none", integrations="none",
        span_processors=[blocking], step_sampling=1, grace_period=GRACE_S,
    )  # fmt: skip


def heartbeat(recorder: Recorder) -> int:
    """The last one in the journal on disk, by which others know that the process is alive."""
    assert recorder.path is not None
    (path,) = recorder.path.glob("journal/*-000000.segment")
    return decode_header(path.read_bytes()).heartbeat


def test_heartbeats_and_figures_go_on_while_a_processor_blocks(tmp_path: Path, blocking: Blocking) -> None:
    recorder = begin(tmp_path, blocking)
    with recorder.job():
        with recorder.step(0):
            pass
        until(blocking.blocked.is_set)

        before = heartbeat(recorder)
        until(lambda: heartbeat(recorder) > before, lacking=lambda: "a heartbeat")
        began = time.monotonic()
        for number in range(1, STEPS):
            with recorder.step(number):
                pass
        assert time.monotonic() - began < GRACE_S, "training waits for nobody"
        assert recorder.totals().executed == recorder.report().to_json()["steps"]["executed"] == STEPS
        assert not blocking.released.is_set()
    began = time.monotonic()
    recorder.shutdown()
    assert time.monotonic() - began < GRACE_S


def test_a_flush_waits_for_a_slow_processor_and_keeps_the_order(tmp_path: Path, blocking: Blocking) -> None:
    with begin(tmp_path, blocking) as recorder, recorder.job():
        with recorder.step(0):
            pass
        until(blocking.blocked.is_set)
        with recorder.custom("eval"):
            pass
        assert not recorder.flush(0.5), "it is not exported yet"
        blocking.released.set()
        assert recorder.flush()
        assert [name for name in blocking.names if name in ("step", "eval")] == ["step", "eval"]


def test_a_job_ends_soon_although_a_processor_blocks(tmp_path: Path, blocking: Blocking) -> None:
    """What it waits for it is time of the job that the program did not spend."""
    recorder = begin(tmp_path, blocking)
    with recorder.job():
        with recorder.step(0):
            pass
        until(blocking.blocked.is_set)
        began = time.monotonic()
    took = time.monotonic() - began
    began = time.monotonic()
    threading.Event().wait(0.1)
    assert took < 4 * (time.monotonic() - began)
    blocking.released.set()
    recorder.shutdown()
    assert blocking.names.count("step") == 1

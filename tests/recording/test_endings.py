"""Not configured, disabled, shut down, forked: what is not to be recorded is not, and training never notices.

Longer than other files: it goes through every state in which nothing is to be recorded.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import warm
from exported import written
from opentelemetry import metrics as metrics_api
from opentelemetry import trace
from opentelemetry.sdk.metrics.export import (
    ConsoleMetricExporter,
    MetricExportResult,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.trace import INVALID_SPAN, StatusCode
from recorded import Recording, attributes, identity, orphans, sum_ns
from waits import until

import otel_goodput as goodput
from otel_goodput import Recorder
from otel_goodput._accounting import events as ev
from otel_goodput._journal.account import nothing
from otel_goodput._recording.phases import Phases


def train() -> list[tuple[int, str]]:
    """Everything there is, once."""
    seen: list[tuple[int, str]] = []

    @goodput.custom("eval")
    def evaluate(value: int) -> int:
        return value + 1

    @goodput.step(3)
    def one() -> int:
        return 3

    with goodput.job() as job:
        job.set_attribute("a", 1)
        with goodput.accelerator_init(), goodput.training_prep(), goodput.checkpoint_restore(1), goodput.exclusion():
            pass
        for step, batch in goodput.steps("ab", start=2):
            goodput.current_step().set_attribute("x", 1)
            goodput.observe(batch)
            seen.append((step, batch))
        with goodput.data_loading() as load:
            load.add_event("e")
        with goodput.step(4) as span:
            span.record_exception(ValueError())
            span.update_name("other")
            span.set_status(StatusCode.OK)
            assert evaluate(1) == 2
        assert one() == 3
        with goodput.checkpoint_save(4, durable=False) as save:
            save.set_attributes({"b": 2})
        save.durable()
        with goodput.elastic_wait("scale_up"), goodput.elastic_reinit():
            pass
        goodput.slice_counts(1, 2, 3)
    return seen


EXPECTED = [(2, "a"), (3, "b")]


def test_not_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    threads = set(threading.enumerate())  # those of earlier tests may end meanwhile
    assert train() == EXPECTED
    with goodput.job() as span:
        assert span is INVALID_SPAN and trace.get_current_span() is INVALID_SPAN
    assert goodput.report() is None and goodput.totals() is None and goodput.flush()
    goodput.shutdown()
    assert not list(tmp_path.iterdir()) and set(threading.enumerate()) <= threads
    with pytest.raises(KeyError), goodput.job(), goodput.step(0):
        raise KeyError


@pytest.mark.parametrize("value", ["true", "True", " TRUE "])
def test_disabled(value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OTEL_SDK_DISABLED", value)
    assert goodput.configure("x", exporters="none") is None
    assert train() == EXPECTED
    assert goodput.report() is None
    assert not list(tmp_path.iterdir())


def test_disabled_is_spelt_true(record: Callable[..., Recording], monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenTelemetry knows no other word for it."""
    monkeypatch.setenv("OTEL_SDK_DISABLED", "false")
    assert train() == EXPECTED
    recording = record()
    assert train() == EXPECTED
    assert recording.spans()


def test_everything_at_once(recording: Recording) -> None:
    assert train() == EXPECTED
    report = recording.report()
    assert report["steps"] == {"executed": 4, "kept": 2, "lost": 2} and report["disruption_reasons"] == {"rollback": 1}
    assert sum_ns(report) == round(report["elapsed_s"] * 1e9)
    assert not orphans(recording.exported())
    assert recording.spans("other") and recording.spans("other")[0].status.status_code is StatusCode.OK


# --- shutdown ---------------------------------------------------------------------------------------------------------


def test_shutdown_closes_what_is_open_and_marks_it(recording: Recording) -> None:
    phases = [goodput.job(), goodput.step(0), goodput.data_loading(), goodput.custom("eval")]
    for phase in phases:
        phase.__enter__()
    goodput.shutdown()
    spans = {span.name: span for span in recording.spans()}
    assert set(spans) == {"job", "step", "data_loading", "eval"}
    for span in spans.values():
        assert attributes(span)["goodput.interrupted"] is True
        assert span.status.status_code is StatusCode.ERROR
    assert attributes(spans["step"])["goodput.step.completed"] is False
    assert not orphans(recording.exported())
    report = recording.report()
    assert report["ended"] and report["steps"] == {"executed": 0, "kept": 0, "lost": 1}
    assert recording.report_on_disk() == report
    for phase in reversed(phases):
        phase.__exit__(None, None, None)
    assert len(recording.spans()) == 4
    assert recording.report_on_disk() == report


def test_an_interrupted_job_counts_as_an_unrequested_disruption(record: Callable[..., Recording]) -> None:
    """The process went away with its job open: what follows is no clean restart."""
    first = record()
    goodput.job().__enter__()
    goodput.shutdown()
    assert first.report()["ended"]
    second = record()
    with goodput.job():
        pass
    assert second.report()["disruption_reasons"] == {"crash": 1}


def test_after_shutdown_nothing_is_recorded(recording: Recording) -> None:
    decorated = goodput.data_loading()(lambda: 5)
    fast = goodput.step(8)
    with goodput.job():
        loop = goodput.steps(range(10))
        next(loop)
    goodput.shutdown()
    report, spans, events = recording.report(), recording.spans(), recording.events()
    assert train() == EXPECTED
    assert next(loop) == (1, 1) and next(loop) == (2, 2)
    loop.close()
    assert decorated() == 5
    with fast:
        pass
    goodput.flush()
    goodput.shutdown()
    assert recording.events() == events
    assert recording.spans() == spans
    assert recording.report() == report
    assert recording.report_on_disk() == report
    assert trace.get_current_span() is INVALID_SPAN


def test_a_loop_goes_on_when_the_recorder_is_shut_down_within_it(recording: Recording) -> None:
    seen = []
    with goodput.job():
        for step, batch in goodput.steps("abcdef"):
            with goodput.custom("x"):
                if step == 2:
                    goodput.shutdown()
            seen.append(batch)
    assert seen == list("abcdef")
    assert trace.get_current_span() is INVALID_SPAN
    report = recording.report()
    assert report["steps"] == {"executed": 2, "kept": 2, "lost": 1}
    assert recording.report_on_disk() == report


def test_shutdown_from_another_thread_and_twice(recording: Recording, caplog: pytest.LogCaptureFixture) -> None:
    with goodput.job(), goodput.step(0), goodput.custom("x") as custom:
        threads = [threading.Thread(target=goodput.shutdown) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert trace.get_current_span() is custom, "the context is that of the code, not of the recorder"
    assert trace.get_current_span() is INVALID_SPAN
    assert len(recording.spans()) == 3
    assert recording.report()["attempts"] == 1
    assert not caplog.records


def test_shutdown_in_the_midst_of_the_keepers_work(record: Callable[..., Recording]) -> None:
    """Others flush while we shut down, with many steps waiting to be summed up: each is summed up once."""
    for turn in range(8):
        recording = record(run_id=f"turn {turn}")
        stop = threading.Event()

        def flush(stop: threading.Event = stop) -> None:
            while not stop.is_set():
                goodput.flush()

        thread = threading.Thread(target=flush)
        thread.start()
        try:
            with goodput.job():
                for number in range(3000):
                    with goodput.step(number):
                        pass
            goodput.shutdown()
        finally:
            stop.set()
            thread.join()
        single = len(recording.spans("step"))
        summed = sum(attributes(span)["goodput.steps.count"] for span in recording.spans("steps"))
        assert single + summed == 3000


def test_the_account_can_be_read_after_the_end(recording: Recording) -> None:
    with goodput.job(), goodput.step(0):
        pass
    before = recording.report()
    goodput.shutdown()
    after = goodput.report()
    assert after is not None and recording.report() == before
    assert "Goodput of line" in str(after) and str(after).endswith("\n")


def test_threads_are_gone_after_the_end(record: Callable[..., Recording]) -> None:
    record()
    goodput.shutdown()
    before = {thread.name for thread in threading.enumerate()}
    for _ in range(5):
        record()
        goodput.shutdown()
    named = [thread.name for thread in threading.enumerate() if "keeper" in thread.name or "Otel" in thread.name]
    assert not named

    def left() -> set[str]:
        return {thread.name for thread in threading.enumerate()} - before - {"goodput-closer"}

    until(lambda: not left(), lacking=left)  # those that are asked to end need a moment for it


def test_descriptors_are_closed_at_the_end(record: Callable[..., Recording]) -> None:
    """Many recorders in one process, as in tests and notebooks, do not use up the process's files."""
    for _ in range(3):
        record()
        goodput.shutdown()
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(10):
        record()
        with goodput.job(), goodput.step(0):
            pass
        goodput.shutdown()
    assert len(os.listdir("/proc/self/fd")) <= before + 2  # noqa: PTH208


def test_readers_and_processors_of_the_users_own_are_flushed_and_ended(
    record: Callable[..., Recording], tmp_path: Path
) -> None:
    """What was given to configure() gets the last spans and figures before the process goes."""
    code = """
import json, sys
import otel_goodput as goodput
from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, PeriodicExportingMetricReader
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
goodput.configure("x", directory=sys.argv[1], exporters="none",
    span_processors=[BatchSpanProcessor(ConsoleSpanExporter(formatter=lambda span: span.name + " span\\n"))],
    metric_readers=[PeriodicExportingMetricReader(ConsoleMetricExporter(), export_interval_millis=3_600_000)])
with goodput.job(), goodput.step(0):
    pass
"""
    done = warm.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60, check=True)
    assert "step span" in done.stdout and "job span" in done.stdout
    assert "goodput.time" in done.stdout


def test_global_providers(tmp_path: Path) -> None:
    code = """
import json, sys
import otel_goodput as goodput
from opentelemetry import metrics, trace
recorder = goodput.configure("x", directory=sys.argv[1], exporters="none", set_global=True)
assert trace.get_tracer_provider() is recorder.tracer_provider
assert metrics.get_meter_provider() is recorder.meter_provider
"""
    warm.run([sys.executable, "-c", code, str(tmp_path)], timeout=60, check=True)


def test_providers_are_not_global_unless_asked(recording: Recording) -> None:
    assert trace.get_tracer_provider() is not recording.recorder.tracer_provider
    assert metrics_api.get_meter_provider() is not recording.recorder.meter_provider


# --- fork -------------------------------------------------------------------------------------------------------------


def in_child(work: Callable[[], None], meanwhile: Callable[[], None] = lambda: None) -> int:
    """Run `work` in a forked child; its exit status. `meanwhile` is called once it has been forked."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    meanwhile()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_child_is_silent(record: Callable[..., Recording]) -> None:
    """It writes no journal and exports nothing, whatever it calls and whatever was open."""
    recording = record(exporters="file")
    with goodput.job():
        with goodput.custom("before"):
            pass
        goodput.flush()
        with goodput.step(0):
            loop = goodput.steps(range(9), start=50)
            next(loop)

            def work() -> None:
                assert train() == EXPECTED
                next(loop)
                loop.close()
                with goodput.data_loading(), goodput.step(77):
                    pass
                goodput.flush()
                goodput.shutdown()

            events = recording.events()
            files = sorted((path.name, path.stat().st_size) for path in recording.folder.rglob("*"))
            assert in_child(work) == 0
            added = [event for event in recording.events() if event not in events and event.kind != ev.HEARTBEAT]
            assert not [event for event in added if event.kind in (ev.START, ev.END)]
            after = sorted((path.name, path.stat().st_size) for path in recording.folder.rglob("*"))
            assert [name for name, _ in after if "trace" in name] == [name for name, _ in files if "trace" in name]
            loop.close()
    goodput.shutdown()
    report = recording.report_on_disk()
    assert report["attempts"] == 1 and report["last_step"] == 50
    spans = [span["spanId"] for span in written(recording.folder)]
    assert len(spans) == len(set(spans)), "nothing is exported twice"


def test_a_flush_in_a_forked_child_waits_for_nothing(tmp_path: Path) -> None:
    """Not for a lock either that a thread of the parent held at the fork: here the reader's, which is exporting."""
    exporting, over = threading.Event(), threading.Event()

    class Slow(ConsoleMetricExporter):
        def export(self, metrics_data: Any, timeout_millis: float = 10_000, **kwargs: Any) -> MetricExportResult:
            exporting.set()
            over.wait(60)
            return MetricExportResult.SUCCESS

    reader = PeriodicExportingMetricReader(Slow(), 10)
    goodput.configure("line", directory=tmp_path, exporters="none", metric_readers=[reader])
    assert exporting.wait(30)

    def work() -> None:
        began = time.monotonic()
        assert not goodput.flush()
        assert time.monotonic() - began < 5

    try:
        assert in_child(work) == 0
    finally:
        over.set()


def test_phases_open_at_the_fork_may_end_in_the_child(recording: Recording) -> None:
    with goodput.job():
        custom, step = goodput.custom("x"), goodput.step(1)
        custom.__enter__()
        step.__enter__()

        def work() -> None:
            step.__exit__(None, None, None)
            custom.__exit__(None, None, None)
            assert trace.get_current_span() is not step

        ends = len([event for event in recording.events() if event.kind == ev.END])
        assert in_child(work) == 0
        assert len([event for event in recording.events() if event.kind == ev.END]) == ends
        step.__exit__(None, None, None)
        custom.__exit__(None, None, None)
    assert recording.report()["steps"]["executed"] == 1


def test_a_child_may_configure_a_job_of_its_own(recording: Recording, record: Callable[..., Recording]) -> None:
    def work() -> None:
        own = record(run_id="of the child")
        with goodput.job():
            for _ in goodput.steps(range(3)):
                pass
        goodput.shutdown()
        assert own.report_on_disk()["steps"]["kept"] == 3

    with goodput.job(), goodput.step(0):
        assert in_child(work) == 0
    assert recording.report()["steps"]["executed"] == 1
    assert (recording.folder.parent / "of the child").is_dir()


def _fetch(number: int) -> int:
    with goodput.data_loading(), goodput.custom("decode"):
        return number * 2


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_workers_of_a_data_loader(recording: Recording) -> None:
    with goodput.job(), multiprocessing.get_context("fork").Pool(2) as workers:
        for _, batch in goodput.steps(workers.imap(_fetch, range(20))):
            assert batch % 2 == 0
    report = recording.report()
    assert report["steps"] == {"executed": 20, "kept": 20, "lost": 0}
    assert "custom" not in report["seconds"]
    names = [span.name for span in recording.spans()]
    assert names.count("data_loading") == 21 and "decode" not in names
    assert len({identity(span) for span in recording.spans()}) == len(names)


def test_forking_in_the_midst_of_threads(recording: Recording) -> None:
    """Threads record while others fork: no child hangs on a lock that nobody holds any more."""
    stop, going, seen = threading.Event(), threading.Event(), 0

    def work() -> None:
        nonlocal seen
        while going.wait() and not stop.is_set():
            with goodput.custom("busy"), goodput.data_loading():
                pass
            seen += 1

    with goodput.job():
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(5):
                before = seen
                going.set()
                until(lambda before=before: seen > before + 100)

                def ask() -> None:
                    with goodput.custom("child"), goodput.step(5):
                        pass
                    goodput.shutdown()

                assert in_child(ask, meanwhile=going.clear) == 0
        finally:
            stop.set()
            going.set()
            for thread in threads:
                thread.join()
    report = recording.report()
    assert report["last_step"] is None
    assert sum_ns(report) == round(report["elapsed_s"] * 1e9)


def test_a_phase_that_found_the_recorder_before_its_shutdown_begins_no_job(recording: Recording) -> None:
    tracer = recording.recorder.tracer
    assert tracer is not None
    goodput.shutdown()
    late = Phases(lambda: tracer)
    with late.custom("eval"), late.step(0):
        pass
    assert tracer.jobs.none_yet and tracer.jobs.append is nothing
    assert not [span for span in recording.spans() if span.name == "job"]


class Slow(SpanProcessor):
    """Takes until it is let go to shut down; what ends is added to `ended`."""

    def __init__(self, ended: Callable[[], object] = lambda: None) -> None:
        self.begun = threading.Event()
        self.go = threading.Event()
        self.ended = ended

    def on_end(self, span: ReadableSpan) -> None:
        self.ended()

    def shutdown(self) -> None:
        self.begun.set()
        self.go.wait(60)


def test_a_second_shutdown_waits_for_the_first(tmp_path: Path) -> None:
    """Else the process would end, by whoever calls second, before the journal is written."""
    slow = Slow()
    line = Recorder("line", directory=tmp_path, exporters="none", span_processors=[slow])
    first = threading.Thread(target=line.shutdown, args=(60,))
    first.start()
    assert slow.begun.wait(60)
    begin = time.monotonic()
    line.shutdown(0.2)
    assert 0.2 <= time.monotonic() - begin < 10 and first.is_alive(), "no longer than it may take itself"
    threading.Timer(0.2, slow.go.set).start()
    line.shutdown(60)
    first.join(10)
    assert not first.is_alive() and slow.go.is_set()


def test_a_shutdown_within_a_shutdown_returns_at_once(tmp_path: Path) -> None:
    """As from a signal handler, on the thread that is shutting down."""
    calls: list[float] = []

    def again() -> None:
        begin = time.monotonic()
        line.shutdown(60)
        calls.append(time.monotonic() - begin)

    slow = Slow(lambda: again() if line.closed else None)
    slow.go.set()
    line = Recorder("line", directory=tmp_path, exporters="none", span_processors=[slow])
    job = line.job()
    job.__enter__()
    assert line.flush(), "no span waits, so that the job's is passed on by the thread that shuts down"
    line.shutdown(60)
    job.__exit__(None, None, None)
    assert calls and max(calls) < 5

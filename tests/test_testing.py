"""`otel_goodput.testing`: a run in memory that leaves nothing behind, with a clock that a test moves."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from waits import until

import otel_goodput as goodput
from otel_goodput import testing


def train(run: testing.Recording) -> None:
    with goodput.job():
        for step, batch in goodput.steps(range(3)):
            run.advance(2.0)
            assert batch == step
        with goodput.checkpoint_save(2):
            run.advance(1.0)
        with goodput.custom("eval"):
            run.advance(0.5)


def test_the_account_is_that_of_the_clock_to_the_nanosecond() -> None:
    with testing.run() as run:
        train(run)
        assert run.totals().run.productive == 6 * 10**9
    assert run.seconds() == {"productive": 6.0, "checkpoint_save": 1.0, "custom": {"eval": 0.5}}
    assert run.goodput == 6.0 / 7.5
    assert "goodput 80.00 % of 7.5 s" in str(run.report())


def test_every_step_has_its_span_with_the_times_of_the_clock() -> None:
    with testing.run(clock=testing.FakeClock(start=10**18)) as run:
        train(run)
        assert len(run.spans("step")) == 3, "also before the end"
    steps = [(span.start_time, span.end_time, (span.attributes or {})["goodput.step"]) for span in run.spans("step")]
    assert steps == [(10**18 + 2 * number * 10**9, 10**18 + 2 * (number + 1) * 10**9, number) for number in range(3)]
    assert run.span("job").end_time == 10**18 + 7_500_000_000
    with pytest.raises(AssertionError, match="3 spans are called 'step'"):
        run.span("step")


def test_metrics_are_read_from_the_same_account() -> None:
    with testing.run() as run:
        train(run)
        points = run.metrics()["goodput.time"].data.data_points
        seconds = {(point.attributes or {}).get("goodput.category"): point.value for point in points}
        assert seconds["productive"] == 6.0 and seconds["checkpoint_save"] == 1.0


def test_a_program_may_configure_what_it_likes(tmp_path: Path) -> None:
    """Nothing of it reaches a disk or the network; its own processors get the spans."""
    ours = testing.Recording().attach({})
    with testing.run() as run:
        recorder = goodput.configure(
            "mine", directory=tmp_path / "runs", exporters=["otlp", "file"], usage_interval="1s", **ours
        )
        assert recorder is run.recorder
        train(run)
    assert recorder.config.job_name == "mine" and recorder.path is None
    assert len(run.spans("step")) == 3
    assert not list(tmp_path.iterdir())
    with testing.run() as run, goodput.Recorder("own", step_sampling=1000) as own, own.job():
        run.advance(1.0)
    assert run.recorder is own and run.span("job").attributes is not None


def test_it_leaves_no_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = set(threading.enumerate())
    with testing.run() as run:
        train(run)
    until(lambda: set(threading.enumerate()) <= before, lacking=threading.enumerate)
    assert not list(tmp_path.iterdir())


def test_runs_nest_and_the_recorder_of_before_comes_back(record: Any) -> None:
    outer = record()
    with goodput.step(0):
        pass
    with testing.run() as first:
        first.advance(1.0)
        with testing.run() as second, goodput.step(7):
            second.advance(1.0)
        assert goodput.totals() is not None and not first.recorder.closed
        with goodput.step(8):
            first.advance(3.0)
    with goodput.step(1):
        pass
    assert [(span.attributes or {})["goodput.step"] for span in outer.spans("step")] == [0, 1]
    assert second.seconds() == {"productive": 1.0} and first.seconds()["productive"] == 3.0


def test_what_a_program_raises_comes_out_and_is_in_the_account() -> None:
    with pytest.raises(ZeroDivisionError), testing.run() as run, goodput.step(0):
        run.advance(1.0)
        raise ZeroDivisionError
    assert run.recorder.closed and run.seconds() == {"wasted_progress": 1.0}
    assert not run.span("step").status.is_ok


def test_wrong_options_are_refused() -> None:
    with pytest.raises(TypeError, match="step_samplin"), testing.run(step_samplin=1):  # type: ignore[call-arg]
        pass
    with pytest.raises(goodput.ConfigurationError), testing.run(windows="0.1s"):
        pass
    assert goodput.totals() is None


def test_a_preemption_calls_back_and_is_in_the_account() -> None:
    saved = []
    with testing.run() as run:
        goodput.on_preemption(lambda: saved.append(run.clock()))
        with goodput.job(), goodput.step(0):
            run.advance(5.0)
            run.preempt()
            assert saved == [testing.START + 5 * 10**9]
    (event,) = run.span("job").events
    assert (event.attributes or {})["goodput.disruption.reason"] == "preemption"


def test_a_processor_of_a_users_own_provider_takes_its_time_from_the_clock(tmp_path: Path) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    before = set(threading.enumerate())
    with testing.run() as run:
        meters = MeterProvider(shutdown_on_exit=False)
        processor = goodput.GoodputSpanProcessor(meter_provider=meters, directory=tmp_path / "runs")
        provider.add_span_processor(processor)
        tracer = provider.get_tracer("mine")
        job = tracer.start_span("job", start_time=run.clock(), attributes={"goodput.phase": "job"})
        attributes = {"goodput.phase": "step", "goodput.step": 0}
        step = tracer.start_span("step", start_time=run.clock(), attributes=attributes)
        run.advance(4.0)
        step.end(run.clock())
        job.end(run.clock())
        assert processor.totals().run.productive == 4 * 10**9
        provider.shutdown()
    until(lambda: set(threading.enumerate()) <= before, lacking=threading.enumerate)
    assert not list(tmp_path.iterdir())


def test_the_clock_does_not_go_back() -> None:
    clock = testing.FakeClock()
    with pytest.raises(ValueError, match="cannot go back"):
        clock.advance(-1)
    threads = [threading.Thread(target=lambda: [clock.advance(0.001) for _ in range(1000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clock() == testing.START + 4 * 10**9


def test_figures_are_whole_however_many_steps_came_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a job, who asks waits for the ledger for a while only."""
    monkeypatch.setattr("otel_goodput._runtime.recorder.PATIENCE_S", 0.0)
    monkeypatch.setattr("otel_goodput._runtime.recorder.SETTLED_S", 0.0)
    with testing.run(step_sampling=1000) as run:
        for _ in goodput.steps(range(3_000)):
            run.advance(0.001)
        assert run.totals().behind == 0 and run.totals().kept == 3_000
    assert run.seconds() == {"productive": 3.0}

"""Whether a run goes on or has ended, and when it was last alive, as its metrics say: also the last ones of all."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import warm
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from recorded import NS, Recording

import otel_goodput as goodput
from otel_goodput.semconv import GOODPUT_JOB_STATE, JOB_STATE, LAST_SIGN, JobState
from otel_goodput.testing import metrics

RUNNING, ENDED = {JobState.RUNNING: 1, JobState.ENDED: 0}, {JobState.RUNNING: 0, JobState.ENDED: 1}


def state(recording: Recording) -> dict[str, int]:
    """Empty where nothing is exported."""
    metric = recording.metrics().get(JOB_STATE.name)
    return {} if metric is None else _states(metric.data.data_points)


def _states(points: object) -> dict[str, int]:
    return {point.attributes[GOODPUT_JOB_STATE]: point.value for point in points}  # type: ignore[attr-defined]


def heartbeat(recording: Recording) -> int:
    """ns"""
    (point,) = recording.metrics()[LAST_SIGN.name].data.data_points
    return round(point.value * NS)  # type: ignore[union-attr]


def test_a_run_goes_on_until_it_has_ended(recording: Recording) -> None:
    assert state(recording) == {}, "there is no run yet"
    with goodput.job():
        assert state(recording) == RUNNING
        with goodput.step(0):
            before, alive_at, after = time.time_ns(), heartbeat(recording), time.time_ns()
            assert before - NS < alive_at < after + NS, "it is alive now"
            assert alive_at < heartbeat(recording)
    assert state(recording) == ENDED
    assert heartbeat(recording) == heartbeat(recording), "its end stands"
    goodput.shutdown()
    assert state(recording) == ENDED


def test_one_that_failed_has_not_ended(recording: Recording) -> None:
    with pytest.raises(OSError), goodput.job():
        raise OSError
    assert state(recording) == RUNNING
    goodput.shutdown()
    assert state(recording) == RUNNING


def test_one_that_was_left_open_has_not_ended(recording: Recording) -> None:
    goodput.job().__enter__()
    goodput.shutdown()
    assert state(recording) == RUNNING


def test_a_run_that_ended_and_goes_on_is_running_again(record: Callable[..., Recording]) -> None:
    first = record()
    with goodput.job():
        pass
    goodput.shutdown()
    ended = heartbeat(first)
    second = record()
    assert state(second) == ENDED and heartbeat(second) == ended, "nothing has gone on yet"
    with goodput.job():
        assert state(second) == RUNNING and heartbeat(second) > ended
    assert state(second) == ENDED and heartbeat(second) > ended


def test_the_attempt_after_one_that_failed_is_known_before_its_job(record: Callable[..., Recording]) -> None:
    record()
    with pytest.raises(OSError), goodput.job():
        raise OSError
    goodput.shutdown()
    second = record()
    assert state(second) == RUNNING
    assert heartbeat(second) < heartbeat(second)


def test_a_processor_tells_it_too(tmp_path: Path) -> None:
    reader = InMemoryMetricReader()
    meters, tracers = MeterProvider([reader], shutdown_on_exit=False), TracerProvider(shutdown_on_exit=False)
    tracers.add_span_processor(goodput.GoodputSpanProcessor(meter_provider=meters, job_name="x"))
    with tracers.get_tracer("mine").start_as_current_span("job", attributes={"goodput.phase": "job"}):
        assert _job_states(reader) == RUNNING
    assert _job_states(reader) == ENDED
    tracers.shutdown()


def _job_states(reader: InMemoryMetricReader) -> dict[str, int]:
    return _states(metrics(reader)[JOB_STATE.name].data.data_points)


# --- the last word of a process ---------------------------------------------------------------------------------------

JOB = """
import os, signal, sys, time
import otel_goodput as goodput
goodput.configure("told", run_id="run", directory=sys.argv[1], exporters="file")
with goodput.job():
    with goodput.step(0):
        pass
    goodput.flush()
    exec(sys.argv[2])
exec(sys.argv[3])
"""
KILL, TERM = (f"os.kill(os.getpid(), signal.{name})" for name in ("SIGKILL", "SIGTERM"))
LAST_WORDS = {
    "it ends": ("pass", "pass", 0, ENDED),
    "it leaves after its job": ("pass", "sys.exit(3)", 3, ENDED),
    "it is told to stop after its job": ("pass", f"{TERM}; time.sleep(60)", -signal.SIGTERM, ENDED),
    "it fails": ("1 / 0", "pass", 1, RUNNING),
    "it leaves in the middle": ("sys.exit(0)", "pass", 0, ENDED),
    "it is told to stop": (f"{TERM}; time.sleep(60)", "pass", -signal.SIGTERM, RUNNING),
    "it is killed": (f"{KILL}; time.sleep(60)", "pass", -signal.SIGKILL, RUNNING),
}


@pytest.mark.parametrize("how", LAST_WORDS)
def test_the_last_word(how: str, tmp_path: Path) -> None:
    inside, after, status, expected = LAST_WORDS[how]
    done = warm.run(
        [sys.executable, "-c", JOB, str(tmp_path), inside, after],
        env={**os.environ, "OTEL_GOODPUT_INTEGRATIONS": "signals"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == status, done.stderr
    (path,) = (tmp_path / "run").glob("metrics-*.jsonl")
    last = json.loads(path.read_text().splitlines()[-1])
    metrics = {
        one["name"]: one for each in last["resourceMetrics"] for two in each["scopeMetrics"] for one in two["metrics"]
    }
    points = metrics[JOB_STATE.name]["gauge"]["dataPoints"]
    assert {one["attributes"][0]["value"]["stringValue"]: int(one["asInt"]) for one in points} == expected

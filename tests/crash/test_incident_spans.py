"""Spans of incidents that a killed job has not exported are exported once more: by the next attempt, or by hand."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import warm
from exporters.backends import Received, grpc_backend
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from waits import until

from otel_goodput._journal.incidents import incidents_of
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._recording.ids import job_span_context
from otel_goodput._recording.incident_spans import incident_key

PROGRAM = """
import sys, time
import otel_goodput as goodput
goodput.configure("job", directory=sys.argv[1], incidents="0.1s", watchdog="off", exporters="otlp", integrations="none")
with goodput.job():
    for step in range(int(sys.argv[2]), int(sys.argv[2]) + 60):
        with goodput.step(step):
            time.sleep(1.5 if step == 30 else 0.01)
    if step < 100:
        with goodput.data_loading():
            time.sleep(60)
goodput.shutdown()
"""


class Job:
    def __init__(self, folder: Path, received: Received) -> None:
        self.received, self.runs = received, folder / "runs"
        self.run = RunDirectory(self.runs / "job")
        self.program = folder / "program.py"
        self.program.write_text(PROGRAM)

    def start(self, first: int, delay_ms: int) -> warm.Process:
        bounds = {"OTEL_EXPORTER_OTLP_ENDPOINT": self.received.endpoint, "OTEL_BSP_SCHEDULE_DELAY": str(delay_ms)}
        command = [sys.executable, str(self.program), str(self.runs), str(first)]
        return warm.Process(command, env={**os.environ, **bounds})

    def killed(self, delay_ms: int) -> None:
        """An attempt with an incident that is over, and one that it leaves open."""
        process = self.start(0, delay_ms)
        until(lambda: [one.ended is None for _, one in incidents_of(self.run, {})] == [False, True], 30)
        if delay_ms < 1000:
            until(lambda: len(self.incidents()) == 1, 30)
        process.kill()
        process.wait(30)

    def incidents(self) -> list[Span]:
        return [span for span in self.received.spans() if span.name == "incident"]

    def next(self) -> list[Span]:
        """The incidents of which another attempt exports spans."""
        before = len(self.incidents())
        assert self.start(100, 60_000).wait(60) == 0
        return self.incidents()[before:]

    def check(self, spans: list[Span], *numbers: int) -> None:
        keys = [incident_key(("job", 0, 0), number) for number in numbers]
        job = job_span_context("job", 0)
        assert sorted(int.from_bytes(span.span_id, "big") for span in spans) == sorted(keys)
        for span in spans:
            assert (int.from_bytes(span.trace_id, "big"), int.from_bytes(span.parent_span_id, "big")) == (
                job.trace_id,
                job.span_id,
            )
            died = any(one.key == "goodput.interrupted" for one in span.attributes)
            assert died == (int.from_bytes(span.span_id, "big") == incident_key(("job", 0, 0), 2))

    def attempts(self) -> list[int]:
        """Of the resources of incidents."""
        return [
            attribute.value.int_value
            for request in self.received.traces
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
            if span.name == "incident"
            for attribute in resource.resource.attributes
            if attribute.key == "goodput.attempt"
        ]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    with grpc_backend() as received:
        yield Job(tmp_path, received)


@pytest.mark.release
def test_the_next_attempt_exports_what_was_open_or_waited(job: Job) -> None:
    job.killed(60_000)
    assert not job.incidents()
    job.check(job.next(), 1, 2)
    assert job.attempts() == [0, 0]
    assert job.next() == []


@pytest.mark.release
def test_what_was_exported_is_not_exported_again(job: Job) -> None:
    job.killed(50)
    job.check(job.incidents(), 1)
    job.check(job.next(), 2)
    assert job.next() == []


@pytest.mark.release
def test_an_attempt_that_dies_at_once_leaves_them_to_the_next(job: Job) -> None:
    job.killed(60_000)
    process = job.start(100, 60_000)
    until(lambda: job.run.attempts(0) == [0, 1], 30)
    process.kill()
    process.wait(30)
    job.check(job.next(), 1, 2)


@pytest.mark.release
def test_recovered_by_hand(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.killed(60_000)
    command: list[Any] = [sys.executable, "-m", "otel_goodput", "recover", job.runs, "--exporters", "otlp"]
    environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": job.received.endpoint}
    for _ in range(2):
        done = warm.run(command, env=environment, capture_output=True, text=True, timeout=60)
        assert not done.returncode, done.stderr
        job.check(job.incidents(), 1, 2)
    assert job.next() == []

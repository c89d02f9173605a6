"""Durations wait to be recorded: the SDK takes longer for them than the account for their events."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import ExemplarFilter, MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from waits import until

import otel_goodput as goodput
from otel_goodput._live.keeper import HOLD_S, PAUSE_S

STEPS = 16


class Watched(ExemplarFilter):
    """What the SDK asks about each measurement: notes who takes it and when, and takes its time."""

    def __init__(self) -> None:
        self.durations: list[tuple[str, float, float]] = []

    def should_sample(self, value: float, time_unix_nano: int, attributes: Any, context: Any) -> bool:
        if attributes is None:  # a step; all others have some, if only an empty dictionary
            began = time.perf_counter()
            while time.perf_counter() < began + 3 * HOLD_S:
                pass
            self.durations.append((threading.current_thread().name, began, time.perf_counter()))
        return False


class Job:
    """A job that is measured by a provider of the user's."""

    def __init__(self, directory: Path) -> None:
        self.watched, self.reader = Watched(), InMemoryMetricReader()
        provider = MeterProvider([self.reader], exemplar_filter=self.watched, shutdown_on_exit=False)
        self.recorder = goodput.Recorder(
            "job", directory=directory, exporters="none", integrations="none", meter_provider=provider
        )
        self.steps = 0

    def run(self) -> None:
        for _ in self.recorder.steps(range(STEPS), start=self.steps):
            pass
        self.steps += STEPS

    def in_histogram(self) -> int:
        data = self.reader.get_metrics_data()
        assert data is not None
        metrics = data.resource_metrics[0].scope_metrics[0].metrics
        (points,) = [metric.data.data_points for metric in metrics if metric.name == "goodput.step.duration"]
        return sum(getattr(point, "count", 0) for point in points)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path)
    with job.recorder.job():
        yield job
    job.recorder.shutdown()


def test_a_question_does_not_record(job: Job) -> None:
    """A collection of the metrics does, and has what the account has."""
    mine = threading.current_thread().name
    for _ in range(20):  # the keeper may come first
        job.run()
        assert job.recorder.totals().kept == job.steps
        assert mine not in [thread for thread, *_ in job.watched.durations]
        assert job.in_histogram() == len(job.watched.durations) == job.steps
        if mine in [thread for thread, *_ in job.watched.durations]:
            return
    pytest.fail("the keeper always comes first")


def test_the_keeper_pauses_while_it_records(job: Job) -> None:
    """Whoever waits for the interpreter gets it after each, if one takes longer than it may be held."""
    for _ in range(20):  # on a busy machine, pauses come late, and the keeper gives them up
        before = len(job.watched.durations)
        job.run()
        until(lambda: len(job.watched.durations) == job.steps)
        taken = job.watched.durations[before:]
        pauses = [begin - end for (_, _, end), (_, begin, _) in pairwise(taken)]
        if statistics.median(pauses) >= PAUSE_S:
            return
    pytest.fail(f"no pauses: {pauses}")


def test_others_record_if_too_many_wait(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded."""
    monkeypatch.setattr("otel_goodput._journal.account.WAITING", STEPS)
    with job.recorder._keeper._pass:  # the keeper waits
        for _ in range(4):
            job.run()
        assert job.recorder.totals().kept == job.steps
        assert len(job.watched.durations) >= job.steps - STEPS
    assert job.in_histogram() == job.steps

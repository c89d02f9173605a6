"""Parts of a step: seen in trace, journal and histogram, and no badput."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import warm
from exported import spans_of
from recorded import Recording, attributes, identity, parent, sum_ns

import otel_goodput as goodput
from otel_goodput._accounting import events as ev
from otel_goodput.semconv import PHASES, Phase

PART = PHASES.index(Phase.PART)


def spin(ns: int) -> None:
    until = time.perf_counter_ns() + ns
    while time.perf_counter_ns() < until:
        pass


def test_they_nest_under_their_step_and_each_other(recording: Recording) -> None:
    with goodput.job():
        for _ in goodput.steps(range(2)):
            with goodput.part("forward"):
                with goodput.part("attention") as inner:
                    inner.set_attribute("layer", 3)
                with goodput.custom("eval"):
                    pass
            with goodput.part("backward"):
                pass
    steps = [identity(span) for span in recording.spans("step")]
    forward = [identity(span) for span in recording.spans("forward")]
    assert [parent(span) for span in recording.spans("forward")] == steps
    assert [parent(span) for span in recording.spans("backward")] == steps
    assert [parent(span) for span in recording.spans("attention")] == forward
    assert [parent(span) for span in recording.spans("eval")] == forward
    first = recording.spans("attention")[0]
    assert attributes(first) == {
        "goodput.phase": "part",
        "goodput.step": 0,
        "goodput.part.name": "attention",
        "layer": 3,
    }


def test_their_time_is_the_steps(recording: Recording) -> None:
    with goodput.job():
        for _ in range(3):
            with goodput.step(0), goodput.part("forward"):
                spin(1_000_000)
        with goodput.step(1):
            with goodput.part("forward"):
                spin(2_000_000)
            with goodput.data_loading():
                spin(2_000_000)
    report = recording.report()
    assert set(report["seconds"]) <= {"productive", "data_loading", "wasted_progress", "program_startup", "other"}
    assert report["seconds"]["data_loading"] >= 0.002
    assert sum_ns(report) == round(report["elapsed_s"] * 1e9)
    assert recording.report_on_disk()["seconds"] == report["seconds"]


def test_the_journal_and_the_histogram_have_every_one(recording: Recording) -> None:
    with goodput.job():
        for _ in goodput.steps(range(300)):
            with goodput.part("forward"):
                pass
            with goodput.part("backward"):
                pass
    events = [(event.kind, event.step, event.name) for event in recording.events() if event.phase == PART]
    assert len(events) == 300 * 4
    assert events[:2] == [(ev.START, 0, "forward"), (ev.END, 0, "")]
    recording.recorder.flush()
    points = recording.metrics()["goodput.part.duration"].data.data_points
    counts = {(point.attributes or {})["goodput.part.name"]: point.count for point in points}  # type: ignore[union-attr]
    assert counts == {"forward": 300, "backward": 300}
    others = recording.metrics()["goodput.phase.duration"].data.data_points
    assert {(point.attributes or {})["goodput.phase"] for point in others} == {"data_loading", "job"}


def test_they_are_thinned_with_their_step(recording: Recording) -> None:
    with goodput.job():
        for _ in goodput.steps(range(300)):
            with goodput.part("forward"):
                pass
    steps = {identity(span): attributes(span)["goodput.step"] for span in recording.spans("step")}
    parts = recording.spans("forward")
    assert [attributes(span)["goodput.step"] for span in parts][:100] == list(range(100))
    exported = [span for span in parts if (parent(span) or 0) in steps]
    assert len(exported) == len(parts) < 150


def test_as_a_decorator(record: Callable[..., Recording]) -> None:
    """Applied before configure(), as in a module of its own."""

    @goodput.part("forward")
    def forward(value: int) -> int:
        return value + 1

    @goodput.part("later")
    async def later() -> int:
        await asyncio.sleep(0)
        return 5

    assert forward(1) == 2
    recording = record()

    @goodput.part("after")
    def after() -> None:
        assert forward(1) == 2

    with goodput.job():
        for _ in goodput.steps(range(2)):
            after()
            assert asyncio.run(later()) == 5
    assert [span.name for span in recording.spans() if span.name not in ("step", "data_loading", "job")] == [
        "forward",
        "after",
        "later",
    ] * 2


def test_outside_of_a_step(recording: Recording) -> None:
    with goodput.job(), goodput.part("warm-up"):
        pass
    span = recording.span("warm-up")
    assert attributes(span) == {"goodput.phase": "part", "goodput.part.name": "warm-up"}
    assert parent(span) == identity(recording.span("job"))


def test_a_part_on_another_thread_is_in_the_background(recording: Recording) -> None:
    def work() -> None:
        with goodput.part("prefetch"):
            pass

    with goodput.job(), goodput.step(0):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert attributes(recording.span("prefetch"))["goodput.blocking"] is False


def test_that_fails(recording: Recording) -> None:
    with goodput.job(), pytest.raises(KeyError), goodput.step(0), goodput.part("forward"):
        raise KeyError
    assert attributes(recording.span("forward"))["error.type"] == "KeyError"


def test_of_a_dead_attempt_it_is_exported_by_the_next(record: Callable[..., Recording], tmp_path: Path) -> None:
    script = """
import os, sys
import otel_goodput as goodput
goodput.configure("line", run_id="run", directory=sys.argv[1], exporters="none")
goodput.job().__enter__()
goodput.step(0).__enter__()
goodput.part("forward").__enter__()
os._exit(1)
"""
    warm.run([sys.executable, "-c", script, str(tmp_path / "runs")], check=False)
    second = record(exporters="file")
    goodput.shutdown()
    (line,) = (line for path in second.folder.glob("traces-*") for line in path.read_text().splitlines())
    spans = {span["name"]: span for span in spans_of([line])}
    part = spans["forward"]
    values = {one["key"]: one["value"] for one in part["attributes"]}
    assert values["goodput.part.name"] == {"stringValue": "forward"} and values["goodput.interrupted"]["boolValue"]
    assert part["parentSpanId"] == spans["step"]["spanId"]

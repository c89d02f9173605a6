"""The loop `steps()`: what each step lasts, and every way to leave the loop."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from opentelemetry import trace
from opentelemetry.trace import INVALID_SPAN
from recorded import Recording, attributes, identity, parent, sum_ns

import otel_goodput as goodput
from otel_goodput._accounting import events as ev


def numbers(recording: Recording) -> list[tuple[int, bool]]:
    """The exported steps: number and whether it completed."""
    return [
        (attributes(span)["goodput.step"], attributes(span).get("goodput.step.completed", True))
        for span in recording.spans("step")
    ]


def test_each_item_is_a_load_and_a_step(recording: Recording) -> None:
    with goodput.job():
        pairs = list(goodput.steps("abc", start=5))
    assert pairs == [(5, "a"), (6, "b"), (7, "c")]
    assert [span.name for span in recording.spans()] == ["data_loading", "step"] * 3 + ["data_loading", "job"]
    for load, step in zip(recording.spans("data_loading"), recording.spans("step"), strict=False):
        assert load.end_time == step.start_time
        assert attributes(load)["goodput.step"] == attributes(step)["goodput.step"]
    for step, load in zip(recording.spans("step"), recording.spans("data_loading")[1:], strict=True):
        assert step.end_time == load.start_time, "a step lasts until the next item is asked for"
    assert numbers(recording) == [(5, True), (6, True), (7, True)]
    assert recording.report()["steps"] == {"executed": 3, "kept": 3, "lost": 0}


def test_the_step_is_a_plain_int_and_its_span_is_the_current_one(recording: Recording) -> None:
    with goodput.job():
        for step, _ in goodput.steps(range(2), start=10):
            assert type(step) is int and step in (10, 11)
            span = goodput.current_step()
            span.set_attribute("loss", 0.5)
            span.set_attributes({"lr": 1e-4})
            span.add_event("clipped", {"norm": 3.0})
            span.record_exception(ValueError("skipped a batch"))
            assert span is trace.get_current_span()
            with goodput.custom("eval"):
                pass
            with goodput.checkpoint_save(step):
                pass
    for span in recording.spans("step"):
        assert attributes(span)["loss"] == 0.5 and attributes(span)["lr"] == 1e-4
        assert [event.name for event in span.events] == ["clipped", "exception"]
    steps = [identity(span) for span in recording.spans("step")]
    assert [parent(span) for span in recording.spans("eval")] == steps
    assert [parent(span) for span in recording.spans("checkpoint_save")] == steps
    assert [attributes(span)["goodput.step"] for span in recording.spans("checkpoint_save")] == [10, 11]


def assert_kept(recording: Recording, *counts: int) -> None:
    """A step that a loop was left in has done its work or never began, as long as it took; it is not lost."""
    steps = recording.report()["steps"]
    assert steps["executed"] == steps["kept"] in counts and steps["lost"] == 0


def test_left_by_break(recording: Recording) -> None:
    with goodput.job():
        for step, _ in goodput.steps(range(10)):
            if step == 3:
                break
        assert trace.get_current_span() is not recording.spans("step")[-1]
        with goodput.custom("after"):
            pass
        with goodput.step(9):
            pass
    assert numbers(recording) == [(0, True), (1, True), (2, True), (3, False), (9, True)]
    job = identity(recording.span("job"))
    assert parent(recording.span("after")) == job, "later spans do not nest under a dead step"
    assert parent(recording.spans("step")[-1]) == job
    assert_kept(recording, 4, 5)


def test_left_by_an_exception(recording: Recording) -> None:
    error = FloatingPointError("loss is nan")

    def train() -> None:
        for step, _ in goodput.steps(range(10)):
            if step == 2:
                raise error

    with goodput.job():
        with pytest.raises(FloatingPointError) as caught:
            train()
        assert caught.value is error
        del caught
        error.__traceback__ = None
        gc.collect()
        with goodput.custom("after"):
            pass
    assert numbers(recording) == [(0, True), (1, True), (2, False)]
    assert parent(recording.span("after")) == identity(recording.span("job"))
    assert recording.report()["steps"] == {"executed": 2, "kept": 2, "lost": 1}


def test_an_exception_in_the_loop_is_over_when_it_is_handled(recording: Recording) -> None:
    """Handled in the same function, while the traceback still holds its frame."""
    with goodput.job():
        try:
            for step, _ in goodput.steps(range(10)):
                if step == 1:
                    raise KeyError("x")
        except KeyError:
            with goodput.custom("handler"):
                pass
        with goodput.custom("after"):
            pass
    job = identity(recording.span("job"))
    assert parent(recording.span("handler")) == parent(recording.span("after")) == job
    assert numbers(recording) == [(0, True), (1, False)]


def test_left_by_return_from_a_nested_loop(recording: Recording) -> None:
    def train() -> str:
        for epoch in range(3):
            for step, _ in goodput.steps(range(4), start=epoch * 4):
                if step == 6:
                    return "enough"
        return "never"

    with goodput.job():
        assert train() == "enough"
    assert numbers(recording) == [(step, step != 6) for step in range(7)]
    assert_kept(recording, 6, 7)


def test_an_iterator_that_is_held(recording: Recording) -> None:
    """Each loop over it ends its own last step, and the next loop goes on with the next step."""
    with goodput.job():
        held = goodput.steps(range(10))
        for step, _ in held:
            time.sleep(0.01)
            if step == 1:
                break
        assert recording.report()["in_flight_step"] is None
        for step, _ in held:
            if step == 3:
                break
            time.sleep(0.01)
        held.close()
        assert recording.report()["in_flight_step"] is None
        assert trace.get_current_span().get_span_context().span_id not in {identity(span) for span in recording.spans()}
        held.close()
        with goodput.custom("after"):
            pass
        assert next(held) == (4, 4)
        held.close()
    assert [number for number, _ in numbers(recording)] == [0, 1, 2, 3, 4]
    assert parent(recording.span("after")) == identity(recording.span("job"))


def test_an_iterator_held_beyond_the_job(recording: Recording) -> None:
    held = goodput.steps(range(10))
    with goodput.job():
        for step, _ in held:
            if step == 1:
                break
    assert trace.get_current_span() is INVALID_SPAN
    report = recording.report()
    assert report["in_flight_step"] is None
    assert_kept(recording, 1, 2)
    assert report["ended"]
    held.close()
    assert trace.get_current_span() is INVALID_SPAN
    assert recording.report()["seconds"] == report["seconds"]
    assert numbers(recording) == [(0, True), (1, False)]


def test_as_a_context_manager(recording: Recording) -> None:
    with goodput.job(), goodput.steps(range(10)) as steps:
        for step, _ in steps:
            if step == 2:
                break
        with goodput.custom("still inside"):
            pass
    assert numbers(recording) == [(0, True), (1, True), (2, False)]


def test_the_loader_fails(recording: Recording) -> None:
    def batches() -> Iterator[int]:
        yield 0
        yield 1
        raise ConnectionError("storage is gone")

    with goodput.job():
        with pytest.raises(ConnectionError, match="storage is gone"):
            for _ in goodput.steps(batches()):
                pass
        with goodput.custom("after"):
            pass
    assert numbers(recording) == [(0, True), (1, True)], "the steps had completed when the loader was asked"
    assert len(recording.spans("data_loading")) == 3
    assert parent(recording.span("after")) == identity(recording.span("job"))
    failures = [
        point
        for point in recording.metrics()["goodput.phase.duration"].data.data_points
        if (point.attributes or {})["goodput.phase"] == "data_loading"
    ]
    assert sum(point.count for point in failures) == 3  # type: ignore[union-attr]


def test_an_exhausted_iterator_stays_so(recording: Recording) -> None:
    with goodput.job():
        steps = goodput.steps([])
        for _ in range(3):
            with pytest.raises(StopIteration):
                next(steps)
    assert recording.report()["steps"]["executed"] == 0
    assert trace.get_current_span() is INVALID_SPAN


def test_it_asks_its_source_no_more_than_the_loop_does(recording: Recording) -> None:
    numbers = []

    def batches() -> Iterator[int]:
        for number in range(100):
            numbers.append(number)
            yield number

    with goodput.job():
        for step, _ in goodput.steps(batches()):
            assert numbers == list(range(step + 1))
            if step == 5:
                break


def test_something_that_is_no_iterable(recording: Recording) -> None:
    with pytest.raises(TypeError, match="iter"):
        goodput.steps(5)  # type: ignore[arg-type]


def test_steps_may_be_numbered_by_numpy(recording: Recording) -> None:
    with goodput.job():
        assert [step for step, _ in goodput.steps("ab", start=np.int32(40))] == [40, 41]  # type: ignore[arg-type]
        with goodput.step(np.array(40)):  # type: ignore[arg-type]
            pass
    assert [number for number, _ in numbers(recording)] == [40, 41, 40]


def test_going_back_in_the_same_process(recording: Recording) -> None:
    with goodput.job():
        for step, _ in goodput.steps(range(8)):
            if step == 6:
                break
        for _ in goodput.steps(range(3), start=4):
            pass
    report = recording.report()
    # 4 and 5 are lost, and the one in progress if it did a step's work before the loop was left.
    begun = report["steps"]["executed"] - 9
    assert begun in (0, 1) and report["steps"] == {"executed": 9 + begun, "kept": 7, "lost": 2 + begun}
    assert report["disruption_reasons"] == {"rollback": 1}
    assert report["max_productive_step"] == 6
    assert sum_ns(report) == round(report["elapsed_s"] * 1e9)
    (disruption,) = report["disruption_list"]
    assert (disruption["from_step"], disruption["to_step"]) == (5 + begun, 4)


def test_steps_before_configure_run_unchanged() -> None:
    pairs: list[Any] = []
    for step, batch in goodput.steps("ab", start=3):
        goodput.current_step().set_attribute("x", 1)
        goodput.observe(batch)
        pairs.append((step, batch))
    assert pairs == [(3, "a"), (4, "b")]


def test_the_journal_has_every_boundary(recording: Recording) -> None:
    with goodput.job():
        for _ in goodput.steps(range(250)):
            pass
    events = [(event.kind, event.step) for event in recording.events() if event.phase == 4]
    starts = [step for kind, step in events if kind == ev.START]
    ends = [step for kind, step in events if kind == ev.END]
    assert starts == ends == list(range(250)), "the thinned ones too"

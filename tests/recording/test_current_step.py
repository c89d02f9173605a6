"""What a loop hands to its body is the user's alone; the open step is found by functions, wherever they are called."""

from __future__ import annotations

import asyncio
import logging
import pickle
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import yaml
from opentelemetry import trace
from recorded import Recording, attributes

import otel_goodput as goodput


def fetch(number: int) -> int:
    return number


@pytest.mark.parametrize("start", [None, 5, np.int64(5), True])
def test_numbers_are_plain_ints(start: Any, recording: Recording) -> None:
    with goodput.job():
        numbers = [step for step, _ in goodput.steps(range(3), start=start)]
        numbers += [step for step, _ in goodput.steps(range(3))]
    first = int(start or 0)
    assert {type(number) for number in numbers} == {int} and numbers == list(range(first, first + 6))
    assert pickle.dumps(numbers, protocol=2) == pickle.dumps(list(range(first, first + 6)), protocol=2)
    assert yaml.safe_load(yaml.safe_dump({"step": numbers[-1]})) == {"step": first + 5}


def test_batches_and_results_are_the_users_own(recording: Recording) -> None:
    batches = [object(), object()]
    results = [object(), object()]
    train = goodput.traced_step(iter(results).__next__)
    with goodput.job():
        assert [batch for _, batch in goodput.steps(batches)] == batches
        assert list(goodput.loading(batches)) == batches
        assert [train(), train()] == results


DECORATORS: dict[str, Callable[[], Callable[[Any], Any]]] = {
    "part": lambda: goodput.part("forward"),
    "step": lambda: goodput.step(3),
    "data_loading": lambda: goodput.data_loading(),
    "custom": lambda: goodput.custom("eval"),
    "checkpoint_save": lambda: goodput.checkpoint_save(3),
}


@pytest.mark.parametrize("name", DECORATORS)
def test_a_decorated_function_can_be_sent_to_a_worker(name: str, recording: Recording) -> None:
    """Ray, joblib and submitit pickle functions by value: with all that they hold."""

    def held(function: Any) -> list[Any]:
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        inner = [one for cell in cells if hasattr(cell, "__closure__") for one in held(cell)]
        return [*inner, *(cell for cell in cells if not hasattr(cell, "__closure__"))]

    decorated = DECORATORS[name]()(fetch)
    assert pickle.loads(pickle.dumps(held(decorated))), "no lock, file or recorder comes along"
    with goodput.job(), goodput.step(0):
        assert decorated(7) == 7


def test_the_open_step_is_found_inside_other_spans(recording: Recording) -> None:
    own = trace.get_tracer("mine")
    with goodput.job():
        for step, _ in goodput.steps(range(2)):
            with goodput.part("forward"), goodput.custom("log"), own.start_as_current_span("mine"):
                goodput.current_step().set_attribute("at", step)
        with goodput.step(2) as span:
            assert goodput.current_step() is span
    assert [attributes(span).get("at") for span in recording.spans("step")] == [0, 1, None]


def test_it_is_the_callers_step_and_else_the_training_threads(recording: Recording) -> None:
    current: dict[str, object] = {}

    def ask(name: str) -> None:
        current[name] = goodput.current_step()

    def evaluate() -> None:
        with goodput.step(70, blocking=False) as mine:
            ask("of its own")
            current["its own"] = mine

    async def alongside(over: asyncio.Event) -> None:
        ask("task inside")
        await over.wait()
        ask("task after")

    async def train() -> None:
        over = asyncio.Event()
        with goodput.step(1) as span:
            current["open"] = span
            task = asyncio.create_task(alongside(over))
            await asyncio.to_thread(ask, "in a thread of the task")
            await asyncio.sleep(0)
        with goodput.step(2):
            over.set()
            await task

    with goodput.job():
        with goodput.step(0) as span:
            for thread in (threading.Thread(target=ask, args=("in a thread",)), threading.Thread(target=evaluate)):
                thread.start()
                thread.join()
            assert current["in a thread"] is span
            assert current["of its own"] is current["its own"] is not span
        asyncio.run(train())
    assert current["task inside"] is current["in a thread of the task"] is current["open"]
    assert not current["task after"].is_recording(), "its step is over, and the open one is another's"  # type: ignore[attr-defined]


def test_outside_of_a_step_it_does_nothing_and_says_so_once(
    recording: Recording, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), goodput.job():
        for _ in range(3):
            goodput.observe(object())
            goodput.current_step().observe(object())
            goodput.current_step().set_attribute("x", 1)
    (record,) = [record for record in caplog.records if "outside of a step" in record.getMessage()]
    assert "for step, batch in goodput.steps(loader):" in record.getMessage()


def test_each_recorder_has_its_own(recording: Recording, record: Callable[..., Recording]) -> None:
    other = record(goodput.Recorder, job_name="other", run_id="other").recorder
    with goodput.job(), other.job(), goodput.step(0) as outer, other.step(5) as inner:
        assert goodput.current_step() is outer
        assert other.current_step() is inner


@pytest.mark.jax
def test_an_output_observed_in_a_loop_is_that_steps(recording: Recording) -> None:
    import jax.numpy as jnp

    with goodput.job():
        for step, _ in goodput.steps(range(5)):
            goodput.observe(jnp.ones(3) * step)
    goodput.shutdown()
    assert recording.report_on_disk()["steps"]["kept"] == 5
    assert all("goodput.step.device_duration" in attributes(span) for span in recording.spans("step"))

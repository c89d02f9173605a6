"""Phases of other asyncio tasks and threads during the steps: they own no time of a step, and are traced."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from recorded import Recording

import otel_goodput as goodput

STEPS = 4
TURN_S = 0.05


class Stopwatch:
    """The witness: the time that the steps took."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def work(self) -> None:
        begun = time.perf_counter()
        time.sleep(TURN_S)
        self.seconds += time.perf_counter() - begun


async def rollout(seconds: float = TURN_S) -> None:
    with goodput.custom("rollout"):
        await asyncio.sleep(seconds)


async def one_step_off(watch: Stopwatch) -> None:
    """The next batch is generated while this one is trained on."""
    ahead = asyncio.create_task(rollout())
    await ahead
    for number in range(STEPS):
        ahead = asyncio.create_task(rollout())
        with goodput.step(number):
            await asyncio.to_thread(watch.work)
        await ahead


async def generated_into_a_queue(watch: Stopwatch) -> None:
    """A rollout begins whenever there is room, also between steps, and goes on through several of them."""
    batches: asyncio.Queue[int] = asyncio.Queue(1)

    async def generate() -> None:
        for number in range(STEPS):
            await rollout(1.5 * TURN_S)
            await batches.put(number)

    generating = asyncio.create_task(generate())
    for number in range(STEPS):
        await batches.get()
        with goodput.step(number):
            await asyncio.to_thread(watch.work)
    await generating


async def evaluated_in_the_background(watch: Stopwatch) -> None:
    with goodput.step(0):
        evaluation = asyncio.create_task(rollout(2 * TURN_S))
        await asyncio.to_thread(watch.work)
    for _ in goodput.steps(range(STEPS - 1), start=1):
        await asyncio.to_thread(watch.work)
    await evaluation


async def loaded_in_a_task(watch: Stopwatch) -> None:
    async def load() -> None:
        with goodput.data_loading():
            await asyncio.sleep(TURN_S)

    for number in range(STEPS):
        loading = asyncio.create_task(load())
        with goodput.step(number):
            await asyncio.to_thread(watch.work)
        await loading


async def saved_in_a_task(watch: Stopwatch) -> None:
    async def save(number: int) -> None:
        with goodput.checkpoint_save(number):
            await asyncio.sleep(TURN_S)

    async with asyncio.Semaphore(1):
        saving: asyncio.Task[None] | None = None
        for number in range(STEPS):
            with goodput.step(number):
                await asyncio.to_thread(watch.work)
            if saving is not None:
                await saving
            saving = asyncio.create_task(save(number))
            await asyncio.sleep(0)  # the save begins before the next step does
        assert saving is not None
        await saving


CONCURRENT = [one_step_off, generated_into_a_queue, evaluated_in_the_background, loaded_in_a_task, saved_in_a_task]


@pytest.mark.parametrize("train", CONCURRENT, ids=lambda train: train.__name__)
def test_phases_of_other_tasks_own_no_time_of_a_step(
    train: Callable[[Stopwatch], Awaitable[None]], recording: Recording
) -> None:
    watch = Stopwatch()

    async def main() -> None:
        with goodput.job():
            await train(watch)

    asyncio.run(main())
    report = recording.report()
    seconds = report["seconds"]
    assert report["steps"]["kept"] == STEPS
    assert seconds["productive"] + seconds.get("program_startup", 0) >= 0.95 * watch.seconds
    names = {span.name for span in recording.spans()} - {"job", "step"}
    assert names and names <= {"rollout", "data_loading", "checkpoint_save"}, "they are traced"
    recording.recorder.shutdown()
    assert recording.report_on_disk()["seconds"] == recording.report()["seconds"]


def test_phases_of_the_task_of_the_steps_own_their_time(recording: Recording) -> None:
    async def main() -> None:
        with goodput.step(0), goodput.custom("eval"):
            await asyncio.sleep(TURN_S)
        with goodput.custom("eval"):
            await asyncio.sleep(TURN_S)
        await asyncio.create_task(rollout())

    with goodput.job():
        asyncio.run(main())
    seconds = recording.report()["seconds"]
    assert sum(seconds["custom"].values()) >= 3 * TURN_S * 0.95, "no step is open while the rollout goes on"


def test_loops_in_several_threads(recording: Recording) -> None:
    """The thread that opened the first step trains; the others are in the background."""
    watch = Stopwatch()
    first, others = threading.Event(), []

    def evaluate() -> None:
        first.wait(20)
        for _ in goodput.steps(range(STEPS), start=100):
            with goodput.custom("eval"):
                time.sleep(TURN_S)

    with goodput.job():
        for _ in range(2):
            others.append(threading.Thread(target=evaluate))
            others[-1].start()
        for number, _ in goodput.steps(range(STEPS)):
            first.set()
            watch.work()
            assert goodput.current_step().is_recording() and number < STEPS
        for thread in others:
            thread.join()
    report = recording.report()
    seconds = report["seconds"]
    assert report["steps"]["kept"] == STEPS and report["max_productive_step"] == STEPS - 1
    assert seconds["productive"] + seconds.get("program_startup", 0) >= 0.95 * watch.seconds
    assert len(recording.spans("eval")) == 2 * STEPS


IMPORTING = """
import sys, types
import otel_goodput as goodput
goodput.configure("job", directory=sys.argv[1], exporters="none", integrations="none")
sys.modules.pop("asyncio", None)
sys.modules["asyncio"] = types.ModuleType("asyncio")  # as it is while another thread has begun to import it
with goodput.job():
    for number in goodput.steps(range(3)):
        with goodput.data_loading(), goodput.custom("inside"), goodput.part("part"):
            pass
    with goodput.step(3), goodput.step(4):
        pass
del sys.modules["asyncio"]
goodput.shutdown()
print("trained")
"""


def test_another_thread_is_just_importing_asyncio(tmp_path: Path) -> None:
    command = [sys.executable, "-c", IMPORTING, str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env={**os.environ, "OTEL_GOODPUT_STRICT": ""}
    )
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    assert "AttributeError" not in done.stderr

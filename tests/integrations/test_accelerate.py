"""Loops that are written by hand with an Accelerator. Against a stand-in, whose clock only the loop's work moves."""

from __future__ import annotations

import importlib
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import otel_goodput as goodput
from everyday.stand_ins import accelerate_accelerator, accelerate_data
from everyday.stand_ins.torch_data import DataLoader
from otel_goodput import integrations, testing

LOAD, FORWARD, BACKWARD, UPDATE, LOGGING, SAVE, RESTORE = 0.25, 1.0, 2.0, 0.5, 8.0, 4.0, 16.0
STEP = FORWARD + BACKWARD + UPDATE


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """Returns our module, imported anew, with Accelerate imported before."""
    for stand_in in (accelerate_data, accelerate_accelerator):
        importlib.reload(stand_in)
    package: Any = ModuleType("accelerate")
    package.__version__ = "1.0.0"
    monkeypatch.setitem(sys.modules, "accelerate", package)
    monkeypatch.setitem(sys.modules, "accelerate.accelerator", accelerate_accelerator)
    monkeypatch.setitem(sys.modules, "accelerate.optimizer", accelerate_accelerator)
    monkeypatch.setitem(sys.modules, "accelerate.data_loader", accelerate_data)
    monkeypatch.delitem(sys.modules, "otel_goodput.integrations.accelerate", raising=False)
    monkeypatch.delattr(integrations, "accelerate", raising=False)
    return lambda: importlib.import_module("otel_goodput.integrations.accelerate")


@pytest.fixture
def callback(ours: Callable[[], Any]) -> Any:
    return ours().GoodputCallback


@pytest.fixture
def run() -> Iterator[testing.Recording]:
    with testing.run() as recording:
        yield recording


class Loop:
    """A program that trains with an Accelerator, and one of its epochs."""

    def __init__(self, run: testing.Recording, batches: int = 3, *, accumulated: int = 1, optimizers: int = 1) -> None:
        self.run = run
        self.accelerator: Any = accelerate_accelerator.Accelerator(gradient_accumulation_steps=accumulated)

        class Numbers:
            def __len__(self) -> int:
                return batches

            def __getitem__(self, index: int) -> int:
                run.advance(LOAD)
                return index

        self.accelerator.register_save_state_pre_hook(lambda *_: run.advance(SAVE))
        self.accelerator.register_load_state_pre_hook(lambda *_: run.advance(RESTORE))
        update = SimpleNamespace(step=lambda closure: run.advance(UPDATE))
        self.loader, self.held, *self.optimizers = self.accelerator.prepare(
            DataLoader(Numbers()), DataLoader(Numbers()), *[update] * optimizers
        )

    def epoch(self, batches: Any = None, *, stop: int | None = None) -> None:
        for number, _ in enumerate(self.loader if batches is None else batches):
            with self.accelerator.accumulate(None):
                self.train()
            if number == stop:
                break

    def train(self) -> None:
        self.run.advance(FORWARD)
        self.accelerator.backward(lambda: self.run.advance(BACKWARD))
        for optimizer in self.optimizers:
            optimizer.step()

    def evaluate(self) -> None:
        for _ in self.held:
            self.run.advance(FORWARD)


def numbers(run: testing.Recording, name: str = "step") -> list[Any]:
    return [(span.attributes or {}).get("goodput.step") for span in run.spans(name)]


def test_a_step_is_one_of_the_optimizer_though_accumulation_does_not_divide_the_epoch(
    run: testing.Recording, callback: Any
) -> None:
    loop = Loop(run, 7, accumulated=3)
    callback(loop.accelerator)
    for epoch in range(2):
        loop.epoch()
        loop.evaluate()
        loop.accelerator.save_state(f"out/epoch_{epoch}")
    assert numbers(run) == [0, 1, 2, 3, 4, 5]
    assert run.seconds() == {
        "productive": 14 * (FORWARD + BACKWARD) + 6 * UPDATE,
        "data_loading": 28 * LOAD,
        "checkpoint_save": 2 * SAVE,
        "other": 14 * FORWARD,  # of the evaluation
    }
    assert numbers(run, "checkpoint_save") == [0, 1] and "at risk  nothing" in str(run.report())
    assert "note:" not in str(run.report())


@pytest.mark.parametrize("folder", ["epoch_3", "latest"])
def test_one_that_is_resumed_goes_on_after_its_checkpoint(run: testing.Recording, callback: Any, folder: str) -> None:
    loop = Loop(run, 3)
    callback(loop.accelerator)
    loop.epoch()
    loop.accelerator.save_state(folder)
    loop.epoch(stop=1)
    loop.accelerator.load_state(folder)
    loop.epoch(accelerate_data.skip_first_batches(loop.loader, 1))
    assert numbers(run) == [0, 1, 2, 3, 4, 3, 4]
    seconds = run.seconds()
    assert (seconds["productive"], seconds["wasted_progress"]) == (5 * STEP, 2 * STEP)
    assert seconds["checkpoint_restore"] == RESTORE and seconds["data_loading"] == (6 + 2) * LOAD


def test_what_the_loop_does_after_the_update_is_not_the_step(run: testing.Recording, callback: Any) -> None:
    loop = Loop(run)
    callback(loop.accelerator)
    for _ in loop.loader:
        loop.train()
        run.advance(LOGGING)
        loop.evaluate()
    assert run.seconds()["productive"] == 3 * STEP and numbers(run) == [0, 1, 2]


def test_an_evaluation_before_the_first_step_is_none(run: testing.Recording, callback: Any) -> None:
    loop = Loop(run)
    callback(loop.accelerator)
    loop.evaluate()
    loop.epoch()
    loop.evaluate()
    assert run.totals().kept == 3 and run.totals().lost == 0
    assert run.seconds() == {"productive": 3 * STEP, "data_loading": 9 * LOAD, "other": 6 * FORWARD}


def test_several_optimizers_take_one_step(run: testing.Recording, callback: Any) -> None:
    loop = Loop(run, 4, optimizers=2)
    callback(loop.accelerator)
    for _ in loop.loader:
        loop.train()
        run.advance(LOGGING)
    assert numbers(run) == [0, 1, 2, 3]
    # Which one is the last to take its step is known once the first batch is over.
    assert (run.seconds()["productive"], run.seconds()["program_startup"]) == (4 * (STEP + UPDATE), LOGGING)


def test_gradients_accumulated_by_hand(run: testing.Recording, callback: Any) -> None:
    loop = Loop(run, 5)
    callback(loop.accelerator)
    for _ in range(2):
        for number, _ in enumerate(loop.loader):
            run.advance(FORWARD)
            loop.accelerator.backward(lambda: run.advance(BACKWARD))
            if number % 2:
                loop.optimizers[0].step()
    # The gradients of the last batch of an epoch join those of the next one; in the end, they are lost.
    assert numbers(run)[:4] == [0, 1, 2, 3]
    assert run.seconds()["productive"] == 9 * (FORWARD + BACKWARD) + 4 * UPDATE


def test_a_loop_that_is_left(run: testing.Recording, callback: Any) -> None:
    loop = Loop(run, 5)
    callback(loop.accelerator)
    loop.epoch(stop=1)
    for number, _ in enumerate(loop.loader):
        if number == 2:
            break  # at its head
        loop.train()
    loop.epoch(stop=0)
    assert run.totals().kept == 5 and run.totals().lost == 0
    assert numbers(run)[-1] == 4 and run.seconds()["productive"] == 5 * STEP


def test_an_exception_in_a_step(run: testing.Recording, callback: Any) -> None:
    loop = Loop(run, 5)
    callback(loop.accelerator)
    loop.epoch(stop=2)

    def fail() -> None:
        run.advance(BACKWARD)
        raise ValueError("no gradient")

    with pytest.raises(ValueError, match="no gradient"):
        for _ in loop.loader:
            run.advance(FORWARD)
            loop.accelerator.backward(fail)
    assert run.seconds()["wasted_progress"] == FORWARD + BACKWARD and run.totals().kept == 3


def test_one_made_twice_and_beside_steps(run: testing.Recording, callback: Any) -> None:
    loop = Loop(run)
    for _ in range(2):
        callback(loop.accelerator)
    loop.epoch()
    assert numbers(run) == [0, 1, 2]
    for _ in goodput.steps(loop.loader):
        loop.train()
    assert numbers(run) == [0, 1, 2, 3, 4, 5] and run.seconds()["productive"] == 6 * STEP


def test_loading_around_a_prepared_loader_adds_no_load(run: testing.Recording, callback: Any) -> None:
    loop = Loop(run)
    callback(loop.accelerator)
    loop.epoch(goodput.loading(loop.loader))
    assert run.seconds()["data_loading"] == 3 * LOAD and run.totals().kept == 3


def test_training_in_a_thread(run: testing.Recording, callback: Any) -> None:
    loop = Loop(run)
    callback(loop.accelerator)
    thread = threading.Thread(target=loop.epoch)
    thread.start()
    thread.join()
    assert run.totals().kept == 3


def test_an_accelerator_without_a_callback_is_left_alone(run: testing.Recording, callback: Any) -> None:
    callback(Loop(run).accelerator)
    other = Loop(run)
    other.accelerator.save_state("epoch_1")
    assert run.seconds() == {}


def test_without_configure_it_does_nothing(callback: Any) -> None:
    loop = Loop(testing.Recording(testing.FakeClock()))
    callback(loop.accelerator)
    loop.epoch()
    with testing.run() as run:  # configured after the callback was made
        loop.run = run
        loop.epoch()
        assert numbers(run) == [0, 1, 2]


def test_an_unknown_version_is_left_alone(
    run: testing.Recording, ours: Callable[[], Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def save_state(self: Any, where: Any) -> None: ...

    monkeypatch.setattr(accelerate_accelerator.Accelerator, "save_state", save_state)
    with caplog.at_level(logging.INFO, "otel_goodput"):
        for _ in range(2):
            loop = Loop(run)
            ours().GoodputCallback(loop.accelerator)
    assert [one.message for one in caplog.records if "accelerate" in one.message] == [
        "accelerate 1.0.0 is not known: nothing of it is recorded"
    ]
    loop.epoch()
    assert run.seconds() == {}


@pytest.mark.parametrize("own", [True, False])
def test_installed_it_records_any_accelerator_once(run: testing.Recording, ours: Callable[[], Any], own: bool) -> None:
    remove = ours().install(run.recorder.tracer)
    loop = Loop(run)
    if own:
        ours().GoodputCallback(loop.accelerator)
    loop.epoch()
    loop.accelerator.save_state("epoch_1")
    assert numbers(run) == [0, 1, 2] and run.seconds()["checkpoint_save"] == SAVE
    remove()
    assert hasattr(accelerate_accelerator.Accelerator.backward, "__wrapped__") is own
    Loop(run).epoch()
    assert len(numbers(run)) == (6 if own else 3)

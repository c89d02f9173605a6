"""Trainers of torchtitan. Against a stand-in for the Trainer, whose clock only its work moves."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

import otel_goodput as goodput
from everyday.stand_ins import torchtitan_trainer as stand_in
from otel_goodput import testing
from otel_goodput.integrations import torchtitan

LOAD, STEP, SAVE, VALIDATION = 0.25, 1.0, 4.0, 8.0


@pytest.fixture(autouse=True)
def trainer_module(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    importlib.reload(stand_in)
    monkeypatch.setitem(sys.modules, "torchtitan", ModuleType("torchtitan"))
    monkeypatch.setitem(sys.modules, "torchtitan.trainer", stand_in)
    yield
    torchtitan._wrapped.clear()


@pytest.fixture
def run() -> Iterator[testing.Recording]:
    with testing.run() as recording:
        yield recording


def config(run: testing.Recording, batches: int = 100, steps: int = 6, **more: Any) -> dict[str, Any]:
    def data() -> Iterator[int]:
        for number in range(batches):
            run.advance(LOAD)
            yield number

    return {"data": data(), "steps": steps, "work": lambda _: run.advance(STEP), **more}


def seconds(run: testing.Recording) -> dict[str, Any]:
    return {name: held for name, held in run.seconds().items() if held}


def test_steps_loads_validations_and_saves_are_apart(run: testing.Recording) -> None:
    def save(step: int) -> None:
        if step % 3 == 0:
            with goodput.checkpoint_save(step):
                run.advance(SAVE)

    validator = stand_in.BaseValidator(2, lambda: run.advance(VALIDATION))
    trainer = stand_in.Trainer(config(run, accumulate=2, validator=validator, save=save))
    torchtitan.GoodputCallback(trainer)
    torchtitan.GoodputCallback(trainer)
    validate = stand_in.BaseValidator.validate
    trainer.train()
    assert seconds(run) == {
        "productive": 6 * STEP, "data_loading": 12 * LOAD, "custom": {"eval": 3 * VALIDATION},
        "checkpoint_save": 2 * SAVE,
    }  # fmt: skip
    assert stand_in.BaseValidator.validate is validate
    assert run.totals().run.max_productive_step == 5


def test_a_step_without_enough_batches_is_cancelled(run: testing.Recording) -> None:
    trainer = stand_in.Trainer(config(run, batches=5, accumulate=2))
    torchtitan.GoodputCallback(trainer)
    trainer.train()
    totals = run.totals()
    assert (totals.kept, totals.lost) == (2, 1) and seconds(run)["productive"] == 2 * STEP


def test_it_goes_on_from_a_checkpoint(run: testing.Recording) -> None:
    trainer = stand_in.Trainer(config(run, restored=4))
    torchtitan.GoodputCallback(trainer)
    trainer.train()
    totals = run.totals()
    assert (totals.kept, totals.run.max_productive_step) == (2, 5)


def test_an_error_in_a_step_is_the_trainers(run: testing.Recording) -> None:
    def work(batches: list[Any]) -> None:
        raise ValueError("a loss that is no number")

    trainer = stand_in.Trainer(config(run) | {"work": work})
    torchtitan.GoodputCallback(trainer)
    with pytest.raises(ValueError, match="no number"):
        trainer.train()
    assert run.totals().kept == 0
    again = stand_in.Trainer(config(run))
    torchtitan.GoodputCallback(again)
    again.train()
    assert run.totals().kept == 6


def test_subclasses_that_call_their_parents_are_recorded_once(run: testing.Recording) -> None:
    class Own(stand_in.Trainer):  # type: ignore[misc, name-defined]
        def train_step(self, data_iterator: Iterator[Any]) -> None:
            run.advance(STEP)
            super().train_step(data_iterator)

    for kind in (stand_in.Trainer, Own):
        trainer = kind(config(run))
        torchtitan.GoodputCallback(trainer)
    trainer.train()
    assert seconds(run) == {"productive": 12 * STEP, "data_loading": 6 * LOAD}


def test_without_a_line(run: testing.Recording) -> None:
    original = stand_in.Trainer.train
    remove = torchtitan.install(run.recorder.tracer)
    assert remove is not None
    stand_in.Trainer(config(run)).train()
    assert seconds(run) == {"productive": 6 * STEP, "data_loading": 6 * LOAD}
    assert stand_in.Trainer.train is not original
    remove()
    assert stand_in.Trainer.train is original


def test_methods_that_are_not_known_are_left_alone(
    monkeypatch: pytest.MonkeyPatch, run: testing.Recording, caplog: pytest.LogCaptureFixture
) -> None:
    def train_step(self: Any, data_iterator: Iterator[Any], more: int = 0) -> None:
        run.advance(STEP)

    monkeypatch.setattr(stand_in.Trainer, "train_step", train_step)
    train = stand_in.Trainer.train
    with caplog.at_level("INFO", "otel_goodput"):
        trainer = stand_in.Trainer(config(run))
        torchtitan.GoodputCallback(trainer)
    trainer.train()
    assert stand_in.Trainer.train is train and "Trainer.train_step() is not known" in caplog.text


def test_without_configure_nothing_happens() -> None:
    trainer = stand_in.Trainer({"data": range(9), "steps": 6, "work": lambda _: None})
    torchtitan.GoodputCallback(trainer)
    trainer.train()
    assert trainer.step == 6

"""Trainers of ``transformers`` and TRL. Against a stand-in for the Trainer, whose clock only its work moves."""

from __future__ import annotations

import copy
import importlib
import logging
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import otel_goodput as goodput
from everyday.stand_ins import transformers_trainer as stand_in
from otel_goodput import integrations, testing

OURS = ("otel_goodput.integrations.transformers", "otel_goodput.integrations.trl")
LOAD, MICRO_BATCH, EVALUATION, SAVE, RESTORE, PREPARE, BEST = 0.25, 1.0, 8.0, 4.0, 2.0, 0.5, 16.0


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Returns our module for a framework, imported anew, with the framework imported before."""
    importlib.reload(stand_in)
    package: Any = ModuleType("transformers")
    package.TrainerCallback, package.__version__ = stand_in.TrainerCallback, "5.0.0"
    monkeypatch.setitem(sys.modules, "transformers", package)
    monkeypatch.setitem(sys.modules, "transformers.trainer", stand_in)
    for name in OURS:
        monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.delattr(integrations, name.rpartition(".")[2], raising=False)
    return lambda name: importlib.import_module(f"otel_goodput.integrations.{name}")


@pytest.fixture
def callback(ours: Callable[[str], Any]) -> Any:
    return ours("transformers").GoodputCallback


@pytest.fixture
def run() -> Iterator[testing.Recording]:
    with testing.run() as recording:
        yield recording


def arguments(**given: Any) -> SimpleNamespace:
    every = {"gradient_accumulation_steps": 1, "num_train_epochs": 1, "max_steps": -1, "eval_steps": 0, "save_steps": 0}
    return SimpleNamespace(**{**every, "output_dir": "", "load_best_model_at_end": False, **given})


class Batches:
    """A loader: loading takes time, and so does what finds its end."""

    def __init__(self, run: testing.Recording, count: int) -> None:
        self.run, self.count = run, count

    def __iter__(self) -> Iterator[int]:
        for number in range(self.count):
            self.run.advance(LOAD)
            yield number


class Sized(Batches):
    def __len__(self) -> int:
        return self.count


def trainers(run: testing.Recording) -> Any:
    """A class of trainers whose work takes time."""

    class Timed(stand_in.Trainer):
        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> None:
            run.advance(MICRO_BATCH)

        def evaluation_loop(self, dataloader: Any, description: str) -> None:
            super().evaluation_loop(dataloader, description)
            run.advance(EVALUATION)

        def _save_checkpoint(self, model: Any, trial: Any) -> None:
            super()._save_checkpoint(model, trial)
            run.advance(SAVE)

        def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
            run.advance(PREPARE if checkpoint is None else RESTORE)

    return Timed


def numbers(run: testing.Recording, name: str = "step") -> list[Any]:
    return [(span.attributes or {}).get("goodput.step") for span in run.spans(name)]


def test_a_step_is_one_of_the_optimizer_though_accumulation_does_not_divide_the_epoch(
    run: testing.Recording, callback: Any, tmp_path: Path
) -> None:
    given = arguments(
        gradient_accumulation_steps=3, num_train_epochs=2, eval_steps=3, save_steps=2, output_dir=tmp_path
    )
    held = Sized(run, 2)
    trainer = trainers(run)(args=given, train_dataset=Sized(run, 7), eval_dataset=held, callbacks=[callback()])
    trainer.train()
    assert numbers(run) == [0, 1, 2, 3, 4, 5]
    assert run.seconds() == {
        "productive": 14 * MICRO_BATCH,
        "data_loading": 14 * LOAD,
        "custom": {"eval": 2 * (EVALUATION + 2 * LOAD)},
        "checkpoint_save": 3 * SAVE,
        "training_prep": PREPARE,
    }
    assert len(run.spans("micro_batch")) == 14 and len(run.spans("optimizer")) == 6
    assert numbers(run, "checkpoint_save") == [2, 4, 6] and "at risk  nothing" in str(run.report())
    assert "note:" not in str(run.report())  # nobody opened a job, and nobody was to


def test_one_that_is_resumed_goes_on_after_its_checkpoint(
    run: testing.Recording, callback: Any, tmp_path: Path
) -> None:
    class Killed(trainers(run)):  # type: ignore[misc]
        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> None:
            super().training_step(model, inputs)
            if self.state.global_step == 5:
                raise KeyboardInterrupt

    def made(kind: Any) -> Any:
        given = arguments(save_steps=3, output_dir=tmp_path)
        return kind(args=given, train_dataset=Sized(run, 8), callbacks=[callback()])

    with pytest.raises(KeyboardInterrupt):
        made(Killed).train()
    made(trainers(run)).train(f"{tmp_path}/checkpoint-3")
    assert numbers(run) == [0, 1, 2, 3, 4, 5, 3, 4, 5, 6, 7]
    seconds = run.seconds()
    assert (seconds["productive"], seconds["wasted_progress"], seconds["checkpoint_restore"]) == (8.0, 3.0, RESTORE)
    assert numbers(run, "checkpoint_restore") == [3, 3]  # the model, then the optimizer


def test_a_second_training_in_a_process_repeats_nothing(run: testing.Recording, callback: Any) -> None:
    for _ in range(2):
        trainers(run)(args=arguments(), train_dataset=Sized(run, 3), callbacks=[callback()]).train()
    assert numbers(run) == [0, 1, 2, 3, 4, 5] and run.seconds()["productive"] == 6.0


def test_one_that_failed_is_repeated(run: testing.Recording, callback: Any) -> None:
    class Failing(trainers(run)):  # type: ignore[misc]
        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> None:
            super().training_step(model, inputs)
            if self.state.global_step == 2:
                raise ValueError("no gradient")

    with pytest.raises(ValueError, match="no gradient"):
        Failing(args=arguments(), train_dataset=Sized(run, 5), callbacks=[callback()]).train()
    trainers(run)(args=arguments(), train_dataset=Sized(run, 5), callbacks=[callback()]).train()
    assert run.seconds()["productive"] == 5.0 and run.seconds()["wasted_progress"] == 3.0


@pytest.mark.parametrize("shared", [True, False])
def test_several_callbacks_are_one(run: testing.Recording, callback: Any, shared: bool) -> None:
    one = callback()
    given = [one, one if shared else callback()]
    trainers(run)(args=arguments(), train_dataset=Sized(run, 3), callbacks=given).train()
    assert numbers(run) == [0, 1, 2] and run.seconds()["data_loading"] == 3 * LOAD


def test_beside_steps_it_adds_none(run: testing.Recording, callback: Any) -> None:
    class Looping(trainers(run)):  # type: ignore[misc]
        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> None:
            super().training_step(model, inputs)

    trainer = Looping(args=arguments(), train_dataset=Sized(run, 2), callbacks=[callback()])
    with goodput.step(0):
        trainer.train()
    assert numbers(run) == [0] and run.seconds()["productive"] == 2.0


@pytest.mark.parametrize("shared", [True, False])
def test_a_trainer_in_a_trainer_is_part_of_what_goes_on(run: testing.Recording, callback: Any, shared: bool) -> None:
    one = callback()

    class Outer(trainers(run)):  # type: ignore[misc]
        def evaluation_loop(self, dataloader: Any, description: str) -> None:
            given = [one if shared else callback()]
            trainers(run)(args=arguments(), train_dataset=Sized(run, 4), callbacks=given).train()

    Outer(args=arguments(eval_steps=2), train_dataset=Sized(run, 3), callbacks=[one]).train()
    assert numbers(run) == [0, 1, 2]
    assert run.seconds()["custom"] == {"eval": 4 * (LOAD + MICRO_BATCH) + PREPARE}


def test_one_that_fails_in_another_leaves_that_recorded(run: testing.Recording, callback: Any) -> None:
    class Inner(trainers(run)):  # type: ignore[misc]
        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> None:
            raise ValueError("no gradient")

    class Outer(trainers(run)):  # type: ignore[misc]
        def evaluation_loop(self, dataloader: Any, description: str) -> None:
            with pytest.raises(ValueError, match="no gradient"):
                Inner(args=arguments(), train_dataset=Sized(run, 4), callbacks=[callback()]).train()

    Outer(args=arguments(eval_steps=2), train_dataset=Sized(run, 5), callbacks=[callback()]).train()
    assert numbers(run) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("event", ["on_train_begin", "on_step_begin", "on_step_end"])
def test_a_callback_before_it_may_raise(run: testing.Recording, callback: Any, event: str) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ValueError("a bad callback")

    other = type("Other", (stand_in.TrainerCallback,), {event: fail})
    with pytest.raises(ValueError, match="a bad callback"):
        trainers(run)(args=arguments(), train_dataset=Sized(run, 3), callbacks=[other(), callback()]).train()
    with goodput.custom("afterwards"):
        run.advance(1.0)
    assert run.seconds().get("wasted_progress", 0.0) == (MICRO_BATCH if event == "on_step_end" else 0.0)
    assert run.seconds()["custom"] == {"afterwards": 1.0} and run.seconds()["training_prep"] == PREPARE


def test_a_failing_evaluation_ends_training(run: testing.Recording, callback: Any) -> None:
    class Failing(trainers(run)):  # type: ignore[misc]
        def evaluation_loop(self, dataloader: Any, description: str) -> None:
            super().evaluation_loop(dataloader, description)
            raise ValueError("no metric")

    with pytest.raises(ValueError, match="no metric"):
        Failing(args=arguments(eval_steps=2), train_dataset=Sized(run, 3), callbacks=[callback()]).train()
    assert run.seconds()["custom"] == {"eval": EVALUATION} and run.seconds()["productive"] == 2.0
    (span,) = run.spans("eval")
    assert (span.attributes or {})["error.type"] == "ValueError"


def test_training_that_begins_again_loses_the_open_step(run: testing.Recording, callback: Any) -> None:
    """As with ``auto_find_batch_size``, when the memory does not suffice."""

    class Smaller(trainers(run)):  # type: ignore[misc]
        small = False

        def _inner_training_loop(self, *given: Any) -> None:
            try:
                super()._inner_training_loop(*given)
            except MemoryError:
                run.advance(BEST)  # until memory is free
                self.small = True
                super()._inner_training_loop(*given)

        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> None:
            super().training_step(model, inputs)
            if not self.small:
                raise MemoryError

    Smaller(args=arguments(), train_dataset=Sized(run, 3), callbacks=[callback()]).train()
    assert numbers(run) == [0, 0, 1, 2]
    assert (run.seconds()["productive"], run.seconds()["wasted_progress"]) == (3.0, MICRO_BATCH)
    assert run.seconds()["training_prep"] == 2 * PREPARE and run.seconds()["other"] == BEST


def test_data_of_unknown_length_may_end_amid_a_step(run: testing.Recording, callback: Any) -> None:
    given = arguments(gradient_accumulation_steps=2, num_train_epochs=3, max_steps=4)
    trainers(run)(args=given, train_dataset=Batches(run, 3), callbacks=[callback()]).train()
    # The last of 3 batches joins the first two of the next epoch, as its gradients do; the last epoch has no next.
    assert numbers(run) == [0, 1, 2, 3]
    seconds = run.seconds()
    assert (seconds["data_loading"], seconds["productive"], seconds["wasted_progress"]) == (9 * LOAD, 8.0, 1.0)


def test_the_end_of_data_is_sought_once(run: testing.Recording, callback: Any) -> None:
    trainers(run)(args=arguments(max_steps=500), train_dataset=Batches(run, 3), callbacks=[callback()]).train()
    assert len(run.spans("data_loading")) < 6


def test_the_best_model_is_loaded_without_going_back_to_its_step(run: testing.Recording, callback: Any) -> None:
    class Best(trainers(run)):  # type: ignore[misc]
        def _load_best_model(self) -> None:
            run.advance(BEST)

    for _ in range(2):
        given = arguments(load_best_model_at_end=True)
        Best(args=given, train_dataset=Sized(run, 3), callbacks=[callback()]).train()
    assert run.seconds()["checkpoint_restore"] == 2 * BEST
    assert run.seconds()["productive"] == 6.0 and numbers(run) == [0, 1, 2, 3, 4, 5]


def test_a_step_without_a_callback_at_its_begin(
    run: testing.Recording, ours: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in version 4, of the step after one that lay in two epochs."""
    monkeypatch.setattr(sys.modules["transformers"], "__version__", "4.46.3")
    given = [ours("transformers").GoodputCallback()]
    trainer = trainers(run)(args=arguments(), train_dataset=Sized(run, 4), callbacks=given)
    call = trainer.callback_handler.call_event

    def called(event: str, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        silent = event == "on_step_begin" and state.global_step == 2
        return control if silent else call(event, args, state, control, **kwargs)

    trainer.callback_handler.call_event = called
    trainer.train()
    assert numbers(run) == [0, 1, 2, 3] and run.seconds()["productive"] == 4.0


def test_max_steps_in_mid_epoch(run: testing.Recording, callback: Any) -> None:
    given = arguments(num_train_epochs=3, max_steps=4)
    trainers(run)(args=given, train_dataset=Sized(run, 3), callbacks=[callback()]).train()
    assert numbers(run) == [0, 1, 2, 3] and run.seconds()["productive"] == 4.0


def test_evaluations_outside_of_training_are_recorded(run: testing.Recording, callback: Any) -> None:
    held = {"one": Sized(run, 2), "other": Sized(run, 2)}
    trainer = trainers(run)(args=arguments(), train_dataset=Sized(run, 1), eval_dataset=held, callbacks=[callback()])
    trainer.evaluate()
    trainer.train()
    trainer.predict(Sized(run, 2))
    assert run.seconds()["custom"] == {"eval": 3 * (EVALUATION + 2 * LOAD)}
    assert len(run.spans("eval")) == 2


def test_training_in_a_thread(run: testing.Recording, callback: Any) -> None:
    trainer = trainers(run)(args=arguments(), train_dataset=Sized(run, 3), callbacks=[callback()])
    thread = threading.Thread(target=trainer.train)
    thread.start()
    thread.join()
    assert run.seconds()["productive"] == 3.0 and run.seconds()["data_loading"] >= 2 * LOAD


def test_copies_record_anew(run: testing.Recording, callback: Any) -> None:
    one = callback()
    trainers(run)(args=arguments(), train_dataset=Sized(run, 1), callbacks=[one]).train()
    for other in (copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        trainers(run)(args=arguments(), train_dataset=Sized(run, 1), callbacks=[other]).train()
    assert numbers(run) == [0, 1, 2]


def test_without_configure_it_does_nothing(callback: Any) -> None:
    clock = testing.Recording(testing.FakeClock())
    one = callback()
    trainers(clock)(args=arguments(eval_steps=1), train_dataset=Sized(clock, 2), callbacks=[one]).train()
    with testing.run() as run:  # configured after the callback was made
        trainers(run)(args=arguments(), train_dataset=Sized(run, 2), callbacks=[one]).train()
        assert numbers(run) == [0, 1]


def test_a_trainer_without_a_callback_is_left_alone(run: testing.Recording, callback: Any) -> None:
    callback()
    trainers(run)(args=arguments(eval_steps=1), train_dataset=Sized(run, 2)).train()
    assert run.seconds() == {}


def test_methods_that_are_not_as_known_are_left_alone(
    run: testing.Recording,
    ours: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def other(self: Any, how: Any) -> None: ...

    monkeypatch.setattr(stand_in.Trainer, "predict", other)
    monkeypatch.delattr(stand_in.Trainer, "_load_best_model")
    with caplog.at_level(logging.INFO, "otel_goodput"):
        for _ in range(2):
            ours("transformers").GoodputCallback()
    (line,) = [record.message for record in caplog.records if "transformers" in record.message]
    assert line == "transformers 5.0.0: recording Trainer, but for predict, _load_best_model, not known"
    assert stand_in.Trainer.predict is other


def test_an_unknown_trainer_is_recorded_by_its_callbacks_alone(
    run: testing.Recording,
    ours: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    original = stand_in.Trainer.train

    def train(self: Any, *, resume: Any = None) -> None:
        original(self, resume)

    monkeypatch.setattr(stand_in.Trainer, "train", train)
    with caplog.at_level(logging.INFO, "otel_goodput"):
        given = [ours("transformers").GoodputCallback() for _ in range(2)]
    assert caplog.text.count("transformers 5.0.0 is not known: its loads and checkpoints are not recorded") == 1
    trainers(run)(args=arguments(), train_dataset=Sized(run, 3), callbacks=given).train()
    assert numbers(run) == [0, 1, 2] and run.seconds()["productive"] == 3.0


# --- without a line ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("own", [True, False])
def test_installed_it_records_trainers_once(run: testing.Recording, ours: Callable[[str], Any], own: bool) -> None:
    module = ours("transformers")
    remove = module.install(run.recorder.tracer)
    given = [module.GoodputCallback()] if own else []
    trainer = trainers(run)(args=arguments(), train_dataset=Sized(run, 3), callbacks=given)
    trainer.train()
    assert numbers(run) == [0, 1, 2]
    assert len(trainer.callback_handler.callbacks) == 1
    remove()
    wrapped = hasattr(stand_in.Trainer.train, "__wrapped__")
    assert wrapped is own  # a callback that was made by hand still needs it
    trainers(run)(args=arguments(), train_dataset=Sized(run, 3)).train()
    assert numbers(run) == [0, 1, 2]


def test_installed_amid_training_it_records_the_rest(run: testing.Recording, ours: Callable[[str], Any]) -> None:
    class Installing(trainers(run)):  # type: ignore[misc]
        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> None:
            super().training_step(model, inputs)
            if self.state.global_step == 1:
                ours("transformers").install(run.recorder.tracer)

    for _ in range(2):
        Installing(args=arguments(), train_dataset=Sized(run, 4)).train()
    assert numbers(run) == [2, 3, 4, 5, 6, 7] and run.seconds()["data_loading"] == 6 * LOAD


def test_it_waits_for_the_import(run: testing.Recording, ours: Callable[[str], Any], monkeypatch: Any) -> None:
    module = ours("transformers")
    monkeypatch.setitem(sys.modules, "transformers.trainer", ModuleType("transformers.trainer"))
    assert module.install(run.recorder.tracer) is None
    monkeypatch.setitem(sys.modules, "transformers.trainer", stand_in)
    assert module.install(run.recorder.tracer) is not None


# --- TRL --------------------------------------------------------------------------------------------------------------


class GenerationMixin:
    def generate(self, inputs: Any) -> Any:
        return inputs


@pytest.mark.parametrize("own", ["_generate", "generate", "both"])
@pytest.mark.parametrize("line", [True, False])
def test_what_a_trainer_generates_in_training_is_a_rollout(
    run: testing.Recording, ours: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, own: str, line: bool
) -> None:
    generation: Any = ModuleType("transformers.generation.utils")
    mixin = type("GenerationMixin", (GenerationMixin,), {"generate": GenerationMixin.generate})
    generation.GenerationMixin = mixin
    monkeypatch.setitem(sys.modules, "transformers.generation.utils", generation)

    def generate(self: Any, inputs: Any) -> Any:
        run.advance(3.0)
        return inputs

    model = type("Model", (mixin,), {})()
    if own != "_generate":
        monkeypatch.setattr(mixin, "generate", generate)

    def roll_out(self: Any, prompts: Any) -> Any:
        if own == "_generate":
            run.advance(3.0)
            return prompts
        return model.generate(prompts)

    def training_step(self: Any, model: Any, inputs: Any, num_items_in_batch: Any = None) -> None:
        self._generate([inputs]) if own != "generate" else roll_out(self, [inputs])
        run.advance(MICRO_BATCH)

    members: dict[str, Any] = {"training_step": training_step, "__module__": "trl.trainer.grpo_trainer"}
    if own != "generate":
        members["_generate"] = roll_out
    kind = type("GRPOTrainer", (trainers(run),), members)
    if line:
        given = [ours("trl").GoodputCallback()]
    else:
        given = []
        ours("transformers").install(run.recorder.tracer)
    trainer = kind(args=arguments(), train_dataset=Sized(run, 2), callbacks=given)
    trainer.train()
    model.generate([1])  # not in training
    seconds = run.seconds()
    assert seconds["custom"] == {"rollout": 6.0} and len(run.spans("rollout")) == 2
    assert seconds["productive"] == 2 * MICRO_BATCH and numbers(run) == [0, 1]

"""Loops of PyTorch that nobody instruments, against stand-ins for its loaders, optimizers and models."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Thread
from types import ModuleType
from typing import Any

import pytest

import otel_goodput as goodput
from everyday.stand_ins import torch_data, torch_module, torch_optimizer
from everyday.stand_ins.torch_module import Module
from everyday.stand_ins.torch_optimizer import Optimizer
from otel_goodput import testing
from otel_goodput._integrations import torch_data as integration
from otel_goodput.integrations import new_loop

LOAD_S, FORWARD_S, OPTIMIZER_S, EVALUATION_S, OTHER_S = 1, 10, 3, 5, 7


class Tensor:
    def backward(self) -> None:
        pass


class World:
    """A PyTorch whose work takes as long as it says, by a clock of its own; and a model with its optimizer."""

    def __init__(self, recording: testing.Recording) -> None:
        self.clock = recording.clock
        self.grad = True
        self.parameters = [object(), object(), object()]
        self.part = Module(self.parameters[1])
        self.model = Module(self.parameters[0], self.part, self.parameters[2])
        self.optimizer = Optimizer(self.parameters, {})

    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def loader(self, batches: int) -> Any:
        world = self

        class Images:
            def __len__(self) -> int:
                return batches

            def __getitem__(self, index: int) -> int:
                world.wait(LOAD_S)
                return index

        return torch_data.DataLoader(Images(), 1)

    @contextmanager
    def no_grad(self) -> Iterator[None]:
        before, self.grad = self.grad, False
        yield
        self.grad = before

    def forward(self) -> None:
        self.wait(FORWARD_S)
        Tensor().backward()

    def update(self, optimizer: Optimizer | None = None) -> None:
        (optimizer or self.optimizer).step(lambda: self.wait(OPTIMIZER_S))  # type: ignore[arg-type,return-value]

    def evaluate(self, batches: int = 2) -> None:
        with self.no_grad():
            for _ in self.loader(batches):
                self.wait(EVALUATION_S)

    def seconds(self) -> dict[str, Any]:
        report = goodput.report()
        assert report is not None
        times: dict[str, Any] = report.to_json()["seconds"]
        return {name: value for name, value in times.items() if value}

    @property
    def kept(self) -> int:
        totals = goodput.totals()
        assert totals is not None
        return totals.kept


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    torch: Any = ModuleType("torch")
    with testing.run() as recording:
        made = World(recording)
        torch.is_grad_enabled, torch.Tensor, torch.nn = lambda: made.grad, Tensor, torch_module
        for name, module in (("", torch), (".utils.data", torch_data), (".optim.optimizer", torch_optimizer)):
            monkeypatch.setitem(sys.modules, f"torch{name}", module)
        tracer = recording.recorder.tracer
        assert tracer is not None
        remove = integration.install(tracer)
        assert remove is not None
        yield made
        remove()
    classes: Sequence[Any] = (torch_data.DataLoader, Module, Tensor)
    assert not [each for one in classes for each in vars(one).values() if hasattr(each, "__wrapped__")]
    assert not torch_optimizer._global_optimizer_pre_hooks and not torch_optimizer._global_optimizer_post_hooks


def epoch(world: World, loader: Any, accumulate: int = 1) -> None:
    world.model.train()
    for number, _ in enumerate(loader, 1):
        world.forward()
        if number % accumulate == 0:
            world.update()


def test_a_loop_over_a_loader_with_evaluations(world: World) -> None:
    loader = world.loader(4)
    with goodput.job():
        world.wait(OTHER_S)
        for _ in range(3):
            epoch(world, loader)
            world.model.eval()
            world.evaluate()
            world.wait(OTHER_S)
    assert world.kept == 12
    steps, evaluations = 12 * (FORWARD_S + OPTIMIZER_S), 3 * 2 * (EVALUATION_S + LOAD_S)
    assert world.seconds() == {
        "productive": steps, "data_loading": 12 * LOAD_S, "custom": {"eval": evaluations}, "other": 4 * OTHER_S
    }  # fmt: skip


def test_accumulated_batches_are_one_step(world: World) -> None:
    with goodput.job():
        epoch(world, world.loader(12), accumulate=3)
    assert world.kept == 4
    assert world.seconds() == {"productive": 12 * FORWARD_S + 4 * OPTIMIZER_S, "data_loading": 12 * LOAD_S}


def test_batches_that_are_left_at_the_end_of_an_epoch(world: World) -> None:
    loader = world.loader(7)
    with goodput.job():
        for _ in range(2):
            epoch(world, loader, accumulate=3)
    seconds = world.seconds()
    assert seconds["productive"] + seconds.get("other", 0) == 14 * FORWARD_S + 4 * OPTIMIZER_S
    assert seconds["productive"] >= 12 * FORWARD_S + 4 * OPTIMIZER_S and "wasted_progress" not in seconds


def test_a_loop_without_a_loader(world: World) -> None:
    """As nanoGPT: it evaluates and saves between two steps, and has only its optimizer."""
    with goodput.job():
        world.wait(OTHER_S)
        for number in range(9):
            if number % 3 == 2:
                world.model.eval()
                world.wait(EVALUATION_S)
                world.model.train()
            world.forward()
            world.update()
        world.wait(OTHER_S)
    assert world.kept == 9
    lost = FORWARD_S  # the forward pass of the first step: nothing tells when it began
    steps = 9 * (FORWARD_S + OPTIMIZER_S) - lost
    assert world.seconds() == {"productive": steps, "custom": {"eval": 3 * EVALUATION_S}, "other": 2 * OTHER_S + lost}


def test_a_part_in_evaluation_mode_and_another_model_are_no_evaluation(world: World) -> None:
    teacher = Module(object())
    with goodput.job():
        for _ in world.loader(4):
            world.part.eval()
            teacher.eval()
            world.forward()
            world.update()
    assert world.kept == 4 and world.seconds() == {"productive": 4 * 13, "data_loading": 4}


def test_a_model_that_trains_in_evaluation_mode(world: World) -> None:
    loader = world.loader(4)
    with goodput.job():
        for _ in range(3):
            world.model.eval()
            for _ in loader:
                world.forward()
                world.update()
    assert world.kept == 12 and world.seconds() == {"productive": 12 * 13, "data_loading": 12}


def test_validation_with_gradients(world: World) -> None:
    loader = world.loader(2)
    with goodput.job():
        for _ in range(2):
            epoch(world, loader)
            world.model.eval()
            for _ in world.loader(3):
                world.wait(EVALUATION_S)
    assert world.kept == 4
    assert world.seconds() == {"productive": 4 * 13, "data_loading": 4, "custom": {"eval": 6 * (EVALUATION_S + LOAD_S)}}


def test_a_loop_that_is_left(world: World) -> None:
    loader = world.loader(8)
    with goodput.job():
        for _ in range(2):
            for number, _ in enumerate(loader):
                world.forward()
                world.update()
                if number == 2:
                    break
            world.wait(OTHER_S)
    assert world.kept == 6 and world.seconds() == {"productive": 6 * 13, "data_loading": 6, "other": 2 * OTHER_S}


def test_an_iterator_that_is_kept_does_not_end_a_loop_without_a_loader(world: World) -> None:
    kept = iter(world.loader(8))
    with goodput.job():
        for _ in range(5):
            world.forward()
            world.update()
            with world.no_grad():
                next(kept)
    assert world.kept == 5


def test_one_batch_for_many_steps(world: World) -> None:
    batches = iter(world.loader(1))
    with goodput.job():
        next(batches)
        for _ in range(6):
            world.forward()
            world.update()
    seconds = world.seconds()
    assert world.kept == 6 and seconds["data_loading"] == 1
    assert seconds["productive"] + seconds["program_startup"] == 6 * 13


def test_several_optimizers_make_one_step(world: World) -> None:
    other = Optimizer([object()], {})
    with goodput.job():
        for _ in range(6):
            world.forward()
            world.update()
            world.update(other)
    assert world.kept == 6


def test_what_the_user_records_goes_first(world: World) -> None:
    with goodput.job():
        for _, _ in goodput.steps(world.loader(3)):
            world.forward()
            world.update()
        for number, _ in enumerate(world.loader(3), 3):
            with goodput.step(number):
                world.forward()
                world.update()
        with goodput.custom("export"):
            for _ in world.loader(2):
                world.wait(OTHER_S)
    assert world.kept == 6
    assert world.seconds() == {"productive": 6 * 13, "data_loading": 6, "custom": {"export": 2 * (OTHER_S + LOAD_S)}}


def test_a_trainer_goes_first(world: World) -> None:
    with goodput.job():
        epoch(world, world.loader(2))
        loop = new_loop()
        loop.begin()
        for number, _ in enumerate(loop.batches(world.loader(3)), 2):
            loop.begin_step(number)
            world.forward()
            world.update()
            loop.end_step()
        loop.end()
    assert world.kept == 5 and world.seconds() == {"productive": 5 * 13, "data_loading": 5}


def test_other_threads_record_nothing(world: World) -> None:
    def prefetch() -> None:
        for _ in world.loader(4):
            pass

    with goodput.job():
        thread = Thread(target=prefetch)
        thread.start()
        thread.join()
        epoch(world, world.loader(2))
    assert world.kept == 2 and world.seconds()["data_loading"] == 2


def test_an_error_in_a_step(world: World) -> None:
    with pytest.raises(RuntimeError), goodput.job():
        for number, _ in enumerate(world.loader(4)):
            world.forward()
            if number == 2:
                raise RuntimeError
            world.update()
    assert world.kept == 2
    assert world.seconds() == {"productive": 2 * 13, "data_loading": 3, "wasted_progress": FORWARD_S}


def test_a_resumed_loop_goes_on_with_the_step_after_the_checkpoint(world: World) -> None:
    loader = world.loader(4)
    with goodput.job():
        epoch(world, loader)
        with goodput.checkpoint_save(3):
            pass
        epoch(world, loader)
        with goodput.checkpoint_restore(3):
            pass
        epoch(world, loader)
    totals = goodput.totals()
    assert totals is not None and (totals.kept, totals.lost) == (8, 4)


def test_steps_that_are_quicker_than_before_a_restore_are_no_skipped_batches(world: World) -> None:
    """The optimizer has stepped in them, so they did a step's work."""
    with goodput.job():
        for number in range(8):
            world.wait(FORWARD_S * (10 if number < 4 else 1))
            Tensor().backward()
            world.update()
            if number == 3:
                with goodput.checkpoint_save(3):
                    pass
                with goodput.checkpoint_restore(3):
                    pass
    assert world.kept == 8 and "data_loading" not in world.seconds()

"""``accelerate.accelerator``: which gradients are accumulated, and when optimizers take their steps; no model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from everyday.stand_ins import accelerate_data
from everyday.stand_ins.torch_data import DataLoader


class AcceleratedOptimizer:
    def __init__(self, optimizer: Any, device_placement: bool = True, scaler: Any = None) -> None:
        self.optimizer, self.gradient_state = optimizer, accelerate_data.DataLoaderShard.gradient_state

    def step(self, closure: Any = None) -> None:
        if self.gradient_state.sync_gradients:
            self.optimizer.step(closure)


class Accelerator:
    """`gradient_accumulation_steps` is one of those that the real one takes."""

    def __init__(self, **options: Any) -> None:
        self.gradient_accumulation_steps = options.get("gradient_accumulation_steps", 1)
        self.gradient_state = accelerate_data.DataLoaderShard.gradient_state
        self.gradient_state.sync_gradients = True
        self.step = self.save_iteration = 0
        self._optimizers: list[AcceleratedOptimizer] = []

    def _do_sync(self) -> None:
        if self.gradient_state.end_of_dataloader:
            self.step, self.gradient_state.sync_gradients = 0, True
        else:
            self.step += 1
            self.gradient_state.sync_gradients = self.step % self.gradient_accumulation_steps == 0

    @contextmanager
    def accumulate(self, *models: Any) -> Iterator[None]:
        self._do_sync()
        yield

    def prepare(self, *args: Any) -> Any:
        prepared = tuple(map(self._prepare_one, args))
        return prepared[0] if len(prepared) == 1 else prepared

    def _prepare_one(self, obj: Any) -> Any:
        if isinstance(obj, DataLoader):
            return accelerate_data.prepare_data_loader(obj)
        optimizer = AcceleratedOptimizer(obj)
        self._optimizers.append(optimizer)
        return optimizer

    def backward(self, loss: Any, **kwargs: Any) -> None:
        loss()

    def register_save_state_pre_hook(self, hook: Callable[..., None]) -> None:
        self._saving = hook

    def register_load_state_pre_hook(self, hook: Callable[..., None]) -> None:
        self._loading = hook

    def save_state(self, output_dir: Any = None) -> None:
        self._saving([], [], output_dir)
        self.save_iteration += 1

    def load_state(self, input_dir: Any = None) -> None:
        self._loading([], input_dir)

"""``torchtitan.trainer``: the order in which its Trainer fetches batches, does steps, saves and validates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any


class DataloaderExhaustedError(Exception):
    pass


class BaseValidator:
    def __init__(self, every: int, work: Callable[[], object]) -> None:
        self.every, self.work = every, work

    def validate(self, model_parts: list[Any], step: int) -> None:
        self.work()

    def should_validate(self, step: int) -> bool:
        return step % self.every == 0


class Trainer:
    def __init__(self, config: dict[str, Any]) -> None:
        self.config, self.step = config, config.get("restored", 0)
        self.dataloader, self.validator = config["data"], config.get("validator")
        self.gradient_accumulation_steps = config.get("accumulate", 1)

    def batch_generator(self, data_iterable: Iterable[Any]) -> Iterator[Any]:
        data_iterator = iter(data_iterable)
        while True:
            try:
                batch = next(data_iterator)
            except StopIteration as ex:
                raise DataloaderExhaustedError from ex
            yield batch

    def train_step(self, data_iterator: Iterator[Any]) -> None:
        batches = [next(data_iterator) for _ in range(self.gradient_accumulation_steps)]
        self.config["work"](batches)

    def train(self) -> None:
        data_iterator = self.batch_generator(self.dataloader)
        while self.should_continue_training():
            self.step += 1
            try:
                self.train_step(data_iterator)
            except DataloaderExhaustedError:
                break
            self.config.get("save", lambda _: None)(self.step)
            if self.validator and self.validator.should_validate(self.step):
                self.validator.validate([], self.step)

    def should_continue_training(self) -> bool:
        return bool(self.step < self.config["steps"])

"""``keras.src.backend.jax.trainer``: in which order ``fit`` calls what, and where it fetches batches."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any


class JAXEpochIterator:
    def __init__(self, x: Any = None, **kwargs: Any) -> None:
        self.x, self.num_batches = x, len(x) if hasattr(x, "__len__") else None

    def _get_iterator(self) -> Any:
        return iter(self.x() if callable(self.x) else self.x)

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        batches = iter(self._get_iterator())
        number = 0
        while self.num_batches is None or number < self.num_batches:
            yield number, batches  # the train function asks for the batch
            number += 1


class JAXTrainer:
    def __init__(self) -> None:
        self.train_function: Callable[..., Any] | None = None
        self.optimizer = SimpleNamespace(iterations=0)
        self.steps_per_execution = 1
        self._initial_epoch: int | None = None

    def train_step(self, state: Any, data: Any) -> None:
        self.optimizer.iterations += 1

    def make_train_function(self, force: bool = False) -> None:
        def iterator_step(state: Any, iterator: Iterator[Any]) -> None:
            self.train_step(state, next(iterator))
            with suppress(StopIteration):
                for _ in range(self.steps_per_execution - 1):
                    self.train_step(state, next(iterator))

        if self.train_function is None or force:
            self.train_function = iterator_step

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: Any = None,
        epochs: int = 1,
        verbose: Any = "auto",
        callbacks: Any = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: bool = True,
        class_weight: Any = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: Any = None,
        validation_steps: Any = None,
        validation_batch_size: Any = None,
        validation_freq: int = 1,
    ) -> None:
        iterator = JAXEpochIterator(x=x)
        called = list(callbacks or ())
        for one in called:
            one.set_model(self)
            one.set_params({"steps": iterator.num_batches})
        self.make_train_function()
        for one in called:
            one.on_train_begin()
        for epoch in range(self._initial_epoch or initial_epoch, epochs):
            for one in called:
                one.on_epoch_begin(epoch)
            with suppress(StopIteration):
                for step, batches in iterator:
                    for one in called:
                        one.on_train_batch_begin(step)
                    self.train_function(None, batches)  # type: ignore[misc]
                    for one in called:
                        one.on_train_batch_end(step)
            if validation_data is not None and (epoch + 1) % validation_freq == 0:
                self.evaluate(validation_data)
            for one in called:
                one.on_epoch_end(epoch)
        for one in called:
            one.on_train_end()

    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: Any = None,
        verbose: Any = "auto",
        sample_weight: Any = None,
        steps: Any = None,
        callbacks: Any = None,
        return_dict: bool = False,
        **kwargs: Any,
    ) -> None:
        with suppress(StopIteration):
            for _, batches in JAXEpochIterator(x=x):
                self.test_step(None, next(batches))

    def test_step(self, state: Any, data: Any) -> None: ...

    def predict(
        self, x: Any, batch_size: Any = None, verbose: Any = "auto", steps: Any = None, callbacks: Any = None
    ) -> None:
        self.evaluate(x)


def prepare(version: str = "3.99") -> dict[str, ModuleType]:
    """Return the modules of a Keras that has this trainer."""

    class Model(JAXTrainer):
        def save_weights(self, filepath: Any, overwrite: bool = True) -> None:
            Path(filepath).write_text(str(self.optimizer.iterations))

        def load_weights(self, filepath: Any, skip_mismatch: bool = False) -> None:
            self.optimizer.iterations = int(Path(filepath).read_text())

        save = save_weights

    class Callback:
        def __init__(self) -> None:
            self.params: Any = None
            self.model: Any = None

        def set_params(self, params: Any) -> None:
            self.params = params

        def set_model(self, model: Any) -> None:
            self.model = model

        def nothing(self, *_: object) -> None: ...

        on_train_begin = on_train_end = on_epoch_begin = on_epoch_end = nothing
        on_train_batch_begin = on_train_batch_end = nothing

    class BackupAndRestore(Callback):
        """Saves each epoch, or each so many batches; either way, training resumes at the begin of an epoch."""

        def __init__(self, backup_dir: Path, save_freq: Any = "epoch") -> None:
            super().__init__()
            self.weights, self.metadata = backup_dir / "latest.weights.h5", backup_dir / "training_metadata.json"
            self.save_freq, self.epoch, self.seen, self.since = save_freq, 0, 0, 0

        def on_train_begin(self, *_: object) -> None:
            if self.weights.exists():
                self.model.load_weights(self.weights)
                self.model._initial_epoch = json.loads(self.metadata.read_text())["epoch"]

        def on_epoch_end(self, epoch: int, *_: object) -> None:
            self.epoch, self.seen = epoch + 1, 0
            if self.save_freq == "epoch":
                self.save()

        def on_train_batch_end(self, batch: int, *_: object) -> None:
            self.seen = batch
            self.since += 1
            if self.since == self.save_freq:
                self.since = 0
                self.save()

        def save(self) -> None:
            self.model.save_weights(self.weights)
            self.metadata.write_text(json.dumps({"epoch": self.epoch, "batch": self.seen}))

    keras: Any = ModuleType("keras")
    keras.__version__, keras.Model = version, Model
    keras.callbacks = SimpleNamespace(Callback=Callback, BackupAndRestore=BackupAndRestore)
    keras.tree = SimpleNamespace(flatten=lambda each: list(each) if isinstance(each, (list, tuple)) else [each])
    keras.backend = SimpleNamespace(backend=lambda: "jax")
    trainer: Any = ModuleType("keras.src.backend.jax.trainer")
    trainer.JAXEpochIterator = JAXEpochIterator
    return {"keras": keras, trainer.__name__: trainer}

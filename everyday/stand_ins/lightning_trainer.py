"""``lightning.pytorch.trainer.trainer``: in which order ``fit`` calls what, and where it fetches, saves and loads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from types import ModuleType, SimpleNamespace
from typing import Any

from everyday.stand_ins.lightning_loop import Loop


class Trainer(Loop):
    def __init__(self, **kwargs: Any) -> None:
        self.callbacks: list[Any] = [*kwargs.get("callbacks", ()), *self.external()]
        self.max_epochs: int = kwargs.get("max_epochs", 1)
        self.max_steps: int = kwargs.get("max_steps", -1)
        self.accumulate_grad_batches: int = kwargs.get("accumulate_grad_batches", 1)
        self.val_check_interval: int = kwargs.get("val_check_interval", 0)  # batches; 0: once in an epoch
        self.num_sanity_val_steps = 2
        self.strategy: Any = SimpleNamespace()
        self.state = SimpleNamespace(fn=None, stage=None)
        self.train_dataloader: Any = None
        self.fit_loop = SimpleNamespace(total_batch_idx=-1)
        self.is_global_zero = True
        self.global_step = 0
        self.epoch = 0

    def fit(
        self, model: Any, train_dataloaders: Any = None, val_dataloaders: Any = None, datamodule: Any = None,
        ckpt_path: Any = None, weights_only: bool | None = None
    ) -> None:  # fmt: skip
        self._handle("fit", model, lambda: self._fit(model, train_dataloaders, val_dataloaders, ckpt_path))

    def validate(self, model: Any = None, dataloaders: Any = None) -> None:
        self._handle("validate", model, lambda: self._evaluate(model, dataloaders, "validate"))

    def save_checkpoint(self, filepath: Any, weights_only: bool | None = None, storage_options: Any = None) -> None:
        about = {"global_step": self.global_step, "batches": self.fit_loop.total_batch_idx + 1, "epoch": self.epoch}
        self.strategy.checkpoint_io.save_checkpoint(about, filepath)


def prepare(name: str = "lightning.pytorch", version: str = "2.99") -> dict[str, ModuleType]:
    """Return the modules of a Lightning that has this trainer."""

    class CombinedLoader:
        def __init__(self, iterables: Any) -> None:
            self.iterables = iterables

        def __iter__(self) -> Any:
            self._iterator: Iterator[Any] = iter(self.iterables)
            return self

        def __next__(self) -> Any:
            return next(self._iterator)

        def __len__(self) -> int:
            return len(self.iterables)

    class CheckpointIO:
        def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
            Path(path).write_text(json.dumps(checkpoint))

        def teardown(self) -> None: ...

    class AsyncCheckpointIO:
        def __init__(self, checkpoint_io: Any = None) -> None:
            self.checkpoint_io = CheckpointIO() if checkpoint_io is None else checkpoint_io
            self.threads: list[Thread] = []

        def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
            self.threads.append(Thread(target=self.checkpoint_io.save_checkpoint, args=args, kwargs=kwargs))
            self.threads[-1].start()

        def teardown(self) -> None:
            while self.threads:
                self.threads.pop().join()

    class Strategy:
        def __init__(self, checkpoint_io: Any) -> None:
            self.checkpoint_io = checkpoint_io

        def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
            return json.loads(Path(checkpoint_path).read_text())  # type: ignore[no-any-return]

        def load_model_state_dict(self, checkpoint: Any, strict: bool = True) -> None: ...
        def load_optimizer_state_dict(self, checkpoint: Any) -> None: ...

        def teardown(self) -> None:
            self.checkpoint_io.teardown()

    class Callback:
        def nothing(self, *_: object, **__: object) -> None: ...

        setup = teardown = on_exception = on_train_start = on_train_end = on_train_epoch_end = nothing
        on_train_batch_start = on_train_batch_end = on_validation_start = on_validation_end = nothing
        on_sanity_check_start = on_sanity_check_end = nothing

    class Made(Trainer):
        loader = CombinedLoader

        def __init__(self, plugins: Any = (), **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.strategy = Strategy(*(plugins or [CheckpointIO()]))

    package, callbacks, loaders, storing = map(
        ModuleType, (name, f"{name}.callbacks", f"{name}.utilities.combined_loader", f"{name}.plugins.io")
    )
    for module, about in (
        (package, {"Trainer": Made, "__version__": version, "Callback": Callback}),
        (callbacks, {"Callback": Callback}),
        (loaders, {"CombinedLoader": CombinedLoader}),
        (storing, {"AsyncCheckpointIO": AsyncCheckpointIO, "CheckpointIO": CheckpointIO}),
    ):
        vars(module).update(about)
    return {module.__name__: module for module in (package, callbacks, loaders, storing)}

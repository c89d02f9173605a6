"""``transformers.trainer``: the order in which a Trainer loads, calls callbacks, evaluates and saves, without a model.

What a test wants to take time or to fail is what its subclass overrides.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

PREFIX = "checkpoint"


class TrainerCallback:
    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None: ...
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None: ...
    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None: ...
    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None: ...
    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None: ...
    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None: ...
    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None: ...
    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None: ...
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None: ...
    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None: ...


class CallbackHandler:
    def __init__(self, callbacks: list[Any]) -> None:
        self.callbacks = list(callbacks)

    def add_callback(self, callback: Any) -> None:
        self.callbacks.append(callback)

    def call_event(self, event: str, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        for callback in self.callbacks:
            control = getattr(callback, event)(args, state, control, **kwargs) or control
        return control


class Trainer:
    """Of `args` it reads few, such as `max_steps`; `eval_steps` and `save_steps` of 0 mean never."""

    def __init__(
        self,
        model: Any = None,
        args: Any = None,
        data_collator: Any = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        **others: Any,
    ) -> None:
        self.args, self.train_dataset, self.eval_dataset = args, train_dataset, eval_dataset
        self.callback_handler = CallbackHandler(others.get("callbacks") or [])
        self.state, self.control = SimpleNamespace(global_step=0), SimpleNamespace(should_training_stop=False)
        self.is_in_train = False
        tell(self, "on_init_end")

    def add_callback(self, callback: Any) -> None:
        self.callback_handler.add_callback(callback)

    def train(
        self, resume_from_checkpoint: str | bool | None = None, trial: Any = None, ignore_keys_for_eval: Any = None
    ) -> None:
        self.is_in_train = True
        if resume_from_checkpoint is not None:
            self._load_from_checkpoint(str(resume_from_checkpoint))
        self._inner_training_loop(None, self.args, resume_from_checkpoint)

    def _inner_training_loop(
        self, batch_size: int | None = None, args: Any = None, resume_from_checkpoint: Any = None
    ) -> None:
        done = 0 if resume_from_checkpoint is None else int(str(resume_from_checkpoint).rpartition("-")[2])
        self.state, self.control = SimpleNamespace(global_step=done), SimpleNamespace(should_training_stop=False)
        self._load_optimizer_and_scheduler(resume_from_checkpoint)
        tell(self, "on_train_begin")
        each = self.args.gradient_accumulation_steps
        batches = len(self.train_dataset) if hasattr(self.train_dataset, "__len__") else self.args.max_steps * each
        updates = -(-batches // each)
        for epoch in range(done // updates, self.args.num_train_epochs):
            tell(self, "on_epoch_begin")
            run_epoch(self, batches, updates, done % updates if epoch == done // updates else 0)
            tell(self, "on_epoch_end")
            if self.control.should_training_stop:
                break
        if self.args.load_best_model_at_end:
            self._load_best_model()
        tell(self, "on_train_end")
        self.is_in_train = False

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: Any) -> tuple[list[Any], None]:
        return list(islice(epoch_iterator, num_batches)), None

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> None: ...

    def evaluate(self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval") -> None:
        chosen = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(chosen, dict):
            for each in chosen.values():
                self.evaluate(each)
            return
        self.evaluation_loop(chosen, "Evaluation")

    def predict(self, test_dataset: Any, ignore_keys: Any = None, metric_key_prefix: str = "test") -> None:
        self.evaluation_loop(test_dataset, "Prediction")

    def evaluation_loop(self, dataloader: Any, description: str) -> None:
        for _ in dataloader or ():
            pass

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        (Path(self.args.output_dir) / f"{PREFIX}-{self.state.global_step}").mkdir(parents=True)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None: ...

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None: ...

    def _load_best_model(self) -> None: ...


def tell(trainer: Trainer, event: str) -> None:
    trainer.control = trainer.callback_handler.call_event(event, trainer.args, trainer.state, trainer.control)


def run_epoch(trainer: Trainer, batches: int, updates: int, skipped: int) -> None:
    each = trainer.args.gradient_accumulation_steps
    step = skipped * each - 1
    iterator = iter(islice(trainer.train_dataset, skipped * each, None))
    for update in range(skipped, updates):
        count = each if update < updates - 1 else batches % each or each
        samples, _ = trainer.get_batch_samples(iterator, count, None)
        for inputs in samples:
            step += 1
            if step % each == 0:
                tell(trainer, "on_step_begin")
            trainer.training_step(None, inputs)
            if (step + 1) % each and step + 1 != batches:
                tell(trainer, "on_substep_end")
                continue
            tell(trainer, "on_pre_optimizer_step")
            trainer.state.global_step += 1
            trainer.control.should_training_stop = trainer.state.global_step == trainer.args.max_steps
            tell(trainer, "on_step_end")
            if trainer.args.eval_steps and trainer.state.global_step % trainer.args.eval_steps == 0:
                trainer.evaluate()
            if trainer.args.save_steps and trainer.state.global_step % trainer.args.save_steps == 0:
                trainer._save_checkpoint(None, None)
                tell(trainer, "on_save")
        if trainer.control.should_training_stop:
            break

"""What the stand-in for Lightning's trainer does inside, where the real one has loops and connectors."""

from __future__ import annotations

from typing import Any


class Stage:
    def __init__(self, value: str) -> None:
        self.value = value


class Loop:
    """What :class:`everyday.stand_ins.lightning_trainer.Trainer` is based on."""

    callbacks: list[Any]
    max_epochs: int
    max_steps: int
    accumulate_grad_batches: int
    val_check_interval: int
    num_sanity_val_steps: int
    state: Any
    strategy: Any
    fit_loop: Any
    train_dataloader: Any
    global_step: int
    epoch: int
    loader: Any

    @staticmethod
    def external() -> list[Any]:
        """As ``_load_external_callbacks``; a test replaces it."""
        return []

    def _handle(self, fn: str, model: Any, work: Any) -> None:
        self.state.fn = fn
        self.model = model
        try:
            self.call("setup", stage=fn)
            work()
            self.strategy.teardown()
            self.call("teardown", stage=fn)
        except BaseException as error:
            self.call("on_exception", error)
            self.state.stage = None
            raise

    def call(self, hook: str, *args: Any, **kwargs: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, hook)(self, self.model, *args, **kwargs)

    def _fit(self, model: Any, batches: Any, others: Any, ckpt_path: Any) -> None:
        if ckpt_path is not None:
            about = self.strategy.load_checkpoint(ckpt_path)
            self.strategy.load_model_state_dict(about)
            self.global_step, self.epoch = about["global_step"], about["epoch"]
            self.fit_loop.total_batch_idx = about["batches"] - 1
        if others is not None:
            self.state.stage = Stage("sanity_check")
            self.call("on_sanity_check_start")
            self._validate(model, others, self.num_sanity_val_steps)
            self.call("on_sanity_check_end")
        self.state.stage = Stage("train")
        self.train_dataloader = batches
        loader = self.loader(batches)
        fetched = iter(loader)
        self.call("on_train_start")
        for epoch in range(self.epoch, self.max_epochs):
            self.epoch = epoch
            self._epoch(model, fetched, others)
            self.call("on_train_epoch_end")
            if self.global_step == self.max_steps:
                break
            fetched = iter(loader)
        self.call("on_train_end")

    def _epoch(self, model: Any, fetched: Any, others: Any) -> None:
        number, last = 0, len(fetched)
        while number < last and self.global_step != self.max_steps:
            batch = next(fetched)
            self.fit_loop.total_batch_idx += 1
            self.call("on_train_batch_start", batch, number)
            if model.on_train_batch_start(batch, number) == -1:
                return
            number += 1
            output = model.training_step(batch, number)
            if not model.automatic_optimization:
                self.global_step += output or 0
            elif number % self.accumulate_grad_batches == 0 or number == last:
                self.global_step += 1
            self.call("on_train_batch_end", output, batch, number)
            if others is not None and number % (self.val_check_interval or last) == 0:
                self.state.stage = Stage("validate")
                self._validate(model, others)
                self.state.stage = Stage("train")

    def _evaluate(self, model: Any, batches: Any, stage: str) -> None:
        self.state.stage = Stage(stage)
        self._validate(model, batches)

    def _validate(self, model: Any, batches: Any, most: int = 1 << 30) -> None:
        fetched = iter(self.loader(batches))
        self.call("on_validation_start")
        for number in range(min(most, len(fetched))):
            model.validation_step(next(fetched), number)
        self.call("on_validation_end")

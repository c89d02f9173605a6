"""Hugging Face's Trainer: accumulated gradients that do not divide the epoch, evaluations, and saves with rotation.

The witness overrides the trainer's methods itself. `callback` as an argument: by hand; `none`: without a line.
"""

import sys
import time

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

import otel_goodput as goodput
from everyday.chores import MS
from everyday.witness import EVALUATION, LOAD, RESTORE, SAVE, STEP, witness

torch.set_num_threads(1)


class Text(Dataset):
    """Chunks of text that take time to tokenize."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        time.sleep(2 * MS)
        tokens = torch.randint(0, 128, (32,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


class Watched(Trainer):
    """A Trainer that writes down what it does."""

    step_key = None

    def get_batch_samples(self, *args, **kwargs):
        with witness.of(LOAD):
            return super().get_batch_samples(*args, **kwargs)

    def training_step(self, *args, **kwargs):
        if self.step_key is None:
            witness.number = self.state.global_step
            self.step_key = witness.begin(STEP)
        time.sleep(10 * MS)
        return super().training_step(*args, **kwargs)

    def create_optimizer(self, *args, **kwargs):
        optimizer = super().create_optimizer(*args, **kwargs)
        optimizer.register_step_post_hook(lambda *_: self.stepped())
        return optimizer

    def stepped(self):
        witness.end(self.step_key)
        self.step_key = None

    def evaluate(self, *args, **kwargs):
        with witness.of(EVALUATION):
            return super().evaluate(*args, **kwargs)

    def _save_checkpoint(self, *args, **kwargs):
        with witness.of(SAVE):
            super()._save_checkpoint(*args, **kwargs)

    def _load_from_checkpoint(self, *args, **kwargs):
        with witness.of(RESTORE):
            super()._load_from_checkpoint(*args, **kwargs)

    def _load_optimizer_and_scheduler(self, checkpoint):
        if checkpoint is None:
            return
        with witness.of(RESTORE):
            super()._load_optimizer_and_scheduler(checkpoint)


def callbacks():
    if sys.argv[1] == "none":
        return []
    from otel_goodput.integrations.transformers import GoodputCallback

    return [GoodputCallback()]


goodput.configure("hf-trainer", integrations="all" if sys.argv[1] == "none" else None)
config = GPT2Config(vocab_size=128, n_positions=32, n_embd=64, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
arguments = TrainingArguments(
    "checkpoints",
    per_device_train_batch_size=4,
    gradient_accumulation_steps=3,
    num_train_epochs=6,
    eval_strategy="steps",
    eval_steps=5,
    save_steps=4,
    save_total_limit=2,
    report_to=[],
    use_cpu=True,
    disable_tqdm=True,
)
trainer = Watched(
    GPT2LMHeadModel(config), arguments, train_dataset=Text(40), eval_dataset=Text(24), callbacks=callbacks()
)
with witness.life():
    trainer.train(resume_from_checkpoint=get_last_checkpoint("checkpoints"))
print(goodput.report())

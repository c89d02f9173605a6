"""TRL's trainers, fine-tuning (`sft`) and with rollouts (`grpo`), of a model and a tokenizer that are made on the spot.

The witness overrides the trainers' methods itself.
"""

import sys
import time

import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from transformers.trainer_utils import get_last_checkpoint
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

import otel_goodput as goodput
from everyday.chores import MS
from everyday.witness import EVALUATION, LOAD, RESTORE, SAVE, STEP, witness
from otel_goodput.integrations.trl import GoodputCallback

torch.set_num_threads(1)
WORDS = ["<pad>", "<end>", *(f"word{number}" for number in range(126))]
TEXTS = [" ".join(WORDS[2 + (first * 7 + place) % 126] for place in range(16)) for first in range(40)]


class Watched:
    """A trainer that writes down what it does."""

    step_key = None

    def get_batch_samples(self, *args, **kwargs):
        with witness.of(LOAD):
            time.sleep(10 * MS)
            return super().get_batch_samples(*args, **kwargs)

    def training_step(self, *args, **kwargs):
        if self.step_key is None:
            witness.number = self.state.global_step
            self.step_key = witness.begin(STEP)
        time.sleep(20 * MS)
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


class WatchedSFT(Watched, SFTTrainer): ...


class WatchedGRPO(Watched, GRPOTrainer):
    def _generate(self, *args, **kwargs):
        if not self.model.training:
            return super()._generate(*args, **kwargs)
        with witness.of(EVALUATION):  # a custom phase as well
            return super()._generate(*args, **kwargs)


goodput.configure(f"trl-{sys.argv[1]}")
tokens = Tokenizer(WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<pad>"))
tokens.pre_tokenizer = Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokens, pad_token="<pad>", eos_token="<end>")
sizes = {"vocab_size": len(WORDS), "n_positions": 64, "n_embd": 64, "n_layer": 2, "n_head": 2}
model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=1, eos_token_id=1, pad_token_id=0))
common = {
    "output_dir": "checkpoints",
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "save_steps": 4,
    "save_total_limit": 1,
    "eval_strategy": "steps",
    "eval_steps": 5,
    "report_to": [],
    "use_cpu": True,
    "bf16": False,
    "disable_tqdm": True,
}
if sys.argv[1] == "sft":
    data = Dataset.from_dict({"text": TEXTS})
    trainer = WatchedSFT(
        model,
        SFTConfig(**common, num_train_epochs=4, max_length=32),
        train_dataset=data,
        eval_dataset=data.select(range(8)),
        processing_class=tokenizer,
        callbacks=[GoodputCallback()],
    )
else:
    data = Dataset.from_dict({"prompt": TEXTS})
    trainer = WatchedGRPO(
        model,
        lambda completions, **_: [float(len(one)) for one in completions],
        GRPOConfig(**common, max_steps=12, num_generations=2, max_completion_length=12),
        train_dataset=data,
        eval_dataset=data.select(range(4)),
        processing_class=tokenizer,
        callbacks=[GoodputCallback()],
    )
with witness.life():
    trainer.train(resume_from_checkpoint=get_last_checkpoint("checkpoints"))
print(goodput.report())

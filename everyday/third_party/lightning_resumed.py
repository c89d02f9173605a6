"""Lightning: gradient accumulation, validation, `ModelCheckpoint`; killed in an open step, resumed by `ckpt_path`."""

import sys
import time
from importlib import import_module

import torch

import otel_goodput as goodput
from everyday.chores import MS
from everyday.witness import EVALUATION, LOAD, RESTORE, SAVE, STEP, witness

pl = import_module(sys.argv[1])
TorchCheckpointIO = import_module(f"{sys.argv[1]}.plugins.io").TorchCheckpointIO
EPOCH = 30  # batches
goodput.configure("lightning-resumed")


class Numbers(torch.utils.data.Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        time.sleep(1 * MS)
        return torch.full((64,), float(index)), index % 10


class Batches(torch.utils.data.DataLoader):
    def __iter__(self):
        batches = super().__iter__()
        while True:
            with witness.of(LOAD):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch


class Network(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 10)
        self.key = self.aside = None

    def loss(self, batch):
        return torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])

    def training_step(self, batch, index):
        time.sleep(12 * MS)
        return self.loss(batch)

    def validation_step(self, batch, index):
        time.sleep(5 * MS)
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())

    def on_train_batch_start(self, batch, index):
        if self.key is None:
            witness.number = self.global_step
            self.key = witness.begin(STEP)

    def optimizer_step(self, *args, **kwargs):
        super().optimizer_step(*args, **kwargs)
        witness.end(self.key)
        self.key = None

    def on_validation_start(self):
        self.aside = witness.begin(EVALUATION)

    def on_validation_end(self):
        witness.end(self.aside)


class Slow(TorchCheckpointIO):
    def save_checkpoint(self, *args, **kwargs):
        with witness.of(SAVE):
            time.sleep(30 * MS)
            super().save_checkpoint(*args, **kwargs)

    def load_checkpoint(self, *args, **kwargs):
        with witness.of(RESTORE):
            time.sleep(60 * MS)
            return super().load_checkpoint(*args, **kwargs)


class Logs(pl.Callback):
    """What callbacks do between batches is neither a step nor loading."""

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step % 4 == 3:
            time.sleep(15 * MS)


callbacks = [Logs(), pl.callbacks.ModelCheckpoint("checkpoints", every_n_train_steps=5, save_last=True)]
if sys.argv[2] == "hand":
    from otel_goodput.integrations.lightning import GoodputCallback

    callbacks.append(GoodputCallback())
with witness.life(), goodput.job():
    trainer = pl.Trainer(
        max_epochs=4, accumulate_grad_batches=int(sys.argv[3]), val_check_interval=0.5, callbacks=callbacks,
        plugins=[Slow()], accelerator="cpu", logger=False, enable_progress_bar=False,
    )  # fmt: skip
    trainer.fit(
        Network(), Batches(Numbers(8 * EPOCH), 8), torch.utils.data.DataLoader(Numbers(64), 8), ckpt_path="last"
    )
print(goodput.report())

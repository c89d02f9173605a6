"""A loop written by hand with an Accelerator, resumed in the middle of an epoch as Accelerate's examples do it."""

import time
from pathlib import Path

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, Dataset

import otel_goodput as goodput
from everyday.chores import MS
from everyday.witness import LOAD, RESTORE, SAVE, STEP, witness
from otel_goodput.integrations.accelerate import GoodputCallback

ACCUMULATED, EPOCHS, SAVE_STEPS = 3, 6, 4
torch.set_num_threads(1)


class Pairs(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        time.sleep(2 * MS)
        return torch.full((64,), index / self.count), index % 10


def watched(loader):
    """The batches of a loader; the witness records how long each took."""
    batches = iter(loader)
    while True:
        with witness.of(LOAD):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch


class Stopwatch:
    """The witness's steps: from the first of the batches whose gradients are accumulated until the update."""

    def __init__(self, done):
        self.done, self.key = done, None

    def start(self):
        if self.key is None:
            witness.number = self.done
            self.key = witness.begin(STEP)

    def stop(self):
        witness.end(self.key)
        self.done, self.key = self.done + 1, None


goodput.configure("accelerate-loop")
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATED)
GoodputCallback(accelerator)
model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
optimizer = torch.optim.AdamW(model.parameters())
scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
optimizer.register_step_post_hook(lambda *_: stopwatch.stop())
model, optimizer, train_loader, eval_loader, scheduler = accelerator.prepare(
    model, optimizer, DataLoader(Pairs(80), 8, shuffle=True), DataLoader(Pairs(32), 8), scheduler
)
with witness.life(), goodput.job():
    checkpoints = sorted(Path("checkpoints").glob("step_*"), key=lambda path: path.stat().st_ctime)
    updates = -(-len(train_loader) // ACCUMULATED)
    overall_step = starting_epoch = resume_step = 0
    if checkpoints:
        with witness.of(RESTORE):
            accelerator.load_state(checkpoints[-1])
        overall_step = int(checkpoints[-1].stem.replace("step_", ""))
        starting_epoch = overall_step // updates
        resume_step = overall_step % updates * ACCUMULATED
    stopwatch = Stopwatch(overall_step)
    for epoch in range(starting_epoch, EPOCHS):
        model.train()
        active_loader = train_loader
        if epoch == starting_epoch and resume_step:
            active_loader = accelerator.skip_first_batches(train_loader, resume_step)
        for x, y in watched(active_loader):
            stopwatch.start()
            with accelerator.accumulate(model):
                time.sleep(20 * MS)
                loss = torch.nn.functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                overall_step += 1
                if overall_step % SAVE_STEPS == 0:
                    with witness.of(SAVE):
                        accelerator.save_state(f"checkpoints/step_{overall_step}")
        model.eval()
        for x, y in watched(eval_loader):
            time.sleep(10 * MS)
            with torch.no_grad():
                accelerator.gather_for_metrics((model(x).argmax(-1), y))
print(goodput.report())

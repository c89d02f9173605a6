"""Accelerate, resumed in the middle of an epoch: ``loading()`` wraps a loader that is prepared later."""

import time

import torch
from accelerate import Accelerator, skip_first_batches
from torch.utils.data import DataLoader, Dataset

import otel_goodput as goodput
from everyday.chores import MS
from everyday.witness import LOAD, STEP, witness


class Images(Dataset):
    def __len__(self):
        return 320

    def __getitem__(self, index):
        time.sleep(1 * MS)
        return torch.full((64,), float(index)), index % 10


goodput.configure("accelerate-resumed")
with witness.life(), goodput.job():
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(64, 10)
    loader, model, optimizer = accelerator.prepare(
        goodput.loading(DataLoader(Images(), batch_size=8)), model, torch.optim.SGD(model.parameters(), 0.01)
    )
    batches = iter(skip_first_batches(loader, 10))
    number = 10
    while True:
        with witness.of(LOAD):
            batch = next(batches, None)
        if batch is None:
            break
        witness.number = number
        with witness.of(STEP), goodput.step(number):
            x, y = batch
            time.sleep(20 * MS)
            optimizer.zero_grad()
            accelerator.backward(torch.nn.functional.cross_entropy(model(x), y))
            optimizer.step()
        number += 1
print(goodput.report())

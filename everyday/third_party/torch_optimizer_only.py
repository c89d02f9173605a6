"""Like nanoGPT: no DataLoader, accumulated gradients, evaluations and saves between two steps; resumes by itself."""

import time
from pathlib import Path

import torch
import torch.nn.functional as F

from everyday.chores import MS
from everyday.witness import EVALUATION, RESTORE, SAVE, STEP, witness

CHECKPOINT = Path("model.pt")
STEPS, EVERY, MICRO = 80, 20, 3
model = torch.nn.Sequential(torch.nn.Linear(784, 600), torch.nn.ReLU(), torch.nn.Linear(600, 10))
optimizer = torch.optim.AdamW(model.parameters())


def get_batch():
    time.sleep(2 * MS)
    return torch.rand(16, 784), torch.randint(0, 10, (16,))


@torch.no_grad()
def estimate_loss():
    model.eval()
    for _ in range(5):
        model(get_batch()[0])
        time.sleep(10 * MS)
    model.train()


with witness.life(of_process=True):
    number = 0
    if CHECKPOINT.exists():
        with witness.of(RESTORE):
            held = torch.load(CHECKPOINT)
        model.load_state_dict(held["model"])
        optimizer.load_state_dict(held["optimizer"])
        number = held["number"]
    while number < STEPS:
        witness.number = number
        key = witness.begin(STEP)
        for _ in range(MICRO):
            x, y = get_batch()
            (F.cross_entropy(model(x), y) / MICRO).backward()
            time.sleep(15 * MS)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        witness.end(key)
        number += 1
        if number % EVERY == 0:
            with witness.of(EVALUATION):
                estimate_loss()
            with witness.of(SAVE):
                torch.save(
                    {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "number": number}, CHECKPOINT
                )

"""PyTorch below `otel-goodput run`: no line of the program knows of it. Saved, killed in an open step, and resumed."""

import os
import sys
import time
from pathlib import Path

if "UNALTERED" not in os.environ:
    os.environ["UNALTERED"] = str(time.time_ns())  # when the process began, for the witness
    command = [sys.executable, "-m", "otel_goodput", "run", "--name", "torch-unaltered", __file__]
    os.execv(sys.executable, command)

import torch
from torch.utils.data import DataLoader, TensorDataset

from everyday.chores import MS, Batches
from everyday.witness import LIFE, RESTORE, SAVE, witness

STEPS, EACH = 90, 15
LATEST = Path("latest.pt")
life = witness.begin(LIFE, int(os.environ["UNALTERED"]))
model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 10))
optimizer = torch.optim.Adam(model.parameters())
done = 0
if LATEST.exists():
    with witness.of(RESTORE):
        state = torch.load(LATEST)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    done = state["done"]
count = 64 * (STEPS - done)
loader = DataLoader(TensorDataset(torch.rand(count, 512), torch.randint(0, 10, (count,))), batch_size=64)
for x, y in Batches(STEPS - done, source=loader, first=done):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    time.sleep(20 * MS)
    optimizer.step()
    done += 1
    if done % EACH == 0:
        with witness.of(SAVE):
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "done": done}, LATEST)
witness.end(life)

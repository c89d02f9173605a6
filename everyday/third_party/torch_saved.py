"""PyTorch: saved with torch.save every so many steps, killed, resumed with torch.load. No line says so."""

import time
from pathlib import Path

import torch

import otel_goodput as goodput
from everyday.chores import MS, Batches
from everyday.witness import RESTORE, SAVE, witness

STEPS, EACH = 120, 15
LATEST = Path("latest.pt")

goodput.configure("torch-saved")
with witness.life(), goodput.job():
    model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 10))
    optimizer = torch.optim.Adam(model.parameters())
    start = 0
    if LATEST.exists():
        with witness.of(RESTORE):
            state = torch.load(LATEST, map_location="cpu", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        start = state["done"]
    for _, number in goodput.steps(Batches(STEPS - start, first=start)):
        x, y = torch.rand(64, 512), torch.randint(0, 10, (64,))
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        time.sleep(10 * MS)
        if (start + number + 1) % EACH == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "done": start + number + 1}
            with witness.of(SAVE):
                part = LATEST.with_suffix(".part")
                torch.save(state, part)
                part.replace(LATEST)
assert goodput.totals().kept == STEPS, goodput.totals()
print(goodput.report())

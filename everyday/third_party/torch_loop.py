"""PyTorch on the CPU: it blocks, so the host's clock is right."""

import torch

import otel_goodput as goodput
from everyday.chores import Batches
from everyday.witness import PREPARE, witness

goodput.configure("torch-loop")
with witness.life(), goodput.job():
    with goodput.training_prep(), witness.of(PREPARE):
        model = torch.nn.Sequential(
            torch.nn.Linear(784, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024), torch.nn.ReLU(),
            torch.nn.Linear(1024, 10),
        )  # fmt: skip
        optimizer = torch.optim.Adam(model.parameters())
    for step, number in goodput.steps(Batches(80)):
        x, y = torch.rand(512, 784), torch.randint(0, 10, (512,))
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(step, loss.item())
print(goodput.report())

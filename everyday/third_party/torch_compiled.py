"""torch.compile: a new shape in the middle compiles again."""

import time

import torch

import otel_goodput as goodput
from everyday.chores import MS, Batches
from everyday.witness import COMPILE, witness

goodput.configure("torch-compiled")
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), 1e-3)


@torch.compile(dynamic=False, backend="aot_eager")
def loss_of(x):
    return model(x).square().mean()


def train(x):
    optimizer.zero_grad()
    loss_of(x).backward()
    optimizer.step()


with witness.life(), goodput.job():
    for step, number in goodput.steps(Batches(120)):
        x = torch.rand(256 if number < 60 else 192, 64)
        time.sleep(20 * MS)
        if number in (0, 60):
            with witness.of(COMPILE):
                train(x)
        else:
            train(x)
print(goodput.report())

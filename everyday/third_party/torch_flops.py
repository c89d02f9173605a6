"""PyTorch: the FLOPs of a step are counted while it trains, once. PyTorch's own counter says how many there are."""

import time

import torch
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import otel_goodput as goodput
from everyday.chores import MS, Batches
from everyday.witness import PREPARE, witness

PEAK = 1e12  # made up: a CPU has none
goodput.configure("torch-flops", peak_flops=PEAK)
with witness.life(), goodput.job():
    with goodput.training_prep(), witness.of(PREPARE):
        torch.manual_seed(0)
        layers = [torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True) for _ in range(2)]
        model = torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(64 * 32, 10))
        optimizer = torch.optim.Adam(model.parameters())
    x = torch.rand(8, 32, 64)
    for _ in goodput.steps(Batches(60)):
        optimizer.zero_grad()
        checkpoint(model, x, use_reentrant=False).square().mean().backward()
        optimizer.step()
        time.sleep(10 * MS)
goodput.shutdown()
with FlopCounterMode(display=False) as counter:
    model(x).square().mean().backward()
report = goodput.report().to_json()
counted = report["program_goodput"] * report["seconds"]["productive"] * PEAK / goodput.totals().kept
assert abs(counted / counter.get_total_flops() - 1) < 1e-6, (counted, counter.get_total_flops())
print(goodput.report())

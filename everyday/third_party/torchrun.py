"""A script launched twice by torchrun, with two processes: the second launch of a finished run is a new run."""

import os
import subprocess
import sys

if "RANK" not in os.environ:
    for _ in range(2):
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", __file__]
        subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True)
    sys.exit()
if os.environ["RANK"] != "0":
    os.environ["EVERYDAY_READINGS"] = os.devnull  # the account is that of process 0

import torch
import torch.distributed

import otel_goodput as goodput
from everyday.chores import Batches
from everyday.witness import PREPARE, witness

torch.distributed.init_process_group("gloo")
goodput.configure("torchrun")
with witness.life(), goodput.job():
    with goodput.training_prep(), witness.of(PREPARE):
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(512, 10))
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for step, _ in goodput.steps(Batches(60)):
        x, y = torch.rand(2048, 512), torch.randint(0, 10, (2048,))
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(step, loss.item())
torch.distributed.destroy_process_group()
if os.environ["RANK"] == "0":
    print(goodput.report())

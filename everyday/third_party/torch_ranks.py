"""Two ranks of PyTorch with gloo: rank 0 is killed in an open step, torchrun ends the other, and is run again.

`ddp`: rank 0 saves a file that both load. `fsdp`: each rank has a shard, and distributed checkpoints are saved
asynchronously. No line says which step a checkpoint is of.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

if "RANK" not in os.environ:
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", *sys.argv]
    for life in ("first", "second"):
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "LIFE": life}
        status = subprocess.run(launch, env=environ, check=False).returncode
    sys.exit(status)
if os.environ["RANK"] != "0":
    os.environ["EVERYDAY_READINGS"] = os.devnull  # the witness measures process 0

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import otel_goodput as goodput
from everyday.chores import MS, Batches
from everyday.witness import PREPARE, RESTORE, SAVE, witness

KIND, RANK, AGAIN = sys.argv[1], int(os.environ["RANK"]), os.environ["LIFE"] == "second"
STEPS, EACH, KILLED = 90, 15, 52
LATEST = Path("latest")


def save(done: int) -> None:
    global pending
    if KIND == "ddp":
        if not RANK:
            with witness.of(SAVE):
                torch.save({"model": model.state_dict(), "done": done}, LATEST.with_suffix(".part"))
                LATEST.with_suffix(".part").replace(LATEST)
        dist.barrier()
        return
    with witness.of(SAVE):
        if pending is not None:
            pending.result()
            if not RANK:
                LATEST.write_text(str(done - EACH))
        weights, state = get_state_dict(model, optimizer)
        whole = {"model": weights, "optimizer": state}
        pending = dcp.async_save(whole, checkpoint_id=f"step-{done}", process_group=aside)


def restore() -> int:
    if not LATEST.exists():
        return 0
    with witness.of(RESTORE):
        if KIND == "ddp":
            state = torch.load(LATEST, map_location="cpu")
            model.load_state_dict(state["model"])
            return state["done"]
        done = int(LATEST.read_text())
        weights, state = get_state_dict(model, optimizer)
        dcp.load({"model": weights, "optimizer": state}, checkpoint_id=f"step-{done}")
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
    return done


goodput.configure("torch-ranks")
with witness.life(), goodput.job():
    with goodput.training_prep(), witness.of(PREPARE):
        dist.init_process_group("gloo")
        aside = dist.new_group(backend="gloo")  # a save in the background has collectives of its own
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 10))
        model = DistributedDataParallel(model) if KIND == "ddp" else fully_shard(model)
        optimizer = torch.optim.Adam(model.parameters())
    pending, start = None, restore()
    for _, number in goodput.steps(Batches(STEPS - start, first=start)):
        x, y = torch.rand(64, 512), torch.randint(0, 10, (64,))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        time.sleep(10 * MS)
        if start + number == KILLED and not AGAIN and not RANK:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        if (start + number + 1) % EACH == 0:
            save(start + number + 1)
    if pending is not None:
        pending.result()
dist.destroy_process_group()
goodput.shutdown()
assert RANK or goodput.totals().kept == STEPS, goodput.totals()
if not RANK:
    print(goodput.report())

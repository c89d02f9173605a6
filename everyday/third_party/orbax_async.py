"""Orbax saves asynchronously in the loop; after a kill, the next process restores what was committed and continues."""

from functools import partial
from pathlib import Path

import jax
import orbax.checkpoint as ocp

import otel_goodput as goodput
from everyday.chores import Batches
from everyday.network import batch_of, initial, read, update
from everyday.witness import RESTORE, SAVE, STEP, witness

STEPS = 160
goodput.configure("orbax-async")
train_step = read(STEP)(partial(jax.jit, donate_argnums=0)(update))

with witness.life(), goodput.job():
    manager = ocp.CheckpointManager(
        Path("checkpoints").absolute(), options=ocp.CheckpointManagerOptions(max_to_keep=2, save_interval_steps=20)
    )
    state, start = initial(), 0
    latest = manager.latest_step()
    if latest is not None:
        with witness.of(RESTORE):
            state = manager.restore(latest, args=ocp.args.StandardRestore(state))
        start = latest + 1
    for step, number in goodput.steps(Batches(STEPS - start, ms=2, first=start), start=start):
        state, loss = train_step(state, batch_of(number))
        if manager.should_save(int(step)):
            with witness.of(SAVE):
                manager.save(int(step), args=ocp.args.StandardSave(state))
    manager.wait_until_finished()
    print(float(loss))
print(goodput.report())

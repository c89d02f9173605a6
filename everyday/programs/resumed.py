"""Saves in the loop; killed by the platform, it continues from its checkpoint."""

import otel_goodput as goodput
from everyday.chores import Batches, restore, save, train
from everyday.witness import witness

goodput.configure("resumed")
with witness.life(), goodput.job():
    with goodput.checkpoint_restore():
        saved = restore()
    start = 0 if saved is None else saved + 1
    for step, batch in goodput.steps(Batches(100 - start, first=start), start=start):
        train(batch)
        if step % 20 == 19:
            with goodput.checkpoint_save(step):
                save(step)
print(goodput.report())

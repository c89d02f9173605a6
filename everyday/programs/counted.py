"""A step number of your own that continues over the epochs."""

import otel_goodput as goodput
from everyday.chores import Batches, evaluate, train_one
from everyday.witness import witness

goodput.configure("counted")
loader = Batches(20, steps=False)
global_step = 0
with witness.life(), goodput.job():
    for _epoch in range(3):
        for batch in loader:
            with goodput.step(global_step):
                train_one(batch)
            global_step += 1
        with goodput.custom("eval"):
            evaluate()
print(goodput.report())

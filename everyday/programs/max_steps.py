"""A fixed number of steps, over as many epochs as needed; a `break` after the last step ends it."""

import otel_goodput as goodput
from everyday.chores import Batches, evaluate, train
from everyday.witness import witness

MAX_STEPS = 50
goodput.configure("max_steps")
loader = Batches(16)
with witness.life(), goodput.job():
    done = False
    while not done:
        for step, batch in goodput.steps(loader):
            train(batch)
            if step + 1 == MAX_STEPS:
                done = True
                break
        evaluate()
print(goodput.report())

"""A loop that is left at its head: the batch was loaded, but its step never done."""

import otel_goodput as goodput
from everyday.chores import Batches, train
from everyday.witness import witness

MAX_STEPS = 40
goodput.configure("left_at_the_head")
with witness.life(), goodput.job():
    for step, batch in goodput.steps(Batches(1000)):
        if step >= MAX_STEPS:
            break
        train(batch)
    print("and on with something else")
print(goodput.report())

"""Ctrl-C in the middle of a step: the program saves its state and ends normally."""

import otel_goodput as goodput
from everyday.chores import Batches, save, train
from everyday.witness import witness

goodput.configure("interrupted")
with witness.life(), goodput.job():
    step = None
    try:
        for step, batch in goodput.steps(Batches(100_000)):
            train(batch)
    except KeyboardInterrupt:
        print("interrupted at step", step)
        with goodput.checkpoint_save(step - 1):
            save(step - 1)
print(goodput.report())

"""A loop in plain Python: each step in its context manager, everything else outside."""

import otel_goodput as goodput
from everyday.chores import Batches, prepare, train_one
from everyday.witness import witness

goodput.configure("plain")
with witness.life(), goodput.job():
    prepare()
    for number, batch in enumerate(Batches(60, steps=False)):
        with goodput.step(number):
            loss = train_one(batch)
        if number % 20 == 0:
            print(number, loss)
print(goodput.report())

"""`enumerate` in each epoch: the numbers start again, as if the run had gone back."""

import otel_goodput as goodput
from everyday.chores import Batches, train_one
from everyday.witness import witness

goodput.configure("enumerated")
loader = Batches(20, steps=False)
with witness.life(), goodput.job():
    for _epoch in range(3):
        for number, batch in enumerate(loader):
            with goodput.step(number):
                train_one(batch)
print(goodput.report())

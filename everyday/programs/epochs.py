"""Epochs: an inner loop over the same loader each time."""

import otel_goodput as goodput
from everyday.chores import Batches, evaluate, prepare, train
from everyday.witness import witness

goodput.configure("epochs")
loader = Batches(16)
with witness.life(), goodput.job():
    prepare()
    for epoch in range(4):
        for step, batch in goodput.steps(loader):
            loss = train(batch)
            if step % 10 == 0:
                print(f"epoch {epoch}, step {step}: loss {loss}")
        evaluate()
print(goodput.report())

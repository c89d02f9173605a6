"""A loader that is slower than the device: most time is spent waiting for data, although steps seem short."""

import jax

import otel_goodput as goodput
from everyday.chores import Batches
from everyday.network import batch_of, initial, read, update
from everyday.witness import STEP, witness

goodput.configure("slow_loader")
train_step = read(STEP)(jax.jit(update))

with witness.life(), goodput.job():
    state = initial()
    for _step, number in goodput.steps(Batches(40, ms=60)):
        state, loss = train_step(state, batch_of(number))
    print(float(loss))
print(goodput.report())

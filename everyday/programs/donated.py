"""A jax loop whose state is donated; the loss is read never, sometimes, or after each step."""

import sys
from functools import partial

import jax

import otel_goodput as goodput
from everyday.chores import Batches
from everyday.network import batch_of, initial, read, update
from everyday.witness import STEP, witness

EVERY = int(sys.argv[1])  # steps; 0: never
goodput.configure(f"donated-{EVERY}")
train_step = read(STEP)(partial(jax.jit, donate_argnums=0)(update))

with witness.life(), goodput.job():
    state = initial()
    for step, number in goodput.steps(Batches(80)):
        state, loss = train_step(state, batch_of(number))
        if EVERY and step % EVERY == 0:
            print(step, float(loss))
print(goodput.report())

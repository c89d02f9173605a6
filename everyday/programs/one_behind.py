"""MaxText's loop: the step encloses the dispatch, and the previous step's metrics are read after it."""

from functools import partial

import jax

import otel_goodput as goodput
from everyday.chores import Batches
from everyday.network import batch_of, initial, read, update
from everyday.witness import STEP, witness

goodput.configure("one_behind")
train_step = read(STEP, numbers=True)(partial(jax.jit, donate_argnums=0)(update))

with witness.life(), goodput.job():
    state = initial()
    behind = None
    for number, batch in enumerate(Batches(80, steps=False)):
        with goodput.step(number):
            state, loss = train_step(state, batch_of(batch))
        if behind is not None:
            print(f"step {number - 1}: loss {behind:.4f}")
        behind = loss
    print(f"the last step: loss {behind:.4f}")
print(goodput.report())

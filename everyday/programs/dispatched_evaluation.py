"""An evaluation on the device that nobody waits for until all is over."""

import jax

import otel_goodput as goodput
from everyday.chores import Batches
from everyday.network import batch_of, initial, loss_of, read, update
from everyday.witness import EVALUATION, STEP, witness

goodput.configure("dispatched_evaluation")
train_step = read(STEP)(jax.jit(update))
validate = read(EVALUATION)(jax.jit(lambda weights, batch: loss_of(weights, batch)))

with witness.life(), goodput.job():
    state = initial()
    losses = []
    for step, number in goodput.steps(Batches(60, ms=1)):
        state, loss = train_step(state, batch_of(number))
        if step % 10 == 9:
            with goodput.custom("eval"):
                losses += [validate(state[0], batch_of(each)) for each in range(20)]
    print("validation:", sum(map(float, losses)) / len(losses))
print(goodput.report())

"""An evaluation on the device that the loop never waits for."""

from functools import partial

import jax

import otel_goodput as goodput
from everyday.chores import Batches
from everyday.network import batch_of, initial, loss_of, read, update
from everyday.witness import EVALUATION, STEP, witness

goodput.configure("dispatched_evaluation")
# The state is donated, so that the next step waits for the evaluation: a CPU would do both at the same time.
train_step = read(STEP)(partial(jax.jit, donate_argnums=0)(update))
validate = read(EVALUATION)(jax.jit(lambda weights, batch, total: total + loss_of(weights, batch)))

with witness.life(), goodput.job():
    state = initial()
    total = jax.numpy.zeros(())
    for step, number in goodput.steps(Batches(60, ms=1)):
        state, loss = train_step(state, batch_of(number))
        if step % 10 == 9:
            with goodput.custom("eval"):
                for each in range(20):
                    total = validate(state[0], batch_of(each), total)
    print("validation:", float(total) / 120)
print(goodput.report())

"""A model that is changed in place, as in flax NNX and PyTorch: the step returns nothing."""

import jax

import otel_goodput as goodput
from everyday.chores import Batches
from everyday.network import batch_of, initial, read, update
from everyday.witness import STEP, witness

goodput.configure("mutated")


class Model:
    def __init__(self):
        self.state = initial()
        self.total = jax.numpy.zeros(()) + jax.numpy.zeros(())
        self.updated = read(STEP, numbers=True)(jax.jit(update))


@goodput.traced_step
def train_step(model, batch):
    model.state, loss = model.updated(model.state, batch)
    model.total += loss


with witness.life(), goodput.job():
    model = Model()
    for number in Batches(60, ms=2, steps=False):
        train_step(model, batch_of(number))
    print("mean loss", float(model.total) / 60)
print(goodput.report())

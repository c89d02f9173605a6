"""Equinox: a filtered jit that returns the model, the state of the optimizer and the loss."""

import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import otel_goodput as goodput
from everyday.chores import Batches
from everyday.network import read
from everyday.witness import STEP, witness

goodput.configure("equinox")
STEPS, PRINT_EVERY = int(sys.argv[1]), 30
optim = optax.adamw(1e-3)


def loss_fn(model, x, y):
    logits = jax.vmap(model)(x)
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


@eqx.filter_jit
def make_step(model, opt_state, x, y):
    loss, grads = eqx.filter_value_and_grad(loss_fn)(model, x, y)
    updates, opt_state = optim.update(grads, opt_state, eqx.filter(model, eqx.is_array))
    return eqx.apply_updates(model, updates), opt_state, loss


def loader():
    """For ever, as Equinox's examples have it."""
    chance = np.random.default_rng(0)
    while True:
        yield chance.random((256, 784), np.float32), chance.integers(0, 10, 256)


with witness.life(), goodput.job():
    model = eqx.nn.MLP(784, 10, 512, 3, key=jax.random.key(0))
    opt_state = optim.init(eqx.filter(model, eqx.is_array))
    train = read(STEP)(make_step)
    for step, (x, y) in goodput.steps(Batches(STEPS, source=loader())):
        if step == STEPS:
            break
        model, opt_state, loss = train(model, opt_state, jnp.asarray(x), jnp.asarray(y))
        if step % PRINT_EVERY == 0:
            print(step, loss.item())
print(goodput.report())

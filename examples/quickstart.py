"""The smallest job: a line fitted with JAX on whatever device there is, then the account of its time."""

import tempfile

import jax
import jax.numpy as jnp

import otel_goodput as goodput

directory = tempfile.mkdtemp(prefix="goodput-")
goodput.configure("quickstart", directory=directory, exporters=["file"])


@jax.jit
def train_step(weights: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    error, slope = jax.value_and_grad(lambda w: jnp.mean((x @ w - x.sum(axis=1)) ** 2))(weights)
    return weights - 0.1 * slope, error


with goodput.job():
    with goodput.accelerator_init():
        jax.devices()
    with goodput.training_prep():
        data = jax.random.normal(jax.random.key(0), (300, 1000, 64))
        weights = jnp.zeros(64)
    for step, x in goodput.steps(data):
        weights, error = train_step(weights, x)
        error.block_until_ready()
        if step % 100 == 99:
            with goodput.checkpoint_save(step):
                jnp.save(f"{directory}/weights-{step}.npy", weights)

print(goodput.report())
goodput.shutdown()

"""A minimal job: fit a small network with JAX on any device, and report where the time went."""

import tempfile

import jax
import jax.numpy as jnp
import numpy as np

import otel_goodput as goodput

directory = tempfile.TemporaryDirectory()
goodput.configure("quickstart", directory=directory.name, exporters="none")


@jax.jit
def train_step(weights, x):
    def loss(weights):
        return jnp.mean((jnp.tanh(x @ weights["in"]) @ weights["out"] - x.sum(axis=1)) ** 2)

    error, slope = jax.value_and_grad(loss)(weights)
    return jax.tree.map(lambda w, g: w - 0.01 * g, weights, slope), error


with goodput.job():
    with goodput.accelerator_init():
        jax.devices()
    with goodput.training_prep():
        random = np.random.default_rng(0)
        weights = {"in": random.normal(size=(64, 512)) / 8, "out": random.normal(size=512) / 23}
        batches = (random.normal(size=(1024, 64)) for _ in range(300))
    for step, batch in goodput.steps(batches):
        weights, error = train_step(weights, batch)
        error.block_until_ready()
        if step % 100 == 99:
            with goodput.checkpoint_save(step):
                np.savez(f"{directory.name}/{step}.npz", **weights)
            print(f"step {step}  error {error:.4f}")

print(goodput.report())
goodput.shutdown()
directory.cleanup()

"""Flax's MNIST tutorial (NNX): model, optimizer and metrics are changed in place, the step returns nothing."""

import sys

import jax
import numpy as np
import optax
from flax import nnx

import otel_goodput as goodput
from everyday.chores import Batches
from everyday.network import latest, read
from everyday.witness import EVALUATION, STEP, witness

goodput.configure("flax-nnx")
TRAIN_STEPS, EVAL_EVERY, BATCH = int(sys.argv[1]), 50, 32


class CNN(nnx.Module):
    def __init__(self, *, rngs: nnx.Rngs):
        self.conv1 = nnx.Conv(1, 16, kernel_size=(3, 3), rngs=rngs)
        self.conv2 = nnx.Conv(16, 32, kernel_size=(3, 3), rngs=rngs)
        self.linear1 = nnx.Linear(7 * 7 * 32, 128, rngs=rngs)
        self.linear2 = nnx.Linear(128, 10, rngs=rngs)

    def __call__(self, x):
        x = nnx.avg_pool(nnx.relu(self.conv1(x)), window_shape=(2, 2), strides=(2, 2))
        x = nnx.avg_pool(nnx.relu(self.conv2(x)), window_shape=(2, 2), strides=(2, 2))
        return self.linear2(nnx.relu(self.linear1(x.reshape(x.shape[0], -1))))


def loss_fn(model, batch):
    logits = model(batch["image"])
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean(), logits


@nnx.jit
def update(model, optimizer, metrics, batch):
    (loss, logits), grads = nnx.value_and_grad(loss_fn, has_aux=True)(model, batch)
    metrics.update(loss=loss, logits=logits, labels=batch["label"])
    optimizer.update(model, grads)


@nnx.jit
def measure(model, metrics, batch):
    loss, logits = loss_fn(model, batch)
    metrics.update(loss=loss, logits=logits, labels=batch["label"])


def digits(count):
    """Noise in the shape of MNIST."""
    chance = np.random.default_rng(0)
    for _ in range(count):
        yield {"image": chance.random((BATCH, 28, 28, 1), np.float32), "label": chance.integers(0, 10, BATCH)}


with witness.life(), goodput.job():
    model = CNN(rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(0.005, 0.9), wrt=nnx.Param)
    metrics = nnx.MultiMetric(accuracy=nnx.metrics.Accuracy(), loss=nnx.metrics.Average("loss"))
    train_step = read(STEP, output=lambda _: latest(nnx.state(model)))(update)
    eval_step = read(EVALUATION, output=lambda _: latest(nnx.state(metrics)))(measure)
    test_batch = next(digits(1))
    for step, batch in goodput.steps(Batches(TRAIN_STEPS, source=digits(TRAIN_STEPS))):
        train_step(model, optimizer, metrics, batch)
        if step > 0 and step % EVAL_EVERY == 0:
            print(step, {name: float(value) for name, value in metrics.compute().items()})
            metrics.reset()
            with goodput.custom("eval"), witness.of(EVALUATION):
                for _ in range(5):
                    eval_step(model, metrics, test_batch)
            metrics.reset()
    jax.block_until_ready(nnx.state(model))
print(goodput.report())

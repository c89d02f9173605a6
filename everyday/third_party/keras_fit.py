"""Keras 3 on JAX: `fit` runs the loop, and a callback opens a step around each batch."""

import os
import sys

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np

import otel_goodput as goodput
from everyday.network import latest, read
from everyday.witness import STEP, witness

goodput.configure("keras-fit")


class Goodput(keras.callbacks.Callback):
    """A step for each batch, counted over the epochs."""

    def __init__(self):
        super().__init__()
        self.number = 0

    def on_train_batch_begin(self, batch, logs=None):
        self.step = goodput.step(self.number)
        self.step.__enter__()

    def on_train_batch_end(self, batch, logs=None):
        self.step.__exit__(None, None, None)
        self.number += 1


with witness.life(), goodput.job():
    layers = [keras.layers.Dense(1024, activation="relu") for _ in range(4)]
    model = keras.Sequential([keras.Input((512,)), *layers, keras.layers.Dense(10)])
    model.compile(optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    chance = np.random.default_rng(0)
    count = 256 * int(sys.argv[1])
    x, y = chance.random((count, 512), np.float32), chance.integers(0, 10, count)
    model.make_train_function()
    model.train_function = read(STEP, numbers=True, output=lambda outputs: latest(outputs[0]))(model.train_function)
    model.fit(x, y, batch_size=256, epochs=3, verbose=2, callbacks=[Goodput()])
print(goodput.report())

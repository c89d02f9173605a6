"""Keras 3: data of unknown length, validation, `ModelCheckpoint`; killed, and resumed by `BackupAndRestore`."""

import os
import sys
import time

os.environ["KERAS_BACKEND"] = sys.argv[1]

import keras
import numpy as np
import torch

import otel_goodput as goodput
from everyday.chores import MS
from everyday.witness import EVALUATION, LOAD, RESTORE, SAVE, STEP, witness
from otel_goodput.integrations.keras import GoodputCallback

EPOCH = 20  # batches
SAVE_FREQ = sys.argv[2] if sys.argv[2] == "epoch" else int(sys.argv[2])
goodput.configure("keras-resumed")
chance = np.random.default_rng(0)
if sys.argv[1] == "jax":
    from everyday.network import compilations, latest


class Stream(torch.utils.data.IterableDataset):
    """Nobody knows how many batches it has before it ends."""

    def __iter__(self):
        for _ in range(EPOCH):
            with witness.of(LOAD):
                time.sleep(8 * MS)
                batch = chance.random((128, 256), np.float32), chance.integers(0, 10, 128)
            if Timed.training:
                witness.number += 1
                Timed.key = witness.begin(STEP) if sys.argv[1] == "jax" else None
            yield batch


class Timed(keras.Model):
    """With a stopwatch in the methods that a user may override."""

    training = False  # before, Keras reads a batch to build the model
    key = None  # of the step that has its batch

    def __init__(self):
        super().__init__()
        self.inner = keras.Sequential([*(keras.layers.Dense(512, activation="relu") for _ in range(4))])
        self.last = keras.layers.Dense(10)

    def call(self, x):
        return self.last(self.inner(x))

    def make_train_function(self, force=False):
        before = self.train_function
        super().make_train_function(force)
        if sys.argv[1] != "jax" or before is not None:
            return
        train = self.train_function

        def timed(state, iterator):
            Timed.key = None
            outputs = train(state, iterator)
            witness.end(Timed.key)
            witness.watch(STEP, max(time.time_ns(), compilations.until), latest(outputs[0]))
            return outputs

        self.train_function = timed

    def train_step(self, *data):
        if sys.argv[1] == "jax":
            return super().train_step(*data)
        with witness.of(STEP):
            return super().train_step(*data)

    def evaluate(self, *args, **kwargs):
        with witness.of(EVALUATION):
            return super().evaluate(*args, **kwargs)

    def save(self, *args, **kwargs):
        with witness.of(SAVE):
            return super().save(*args, **kwargs)

    def save_weights(self, *args, **kwargs):
        with witness.of(SAVE):
            return super().save_weights(*args, **kwargs)

    def load_weights(self, *args, **kwargs):
        with witness.of(RESTORE):
            super().load_weights(*args, **kwargs)
        # Whatever the backup holds of an epoch, Keras does all of it again.
        witness.number = int(self.optimizer.iterations) // EPOCH * EPOCH - 1


with witness.life(), goodput.job():
    model = Timed()
    model.compile(
        optimizer="adam",
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=sys.argv[1] == "jax",
    )
    model.build((None, 256))
    others = chance.random((512, 256), np.float32), chance.integers(0, 10, 512)
    model.fit(
        torch.utils.data.DataLoader(Stream(), batch_size=None),
        epochs=4,
        validation_data=others,
        verbose=2,
        callbacks=[
            keras.callbacks.LambdaCallback(on_train_begin=lambda logs: setattr(Timed, "training", True)),
            keras.callbacks.ModelCheckpoint("latest.keras"),
            keras.callbacks.BackupAndRestore("backup", save_freq=SAVE_FREQ),
            GoodputCallback(),
        ],
    )
print(goodput.report())

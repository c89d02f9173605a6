"""The work of a training job without a device: it sleeps, and the witness records how long each chore took."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from everyday.witness import EVALUATION, LOAD, PREPARE, RESTORE, SAVE, STEP, witness

MS = 1e-3
CHECKPOINT = Path("checkpoint.json")


class Batches:
    """A data set: an iterable with a length, whose batches take time to load.

    Args:
        count: of batches.
        ms: to load each batch.
        source: of the batches; by default one that sleeps.
        steps: each iteration of the loop is a step.
        first: number of the first step, by default the one after the latest.
    """

    def __init__(
        self,
        count: int,
        ms: float = 8,
        *,
        source: Iterable[Any] | None = None,
        steps: bool = True,
        first: int | None = None,
    ) -> None:
        self._count, self._steps, self._first = count, steps, first
        self._source = Slow(count, ms) if source is None else source

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Any]:
        if self._first is not None:
            witness.number = self._first - 1
        source = iter(self._source)
        while True:
            with witness.of(LOAD):
                try:
                    batch = next(source)
                except StopIteration:
                    return
            if not self._steps:
                yield batch
                continue
            witness.number += 1
            key = witness.begin(STEP)
            try:
                yield batch
            except GeneratorExit:
                witness.end(key, left=True)
                raise
            witness.end(key)


class Slow:
    """Batches from a slow disk; may be iterated over several times."""

    def __init__(self, count: int, ms: float) -> None:
        self._count, self._seconds = count, ms * MS

    def __iter__(self) -> Iterator[int]:
        for number in range(self._count):
            time.sleep(self._seconds)
            yield number


def train(batch: object, ms: float = 20) -> float:
    """Forward, backward, update; returns the loss."""
    time.sleep(ms * MS)
    return 1.0


def train_one(batch: object, ms: float = 20) -> float:
    """Like :func:`train`, for loops whose iterations are not steps: the call is the step."""
    witness.number += 1
    with witness.of(STEP):
        return train(batch, ms)


def prepare(ms: float = 120) -> None:
    """Build the model."""
    with witness.of(PREPARE):
        time.sleep(ms * MS)


def evaluate(ms: float = 60) -> None:
    with witness.of(EVALUATION):
        time.sleep(ms * MS)


def save(step: int, ms: float = 50) -> None:
    with witness.of(SAVE):
        time.sleep(ms * MS)
        part = CHECKPOINT.with_suffix(".part")
        part.write_text(json.dumps(step))
        part.replace(CHECKPOINT)


def restore(ms: float = 40) -> int | None:
    """The step of the checkpoint, if there is one."""
    if not CHECKPOINT.exists():
        return None
    with witness.of(RESTORE):
        time.sleep(ms * MS)
        return int(json.loads(CHECKPOINT.read_text()))

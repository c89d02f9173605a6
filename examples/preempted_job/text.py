"""The data: Python's own help topics as bytes, and a loader that prefetches on a thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pydoc_data.topics import topics

import numpy as np

import otel_goodput as goodput

HELD_OUT = 0.1  # the share of the text reserved for evaluation


class Text:
    """English text included in every Python (some 450 kB), in batches that depend only on the seed and the step.

    So a job that resumes at step n sees what it would have seen without the interruption.
    """

    def __init__(self, batch: int, context: int, seed: int) -> None:
        everything = np.frombuffer("\n\n".join(topics[name] for name in sorted(topics)).encode(), np.uint8)
        cut = int(len(everything) * (1 - HELD_OUT))
        self._train, self._held_out = everything[:cut], everything[cut:]
        self._batch, self._context, self._seed = batch, context, seed

    def _cut(self, source: np.ndarray, *key: int) -> np.ndarray:
        starts = np.random.default_rng([self._seed, *key]).integers(len(source) - self._context, size=self._batch)
        return np.stack([source[start : start + self._context + 1] for start in starts]).astype(np.int32)

    def batch(self, step: int) -> np.ndarray:
        """Return the tokens (batch, context + 1) to train on in that step."""
        # Called on the prefetch thread, so this overlaps with training and does not block it.
        with goodput.data_loading():
            return self._cut(self._train, 0, step)

    def held_out(self, count: int) -> list[np.ndarray]:
        """Return the same ``count`` batches of held-out text each time."""
        return [self._cut(self._held_out, 1, index) for index in range(count)]

    def prefetched(self, first: int, end: int, depth: int = 2) -> Iterator[np.ndarray]:
        """Yield the batches of steps first … end - 1, prepared ahead on a thread; its errors are raised here."""
        steps = iter(range(first, end))
        with ThreadPoolExecutor(1, "prefetch") as thread:
            ahead = deque(thread.submit(self.batch, step) for step in islice(steps, depth))
            while ahead:
                batch = ahead.popleft().result()
                ahead.extend(thread.submit(self.batch, step) for step in islice(steps, 1))
                yield batch

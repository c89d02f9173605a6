"""How many batches loaders of PyTorch and Grain have ready, as the package sees it from the background.

For each kind of loader: batches are ready while the loop is slow, none are while workers are slow, and once a pass is
over there is nothing to see.
"""

from __future__ import annotations

import importlib.util
import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

NAME = "everyday.ready_batches"
PATIENCE_S = 180.0
COUNT, SLOW_S = 12, 0.2


def check() -> str:
    """Look at them in a process of its own; returns "as they should be", or what is wrong."""
    if any(importlib.util.find_spec(name) is None for name in ("torch", "grain")):
        return "not compared: torch or grain is not installed"
    root = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-m", NAME], cwd=root, capture_output=True, text=True, timeout=PATIENCE_S)
    return done.stdout.strip().rpartition("\n")[2] if done.returncode == 0 else f"it failed: {done.stderr[-500:]}"


class Numbers:
    """As many numbers, each of which takes so long."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> int:
        time.sleep(self.seconds)
        return index


def _torch(seconds: float) -> Any:
    import torch.utils.data

    data: Any = Numbers(seconds)
    return iter(torch.utils.data.DataLoader(data, batch_size=None, num_workers=2, persistent_workers=True))


def _threads(seconds: float) -> Any:
    import grain

    options = grain.ReadOptions(num_threads=2, prefetch_buffer_size=4)
    return iter(grain.MapDataset.source(Numbers(seconds)).to_iter_dataset(options))


def _processes(seconds: float) -> Any:
    import grain

    data = grain.MapDataset.source(Numbers(seconds)).to_iter_dataset(grain.ReadOptions(0, 0))
    return iter(data.mp_prefetch(grain.multiprocessing.MultiprocessingOptions(num_workers=2)))


def _loader(seconds: float) -> Any:
    import grain.python as grain

    options = grain.ReadOptions(num_threads=2, prefetch_buffer_size=4)
    sampler = grain.SequentialSampler(COUNT, grain.NoSharding())
    return iter(grain.DataLoader(data_source=Numbers(seconds), sampler=sampler, read_options=options))


KINDS: dict[str, Callable[[float], Iterator[Any]]] = {
    "torch": _torch,
    "grain threads": _threads,
    "grain processes": _processes,
    "grain.DataLoader": _loader,
}


def _wrong(make: Callable[[float], Iterator[Any]]) -> str:
    from otel_goodput._recording.ready_batches import seen_depth

    quick = make(0.0)
    depth = seen_depth(quick)
    if depth is None:
        return "cannot be seen"
    next(quick)
    until = time.monotonic() + 30
    while not depth():
        if time.monotonic() > until:
            return f"none is ready, {depth()}"
        time.sleep(0.01)
    rest = sum(1 for _ in quick)
    if rest != COUNT - 1 or depth() is not None:
        return f"{rest} more, then {depth()}"
    slow = make(SLOW_S)
    depth = seen_depth(slow)
    assert depth is not None
    seen = [depth() for _ in itertools.islice(slow, 6)]
    if seen.count(0) < 2:  # two workers make two at a time
        return f"slow workers have {seen} ready"
    del quick, slow
    return "" if depth() is None else "the iterator is kept"


def main() -> str:
    from absl import flags

    flags.FLAGS(["everyday"])
    wrong = {kind: text for kind, make in KINDS.items() if (text := _wrong(make))}
    return "; ".join(f"{kind}: {text}" for kind, text in wrong.items()) or "as they should be"


if __name__ == "__main__":
    print(main())

"""Checks the account of a job whose ranks step together through real collectives, one of which loads slowly.

What all ranks do is written down by each of them with its own clock reads, and put together afterwards. With arguments
this is one of the ranks: LIBRARY INDEX PORT.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

NAME = "everyday.ranks"
RANKS = {"torch": 8, "jax": 4}
SLOW = 2  # the rank with the slow loader,
SLOWER_S = 0.06  # by so much in half of its steps
STEPS = 60
TOLERANCE = 0.01  # of the elapsed time
PATIENCE_S = 300.0

Reading = tuple[float, float, float]  # of a step of a rank: its batch is wanted, is there; the step is over; s


def check() -> str:
    """Run the ranks; returns "as by the witness", or what is wrong."""
    results = []
    for library, count in RANKS.items():
        if importlib.util.find_spec(library) is None:
            return f"not compared: {library} is not installed"
        with tempfile.TemporaryDirectory() as folder:
            wrong = compared(library, count, Path(folder))
        results.append(f"{library}: {wrong}" if wrong else "")
    return "; ".join(filter(None, results)) or "as by the witness"


def compared(library: str, count: int, folder: Path) -> str:
    """Run a job; returns in what its report differs from what its ranks wrote down."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", NAME, library, str(index), str(port)],
            cwd=folder,
            env={**environment, "RANK": str(index), "WORLD_SIZE": str(count)},
            stdout=subprocess.DEVNULL,
        )
        for index in range(count)
    ]
    try:
        statuses = [rank.wait(PATIENCE_S) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    if any(statuses):
        return f"exit statuses {statuses}"
    command = [sys.executable, "-m", "otel_goodput", "report", "--json"]
    report = json.loads(subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE).stdout)
    readings = [json.loads((folder / f"{index}.json").read_text()) for index in range(count)]
    return "; ".join(differences(report, readings))


def differences(report: dict[str, Any], readings: list[list[Reading]]) -> Iterator[str]:
    """Yield what a report says otherwise than what the ranks wrote down."""
    ranks, elapsed = report["ranks"], report["elapsed_s"]
    if (ranks["count"], ranks["together"]) != (len(readings), True):
        yield f"{ranks['count']} ranks, together: {ranks['together']}"
    stepping, waited = witnessed(readings)
    seconds = report["seconds"]
    steps = sum(seconds[name] for name in ("productive", "program_startup", "stalled", "in_flight", "wasted_progress"))
    longest = ranks["waits"][0] if ranks["waits"] else {"rank": None, "category": None, "seconds": 0.0}
    if (longest["rank"], longest["category"]) != (SLOW, "data_loading"):
        yield f"waited most for {longest['rank']}, {longest['category']}"
    for name, one, other in (("steps", steps, stepping), ("waited", longest["seconds"], waited)):
        if abs(one - other) > TOLERANCE * elapsed:
            yield f"{name} {one:.3f} s of {elapsed:.3f}, by the witness {other:.3f}"


def witnessed(readings: list[list[Reading]]) -> tuple[float, float]:
    """Return how long all were at work on steps, and how long most others could work and the slow one could not, s."""
    stepping = waited = 0.0
    over = 0.0  # the step before
    for turn in zip(*readings, strict=True):
        begins = [there for _, there, _ in turn]
        begun, end = max(begins), max(end for *_, end in turn)
        others = sorted(begin for rank, begin in enumerate(begins) if rank != SLOW)
        if begins[SLOW] == begun:
            waited += begun - max(over, others[(len(others) - 1) // 2])
        stepping += end - begun
        over = end
    return stepping, waited


# --- one of the ranks -------------------------------------------------------------------------------------------------


def joined(library: str, index: int, port: int) -> tuple[Callable[[], object], Callable[[], object]]:
    """Join the others; returns what waits for all of them, and what leaves them."""
    if library == "jax":
        import jax
        from jax.experimental import multihost_utils

        jax.distributed.initialize(f"127.0.0.1:{port}", RANKS[library], index)
        return lambda: multihost_utils.process_allgather(index), jax.distributed.shutdown
    import torch
    import torch.distributed

    address = f"tcp://127.0.0.1:{port}"
    torch.distributed.init_process_group("gloo", init_method=address, rank=index, world_size=RANKS[library])
    value = torch.ones(1)
    return lambda: torch.distributed.all_reduce(value), torch.distributed.destroy_process_group


def main() -> None:
    import otel_goodput as goodput

    library, index = sys.argv[1], int(sys.argv[2])
    rng = random.Random(index)
    readings: list[Reading] = []

    def batches() -> Iterator[float]:
        for _ in range(STEPS):
            wanted = time.time()
            time.sleep(0.002 + (SLOWER_S if index == SLOW and rng.random() < 0.5 else 0.0))
            yield wanted

    gather, leave = joined(library, index, int(sys.argv[3]))
    gather()  # what it compiles, or connects
    goodput.configure("ranks", run_id="run", exporters="none")
    with goodput.job():
        gather()
        for _, wanted in goodput.steps(batches()):
            there = time.time()
            time.sleep(0.02)
            gather()
            readings.append((wanted, there, time.time()))
    Path(f"{index}.json").write_text(json.dumps(readings))
    gather()
    leave()


if __name__ == "__main__":
    main()

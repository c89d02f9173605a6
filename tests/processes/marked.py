"""One process of a distributed job that never waits for its device: the work of each step ends in a sum over all."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import otel_goodput as goodput
from everyday.truth import readings, truth
from everyday.witness import LOAD, PREPARE, STEP, Witness
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput.reports.run import RecordedRun

STEPS = 40


def main(index: int, count: int, port: int, directory: str) -> None:
    recorder = goodput.configure(
        "marked", run_id="run", directory=directory, exporters="none", process_index=index, process_count=count
    )
    assert recorder is not None
    witness = Witness(f"{directory}/readings-{index}")
    with witness.life(), goodput.job():
        with witness.of(PREPARE), goodput.training_prep():
            train, state = prepare(index, count, port)
        loss = None
        for number, _ in goodput.steps(load(witness)):
            witness.number = number
            with witness.of(STEP):
                begun = time.time_ns()
                state, loss = train(state)
                witness.watch(STEP, begun, loss)
        witness.settle()
    goodput.shutdown()
    # Of this process alone: that of the job has the time in which only the last one was at work.
    figures = RecordedRun(RunDirectory(Path(directory) / "run")).report(process=index).to_json()
    true = truth(readings(Path(f"{directory}/readings-{index}")))
    print(json.dumps({**{name: figures[name] for name in ("seconds", "clock", "steps")}, "truth": true.seconds}))
    import jax

    sys.stdout.flush()
    jax.distributed.shutdown()


def load(witness: Witness) -> Any:
    """Batches that take a while."""
    for number in range(STEPS):
        with witness.of(LOAD):
            time.sleep(0.02)
        yield number


def prepare(index: int, count: int, port: int) -> tuple[Any, Any]:
    """A training step over the devices of all processes, compiled, and its first state."""
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    jax.distributed.initialize(f"127.0.0.1:{port}", count, index)
    mesh = Mesh(jax.devices(), "all")
    split, whole = NamedSharding(mesh, PartitionSpec("all")), NamedSharding(mesh, PartitionSpec())

    def step(state: Any) -> tuple[Any, Any]:
        state = jax.lax.fori_loop(0, 400, lambda _, a: jax.numpy.tanh(a @ a), state)
        return state, state.sum()

    shape = (jax.device_count(), 64, 64)
    state = jax.jit(lambda: jax.numpy.full(shape, 1e-3), out_shardings=split)()
    train = jax.jit(step, out_shardings=(split, whole))
    train(state)[1].block_until_ready()
    return train, state


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), sys.argv[4])

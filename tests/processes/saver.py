"""One process of a real distributed job that saves its sharded state with Orbax, and restores what it finds."""

from __future__ import annotations

import json
import sys
import time

import otel_goodput as goodput


def main(index: int, count: int, port: int, directory: str, last: int) -> None:
    recorder = goodput.configure(
        "saving",
        run_id="run",
        directory=directory,
        exporters="file",
        process_index=index,
        process_count=count,
        step_sampling=1,
    )
    assert recorder is not None
    with goodput.job():
        with goodput.accelerator_init():
            import jax
            import numpy as np
            import orbax.checkpoint as ocp
            from jax.sharding import Mesh, NamedSharding, PartitionSpec

            jax.distributed.initialize(f"127.0.0.1:{port}", count, index)
        with goodput.training_prep():
            sharding = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data"))
            like = jax.ShapeDtypeStruct((count * 4,), np.float32, sharding=sharding)
            manager = ocp.CheckpointManager(f"{directory}/checkpoints")
            state = jax.make_array_from_callback((count * 4,), sharding, lambda _: np.zeros(4, np.float32))
            first = 0
            if manager.latest_step() is not None:
                first = manager.latest_step() + 1
                state = manager.restore(first - 1, args=ocp.args.StandardRestore({"w": like}))["w"]
        one_more = jax.jit(lambda w: w + 1, out_shardings=sharding)
        for number in range(first, last):
            with goodput.step(number):
                state = one_more(state).block_until_ready()
            if number % 5 == 4:
                manager.save(number, args=ocp.args.StandardSave({"w": state}))
                print("saving", number, flush=True)
        manager.wait_until_finished()
        held = [float(shard.data[0]) for shard in state.addressable_shards]
    until = time.monotonic() + 30
    while recorder.config.leads and not recorder.totals().ended and time.monotonic() < until:
        time.sleep(0.05)  # until the end of the job on the other process has been heard of
    goodput.shutdown()
    if recorder.config.leads:
        report = goodput.report()
        assert report is not None
        print(json.dumps([held, report.to_json()]), flush=True)
    manager.close()
    jax.distributed.shutdown()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), sys.argv[4], int(sys.argv[5]))

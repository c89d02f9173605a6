"""One process of a real distributed job: trains in step with the others, and keeps an account of its own."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import otel_goodput as goodput


def main(index: int, count: int, port: int, directory: str, first: int, last: int, slow: int) -> None:
    log = os.open(f"{directory}/own-{index}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(**about: Any) -> None:
        os.write(log, json.dumps({"at": time.time_ns(), **about}).encode() + b"\n")

    recorder = goodput.configure(
        "distributed",
        run_id="run",
        directory=directory,
        exporters="file",
        process_index=index,
        process_count=count,
        step_sampling=1,
    )
    assert recorder is not None
    with goodput.job():
        note(what="job", attempt=recorder.attempt)
        with goodput.accelerator_init():
            import jax
            from jax.experimental import multihost_utils

            jax.distributed.initialize(f"127.0.0.1:{port}", count, index)
        with goodput.training_prep():
            multihost_utils.process_allgather(jax.numpy.ones(2))
        note(what="ready")
        for number in range(first, last):
            with goodput.data_loading():
                time.sleep(0.03 if index == slow else 0.001)
            opened = time.time_ns()
            with goodput.step(number):
                note(what="start", step=number, opened=opened)
                everybody = multihost_utils.process_allgather(jax.numpy.float32(number))
                assert everybody.shape == (count,)
                time.sleep(0.002)
                note(what="end", step=number)
            note(what="over", step=number)
    goodput.shutdown()
    note(what="done")
    if recorder.config.leads:
        report = goodput.report()
        assert report is not None
        print(json.dumps(report.to_json()), flush=True)
    jax.distributed.shutdown()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), sys.argv[4], *map(int, sys.argv[5:8]))

"""One rank of a job that steps together: it computes, and then waits for the other ranks at a barrier.

Arguments: rank, number of ranks, folder of the run, socket of the barrier, who is slow and how ("compute:2",
"sleep:2", "wander", "none"), seconds of a usual step, steps. OWN_FAST=1: samples are taken, and exchanged, more often.
OWN_MORE: so much slower it is, as a share; OWN_AFTER: from that step on.
"""

from __future__ import annotations

import os
import socket
import sys
import time

import otel_goodput as goodput
from otel_goodput._live import keeper, ranks


def busy(seconds: float) -> None:
    """Use so much processor time: how many processes share the processors changes nothing about that."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        sum(range(500))


def main() -> None:
    rank, count, folder, place, mode, length, steps = sys.argv[1:]
    if os.environ.get("OWN_FAST"):
        keeper.TICK_S, ranks.EVERY_S = 0.01, 0.1  # type: ignore[misc]
    kind, _, slow = mode.partition(":")
    seconds, after = float(length), int(os.environ.get("OWN_AFTER", "0"))
    barrier = socket.socket(socket.AF_UNIX)
    barrier.connect(place)
    goodput.configure(
        "own", exporters="none", directory=folder, run_id="own", process_index=int(rank), process_count=int(count)
    )
    barrier.send(b".")
    barrier.recv(1)
    with goodput.job():
        for step in range(int(steps)):
            with goodput.step(step):
                mine = (slow == rank and step >= after) or (
                    kind == "wander" and step // int(slow or 40) % int(count) == int(rank)
                )
                time.sleep(seconds)
                if kind == "compute":  # little of it: other processes shall not have to wait for a processor
                    busy(seconds / 20)
                if mine:
                    work = busy if kind == "compute" else time.sleep
                    work(seconds * float(os.environ.get("OWN_MORE", "0.5")))
                barrier.send(b".")
                barrier.recv(1)
    goodput.shutdown()


if __name__ == "__main__":
    main()

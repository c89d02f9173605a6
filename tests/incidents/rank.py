"""A rank of a job in which ranks wait for each other in every step; one of them stands still, in one of many ways."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import queue
import signal
import sys
import threading
import time
from pathlib import Path

import otel_goodput as goodput

MOVES_S = 1.5  # so long training goes on before


def wait_for_all(place: Path, step: int, count: int) -> None:
    """Return when all ranks have come to this step."""
    while len(list(place.glob(f"{step}-*"))) < count:
        time.sleep(0.005)


def stand_still(kind: str) -> None:
    if kind == "sleep":
        time.sleep(600)  # sleep
    elif kind == "deadlock":
        one, other = threading.Lock(), threading.Lock()

        def hold() -> None:
            with other:
                one.acquire()

        one.acquire()
        threading.Thread(target=hold, daemon=True).start()
        time.sleep(0.05)
        other.acquire()  # deadlock
    elif kind == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "gil":
        ctypes.PyDLL(None).sleep(600)  # gil
    elif kind == "worker":
        batches = multiprocessing.get_context("fork").Queue()
        worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,), daemon=True)
        worker.start()
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
        batches.get()  # worker
    elif kind == "queue":
        queue.Queue[int]().get()  # queue


def main() -> None:
    index, count, directory, kind, culprit, limit = sys.argv[1:]
    place = Path(directory)
    goodput.configure(
        kind, run_id=kind, directory=place / "runs", exporters="none", watchdog=limit,
        process_index=int(index), process_count=int(count), integrations="none",
    )  # fmt: skip
    with goodput.job():
        began = time.monotonic()
        for step in range(100_000):
            with goodput.data_loading():
                time.sleep(0.02)
                if index == culprit and step > 8 and time.monotonic() - began > MOVES_S:
                    (place / f"stands-{kind}").touch()
                    stand_still(kind)
            with goodput.step(step):
                (place / f"{step}-{index}").touch()
                wait_for_all(place, step, int(count))


if __name__ == "__main__":
    main()

"""One process of a job on hosts that share no folder, each with a clock of its own.

Arguments: INDEX COUNT PORT FOLDER. The clock of INDEX is 10 min ahead of that of the one before.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import otel_goodput as goodput
from otel_goodput._live import clock_exchange


def main() -> None:
    index, count, port, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4])
    real = time.time_ns
    time.time_ns = lambda: real() + 600_000_000_000 * index
    boot = clock_exchange._BOOT = folder / f"boot-{index}"
    boot.write_text(boot.name)
    clock_exchange._SELDOM_S, clock_exchange.LOOK_S = (0.05, 0.2), 0.1  # type: ignore[misc]
    import jax
    from jax.experimental import multihost_utils

    jax.distributed.initialize(f"127.0.0.1:{port}", count, index)
    goodput.configure("far", run_id="run", directory=folder / f"of-{index}", exporters="none")
    with goodput.job():
        for number in range(80):
            with goodput.data_loading():
                time.sleep(0.05 if index == count - 1 else 0.001)
            with goodput.step(number):
                multihost_utils.process_allgather(jax.numpy.float32(number))
    if index == 0:
        while (report := goodput.report()) is None or report.ranks is None or not report.totals.ended:
            time.sleep(0.01)
        print(json.dumps(report.to_json()), flush=True)
    goodput.shutdown()
    multihost_utils.process_allgather(jax.numpy.float32(0))
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()

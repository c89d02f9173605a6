"""A job that does nothing but quick steps, and dies: ``python -m benchmarks.writer DIRECTORY STEPS``."""

from __future__ import annotations

import os
import signal
import sys


LAST = 500  # steps of which no snapshot knows


def main() -> None:
    import otel_goodput as goodput

    directory, steps = sys.argv[1], int(sys.argv[2])
    goodput.configure("benchmark", directory=directory, exporters="none")
    with goodput.job():
        # At more than some 30,000 steps a second, for which no disk is fast enough, the journal waits in memory.
        for _ in goodput.steps(range(steps - LAST)):
            pass
        goodput.flush()
        for _ in goodput.steps(range(LAST), start=steps - LAST):
            pass
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()

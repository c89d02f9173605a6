"""A job that does nothing but quick steps, and dies: ``python -m benchmarks.writer DIRECTORY STEPS``."""

from __future__ import annotations

import os
import signal
import sys

BURST = 5_000  # steps that fit the segment of the journal in use and the one laid ready


def main() -> None:
    import otel_goodput as goodput

    directory, steps = sys.argv[1], int(sys.argv[2])
    goodput.configure("benchmark", directory=directory, exporters="none")
    with goodput.job():
        for first in range(0, steps, BURST):
            # Millions of steps in seconds are faster than the keeper: what it has no file for would die with us.
            goodput.flush()
            for _ in goodput.steps(range(min(BURST, steps - first)), start=first):
                pass
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()

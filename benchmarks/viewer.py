"""``make bench-viewer``: how long the page of a run takes to make, and how large it is; writes RESULTS-VIEWER.md.

Longest is the writing of the runs that are measured, which is not part of what is measured. Each page is made by the
command itself, in a process of its own.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks import machine
from benchmarks.long_run import write

RESULTS = Path(__file__).with_name("RESULTS-VIEWER.md")
BROWSER = "<!-- browser -->"  # from here on it is kept: what is measured in a browser is written by its own benchmark
SERVER = "<!-- server -->"  # likewise
PREFACE = """\
# What the page of a run costs

Written by `make bench-viewer`. Runs are made up, their files are real: segments, snapshot and digests as a job writes
them. `otel-goodput report --html` runs in a process of its own; `time` is by the clock, `processor` is its user and
system time.

"""
_MB = 1e6


class Case(NamedTuple):
    """A run, how many of its spans are shown one by one, and the bounds: bytes and seconds."""

    what: str
    steps: int
    processes: int
    spans: int
    size: float | None = None
    seconds: float | None = None


CASES = (
    Case("10⁶ steps, 512 ranks", 1_000_000, 512, 200_000, 5e6, 20.0),
    Case("200,000 spans one by one, 1 rank", 92_000, 1, 200_000),
    Case("20,000 steps, 8 ranks", 20_000, 8, 200_000),
)
FAST = (Case("2,000 steps, 4 ranks", 2_000, 4, 200_000),)


def _made(case: Case, folder: Path) -> tuple[float, float, int, int]:
    """Make the page of a run; returns seconds by the clock, seconds of the processor, bytes, and peak memory in KiB."""
    run = write(folder, case.steps, case.processes)
    page = folder / "report.html"
    command = [sys.executable, "-m", "otel_goodput", "report", str(run.path), "--html", str(page)]
    begun = time.monotonic()
    child = os.posix_spawn(sys.executable, [*command, "--spans", str(case.spans)], os.environ)
    _, status, used = os.wait4(child, 0)
    took = time.monotonic() - begun
    if status:
        raise RuntimeError(f"{' '.join(command)}: status {os.waitstatus_to_exitcode(status)}")
    return took, used.ru_utime + used.ru_stime, page.stat().st_size, used.ru_maxrss


def _rows(cases: tuple[Case, ...]) -> Iterator[str]:
    yield "| run | page | bound | time | processor | bound | memory |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    for case in cases:
        with tempfile.TemporaryDirectory(prefix="otel-goodput-bench-") as folder:
            took, used, size, memory = _made(case, Path(folder))
        most = "" if case.size is None else f"{case.size / _MB:.0f} MB"
        longest = "" if case.seconds is None else f"{case.seconds:.0f} s"
        yield (
            f"| {case.what} | {size / _MB:.2f} MB | {most} | {took:.1f} s | {used:.1f} s | {longest} "
            f"| {memory / 1024:.0f} MiB |"
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.viewer", description="What the page of a run costs.")
    parser.add_argument("--fast", action="store_true", help="a small run only; RESULTS-VIEWER.md stays")
    options = parser.parse_args()
    described = "\n".join(f"- {what}: {value}" for what, value in machine.describe()[:4])
    lines: list[str] = []
    for line in _rows(FAST if options.fast else CASES):
        print(line, flush=True)
        lines.append(line)
    if options.fast:
        return 0
    before = RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else ""
    kept = before.partition(BROWSER)[2] if BROWSER in before else "\n\n## In a browser\n\nNot measured yet.\n"
    body = "\n".join(lines)
    RESULTS.write_text(f"{PREFACE}{described}\n\n{body}\n\n{BROWSER}{kept}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

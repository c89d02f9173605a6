"""Usage of processor and memory by the processes of a run, as far as they sampled it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from otel_goodput.accounting.usage import Machine, Usage, thinned
from otel_goodput.journal.rundir import RunDirectory
from otel_goodput.journal.usage import read_usage

ROWS: Final = 40_000  # intervals of all processes together
READ: Final = 2_000  # files at most: the latest attempts of every process come first


class AttemptUsage(NamedTuple):
    """Usage by one attempt of one process.

    Attributes:
        process: its index.
        attempt: its number, counted from 1.
        machine: what it ran on.
        usages: in the order of time.
    """

    process: int
    attempt: int
    machine: Machine
    usages: Sequence[Usage]


def usages(run: RunDirectory, at: int) -> list[AttemptUsage]:
    """Return the usage by every process and attempt until `at` (ns), by process and attempt.

    Files that cannot be read are left out. With many of them, intervals are merged so that there are ``ROWS`` at most.
    """
    there = run.usages()
    latest: dict[int, int] = {}
    order = []
    for process, attempt in reversed(there):
        latest[process] = latest.get(process, 0) + 1
        order.append((latest[process], process, attempt))
    chosen = sorted(order)[:READ]
    found = []
    for _, process, attempt in chosen:
        try:
            machine, told = read_usage(run, attempt, process)
        except (OSError, ValueError):
            continue
        told = [one for one in told if one.end <= at]
        if told:
            found.append(AttemptUsage(process, attempt + 1, machine, thinned(told, max(1, ROWS // len(chosen)))))
    return sorted(found)

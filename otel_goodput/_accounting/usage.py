"""Usage of processor and memory over time, in bounded space: neighbors are merged when there are too many."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

MOST: Final = 1024  # intervals of one attempt of one process
UNKNOWN: Final = -1


class Usage(NamedTuple):
    """Usage during one interval.

    Attributes:
        end, length: of the interval, ns.
        process_cpu: processor time of this process in the interval, ns, summed over cores.
        machine_cpu: the same of all processes on the machine.
        process_memory: resident memory of this process at the end, bytes; of merged intervals the highest.
        machine_memory: memory in use on the machine, bytes, likewise.
        accelerator_memory: memory in use on this process's accelerators, bytes, likewise; ``UNKNOWN`` if not known.
    """

    end: int
    length: int
    process_cpu: int
    machine_cpu: int
    process_memory: int
    machine_memory: int
    accelerator_memory: int


class Machine(NamedTuple):
    """What a process runs on.

    Attributes:
        cores: number of logical processors.
        memory: of the machine, bytes.
        accelerator_memory: of this process's accelerators, bytes; ``UNKNOWN`` if not known.
    """

    cores: int
    memory: int
    accelerator_memory: int


def merged(usages: Sequence[Usage]) -> Usage:
    """Merge successive intervals into one. Raises IndexError if there are none."""
    last = usages[-1]
    return Usage(
        last.end,
        sum(one.length for one in usages),
        sum(one.process_cpu for one in usages),
        sum(one.machine_cpu for one in usages),
        max(one.process_memory for one in usages),
        max(one.machine_memory for one in usages),
        max(one.accelerator_memory for one in usages),
    )


def thinned(usages: Sequence[Usage], most: int) -> list[Usage]:
    """Return at most `most` intervals (at least 1) that cover the same time, by merging neighbors."""
    each = -(-len(usages) // max(1, most))
    return [merged(usages[at : at + each]) for at in range(0, len(usages), each)] if each > 1 else list(usages)


class UsageSeries:
    """Intervals in the order of time, at most ``MOST``: when there are more, each takes in twice as many samples."""

    def __init__(self) -> None:
        self._whole: list[Usage] = []
        self._begun: list[Usage] = []  # samples of the interval that is not complete yet
        self._each = 1  # samples of one interval

    def add(self, usage: Usage) -> None:
        """Add a sample that follows those before it."""
        self._begun.append(usage)
        if len(self._begun) < self._each:
            return
        self._whole.append(merged(self._begun))
        self._begun.clear()
        if len(self._whole) >= MOST:
            self._whole = thinned(self._whole, MOST // 2)
            self._each *= 2

    def extend(self, usages: Iterable[Usage]) -> None:
        """Add samples that follow those before them."""
        for usage in usages:
            self.add(usage)

    @property
    def usages(self) -> list[Usage]:
        """All intervals."""
        return [*self._whole, merged(self._begun)] if self._begun else list(self._whole)

"""How an attempt used processor and memory, and how fast its processes step: small files, one for each process."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import reduce
from itertools import pairwise
from operator import or_
from typing import Final, NamedTuple

from otel_goodput._accounting.codec import COUNT, Each, Row, Whole
from otel_goodput._accounting.stats import Pace
from otel_goodput._accounting.totals import Totals
from otel_goodput._journal.account import Account
from otel_goodput._journal.rundir import USAGE, RunDirectory
from otel_goodput._journal.sidecars import Members, Sidecar, kept
from otel_goodput._journal.usage_now import UNKNOWN, UsageNow, reasons
from otel_goodput.semconv import THROTTLE_REASONS

MOST: Final = 1024  # intervals of one attempt of one process


class Usage(NamedTuple):
    """Usage during one interval: times in ns, memory in bytes at its end, the highest of merged intervals."""

    end: int
    length: int
    process_cpu: int  # processor time in the interval, summed over cores
    machine_cpu: int  # the same of all processes on the machine
    process_memory: int  # resident
    machine_memory: int
    accelerator_memory: int  # of this process's accelerators; ``UNKNOWN`` if not known
    # Summed over this process's accelerators; 0 where their driver does not tell.
    accelerator_time: int = 0  # for which it is known whether they computed, and whether they were throttled
    accelerator_busy: int = 0  # of that, in which they computed
    throttled_time: int = 0  # of that, in which their clocks were held down
    accelerator_energy: int = 0  # mJ
    throttled: int = 0  # why clocks were held down: a bit for each of ``THROTTLE_REASONS``


class Machine(NamedTuple):
    """What a process runs on; memory in bytes."""

    cores: int  # logical ones
    memory: int
    accelerator_memory: int  # of this process's accelerators; ``UNKNOWN`` if not known


def merged(usages: Sequence[Usage]) -> Usage:
    """Merge successive intervals into one. Raises ValueError if there are none."""
    columns = zip(*usages, strict=True)
    return Usage(*(_MERGES.get(name, sum)(column) for name, column in zip(Usage._fields, columns, strict=True)))


def _either(bits: Iterable[int]) -> int:
    return reduce(or_, bits, 0)


# What becomes of the column of several intervals in one; all others are added up.
_MERGES: Final[Mapping[str, Callable[[Sequence[int]], int]]] = {
    "end": lambda ends: ends[-1],
    "process_memory": max,
    "machine_memory": max,
    "accelerator_memory": max,
    "throttled": _either,
}


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
        if len(self._begun) == self._each:
            self._whole.append(merged(self._begun))
            self._begun.clear()
            if len(self._whole) >= MOST:
                self._whole = thinned(self._whole, MOST // 2)
                self._each *= 2

    @property
    def usages(self) -> list[Usage]:
        """All intervals."""
        return [*self._whole, merged(self._begun)] if self._begun else list(self._whole)


EVERY_S: Final = 30.0  # from one writing to the next: a killed process loses its latest samples
ROWS: Final = 40_000  # intervals of all processes together
READ: Final = 2_000  # files at most: the latest attempts of every process come first
_MAYBE: Final = Whole(UNKNOWN)
_LATER: Final = tuple(Usage._field_defaults)  # columns that older files do not have
USAGE_FILE: Final = Sidecar(
    "samples of an attempt",
    Members(
        {
            "machine": Row(Whole(1), COUNT, _MAYBE, make=Machine._make),
            **dict.fromkeys(Usage._fields, Each(COUNT)),
            "accelerator_memory": Each(_MAYBE),
            "throttled": Each(Whole(0, 1 << len(THROTTLE_REASONS))),
        },
        absent=dict.fromkeys(_LATER, ()),
    ),
    USAGE,
)


class AttemptUsage(NamedTuple):
    """Usage by one attempt, counted from 1, of one process, in the order of time."""

    process: int
    attempt: int
    machine: Machine
    usages: Sequence[Usage]


class UsageSheet:
    """Collects the samples of this process and writes them, now and then and at the end."""

    def __init__(self, attempt: int, process: int) -> None:
        self._attempt = attempt
        self._process = process
        self._series = UsageSeries()
        self._machine: Machine | None = None
        self.now: UsageNow | None = None  # at the latest sample; None before the first one
        self._adding = threading.Lock()
        self._new = False
        self._written = 0.0  # s, monotonic
        self._earlier: Sequence[AttemptUsage] | None = None if attempt else ()  # None: not read yet

    def add(self, machine: Machine, usage: Usage, now: UsageNow | None = None) -> None:
        """Add a sample, of which `now` is what others are told."""
        with self._adding:
            self._machine, self.now = machine, now or self.now
            self._series.add(usage)
            self._new = True

    def move(self, attempt: int) -> None:
        """Tell that this is the attempt `attempt`, of another run: the file is written again there."""
        with self._adding:
            self._attempt, self._new, self._written = attempt, self._machine is not None, 0.0
            self._earlier = None if attempt else ()

    def of_run(self) -> list[AttemptUsage]:
        """Return the usage of this process up to now, of all attempts. Earlier ones are known from :meth:`keep` on."""
        with self._adding:
            machine, latest = self._machine, self._series.usages
        own = [] if machine is None else [AttemptUsage(self._process, self._attempt + 1, machine, latest)]
        return [*(self._earlier or ()), *own]

    def keep(self, run: RunDirectory, *, last: bool = False) -> None:
        """Write the file if there is something new and it is time, or the `last` time. An error is reported once."""
        now = time.monotonic()
        if self._earlier is None:
            attempts = [attempt for process, attempt in run.usages() if process == self._process][-READ:]
            self._earlier = _read(run, [(self._process, attempt) for attempt in attempts if attempt < self._attempt])
        if not self._new or (self._written and not last and now - self._written < EVERY_S):
            return
        self._written = now
        with self._adding:
            machine, usages, self._new = self._machine, self._series.usages, False
        assert machine is not None, "there are samples"
        columns = dict(zip(Usage._fields, map(list, zip(*usages, strict=True)), strict=True))
        owner = {"attempt": self._attempt, "process": self._process}
        data = USAGE_FILE.encode(**owner, machine=machine, **columns)
        trouble = "CPU and memory usage cannot be saved (will retry): %s"
        if not kept(run.file("usage", self._attempt, self._process), data, "usage", trouble):
            self._new = True


def read_usage(run: RunDirectory, attempt: int, process: int) -> tuple[Machine, list[Usage]]:
    """Read the samples of an attempt (counted from 0) of a process. Raises as :meth:`Sidecar.read`."""
    members = USAGE_FILE.read(run.file("usage", attempt, process), attempt=attempt, process=process)
    unknown = [0] * len(members["end"])
    columns = ((members[name] or unknown) if name in _LATER else members[name] for name in Usage._fields)
    samples = [Usage(*row) for row in zip(*columns, strict=True)]
    if len(samples) > MOST or any(not one.length for one in samples):
        raise ValueError("samples are out of range")
    if any(one.end >= other.end for one, other in pairwise(samples)):
        raise ValueError("samples are not in the order of time")
    return members["machine"], samples


def usages(run: RunDirectory, at: int) -> list[AttemptUsage]:
    """Return the usage by every process and attempt until `at` (ns), by process and attempt.

    Files that cannot be read are left out. With many of them, intervals are merged so that there are ``ROWS`` at most.
    """
    latest = Counter[int]()
    order = []
    for process, attempt in reversed(run.usages()):
        latest[process] += 1
        order.append((latest[process], process, attempt))
    return _read(run, [(process, attempt) for _, process, attempt in sorted(order)[:READ]], at)


def _read(run: RunDirectory, owners: Sequence[tuple[int, int]], at: int | None = None) -> list[AttemptUsage]:
    """Return the usage by these processes and attempts, until `at` (ns) if given, as :func:`usages`."""
    known = []
    for process, attempt in owners:
        try:
            machine, samples = read_usage(run, attempt, process)
        except (OSError, ValueError):
            continue
        samples = [one for one in samples if at is None or one.end <= at]
        if samples:
            known.append(AttemptUsage(process, attempt + 1, machine, thinned(samples, max(1, ROWS // len(owners)))))
    return sorted(known)


def throttled(usages: Iterable[AttemptUsage], process: int, since: int, until: int) -> tuple[str, ...]:
    """Return why clocks of a process's accelerators were held down from `since` to `until` (ns), if they were."""
    bits = (usage.throttled for one in usages if one.process == process for usage in within(one.usages, since, until))
    return reasons(_either(bits))


def within(usages: Iterable[Usage], since: int, until: int) -> Iterator[Usage]:
    """Yield the intervals that have a part from `since` to `until` (ns)."""
    return (one for one in usages if one.end > since and one.end - one.length < until)


EXCHANGED_NS: Final = 5_000_000_000  # from one exchange to the next
STALE_NS: Final = 600_000_000_000  # paces older than this are ignored


def pace_of(totals: Totals, process: int) -> Pace | None:
    """Compute the pace of a process from its totals; None before its first step or if step ends are not known."""
    times = totals.step_time
    if times is None or not totals.run.known:
        return None
    outside = 0.0 if totals.step_cadence is None else max(0.0, totals.step_cadence - times.median)
    return Pace(process, totals.at, totals.kept, round(times.median), round(times.p90), round(outside))


PACE: Final = Sidecar("figures of a pace", Members(dict.fromkeys(Pace._fields, COUNT), Pace), format=None)


class Paces:
    """Writes the pace of this process and, if it leads, reads those of the others of its `count` processes."""

    def __init__(self, run: RunDirectory, attempt: int, process: int, count: int, leads: bool) -> None:
        self._run = run
        self._attempt = attempt
        self._process = process
        self._count = count
        self._leads = leads
        self._exchanged_at = 0
        self._last: Sequence[Pace] | None = None  # the paces when they were settled
        self._latest: Sequence[Pace] = ()

    def exchange(self, account: Account, *, at_once: bool = False) -> None:
        """Write the own pace and read the others', every few seconds or `at_once`. An error is reported once."""
        now = account.clock()
        if not at_once and now - self._exchanged_at < EXCHANGED_NS:
            return
        self._exchanged_at = now
        pace = pace_of(account.totals(), self._process)
        if pace is not None:
            data = PACE.encode(attempt=self._attempt, **pace._asdict())
            trouble = "the paces of the processes are not exchanged: %s"
            kept(self._run.file("pace", self._process), data, "paces", trouble)
        if self._leads:
            self._latest = read_paces(self._run, self._attempt, now, self._count)

    def settle(self) -> None:
        """Keep to the paces that are known now, so that the last exported points are those of the account."""
        self._last = self._latest

    def complete(self, totals: Totals) -> Totals:
        """Return `totals` with the paces of the processes."""
        return replace(totals, paces=self._latest if self._last is None else self._last, processes=self._count)


def read_paces(run: RunDirectory, attempt: int, at: int, count: int | None = None) -> list[Pace]:
    """Read the paces of the `count` processes of `attempt`, without unreadable ones and those stale at `at` (ns)."""
    paces = []
    for index, path in run.pace_paths(count).items():
        with suppress(OSError, ValueError):
            pace = PACE.read(path, attempt=attempt, process=index)
            if abs(at - pace.at) <= STALE_NS:
                paces.append(pace)
    return paces

"""What training waited for in its data loaders: a small file for each attempt of each process."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from operator import add
from threading import get_ident
from typing import Final, NamedTuple

from otel_goodput._accounting.codec import COUNT, FLAG, Each, Row, Whole
from otel_goodput._journal.rundir import LOADER, RunDirectory
from otel_goodput._journal.sidecars import Members, Sidecar, kept
from otel_goodput.semconv import LOADER_STAGES

OWN_WORKER: Final = -1  # batches that no worker makes, but the process that trains
OTHERS: Final = 4095  # workers with higher numbers are counted as this one
ROWS: Final = 512  # threads and workers that are counted apart
EVERY_S: Final = 10.0  # from one writing to the next: a killed process loses its latest batches
READ: Final = 2000  # files at most, the latest attempts of every process first
_STAGES: Final = len(LOADER_STAGES)
_ELSEWHERE: Final = 0, OTHERS


class WorkerTimes(NamedTuple):
    """Time by stage of the batches that one worker made, ns."""

    worker: int
    batches: int
    exposed: tuple[int, ...]  # in which training waited for it
    hidden: tuple[int, ...]  # behind steps

    def plus(self, other: WorkerTimes, sign: int = 1) -> WorkerTimes:
        """Return the sum of both; with `sign` -1, the difference."""
        exposed, hidden = (
            tuple(one + sign * more for one, more in zip(*both, strict=True))
            for both in ((self.exposed, other.exposed), (self.hidden, other.hidden))
        )
        return WorkerTimes(self.worker, self.batches + sign * other.batches, exposed, hidden)


class AttemptLoader(NamedTuple):
    """The same of one attempt, counted from 1, of one process.

    `merged`: some transforms could not be timed apart: their time is in the first stage.
    """

    process: int
    attempt: int
    workers: Sequence[WorkerTimes]
    merged: bool


_FILE: Final = Sidecar(
    "times of a data loader",
    Members(
        {
            "workers": Each(Row(Whole(OWN_WORKER), COUNT, *[COUNT] * (2 * _STAGES)), OTHERS),
            "merged": FLAG,
        }
    ),
    LOADER,
)


class LoaderSheet:
    """Counts the times of this process, without a lock: each thread has counts of its own. Writes them now and then."""

    def __init__(self, attempt: int, process: int) -> None:
        self._attempt, self._process = attempt, process
        self._rows: dict[tuple[int, int], list[int]] = {}  # by thread and worker
        self.merged = False
        self._written: tuple[float, int] = 0.0, 0  # when (s, monotonic), and with how many batches
        self._earlier: Sequence[AttemptLoader] | None = None if attempt else ()  # None: not read yet

    def take(self, worker: int, exposed: Sequence[int], hidden: Sequence[int], batches: int = 1) -> None:
        """Take `batches` that `worker` made, for the thread that gets them; times by stage, ns."""
        key = get_ident(), worker
        row = self._rows.get(key)
        if row is None:
            key = key if len(self._rows) < ROWS and worker < OTHERS else _ELSEWHERE
            row = self._rows.setdefault(key, [0] * (1 + 2 * _STAGES))
        row[:] = map(add, row, (batches, *exposed, *hidden))

    def times(self) -> list[WorkerTimes]:
        """Return the times of all workers so far."""
        sums: dict[int, list[int]] = {}
        for (_, worker), row in list(self._rows.items()):
            before = sums.get(worker)
            sums[worker] = (
                list(row) if before is None else [one + other for one, other in zip(before, row, strict=True)]
            )
        return [_times(worker, *row) for worker, row in sorted(sums.items())]

    def of_run(self) -> list[AttemptLoader]:
        """Return the times of this process up to now, of all attempts. Earlier ones are known from :meth:`keep` on."""
        times = self.times()
        own = [AttemptLoader(self._process, self._attempt + 1, times, self.merged)] if times else []
        return [*(self._earlier or ()), *own]

    def move(self, attempt: int) -> None:
        """Tell that this is the attempt `attempt`, of another run: the file is written again there."""
        self._attempt, self._written = attempt, (0.0, 0)
        self._earlier = None if attempt else ()

    def keep(self, run: RunDirectory, *, last: bool = False) -> None:
        """Write the file if there is something new and it is time, or the `last` time. An error is reported once."""
        if self._earlier is None:
            own = [attempt for process, attempt in run.loaders() if process == self._process][-READ:]
            self._earlier = _read(run, [(self._process, attempt) for attempt in own if attempt < self._attempt])
        times, now = self.times(), time.monotonic()
        batches = sum(one.batches for one in times)
        at, before = self._written
        if batches == before or (before and not last and now - at < EVERY_S):
            return
        self._written = now, batches
        rows = [[one.worker, one.batches, *one.exposed, *one.hidden] for one in times]
        data = _FILE.encode(attempt=self._attempt, process=self._process, workers=rows, merged=self.merged)
        trouble = "times of data loaders cannot be saved (will retry): %s"
        if not kept(run.file("loader", self._attempt, self._process), data, "loader", trouble):
            self._written = now, before


def _times(worker: int, batches: int, *stages: int) -> WorkerTimes:
    return WorkerTimes(worker, batches, stages[:_STAGES], stages[_STAGES:])


def loaders(run: RunDirectory) -> list[AttemptLoader]:
    """Return the times of every process and attempt. Files that cannot be read are left out."""
    latest = Counter[int]()
    order = []
    for process, attempt in reversed(run.loaders()):
        latest[process] += 1
        order.append((latest[process], process, attempt))
    return _read(run, [(process, attempt) for _, process, attempt in sorted(order)[:READ]])


def _read(run: RunDirectory, owners: Iterable[tuple[int, int]]) -> list[AttemptLoader]:
    known = []
    for process, attempt in owners:
        try:
            members = _FILE.read(run.file("loader", attempt, process), attempt=attempt, process=process)
        except (OSError, ValueError):
            continue
        times = [_times(*row) for row in members["workers"]]
        known.append(AttemptLoader(process, attempt + 1, times, bool(members["merged"])))
    return sorted(known)


def added(workers: Iterable[WorkerTimes]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Add up the times of workers: those in which training waited, and those that were hidden."""
    whole = list(workers)
    if not whole:
        return (0,) * _STAGES, (0,) * _STAGES
    exposed, hidden = ([getattr(one, name) for one in whole] for name in ("exposed", "hidden"))
    return tuple(map(sum, zip(*exposed, strict=True))), tuple(map(sum, zip(*hidden, strict=True)))


Record = tuple[int, int, int, int, int]


def shares_of(begin: int, end: int, record: Record | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return by stage for how long training waited for a batch from `begin` to `end`, and what was hidden, ns.

    `record`: when the batch was begun, when its samples were there and when it was made, how long transforms took, and
    how long they had before `begin`; None: that is not known. What training waited adds up to `end` - `begin`.
    """
    if record is None:
        return (0, 0, 0, 0, end - begin), (0,) * _STAGES
    begun, gathered, made, transformed, before = record
    gathered = max(begun, gathered)
    made = max(gathered, made)
    gathering = gathered - begun
    transformed = min(transformed, gathering)
    waited = max(0, min(end, gathered) - max(begin, begun))
    transform = min(waited, max(0, transformed - before))
    collate = max(0, min(end, made) - max(begin, gathered))
    transfer = max(0, end - max(begin, made))
    queue = max(0, min(end, begun) - begin)
    fetched = gathering - transformed
    exposed = waited - transform, transform, collate, transfer, queue
    return exposed, (max(0, fetched - exposed[0]), transformed - transform, made - gathered - collate, 0, 0)

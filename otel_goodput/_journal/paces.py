"""Exchanges the paces of a job's processes through the run's folder: each process writes one small file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from otel_goodput._accounting.codec import COUNT
from otel_goodput._accounting.stats import Pace
from otel_goodput._accounting.totals import Totals
from otel_goodput._journal.account import Account
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._journal.sidecars import Members, Sidecar, kept

EVERY_NS: Final = 5_000_000_000  # from one exchange to the next
STALE_NS: Final = 600_000_000_000  # paces older than this are ignored


def pace_of(totals: Totals, process: int) -> Pace | None:
    """Compute the pace of a process from its totals; None before its first step or if step ends are not known."""
    times = totals.step_time
    if times is None or not totals.run.known:
        return None
    outside = 0.0
    if totals.step_cadence is not None:
        outside = max(0.0, totals.step_cadence - times.median)
    return Pace(process, totals.at, totals.kept, round(times.median), round(times.p90), round(outside))


SIDECAR: Final = Sidecar("figures of a pace", Members(dict.fromkeys(Pace._fields, COUNT), Pace), format=None)


class Paces:
    """Writes the pace of this process and reads those of the others.

    Args:
        run: the run's folder.
        attempt, process, count: this attempt, index of this process, and number of processes.
        leads: whether this process reads the paces of the others.
    """

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
        if not at_once and now - self._exchanged_at < EVERY_NS:
            return
        self._exchanged_at = now
        pace = pace_of(account.totals(), self._process)
        if pace is not None:
            data = SIDECAR.encode(attempt=self._attempt, **pace._asdict())
            kept(self._run.pace_path(self._process), data, "paces", "the paces of the processes are not exchanged: %s")
        if self._leads:
            self._latest = read_paces(self._run, self._attempt, now, self._count)

    def settle(self) -> None:
        """Keep to the paces that are known now, so that the last exported points are those of the account."""
        self._last = self._latest

    def complete(self, totals: Totals) -> Totals:
        """Return `totals` with the paces of the processes."""
        return replace(totals, paces=self._latest if self._last is None else self._last, processes=self._count)


def read_paces(run: RunDirectory, attempt: int, at: int, count: int | None = None) -> list[Pace]:
    """Read the paces of the processes of `attempt`, without unreadable ones and those stale at `at` (ns).

    Args:
        count: number of processes, if known.
    """
    paces = []
    for index, path in run.pace_paths(count).items():
        try:
            pace = SIDECAR.read(path, attempt=attempt, process=index)
        except (OSError, ValueError):
            continue
        if abs(at - pace.at) <= STALE_NS:
            paces.append(pace)
    return paces

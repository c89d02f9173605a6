"""The paces of a job's processes, told to each other through the run's folder: one small file each, written whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from otel_goodput.accounting.paces import Pace
from otel_goodput.accounting.totals import Totals
from otel_goodput.files import write_privately
from otel_goodput.guard import report_once
from otel_goodput.journal.account import Account
from otel_goodput.journal.rundir import RunDirectory
from otel_goodput.journal.sidecars import checked_json, read_json, whole

EVERY_NS: Final = 5_000_000_000  # from one telling to the next
STALE_NS: Final = 600_000_000_000  # a process that has said nothing for so long is not compared


def pace_of(totals: Totals, process: int) -> Pace | None:
    """The pace that follows from a process's own account; None before its first step, or where no end is known."""
    times = totals.step_time
    if times is None or not totals.run.known:
        return None
    outside = 0.0
    if totals.step_cadence is not None:
        outside = max(0.0, totals.step_cadence - times.mean)
    return Pace(process, totals.at, totals.kept, round(times.median), round(times.p90), round(outside))


class Paces:
    """What this process tells and hears.

    Args:
        run: the run's folder.
        attempt, process, count: who this is, and of how many.
        leads: whether it wants to know of the others.
    """

    def __init__(self, run: RunDirectory, attempt: int, process: int, count: int, leads: bool) -> None:
        self._run = run
        self._attempt = attempt
        self._process = process
        self._count = count
        self._leads = leads
        self._told = 0
        self._heard: Sequence[Pace] = ()

    def exchange(self, account: Account, *, at_once: bool = False) -> None:
        """Leave word for the others and hear theirs; every few seconds, or now. Trouble is reported once."""
        now = account.clock()
        if not at_once and now - self._told < EVERY_NS:
            return
        self._told = now
        pace = pace_of(account.totals(), self._process)
        if pace is not None:
            told = checked_json({"attempt": self._attempt, **pace._asdict()})
            try:
                write_privately(self._run.pace_path(self._process), told)
            except OSError as error:
                report_once("paces", "the paces of the processes are not exchanged: %s", error)
        if self._leads:
            self._heard = read_paces(self._run, self._attempt, now, self._count)

    def complete(self, totals: Totals) -> Totals:
        """`totals` with what was heard."""
        return replace(totals, paces=self._heard, processes=self._count)


def read_paces(run: RunDirectory, attempt: int, at: int, count: int | None = None) -> list[Pace]:
    """The paces that the processes of `attempt` have told, as of `at` (ns); what is foreign or stale is left out.

    Args:
        count: how many processes there are, where that is known.
    """
    paces = []
    for index, path in run.pace_paths(count).items():
        try:
            found = read_json(path)
            if found["attempt"] != attempt or found["process"] != index:
                continue
            pace = Pace(*(whole(found[name]) for name in Pace._fields))
        except (OSError, ValueError, TypeError, LookupError):
            continue
        if abs(at - pace.at) <= STALE_NS:
            paces.append(pace)
    return paces

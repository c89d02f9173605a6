"""The paces of a job's processes, told to each other through the run's folder: one small file each, written whole."""

from __future__ import annotations

import json
from typing import Final

from otel_goodput.accounting.paces import Pace
from otel_goodput.accounting.totals import Totals
from otel_goodput.journal.rundir import RunDirectory, write_privately

EVERY_NS: Final = 5_000_000_000  # from one telling to the next
STALE_NS: Final = 600_000_000_000  # a process that has said nothing for so long is not compared


def pace_of(totals: Totals, process: int) -> Pace | None:
    """The pace that follows from a process's own account; None before its first step."""
    times = totals.step_time
    if times is None:
        return None
    outside = 0.0
    if totals.step_cadence is not None:
        outside = max(0.0, totals.step_cadence - times.mean)
    return Pace(process, totals.at, totals.kept, round(times.median), round(times.p90), round(outside))


class Paces:
    """What this process tells and hears.

    Args:
        run: the run's folder.
        attempt, process: who this is.
    """

    def __init__(self, run: RunDirectory, attempt: int, process: int) -> None:
        self._run = run
        self._attempt = attempt
        self._process = process
        self._told = 0

    def tell(self, totals: Totals) -> None:
        """Leave word for the others.

        Raises:
            OSError: the folder cannot be written.
        """
        pace = pace_of(totals, self._process)
        self._told = totals.at
        if pace is None:
            return
        text = json.dumps({"attempt": self._attempt, **pace._asdict()})
        write_privately(self._run.pace_path(self._process), text.encode())

    def due(self, now: int) -> bool:
        """Whether it is time to tell, at `now` (ns)."""
        return now - self._told >= EVERY_NS


def read_paces(run: RunDirectory, attempt: int, at: int) -> list[Pace]:
    """The paces that the processes of `attempt` have told, as of `at` (ns); what is foreign or stale is left out."""
    paces = []
    for path in run.pace_paths():
        try:
            found = json.loads(path.read_bytes())
            if found.pop("attempt") != attempt:
                continue
            pace = Pace(**{name: int(value) for name, value in found.items()})
        except (OSError, ValueError, TypeError, AttributeError, KeyError):
            continue
        if abs(at - pace.at) <= STALE_NS:
            paces.append(pace)
    return sorted(paces)

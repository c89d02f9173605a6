"""The net times of all kept steps of a run, from its journal, as the account counts them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from otel_goodput.accounting import events as ev
from otel_goodput.accounting import stats
from otel_goodput.accounting.cursor import Cursor
from otel_goodput.accounting.events import Event
from otel_goodput.journal.recovery import restore
from otel_goodput.journal.rundir import RunDirectory
from otel_goodput.reports.standing import DIED

QUANTILES: Final = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99)


@dataclass(frozen=True)
class StepTimes:
    """Net times of kept steps.

    Attributes:
        nets: ns, above 0, in the order of the steps; the start-up hidden in first steps is not in them (rule R5).
        left_out: number of earlier steps whose single times are not remembered.
    """

    nets: tuple[int, ...] = ()
    left_out: int = 0

    def quantiles(self) -> dict[float, float]:
        """The quantiles ``QUANTILES``, ns; empty without steps."""
        rising = sorted(self.nets)
        return {q: stats.quantile(rising, q) for q in QUANTILES} if rising else {}


def of_run(run: RunDirectory, process: int = 0, state: str = "") -> StepTimes:
    """Return the net times of the kept steps of a run, as long as single times are remembered: the latest million.

    It takes about as long after a million steps as after a thousand, and does not raise: what cannot be read is left
    out. A `state` of ``DIED`` says that steps still open are lost.
    """
    restored = restore(run, process)
    if state == DIED:
        restored.ledger.feed([Event(restored.last_sign, ev.ATTEMPT, step=restored.attempt + 1)])
    return of_cursor(restored.ledger.settled)


def of_cursor(cursor: Cursor) -> StepTimes:
    """Return the net times of the steps that an account keeps."""
    progress = cursor.steps.progress
    summed = progress.summarized
    nets = progress.nets(summed, progress.length)
    for segment in cursor.steps.segments:
        if segment.first_index is not None and segment.first_index >= summed:
            nets[segment.first_index - summed] -= segment.excess(progress)
    return StepTimes(tuple(net for net in nets if net > 0), summed)

"""The disruptions of a run that a reason can be said of: those that an attempt began with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from otel_goodput.accounting.overview import Loss
from otel_goodput.errors import JournalError
from otel_goodput.reports.corrections import restarts
from otel_goodput.reports.run import RecordedRun


class Disrupted(NamedTuple):
    """A run and its disruptions.

    Attributes:
        run_id: of the run.
        attempts: how many there are.
        losses: the disruption with which each attempt began, by the attempt's number, counted from 1.
    """

    run_id: str
    attempts: int
    losses: Mapping[int, Loss]

    def reason_of(self, attempt: int) -> str:
        """Return the reason in the journal for the disruption that `attempt` began with.

        Raises:
            JournalError: there is no such attempt, or it did not begin with a disruption.
        """
        if attempt in self.losses:
            return self.losses[attempt].reason
        known = f"run {self.run_id!r} has {self.attempts} attempt{'s' if self.attempts != 1 else ''}"
        if not 1 <= attempt <= self.attempts:
            raise JournalError(
                f"{known}, and no attempt {attempt}: give the number of the attempt that began after the disruption"
            )
        if attempt == 1:
            raise JournalError(
                f"attempt 1 of run {self.run_id!r} began the run, so no disruption came before it: to say what "
                "ended attempt 1, give attempt 2"
            )
        if self.losses and attempt < min(self.losses):
            raise JournalError(f"{known}; only the latest {len(self.losses)} disruptions are remembered one by one")
        raise JournalError(f"attempt {attempt} of run {self.run_id!r} did not begin after a disruption")

    def to_json(self) -> list[dict[str, Any]]:
        return [{"attempt": attempt, "reason": loss.reason} for attempt, loss in sorted(self.losses.items())]


def disrupted(run: RecordedRun) -> Disrupted:
    """Read the disruptions of a run from the journal of its leader.

    Raises:
        JournalError: there is none, or none that can be read.
    """
    run_id = run.run_id
    restored = run.restored()
    if restored.attempt < 0:
        note = restored.damages.note()
        raise JournalError(f"run {run_id!r}: process 0 left no journal" if note is None else note.text)
    overview = restored.ledger.overview(restored.last_sign)
    losses = restarts(overview.disruptions)
    return Disrupted(run_id, restored.attempt + 1, losses)

"""An account for people and programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from otel_goodput.accounting.totals import NS, Totals
from otel_goodput.journal.notes import Note
from otel_goodput.reports import text


@dataclass(frozen=True)
class Report:
    """An account, whose it is, and what must be known beside it; ``str()`` is for a person, :meth:`to_json` for a
    program.
    """

    totals: Totals
    about: dict[str, Any]
    notes: Sequence[Note] = ()

    def to_json(self) -> dict[str, Any]:
        """The JSON answer of ACCOUNTING, and the run's identity."""
        return {
            **self.totals.to_json(),
            **self.about,
            "started_at": None if self.totals.started_at is None else self.totals.started_at / NS,
            "ended": self.totals.ended,
            "warnings": [note.to_json() for note in self.notes],
        }

    def __str__(self) -> str:
        return text.render(self.to_json())


def about(run_id: str, job_name: str) -> dict[str, Any]:
    """Whose account it is."""
    return {"run_id": run_id, "job_name": job_name}

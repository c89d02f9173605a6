"""The report of a run from its journal."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from otel_goodput.errors import JournalError
from otel_goodput.journal.notes import read_notes
from otel_goodput.journal.paces import read_paces
from otel_goodput.journal.recovery import all_events, restore
from otel_goodput.journal.rundir import RunDirectory
from otel_goodput.productivity import read_inputs
from otel_goodput.replay import account
from otel_goodput.reports.report import Report, about


def of_run(
    run: RunDirectory,
    *,
    at: int | None = None,
    windows: Sequence[tuple[int, int]] = (),
    exclusions: Sequence[tuple[int, int]] = (),
    ideal_step_time: float | None = None,
    process: int = 0,
) -> Report:
    """The report of a run from its journal.

    Args:
        run: its folder.
        at: time of the question, ns; by default now while the job is running, else its last sign of life.
        windows, exclusions: (start, end) in ns; with these the whole journal is read.
        ideal_step_time: ns, instead of the estimate.
        process: whose journal.

    Raises:
        JournalError: that process left none.
    """
    identity = run.identity()
    whose = about(str(identity.get("run_id", run.path.name)), str(identity.get("job_name", "")))
    restored = restore(run, process)
    if restored.attempt < 0:
        raise JournalError(f"run {whose['run_id']!r}: process {process} left no journal")
    asked = at
    if asked is None:
        alive = restored.attempt >= 0 and run.alive(restored.attempt, process)
        asked = time.time_ns() if alive else restored.last_sign
    if windows or exclusions or at is not None or ideal_step_time is not None:
        events = all_events(run, process)
        totals = account(
            (event for event in events if event.time <= asked),
            at=asked,
            windows=windows,
            exclusions=exclusions,
            ideal_step_time=ideal_step_time,
        )
    else:
        totals = restored.ledger.totals(asked)
    totals = read_inputs(run).complete(totals)
    paces = read_paces(run, restored.attempt, totals.at)
    if paces:
        count = int(identity.get("process_count") or len(paces))
        totals = replace(totals, paces=paces, processes=max(count, len(paces)))
    return Report(totals, whose, read_notes(run, process))

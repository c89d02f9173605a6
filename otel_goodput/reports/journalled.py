"""Make the report of a run from its journal."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from otel_goodput.accounting import events as ev
from otel_goodput.accounting.events import Event
from otel_goodput.accounting.totals import Totals
from otel_goodput.errors import JournalError
from otel_goodput.journal.deaths import culprits
from otel_goodput.journal.history import all_events
from otel_goodput.journal.notes import read_notes
from otel_goodput.journal.paces import read_paces
from otel_goodput.journal.rank_stages import rank_stages
from otel_goodput.journal.reasons import in_force, read_reasons
from otel_goodput.journal.recovery import Restored, restore
from otel_goodput.journal.rundir import RunDirectory
from otel_goodput.journal.startups import Attempts, Startups
from otel_goodput.metrics.productivity import read_inputs
from otel_goodput.reports.corrections import corrected
from otel_goodput.reports.replay import account
from otel_goodput.reports.report import Report, about
from otel_goodput.reports.standing import DIED, RUNNING, Lives, Standing, live, state_of
from otel_goodput.text.durations import Moment
from otel_goodput.text.redact import encodable

_MANY: Final = 1 << 31


def of_run(
    run: RunDirectory,
    *,
    at: int | Moment | None = None,
    windows: Sequence[tuple[int | Moment, int | Moment]] = (),
    exclusions: Sequence[tuple[int | Moment, int | Moment]] = (),
    ideal_step_time: float | None = None,
    process: int = 0,
    ranks: bool = True,
    restored: Restored | None = None,
) -> Report:
    """Return the report of a run from its journal.

    The whole journal is read if any of `at`, `windows`, `exclusions` and `ideal_step_time` is given.

    Args:
        run: the run's folder.
        at: time of the question, ns; by default now while the job is running, else its last sign of life.
        windows, exclusions: (start, end) pairs in ns.
        ideal_step_time: ns; by default it is estimated.
        process: index of the process whose journal is read.
        ranks: compare the stages of checkpoints of all processes, which reads a file of each (not for a past moment),
            tell how the attempts were started, which reads a file of each, and which process ended first, which reads
            the last segments of each.
        restored: what :func:`restore` returns for this run and process, by who needs it, too: it reads a file for each
            attempt since the latest snapshot.

    Raises:
        JournalError: `process` left no journal, or none that can be read.
        ValueError: a window or an exclusion ends before it starts.
    """
    identity = run.identity()
    whose = about(run.called(), encodable(str(identity.get("job_name", ""))))
    restored = restored or restore(run, process)
    damages = restored.damages
    if restored.attempt < 0 and (note := damages.note()) is not None:
        raise JournalError(f"run {whose['run_id']!r}: process {process}: {note.text}")
    if restored.attempt < 0:
        raise JournalError(f"run {whose['run_id']!r}: process {process} left no journal")
    state = state_of(run, restored.attempt, process, restored.last_sign)
    start = restored.ledger.settled.begin
    asked = time.time_ns() if state == RUNNING and run.alive(restored.attempt, process) else restored.last_sign
    if at is not None:
        asked = _ns(at, start)
    if windows or exclusions or at is not None or ideal_step_time is not None:
        lives = Lives(all_events(run, process, damages), state, asked)
        totals = account(
            lives,
            at=asked,
            windows=[(_ns(begin, start), _ns(end, start)) for begin, end in windows],
            exclusions=[(_ns(begin, start), _ns(end, start)) for begin, end in exclusions],
            ideal_step_time=ideal_step_time,
        )
        standing = lives.standing
    else:
        totals, standing = _latest(restored, state, asked)
    totals = read_inputs(run).complete(totals)
    paces = read_paces(run, restored.attempt, totals.at)
    if paces:
        totals = replace(totals, paces=paces, processes=max(process_count(identity), len(paces)))
    if ranks and at is None and totals.stages:
        totals = replace(totals, rank_stages=rank_stages(run, process, totals.stages))
    said = read_reasons(run)
    found_out = culprits(run, totals.history) if ranks else {}
    totals, corrections = corrected(totals, in_force(said.statements), found_out)
    notes = {note.kind: note for note in read_notes(run, process)}
    for one in (said.note, restored.overlap):
        if one is not None:
            notes[one.kind] = one
    if (note := damages.note()) is not None:
        notes[note.kind] = note
    damage = tuple(found for found in damages.found if not found.harmless)
    startups = Attempts(run, process).startups(asked) if ranks else Startups()
    return Report(totals, whose, tuple(notes.values()), standing, damage, corrections, startups)


def process_count(identity: dict[str, Any]) -> int:
    """Return the number of processes of the run; 0 if `identity` (run.json) has none that is valid."""
    found = identity.get("process_count")
    return found if isinstance(found, int) and 0 < found < _MANY else 0


def _ns(moment: int | Moment, start: int | None) -> int:
    return moment.since(start) if isinstance(moment, Moment) else moment


def _latest(restored: Restored, state: str, asked: int) -> tuple[Totals, Standing]:
    """Return the account of the run at time `asked` (ns), and the state of the run."""
    ledger = restored.ledger
    totals = ledger.totals(asked)
    if totals.ended or state == RUNNING:
        return totals, live(totals)
    standing = Standing(state, restored.last_sign, totals.in_flight_step, totals.in_flight_since)
    if state == DIED:
        # Steps in flight are lost, but the account learns of a death only from the start of the next attempt.
        ledger.feed([Event(restored.last_sign, ev.ATTEMPT, step=restored.attempt + 1)])
        totals = ledger.totals(asked)
    return totals, standing

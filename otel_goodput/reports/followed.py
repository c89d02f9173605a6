"""The report of a run that goes on, second after second: only what is new of its journal is read."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from otel_goodput import files
from otel_goodput.accounting.checkpoints import RankStages
from otel_goodput.accounting.paces import Pace
from otel_goodput.accounting.totals import Totals
from otel_goodput.errors import JournalError
from otel_goodput.journal.deaths import Culprit, culprits
from otel_goodput.journal.following import Follower
from otel_goodput.journal.notes import Note, read_notes
from otel_goodput.journal.paces import read_paces
from otel_goodput.journal.rank_stages import rank_stages
from otel_goodput.journal.reasons import Said, in_force, read_reasons
from otel_goodput.journal.rundir import RunDirectory
from otel_goodput.journal.startups import Attempts, Startups
from otel_goodput.metrics.productivity import Inputs, read_inputs
from otel_goodput.reports.corrections import corrected
from otel_goodput.reports.journalled import process_count
from otel_goodput.reports.report import Report, about
from otel_goodput.reports.standing import DIED, RUNNING, Standing, live, state_of
from otel_goodput.reports.tail import News, Tail
from otel_goodput.text.redact import encodable

_BESIDE_S: Final = 15.0  # how often what stands beside the journal is read: identity, notes, figures of the others
_SHARE: Final = 1000  # and at most one part in this many of a core is spent on it


class FollowedRun:
    """The report of a run's leader, as :func:`~otel_goodput.reports.journalled.of_run` makes it, again and again.

    Attributes:
        run: the run's folder.
    """

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self._follower = Follower(run)
        self._tail = Tail()
        self._due = float("-inf")  # when that is read again, by the monotonic clock
        self._attempt = -1
        self._whose = {"run_id": "", "job_name": ""}
        self._count = 0
        self._paces: Sequence[Pace] = ()
        self._ranks: Sequence[RankStages] = ()
        self._inputs = Inputs()
        self._notes: tuple[Note, ...] = ()
        self._attempts = Attempts(run)
        self._startups = Startups()
        self._said = Said()
        self._heard = 0, 0  # which version of what was said that is
        self._culprits: dict[int, Culprit] = {}
        self._asked = 0  # the latest attempt before which it was looked which process ended first

    def report(self) -> Report:
        """Return the report as of now while the run is running, else as of its last sign of life.

        Raises:
            JournalError: there is no journal, or none that can be read.
        """
        follower = self._follower
        follower.poll()
        attempt, sign = follower.attempt, follower.last_sign
        note = follower.damages.note()
        if attempt < 0:
            raise JournalError(note.text if note is not None else f"run {self.run.called()!r} has no journal yet")
        alive = self.run.alive(attempt, 0)
        state = state_of(self.run, attempt, 0, sign)
        at = time.time_ns() if state == RUNNING and alive else sign
        totals = follower.totals(at)
        standing = live(totals)
        if not totals.ended and state != RUNNING:
            standing = Standing(state, sign, totals.in_flight_step, totals.in_flight_since)
            if state == DIED:
                totals = follower.totals(at, dead=True)
        self._read_beside(totals)
        totals = self._inputs.complete(totals)
        if self._paces:
            totals = replace(totals, paces=tuple(self._paces), processes=max(self._count, len(self._paces)))
        if totals.stages:
            others = (one for one in self._ranks if one.process)
            totals = replace(totals, rank_stages=(RankStages(0, totals.stages), *others))
        if (version := files.version(self.run.reasons_path)) != self._heard:
            self._said, self._heard = read_reasons(self.run), version
        new = [one for one in totals.history if one.attempt is not None and one.attempt > self._asked]
        if new:
            self._culprits |= culprits(self.run, new)
            self._asked = max(one.attempt for one in new if one.attempt is not None)
        totals, corrections = corrected(totals, in_force(self._said.statements), self._culprits)
        notes = {one.kind: one for one in self._notes}
        if self._said.note is not None:
            notes[self._said.note.kind] = self._said.note
        if note is not None:
            notes[note.kind] = note
        damage = tuple(one for one in follower.damages.found if not one.harmless)
        whole = tuple(notes.values())
        return Report(totals, self._whose, whole, standing, damage, corrections, self._startups)

    def news(self, report: Report) -> News | None:
        """Return what is new, span by span, since this was asked last; None if that is not known.

        Args:
            report: the latest, of a run that is running.
        """
        return self._tail.news(self._follower, report.totals.at)

    def close(self) -> None:
        """Close the files; a later report opens them again."""
        self._follower.close()

    def _read_beside(self, totals: Totals) -> None:
        if time.monotonic() < self._due and self._attempt == self._follower.attempt:
            return
        began = time.thread_time()
        self._attempt = self._follower.attempt
        identity = self.run.identity()
        self._whose = about(self.run.called(), encodable(str(identity.get("job_name", ""))))
        self._count = process_count(identity)
        self._paces = read_paces(self.run, self._attempt, totals.at)
        self._ranks = rank_stages(self.run, 0, totals.stages) if totals.stages else ()
        self._inputs = read_inputs(self.run)
        self._notes = tuple(read_notes(self.run, 0))
        self._startups = self._attempts.startups()
        self._due = time.monotonic() + max(_BESIDE_S, _SHARE * (time.thread_time() - began))

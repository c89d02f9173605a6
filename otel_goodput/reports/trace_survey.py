"""A first look at the journal of a process: its attempts, and where it went back, so that fates are known at once."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from dataclasses import dataclass

from otel_goodput._accounting import events as ev
from otel_goodput._accounting import rules
from otel_goodput._accounting.events import NO_STEP, Event
from otel_goodput._accounting.resuming import Numbering
from otel_goodput._journal.reasons import in_force, read_reasons
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._timeline.damage import Damages
from otel_goodput._timeline.reader import Reader
from otel_goodput._timeline.recovery import restore
from otel_goodput._timeline.standing import DIED, ended, state_of
from otel_goodput.reports import ProgressCallback
from otel_goodput.reports.corrections import corrected, restarts
from otel_goodput.semconv import STEP_KEPT, STEP_LOST, Category

NO_STEP_DONE = "none"  # the fate of a step that a break left before it did a step's work
SKIPPED = "skipped"  # that of a batch that its loop skipped after a restore


@dataclass
class AttemptSpan:
    """One attempt: its number, its earliest and latest time (ns), and how many jobs began in it."""

    number: int
    begin: int
    last: int
    jobs: int = 0


class Survey:
    """What is known of a process's journal as a whole.

    Args:
        run, process: whose journal.

    Attributes:
        process: its index.
        attempts: in order.
        records: number of events.
        steps: number of executions of steps, and of batches that a loop skipped after a restore.
        numbering: which step each of them is.
        shifts: by attempt, what is added to its times by the account, ns.
        state: of the latest attempt, as a report says it.
        disruptions: the latest, by attempt number; rollbacks are not in it.
        corrections: what was said of them afterwards, by attempt number counted from 1.
    """

    def __init__(self, run: RunDirectory, process: int) -> None:
        self.process = process
        self.attempts: list[AttemptSpan] = []
        self.records = self.steps = 0
        self._returns = array("q")  # executions, by their place in the order of starts, that went back
        self._lowest = array("q")  # and the lowest step that it or a later one went back to
        self._latest = -1
        restored = restore(run, process)
        ledger = restored.ledger
        overview, totals = ledger.overview(), ledger.totals()
        self.numbering, self.shifts = Numbering(overview.numbering), overview.shifts
        self.state = ended(totals) or state_of(run.writing(restored.attempt, process), restored.last_sign)
        if self.state == DIED:
            ledger.feed([Event(restored.last_sign, ev.ATTEMPT, step=restored.attempt + 1)])
        totals, self.corrections = corrected(totals, in_force(read_reasons(run).statements))
        self.disruptions = {attempt - 1: one for attempt, one in restarts(totals.history).items()}
        self._progress = ledger.settled.steps.progress
        self._summarized = self._progress.summarized  # asked for every step, and it counts all chunks of the run

    def take(self, events: list[Event], attempt: int) -> None:
        """Look at the events of a segment."""
        if not self.attempts or self.attempts[-1].number != attempt:
            self.attempts.append(AttemptSpan(attempt, events[0].time, events[0].time))
        span = self.attempts[-1]
        self.records += len(events)
        span.last = max(span.last, max(event[0] for event in events))
        for time, kind, phase, _, step, flags, _, _ in events:
            if kind != ev.START:
                continue
            if time < span.begin:
                span.begin = time
            if phase == rules.STEP and not flags & ev.NONBLOCKING and step >= 0:
                number = self.number(attempt, time, step)
                if number == NO_STEP:
                    self.steps += 1
                    continue
                if number <= self._latest:
                    self._returns.append(self.steps)
                    self._lowest.append(number)
                self._latest = number
                self.steps += 1
            elif phase == rules.JOB:
                span.jobs += 1

    def number(self, attempt: int, begin: int, given: int) -> int:
        """Return which step a body is; ``NO_STEP`` if its loop skipped it.

        Args:
            attempt: from 0.
            begin: of the body, ns by the clock of its attempt.
            given: the number that its loop gave it.
        """
        return self.numbering.step(attempt, begin + self.shift(attempt), given)

    def shift(self, attempt: int) -> int:
        """Return what the account adds to the times of an attempt (from 0), ns."""
        return self.shifts.get(attempt, 0)

    def close(self) -> None:
        """All events have been taken."""
        lowest = self._latest + 1
        for at in range(len(self._lowest) - 1, -1, -1):
            lowest = self._lowest[at] = min(lowest, self._lowest[at])

    @property
    def last(self) -> AttemptSpan:
        return self.attempts[-1]

    def went_back(self, place: int) -> bool:
        """Whether the execution at `place` in the order of starts goes back to an earlier step."""
        at = bisect_right(self._returns, place) - 1
        return at >= 0 and self._returns[at] == place

    def fate(self, place: int, number: int, attempt: int, *, left: bool, failed: bool) -> str:
        """Return the fate of an execution of the step `number` (rule R4): kept, lost, in flight, none, or skipped.

        Args:
            place: of the execution in the order of starts, from 0.
            number: of the step by the account; ``NO_STEP`` if it is none.
            attempt: in which it ran.
            left, failed: whether a break, or anything, left it before its end.
        """
        if number == NO_STEP:
            return SKIPPED
        at = bisect_right(self._returns, place)
        if at < len(self._lowest) and self._lowest[at] <= number:
            return STEP_LOST
        progress = self._progress
        index = progress.index_above(number) - 1
        if index < self._summarized:  # numbers so far back are remembered as ranges only
            kept = not failed and index >= 0
        else:
            kept = progress.number_at(index) == number
        if kept:
            return STEP_KEPT
        if left:
            return NO_STEP_DONE
        if not failed and attempt == self.last.number and self.state != DIED:
            return Category.IN_FLIGHT
        return STEP_LOST


def survey(run: RunDirectory, process: int, damages: Damages, progress: ProgressCallback) -> Survey:
    """Read the journal of a process once. Raises OSError, ValueError."""
    found = Survey(run, process)
    for part in Reader(run, process).events(damages):
        if part.entries:
            found.take(part.entries, part.attempt)
        progress(found.records, 0, f"process {process}: looking at {found.records:,} events")
    found.close()
    return found

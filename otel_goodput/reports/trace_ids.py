"""In which trace each exported span of a process is, from its journal: their ids derive from run, attempt and step."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from otel_goodput.accounting import events as ev
from otel_goodput.accounting import rules
from otel_goodput.journal import records
from otel_goodput.journal.rundir import RunDirectory
from otel_goodput.journal.unexported import ENDLESS
from otel_goodput.recording import ids
from otel_goodput.recording.volumes import Volumes
from otel_goodput.reports.detail import IN_TRACE, UNREAD, Detail, Phase, Step
from otel_goodput.reports.exported import Told

UNKNOWN: Final = 0  # no trace has this id
_BEGINNING: Final = 1000  # records; what is looked for is told right before or after the begin of the first job
_OF_STEPS: Final = frozenset({rules.STEP, rules.DATA_LOADING, rules.PART})  # spans that no SDK tracer makes


@dataclass
class Layout:
    """The traces of one attempt.

    Attributes:
        volumes: the attempt's own traces, and which of them a step is in.
        own: each step has a trace of its own.
        rooted: a recorder told its root, and so chose the traces of all steps.
        job: the trace of the first job, if somebody else has chosen it.
        begun: the first job's begin was read.
    """

    volumes: Volumes
    own: bool = False
    rooted: bool = False
    job: int = UNKNOWN
    begun: bool = False

    @property
    def main(self) -> int:
        """The trace of the attempt."""
        return self.job or self.volumes.root(0).trace_id

    def of_step(self, number: int) -> int:
        """Return the trace of a step, and of loads and parts that belong to it."""
        if self.own:
            return ids.step_trace_id(self.volumes.run_id, self.volumes.attempt, number) if number >= 0 else UNKNOWN
        if self.job:
            return self.job
        if number < 0 and self.volumes.steps < ENDLESS:
            return UNKNOWN
        return self.volumes.root(self.volumes.number(number)).trace_id

    def of(self, span: Step | Phase) -> int:
        """Return the trace of an exported span, ``UNKNOWN`` if the journal does not tell it."""
        if span.trace > 0:
            return span.trace
        phase, step = rules.STEP if isinstance(span, Step) else span.phase, span.given
        if phase in _OF_STEPS:
            chosen = bool(self.job) or (span.trace == UNREAD and not self.begun)  # perhaps by whoever opened it
            return self.of_step(step) if self.rooted or not chosen else UNKNOWN
        if phase == rules.JOB:
            return self.main
        if span.trace == UNREAD:  # a phase that is not in the attempt's trace has a record that says in which it is
            return UNKNOWN
        if phase == rules.COMPILE and step >= 0 and isinstance(span, Phase) and not span.parent:
            return self.of_step(step)
        return self.volumes.root(0).trace_id


class TraceIds:
    """The traces of a process, attempt by attempt.

    Args:
        run: its folder.
        process: its index, one whose steps are exported one by one: it is in the first group of processes.

    Attributes:
        run: its folder.
    """

    def __init__(self, run: RunDirectory, process: int = 0) -> None:
        self.run = run
        self._process = process
        self._identity: str | None = None
        self._layouts: dict[int, Layout] = {}

    def layout(self, attempt: int) -> Layout | None:
        """Return the traces of an attempt, counted from 1; None where the run's id is not known."""
        found = self._layouts.get(attempt)
        if found is None or not found.begun:
            if self._identity is None:
                identity = self.run.identity().get("run_id")
                if not isinstance(identity, str) or not identity:
                    return None
                self._identity = identity
            found = self._layouts[attempt] = self._read(self._identity, attempt - 1)
        return found

    def of(self, span: Step | Phase) -> int:
        """Return the id of the trace of an exported span; ``UNKNOWN`` where that is not known."""
        found = self.layout(span.attempt)
        return UNKNOWN if found is None else found.of(span)

    def others(self, detail: Detail, told: Mapping[int, Told], *, whole: bool) -> dict[int, int]:
        """Return the traces of exported spans that are not in that of their attempt's job, by span id.

        Args:
            detail: the spans.
            told: what the spans say themselves, by span id.
            whole: they are all spans of the run.
        """
        found = {}
        spans: list[Step | Phase] = [*detail.steps, *detail.phases]
        for span in spans:
            if span.flags & IN_TRACE:
                itself = told.get(span.key)
                trace = itself.trace if itself is not None else UNKNOWN
                trace = trace or self.of(_numbered(span, detail.steps) if whole else span)
                if trace != self.main(span.attempt):
                    found[span.key] = trace
        return found

    def main(self, attempt: int) -> int:
        """Return the id of the trace of an attempt, counted from 1; ``UNKNOWN`` where that is not known."""
        found = self.layout(attempt)
        return UNKNOWN if found is None else found.main

    def _read(self, run_id: str, attempt: int) -> Layout:
        found = Layout(Volumes(run_id, attempt))
        jobs = set[int]()
        with suppress(OSError, EOFError, ValueError):
            [segment] = [one for one in self.run.segments(self._process, attempt, lambda *_: None) if not one.number]
            for kind, phase, flags, _, key, step, time in segment.beginning(_BEGINNING):
                if kind == ev.ATTEMPT:
                    found.own = bool(flags & records.OWN_TRACES)
                elif kind == records.ROOT:
                    found.rooted = True
                elif kind == records.CONTINUED and phase == 0:
                    found.volumes = Volumes(run_id, attempt, max(1, key), step // records.HALF)
                elif kind == ev.START and phase == rules.JOB:
                    found.begun = True
                    jobs.add(key)
                elif kind == records.TRACE and key in jobs and not found.job:
                    found.job = records.foreign(step, time)
        return found


def _numbered(span: Step | Phase, steps: Sequence[Step]) -> Step | Phase:
    """Give a load without a number, as the first one after a restart, that of the step that follows it."""
    if isinstance(span, Phase) and span.phase == rules.DATA_LOADING and span.given < 0:
        at = bisect_left(steps, span.begin, key=lambda step: step.begin)
        if at < len(steps) and steps[at].attempt == span.attempt:
            return replace(span, given=steps[at].given)
    return span

"""One run as the page shows it: its report, an overview of every process, and exact detail of the leader.

The same model serves the file that ``report --html`` writes and the pages of ``serve``. Opening a session does not
raise because of what a run's folder contains: what cannot be read is said in `warnings`, or in `Process.problem`.

Longer than other files: what each part of the page takes from the journal of a run is read in one pass.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from otel_goodput import files
from otel_goodput.accounting.ledger import Ledger
from otel_goodput.accounting.overview import NOT_KNOWN, Overview
from otel_goodput.accounting.paces import Pace
from otel_goodput.errors import GoodputError
from otel_goodput.journal.facts import read_facts
from otel_goodput.journal.listed_run import MOST, ListedRun
from otel_goodput.journal.notes import Note
from otel_goodput.journal.overviews import overview_of
from otel_goodput.journal.paces import read_paces
from otel_goodput.journal.records import CAPACITY
from otel_goodput.journal.recovery import Restored, restore
from otel_goodput.journal.rundir import RunDirectory
from otel_goodput.reports.condensing import condensed
from otel_goodput.reports.corrections import corrected_overview
from otel_goodput.reports.detail import IN_TRACE, Detail
from otel_goodput.reports.excerpt import Excerpt, excerpt, summed_up
from otel_goodput.reports.exported import Exported, exported
from otel_goodput.reports.journalled import of_run
from otel_goodput.reports.rank_steps import ROWS, RankSteps, rank_steps
from otel_goodput.reports.report import Report, about
from otel_goodput.reports.standing import DIED, ENDED, FAILED, RUNNING, SILENT, live, state_of
from otel_goodput.reports.telling import tell
from otel_goodput.reports.trace_ids import TraceIds
from otel_goodput.reports.usage import AttemptUsage, usages
from otel_goodput.semconv import HOST_NAME, PROCESS_COUNT
from otel_goodput.text.durations import Moment
from otel_goodput.text.redact import encodable, shown

Progress = Callable[[int, int, str], None]

SPANS: Final = 200_000  # shown one by one
_LEAST: Final = 2_000  # so that a short run is read in full, whatever is asked
_RECORDS: Final = 4  # of one span, about: its start, its end, what they say of it, and room that a segment has left
_OF_OTHERS: Final = frozenset({"bins", "jobs", "step_bins"})  # what is read of the overviews of the other processes
_RECENT_S: Final = 600.0  # how old the overview of another process may be that is alive


@dataclass
class Process:
    """One process of a run.

    Attributes:
        index: 0 is the leader.
        state: ``RUNNING``, ``ENDED``, ``FAILED``, ``DIED`` or ``SILENT``.
        last_sign: last sign of life, ns.
        attempts: numbers, counted from 1.
        overview: what it did; None if nothing could be read.
        steps: of another process than the leader.
        problem: why something is missing, for people.
    """

    index: int
    state: str = RUNNING
    host: str = ""
    last_step: int | None = None
    last_sign: int = 0
    attempts: list[int] = field(default_factory=list)
    pace: Pace | None = None
    overview: Overview | None = None
    steps: Sequence[RankSteps] = ()
    facts: Mapping[str, Any] | None = None
    problem: str = ""


@dataclass
class Attempt:
    """One attempt of the leader.

    Attributes:
        number: counted from 1.
        begin, end: first job start, and end or last sign of life, ns.
        partition: ns by category number, exactly, from `begin` to `end`.
        loss: index in the overview's losses of the disruption that began it, None for the first.
        trace_id: of its job, 32 hex digits; None where the run's id is not known.
    """

    number: int
    begin: int
    end: int
    state: str
    partition: Counter[int]
    loss: int | None
    trace_id: str | None
    facts: Mapping[str, Any] | None = None

    @property
    def elapsed(self) -> int:
        return sum(self.partition.values())


@dataclass
class Session:
    """One run at one moment.

    Attributes:
        report: as ``otel-goodput report`` gives it.
        at: the moment of the account, ns.
        overview: of the leader.
        detail: what is known one by one of the leader.
        windows: the times, (begin, end) in ns, that `detail` tells everything about.
        left_out: steps and phases that it does not tell one by one.
        text: what is summed up, for people; empty if nothing is.
        usage: of processor and memory, where it was sampled.
        exported: what the spans in `detail` that were exported say beside their times.
    """

    run: RunDirectory
    report: Report
    at: int
    overview: Overview
    detail: Detail
    processes: list[Process]
    attempts: list[Attempt]
    windows: list[tuple[int, int]] = field(default_factory=list)
    usage: Sequence[AttemptUsage] = ()
    left_out: int = 0
    text: str = ""
    exported: Exported = field(default_factory=Exported)
    _traces: TraceIds | None = None
    _partition: Callable[[int, int], tuple[Counter[int], bool]] = lambda begin, end: (Counter(), True)

    @property
    def traces(self) -> TraceIds:
        """In which trace each exported span of the leader is, as its journal says."""
        if self._traces is None:
            self._traces = TraceIds(self.run)
        return self._traces

    @classmethod
    def open(
        cls,
        run: RunDirectory,
        *,
        spans: int = SPANS,
        progress: Progress | None = None,
        at: int | Moment | None = None,
        report: Report | None = None,
        quick: bool = False,
    ) -> Session:
        """Read a run.

        Args:
            run: its folder.
            spans: how many steps and phases of the leader are told one by one.
            progress: called with what is done, how much there is, and what is being read; it may raise
                KeyboardInterrupt to stop, which leaves nothing behind.
            at: the moment of the account, ns; by default now while the run is running, else its last sign of life.
            report: of a live job by itself, which is then not read from its journal; `at` is that of its totals.
            quick: of the other processes only that they are there, and nothing one by one of a long run.
        """
        with files.held(run.journal):
            return cls._open(run, spans, progress, at, report, quick)

    @classmethod
    def _open(
        cls,
        run: RunDirectory,
        spans: int,
        progress: Progress | None,
        at: int | Moment | None,
        report: Report | None,
        quick: bool,
    ) -> Session:
        listed = ListedRun(run.path)
        restored = None
        if report is None:
            restored = restore(listed, 0)
            report, state, problem = _report(listed, at, restored)
        else:
            state, problem = live(report.totals).state, ""
        asked = report.totals.at
        session = cls(listed, report, asked, Overview(0, 1), Detail(reached=asked), [], [])
        try:
            session._read_leader(state, spans, progress, restored, past=at is not None, quick=quick)
        except Exception as error:  # whatever a folder contains
            problem = problem or f"its journal cannot be read: {shown(str(error) or type(error).__name__)}"
        session.overview = corrected_overview(session.overview, report.corrections)
        in_trace = {one.key for one in session.detail.steps if one.flags & IN_TRACE}
        in_trace |= {one.key for one in session.detail.phases if one.flags & IN_TRACE}
        session.exported = exported(listed, in_trace, progress=progress)
        session.processes = _processes(listed, asked, report, progress, quick)
        session._describe_leader(state, problem)
        session.attempts = session._told_attempts()
        session.usage = () if quick else usages(listed, asked)
        session.run = session.traces.run = run  # of a living run, more is asked later
        return session

    def _read_leader(
        self,
        state: str,
        spans: int,
        progress: Progress | None,
        restored: Restored | None,
        *,
        past: bool,
        quick: bool,
    ) -> None:
        """Read the leader's journal: all of it if it is short enough, else the overview and what is told one by one."""
        run, asked = self.run, self.at
        records = len(run.segments(0)) * CAPACITY
        if records <= _RECORDS * max(spans, _LEAST):
            detail = tell(run, 0, state=state, asked=asked, past=past, progress=progress)
            if len(detail.steps) + len(detail.phases) <= spans:
                self.detail, self.overview = detail, condensed(detail)
                self.windows = [(self.overview.begin, detail.reached)] if detail.begin is not None else []
                self._partition = lambda begin, end: (detail.partition(begin, end), True)
                return
            overview = condensed(detail)
        else:
            overview = _remembered(restored or restore(run, 0), asked, dead=state == DIED)
        if quick:
            found = Excerpt(Detail(overview.begin, asked, tuple(overview.names)))
        else:
            found = excerpt(run, overview, spans=spans, asked=asked, died=state == DIED, progress=progress)
        self.detail, self.overview, self.windows = found.detail, overview, found.windows
        self._partition = lambda begin, end: found.partition(overview, begin, end)
        exact = all(self._partition(begin, end)[1] for _, begin, end, _ in self._spans_of_attempts())
        self.left_out, self.text = summed_up(found, overview, exact=exact)

    def _describe_leader(self, state: str, problem: str) -> None:
        leader = self.processes[0]
        leader.overview, leader.state = self.overview, state
        leader.last_step, leader.last_sign = self.report.totals.last_step, self.detail.reached
        leader.problem = problem
        attempts = self.run.attempts(0)
        leader.attempts = [attempt + 1 for attempt in attempts]
        leader.facts = _facts(self.run, attempts[-1], 0) if attempts else None
        leader.host = _host(leader.facts)

    def _spans_of_attempts(self) -> list[tuple[int, int, int, bool]]:
        """Return number, begin, end and whether it ended well of each attempt that began a job."""
        found: dict[int, tuple[int, int, int, bool]] = {}
        for life in self.overview.jobs:
            end = self.detail.reached if life.end == NOT_KNOWN else life.end
            begin = found[life.attempt][1] if life.attempt in found else life.begin
            found[life.attempt] = (life.attempt, begin, max(begin, end), life.clean)
        return list(found.values())

    def _told_attempts(self) -> list[Attempt]:
        found = []
        spans = self._spans_of_attempts()
        latest = (self.report.standing or live(self.report.totals)).state
        # An exception ended the attempt before one that began with such a disruption.
        failed = {one.attempt - 1 for one in self.report.totals.history if one.attempt and one.error}
        losses = {one.attempt: at for at, one in reversed(list(enumerate(self.overview.disruptions)))}
        for number, begin, end, clean in spans:
            loss = losses.get(number)
            found.append(
                Attempt(
                    number,
                    begin,
                    end,
                    latest if number == spans[-1][0] else ENDED if clean else FAILED if number in failed else DIED,
                    self._partition(begin, end)[0],
                    loss,
                    f"{trace:032x}" if (trace := self.traces.main(number)) else None,
                    _facts(self.run, number - 1, 0),
                )
            )
        return found


def _report(run: RunDirectory, at: int | Moment | None, restored: Restored) -> tuple[Report, str, str]:
    """Return the report of a run, the state of its leader, and what is wrong; the report of no job if all is."""
    try:
        report = of_run(run, at=at, restored=restored)
    except (GoodputError, OSError, ValueError) as error:
        problem = shown(str(error) or type(error).__name__)
        identity = run.identity()
        moment = at if isinstance(at, int) else run.created_at() or time.time_ns()
        whose = about(run.called(), encodable(str(identity.get("job_name", ""))))
        note = Note("unreadable", f"No figures: {problem}", ())
        return Report(Ledger().totals(moment), whose, (note,)), ENDED, problem
    state = report.standing.state if report.standing is not None else live(report.totals).state
    damage = "" if not report.damage else f"{len(report.damage)} parts of its journal cannot be read"
    return report, state, damage


def _processes(run: ListedRun, asked: int, report: Report, progress: Progress | None, quick: bool) -> list[Process]:
    """Return every process that left something in the run's folder, and those that are missing between them."""
    there = run.there
    count = max([1, report.totals.processes, *(index + 1 for index in there)])
    attempts = run.attempts(0)
    facts = _facts(run, attempts[-1], 0) if attempts else None
    told = (facts or {}).get("resource", {}).get(PROCESS_COUNT)
    if isinstance(told, int) and not isinstance(told, bool):
        count = max(count, min(told, MOST))
    paces = {pace.process: pace for pace in read_paces(run, attempts[-1] if attempts else 0, asked)}
    found = [Process(index, pace=paces.get(index)) for index in range(count)]
    for done, process in enumerate(found[1:], 1):
        if progress is not None:
            progress(done, count, "processes")
        if process.index not in there:
            process.problem = "it left no journal here"
            process.state = SILENT
        elif not quick:
            _fill(process, run, asked, ROWS // len(there))
    return found


def _fill(process: Process, run: ListedRun, asked: int, rows: int) -> None:
    """Read what another process than the leader left; of its steps at most so many rows."""
    try:
        attempts = run.attempts(process.index)
        process.attempts = [attempt + 1 for attempt in attempts]
        recorded = run.recorded(process.index)
        found = overview_of(run, process.index, within_s=_RECENT_S, only=_OF_OTHERS) if recorded else None
        if found is None:
            process.problem = "it has left no journal that can be read"
            process.state = SILENT
            return
        process.steps = rank_steps(found.overview.step_bins, rows)
        # What is not needed any more is dropped at once: of hundreds of processes it is a million objects.
        overview = process.overview = counted_from_one(replace(found.overview, step_bins=()))
        process.last_step, process.last_sign = overview.last_step, overview.last_sign
        process.facts = _facts(run, found.attempt, process.index)
        process.host = _host(process.facts)
        state = state_of(run, found.attempt, process.index, overview.last_sign)
        process.state = state
        if overview.jobs and overview.jobs[-1].end != NOT_KNOWN and state != RUNNING:
            process.state = ENDED if overview.jobs[-1].clean else FAILED
        if (note := found.damages.note()) is not None:
            process.problem = note.text
    except Exception as error:  # whatever one process left must not hide the others
        process.problem = shown(str(error) or type(error).__name__)


def _remembered(restored: Restored, asked: int, *, dead: bool) -> Overview:
    """Return what the leader remembers of its whole run, at `asked` (ns)."""
    return counted_from_one(restored.ledger.overview(asked, dead=dead))


def counted_from_one(overview: Overview) -> Overview:
    """Return an overview as a process has it, with its attempts counted from 1 instead of 0."""
    return replace(
        overview,
        histogram={
            (of, attempt + 1, fate, bucket): count for (of, attempt, fate, bucket), count in overview.histogram.items()
        },
        phases=[one._replace(attempt=one.attempt + 1) for one in overview.phases],
        steps=[one._replace(attempt=one.attempt + 1) for one in overview.steps],
        saves=[one._replace(attempt=one.attempt + 1) for one in overview.saves],
        jobs=[one._replace(attempt=one.attempt + 1) for one in overview.jobs],
        numbering=[one._replace(attempt=one.attempt + 1) for one in overview.numbering],
        shifts={attempt + 1: shift for attempt, shift in overview.shifts.items()},
    )


def _facts(run: RunDirectory, attempt: int, process: int) -> Mapping[str, Any] | None:
    """Return the facts of an attempt, None if it left none that can be read."""
    try:
        facts = read_facts(run, attempt, process)
    except (OSError, ValueError):
        return None
    settings = {name: {"value": value, "source": source} for name, (value, source) in facts.settings.items()}
    return {**facts._asdict(), "settings": settings}


def _host(facts: Mapping[str, Any] | None) -> str:
    return str(((facts or {}).get("resource") or {}).get(HOST_NAME, ""))

"""One run as the page shows it: its report, an overview of every process, and exact detail of the leader.

The same model serves the file that ``report --html`` writes and the pages of ``serve``. Opening a session does not
raise because of what a run's folder contains: what cannot be read is said in `warnings`, or in `Process.problem`.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from otel_goodput import files
from otel_goodput.accounting.ledger import Ledger
from otel_goodput.accounting.overview import NOT_KNOWN, Overview
from otel_goodput.accounting.paces import Pace
from otel_goodput.errors import GoodputError
from otel_goodput.journal.notes import Note
from otel_goodput.journal.paces import read_paces
from otel_goodput.journal.rundir import RunDirectory
from otel_goodput.journal.segment_file import NAME
from otel_goodput.recording import ids
from otel_goodput.reports.condensing import condensed
from otel_goodput.reports.detail import Detail, tell
from otel_goodput.reports.journalled import of_run
from otel_goodput.reports.report import Report, about
from otel_goodput.reports.standing import DIED, ENDED, RUNNING, state_of
from otel_goodput.text.durations import Moment
from otel_goodput.text.redact import encodable, shown

Progress = Callable[[int, int, str], None]

SPANS: Final = 200_000  # shown one by one
_PROCESS: Final = re.compile(r"(?:a\d{4,10}-)?p(\d{4,9})[-.].*")
_MOST: Final = 65_536  # processes


@dataclass
class Process:
    """One process of a run.

    Attributes:
        index: 0 is the leader.
        state: ``RUNNING``, ``ENDED``, ``DIED`` or ``SILENT``.
        last_sign: last sign of life, ns.
        attempts: numbers, counted from 1.
        overview: what it did; None if nothing could be read.
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
        trace_id: 32 hex digits; None where the run's id is not known.
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
    """

    run: RunDirectory
    report: Report
    at: int
    overview: Overview
    detail: Detail
    processes: list[Process]
    attempts: list[Attempt]
    windows: list[tuple[int, int]] = field(default_factory=list)
    left_out: int = 0
    text: str = ""

    @classmethod
    def open(
        cls,
        run: RunDirectory,
        *,
        spans: int = SPANS,
        progress: Progress | None = None,
        at: int | Moment | None = None,
        report: Report | None = None,
    ) -> Session:
        """Read a run.

        Args:
            run: its folder.
            spans: how many steps and phases of the leader are told one by one.
            progress: called with what is done, how much there is, and what is being read; it may raise to stop.
            at: the moment of the account, ns; by default now while the run is running, else its last sign of life.
            report: of a live job by itself, which is then not read from its journal; `at` is that of its totals.
        """
        if report is None:
            report, state, problem = _report(run, at)
        else:
            state, problem = RUNNING, ""
        asked = report.totals.at
        attempts = run.attempts(0)
        detail = tell(run, 0, state=state, asked=asked, progress=progress)
        overview = condensed(detail)
        processes = _processes(run, asked, report, progress)
        leader = processes[0]
        leader.overview, leader.state, leader.last_step, leader.last_sign = (
            overview,
            report.standing.state if report.standing is not None else state,
            report.totals.last_step,
            detail.reached,
        )
        leader.problem = problem
        leader.attempts = [attempt + 1 for attempt in attempts]
        session = cls(run, report, asked, overview, detail, processes, [])
        session.attempts = session._told_attempts()
        session.windows = [(overview.begin, max(overview.begin, detail.reached))]
        return session

    def _told_attempts(self) -> list[Attempt]:
        identity = self.run.identity().get("run_id")
        known = isinstance(identity, str) and bool(identity)
        found = []
        last = len(self.overview.lives) - 1
        latest = self.report.standing.state if self.report.standing is not None else ENDED
        for at, life in enumerate(self.overview.lives):
            end = self.detail.reached if life.end == NOT_KNOWN else life.end
            loss = next((i for i, one in enumerate(self.overview.losses) if one.attempt == life.attempt), None)
            found.append(
                Attempt(
                    life.attempt,
                    life.begin,
                    end,
                    latest if at == last else ENDED if life.clean else DIED,
                    self.detail.partition(life.begin, end),
                    loss,
                    f"{ids.attempt_trace_id(str(identity), life.attempt - 1):032x}" if known else None,
                )
            )
        return found


def _report(run: RunDirectory, at: int | Moment | None) -> tuple[Report, str, str]:
    """Return the report of a run, the state of its leader, and what is wrong; the report of no job if all is."""
    try:
        report = of_run(run, at=at)
    except (GoodputError, OSError, ValueError) as error:
        problem = shown(str(error) or type(error).__name__)
        identity = run.identity()
        moment = at if isinstance(at, int) else run.created_at() or time.time_ns()
        whose = about(run.called(), encodable(str(identity.get("job_name", ""))))
        note = Note("unreadable", f"There is no account: {problem}", ())
        return Report(Ledger().totals(moment), whose, (note,)), ENDED, problem
    attempts = run.attempts(0)
    totals = report.totals
    state = state_of(run, attempts[-1], 0, totals.last_sign) if attempts else ENDED
    if report.standing is not None and not totals.ended:
        state = report.standing.state
    damage = "" if not report.damage else f"{len(report.damage)} parts of its journal cannot be read"
    return report, state, damage


def _processes(run: RunDirectory, asked: int, report: Report, progress: Progress | None) -> list[Process]:
    """Return every process that left something in the run's folder, and those that are missing between them."""
    there = _indices(run)
    count = max([1, report.totals.processes, *(index + 1 for index in there)])
    identity = run.identity().get("process_count")
    if isinstance(identity, int) and not isinstance(identity, bool):
        count = max(count, min(identity, _MOST))
    attempts = run.attempts(0)
    paces = {pace.process: pace for pace in read_paces(run, attempts[-1] if attempts else 0, asked)}
    found = [Process(index, pace=paces.get(index)) for index in range(count)]
    for done, process in enumerate(found[1:], 1):
        if progress is not None:
            progress(done, count, "processes")
        if process.index not in there:
            process.problem = "it has left no journal here"
            process.state = "silent"
            continue
        _fill(process, run, asked)
    return found


def _fill(process: Process, run: RunDirectory, asked: int) -> None:
    """Read what another process than the leader left."""
    try:
        attempts = run.attempts(process.index)
        process.attempts = [attempt + 1 for attempt in attempts]
        if not attempts:
            process.problem = "it has left no journal here"
            return
        state = state_of(run, attempts[-1], process.index, asked)
        detail = tell(run, process.index, state=state, asked=asked)
        process.overview = condensed(detail)
        process.last_step = process.overview.last_step
        process.last_sign = detail.reached
        process.state = ENDED if detail.attempts and detail.attempts[-1].ended else state
        if (note := detail.damages.note()) is not None:
            process.problem = note.text
    except Exception as error:  # whatever one process left must not hide the others
        process.problem = shown(str(error) or type(error).__name__)


def _indices(run: RunDirectory) -> set[int]:
    """Return the indices of the processes that left files."""
    try:
        names = files.names(run.journal)
    except OSError:
        return set()
    found = set()
    for name in names:
        match = NAME.fullmatch(name)
        index = int(match[2]) if match else int(other[1]) if (other := _PROCESS.fullmatch(name)) else -1
        if 0 <= index < _MOST:
            found.add(index)
    return found

"""One run as the page shows it: its report, an overview of every process, exact detail of the job and of the leader.

The same model serves the file that ``report --html`` writes and the pages of ``serve``. Opening a view does not raise
because of what a run's folder contains: what cannot be read is named in `warnings`, or in `Process.problem`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from otel_goodput._accounting import rules
from otel_goodput._accounting.ledger import Ledger
from otel_goodput._accounting.overview import NOT_KNOWN, Overview, StepBin
from otel_goodput._accounting.stats import Pace
from otel_goodput._journal.digest import NONE, Row, rows_of_step_bins
from otel_goodput._journal.notes import Note
from otel_goodput._journal.records import CAPACITY
from otel_goodput._journal.rundir import ListedRun, RunDirectory
from otel_goodput._journal.usage import AttemptUsage, read_paces, usages
from otel_goodput._runtime import files
from otel_goodput._text.durations import Moment
from otel_goodput._text.redact import shown
from otel_goodput._timeline.overviews import overview_of
from otel_goodput._timeline.run_state import DIED, ENDED, FAILED, RUNNING, SILENT, state_of
from otel_goodput.errors import GoodputError
from otel_goodput.reports import SPANS, ProgressCallback, no_progress
from otel_goodput.reports.detail import IN_TRACE, Detail, Phase, Step, detail_of, read_detail
from otel_goodput.reports.excerpt import Excerpt, excerpt, lives, summed_up
from otel_goodput.reports.exported import Exported, TraceIds, exported
from otel_goodput.reports.ranks import RankWaits
from otel_goodput.reports.report import Report, corrected_overview, restarts
from otel_goodput.reports.run import RecordedRun, counted_from_one
from otel_goodput.semconv import HOST_NAME

_LEAST: Final = 2_000  # so that a short run is read in full, whatever is requested
_RECORDS: Final = 4  # of one span, about: its start, its end, more about it, and the free space of a segment
_OF_OTHERS: Final = frozenset({"bins", "jobs", "step_bins"})  # what is read of the overviews of the other processes
ROWS: Final = 65_536  # of the steps of all other processes together, about
_RECENT_S: Final = 600.0  # how old the overview of another process may be that is alive


class ProcessSteps(NamedTuple):
    """Successive executions of steps. Of joined bins the median is the mean of theirs, each counted with its steps."""

    first: int  # lowest number
    last: int  # highest number
    begin: int  # when the first of them started, ns
    count: int  # type: ignore[assignment]
    net_median: int  # ns
    net_max: int


@dataclass
class Process:
    """One process of a run; 0 is the leader."""

    index: int
    state: str = RUNNING
    last_step: int | None = None
    last_sign: int = 0  # ns
    attempts: list[int] = field(default_factory=list)  # numbers, counted from 1
    pace: Pace | None = None
    overview: Overview | None = None  # None if nothing could be read
    steps: Sequence[ProcessSteps] = ()  # if there are several processes
    facts: Mapping[str, Any] | None = None
    problem: str = ""  # why something is missing, for people

    @property
    def host(self) -> str:
        return str(((self.facts or {}).get("resource") or {}).get(HOST_NAME, ""))


@dataclass
class Attempt:
    """One attempt of the job or of the leader, counted from 1."""

    number: int
    begin: int  # first job start, ns
    end: int  # or last sign of life, ns
    state: str
    partition: Counter[int]  # ns by category number, exactly, from `begin` to `end`
    trace_id: str | None  # of its job, 32 hex digits; None where the run's id is not known
    facts: Mapping[str, Any] | None = None

    @property
    def elapsed(self) -> int:
        return sum(self.partition.values())


@dataclass
class RunView:
    """One run at one moment: the job of all its ranks if they step together, else its leader."""

    run: RecordedRun
    report: Report  # of whom this is about
    at: int  # the moment of the account, ns
    overview: Overview
    detail: Detail  # steps and phases that are shown one by one
    traces: TraceIds  # in which trace each exported span of the leader is, according to its journal
    overall: Report | None = None  # of the job of all ranks, or the leader's, with why there is none; None: not read
    leader: RunView | None = None  # if this is about the job of all ranks
    coarse: Overview | None = None  # if `overview` has finer bins than those of other processes
    processes: list[Process] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    windows: list[tuple[int, int]] = field(default_factory=list)  # (begin, end) in ns, of which `detail` has everything
    usage: Sequence[AttemptUsage] = ()  # of processor and memory, where it was sampled
    left_out: int = 0  # steps and phases that `detail` does not have
    text: str = ""  # what is summed up, for people; empty if nothing is
    exported: Exported = field(default_factory=Exported)  # the spans in `detail` that were exported

    @property
    def job(self) -> Report | None:
        """The report of the job of all ranks; None if it is of one process, or if its account is not known."""
        return self.overall if self.overall is not None and self.overall.ranks is not None else None

    @property
    def journal(self) -> RunDirectory:
        """The folder with the journal of whom this is about; that of a job has one only if it is not made each time."""
        return self.run.folder if self.leader is None else self.run.folder.of_job

    def is_job_time(self, phase: int, *, background: int) -> bool:
        """Whether a phase stands for time in which the job saved or restored: the leader has the checkpoint itself."""
        return self.leader is not None and not background and phase in (rules.SAVE, rules.RESTORE)

    def is_note(self, phase: int, *, background: int) -> bool:
        """Whether a phase only notes which checkpoint of a job there is, apart from the time that it took."""
        return self.leader is not None and bool(background) and phase == rules.SAVE

    @classmethod
    def open(
        cls,
        run: RecordedRun,
        *,
        spans: int = SPANS,
        progress: ProgressCallback = no_progress,
        at: int | Moment | None = None,
        report: Report | None = None,
        quick: bool = False,
        records: bool = False,
    ) -> RunView:
        """Read a run.

        Args:
            spans: how many steps and phases of the job, and of the leader, are shown one by one.
            progress: it may raise KeyboardInterrupt to stop, which leaves nothing behind.
            at: the moment of the account, ns; by default now while the run is running, else its last sign of life.
            report: of a live job or process by itself, which is then not read; `at` is that of its totals.
            quick: of the other processes only that they are there, and nothing one by one of a long run.
            records: of a job that has its own records, these are read even if the journals of its ranks are small.
        """
        with files.held(run.folder.journal):
            listed = run.listed()
            problem = ""  # why something is missing, for people
            overall = report if report is not None and report.ranks is not None else None
            if report is None or overall is not None:
                report, state, problem = _report(listed, at)
                cut = at is not None
            else:
                state, cut = report.state, True  # the journal has gone on since
            moment, traces = report.totals.at, TraceIds(listed.folder)
            view = cls(listed, report, moment, Overview(0, 1), Detail(reached=moment), traces)
            partition: _Partition | None = None
            try:
                partition = view._read(None, state, spans, progress, past=at is not None, cut=cut, quick=quick)
            except Exception as error:  # whatever a folder contains
                problem = problem or f"its journal cannot be read: {shown(str(error) or type(error).__name__)}"
            view.overview = corrected_overview(view.overview, report.corrections)
            spans_shown: list[Step | Phase] = [*view.detail.steps, *view.detail.phases]
            in_trace = {one.key for one in spans_shown if one.flags & IN_TRACE}
            view.exported = exported(listed.folder, in_trace, progress=progress)
            view.processes = view._all_processes(progress, quick)
            if len(view.processes) > 1:
                if not quick:
                    view.overall = overall or _overall(listed, at, records=records)
                elif listed.folder.of_job.segments(0):
                    view.overall = overall or _overall(listed, at, records=True, quick=True)
            view._describe_leader(state, problem)
            view.attempts = list(view._attempts(partition))
            view.usage = () if quick else usages(listed.folder, view.at)
            view = view._of_job(spans, progress, past=at is not None, quick=quick) or view
        for one in (view, view.leader or view):
            one.run, one.traces.run = run, run.folder  # of a living run, more is requested later
        return view

    def _of_job(self, spans: int, progress: ProgressCallback, *, past: bool, quick: bool) -> RunView | None:
        """Return the view of the job of all ranks; None if there is none, or if its ranks do not step together."""
        report = self.job
        if report is None or report.ranks is None or report.ranks.overview is None:
            return None
        moment = report.totals.at
        view = replace(
            self, report=report, at=moment, leader=self, detail=Detail(reached=moment), left_out=0, exported=Exported()
        )
        partition: _Partition | None = None
        try:
            partition = view._read(report.ranks, report.state, spans, progress, past=past, cut=past, quick=quick)
        except Exception as error:  # whatever a folder contains
            view.text = f"The steps of the job cannot be read: {shown(str(error) or type(error).__name__)}"
        view.overview = _with_causes(view.overview, report)
        view.attempts = list(view._attempts(partition))
        kept = replace(report, ranks=report.ranks._replace(events=None))  # they are in the detail
        return replace(view, report=kept, overall=kept)

    def _read(
        self,
        of_job: RankWaits | None,
        state: str,
        spans: int,
        progress: ProgressCallback,
        *,
        past: bool,
        cut: bool,
        quick: bool,
    ) -> _Partition:
        """Read a journal: all of it if it is short enough, else an excerpt. Return its partition."""
        events = None if of_job is None else of_job.events
        run, died = self.journal, state == DIED
        # A job of which the events are known is short: the journals of all its ranks were just read.
        if events is not None or len(run.segments(0)) * CAPACITY <= _RECORDS * max(spans, _LEAST):
            ledger = Ledger() if cut else None
            if events is None:
                detail = read_detail(run, 0, state=state, at=self.at, past=past, progress=progress, ledger=ledger)
            else:
                detail = detail_of(events, state=state, at=self.at, past=past, progress=progress, ledger=ledger)
            # Where others follow, the ledger has only the events up to the moment of the account.
            self.overview = self._overview(of_job) if ledger is None else counted_from_one(ledger.overview(self.at))
            self.coarse = self.overview
            width, bins = detail.bins()  # finer than those that a ledger has room for
            # A snapshot of the ledger may have what is missing from the journal; a living run goes on meanwhile.
            # Both number the categories of custom phases by the order in which their names came.
            same = ((detail.begin or 0), *detail.names) == (self.overview.begin, *self.overview.names)
            whole = same and (state == RUNNING or _sums(bins) == _sums(self.overview.bins))
            if (events is not None or len(detail.steps) + len(detail.phases) <= spans) and whole:
                self.detail = detail
                self.overview = replace(self.overview, width=width, bins=bins)
                self.windows = [(detail.begin, detail.reached)] if detail.begin is not None else []
                return lambda begin, end: (detail.partition(begin, end), True)
        else:
            self.overview = self._overview(of_job)
        overview = self.overview
        if quick or events is not None:
            part = Excerpt(Detail(overview.begin, self.at, tuple(overview.names)))
        else:
            part = excerpt(run, overview, spans=spans, at=self.at, died=died, progress=progress)
        self.detail, self.windows = part.detail, part.windows
        spans_of_time = lives(overview, self.detail.reached).values()
        exact = all(part.partition(overview, begin, end)[1] for begin, end, _ in spans_of_time)
        self.left_out, self.text = summed_up(part, overview, exact=exact)
        return lambda begin, end: part.partition(overview, begin, end)

    def _overview(self, of_job: RankWaits | None) -> Overview:
        if of_job is None:
            return self.run.overview(self.report)
        assert of_job.overview is not None
        return counted_from_one(of_job.overview)

    def _describe_leader(self, state: str, problem: str) -> None:
        leader, attempts = self.processes[0], self.run.folder.attempts(0)
        leader.overview, leader.state, leader.problem = self.coarse or self.overview, state, problem
        if len(self.processes) > 1:
            leader.steps = process_steps(leader.overview.step_bins, ROWS // len(self.processes))
        leader.last_step, leader.last_sign = self.report.totals.last_step, self.detail.reached
        leader.attempts = [attempt + 1 for attempt in attempts]
        leader.facts = self._facts(attempts[-1], 0) if attempts else None

    def _facts(self, attempt: int, process: int) -> Mapping[str, Any] | None:
        """Return the facts of an attempt (from 0) as the page has them; None if it left none that can be read."""
        facts = self.run.facts(attempt, process)
        if facts is None:
            return None
        settings = {name: {"value": value, "source": source} for name, (value, source) in facts.settings.items()}
        return {**facts._asdict(), "settings": settings}

    def _attempts(self, partition: _Partition | None) -> Iterator[Attempt]:
        known = lives(self.overview, self.detail.reached)
        latest = next(reversed(known), 0)
        # An exception ended the attempt before one that began with such a disruption.
        failed = {one.attempt - 1 for one in self.report.totals.history if one.attempt and one.error}
        for number, (begin, end, clean) in known.items():
            state = FAILED if number in failed else DIED
            if number == latest:
                state = self.report.state
            elif clean:
                state = ENDED
            held = Counter[int]() if partition is None else partition(begin, end)[0]
            yield Attempt(number, begin, end, state, held, *self._start_of(number, end))

    def _start_of(self, number: int, end: int) -> tuple[str | None, Mapping[str, Any] | None]:
        """Return the trace and the facts of an attempt; of one of the job, those of the leader's attempt then."""
        if self.leader is not None:
            begun = [one for one in self.leader.attempts if one.begin < end]
            return (begun[-1].trace_id, begun[-1].facts) if begun else (None, None)
        trace = self.traces.main(number)
        return f"{trace:032x}" if trace else None, self._facts(number - 1, 0)

    def _all_processes(self, progress: ProgressCallback, quick: bool) -> list[Process]:
        """Return every process that left something in the run's folder, and those that are missing between them."""
        folder = self.run.folder
        assert isinstance(folder, ListedRun)
        attempts = folder.attempts(0)
        of_latest = self.run.count(attempts[-1]) if attempts else 0
        count = max([1, of_latest, self.report.totals.processes, *(index + 1 for index in folder.there)])
        paces = {pace.process: pace for pace in read_paces(folder, attempts[-1] if attempts else 0, self.at)}
        processes = [Process(index, pace=paces.get(index)) for index in range(count)]
        for done, process in enumerate(processes[1:], 1):
            progress(done, count, "processes")
            if process.index not in folder.there:
                process.state, process.problem = SILENT, "it left no journal here"
            elif not quick:
                self._fill(process, folder, ROWS // len(folder.there))
        return processes

    def _fill(self, process: Process, folder: ListedRun, rows: int) -> None:
        """Read what another process than the leader left; `rows`: of its steps at most."""
        try:
            process.attempts = [attempt + 1 for attempt in folder.attempts(process.index)]
            recorded = folder.recorded(process.index)
            read = overview_of(folder, process.index, within_s=_RECENT_S, only=_OF_OTHERS) if recorded else None
            if read is None:
                process.state, process.problem = SILENT, "it has left no journal that can be read"
                return
            process.steps = process_steps(read.overview.step_bins, rows)
            # What is not needed any more is dropped at once: of hundreds of processes it is a million objects.
            overview = process.overview = counted_from_one(replace(read.overview, step_bins=()))
            process.last_step, process.last_sign = overview.last_step, overview.last_sign
            process.facts = self._facts(read.attempt, process.index)
            process.state = state_of(folder.writing(read.attempt, process.index), overview.last_sign)
            if overview.jobs and overview.jobs[-1].end != NOT_KNOWN and process.state != RUNNING:
                process.state = ENDED if overview.jobs[-1].clean else FAILED
            if (note := read.damages.note()) is not None:
                process.problem = note.text
        except Exception as error:  # whatever one process left must not hide the others
            process.problem = shown(str(error) or type(error).__name__)


def _sums(bins: Iterable[Mapping[int, int]]) -> Counter[int]:
    return sum(map(Counter, bins), Counter[int]())


_Partition = Callable[[int, int], "tuple[Counter[int], bool]"]  # time by category in [begin, end], and if it is exact


def _report(run: RecordedRun, at: int | Moment | None) -> tuple[Report, str, str]:
    """Return the report of a run, the state of its leader, and what is wrong; the report of no job if all is."""
    try:
        report = run.report(at=at, process=0)
    except (GoodputError, OSError, ValueError) as error:
        problem = shown(str(error) or type(error).__name__)
        moment = at if isinstance(at, int) else run.folder.created_at() or time.time_ns()
        note = Note("unreadable", f"No figures: {problem}", ())
        return Report(Ledger().totals(moment), run.about, (note,)), ENDED, problem
    damage = "" if not report.damage else f"{len(report.damage)} parts of its journal cannot be read"
    return report, report.state, damage


def _overall(run: RecordedRun, at: int | Moment | None, *, records: bool, quick: bool = False) -> Report | None:
    """Return what a report says of the run; None if that cannot be read."""
    try:
        return run.report(at=at, events=True, records=records, others=not quick)
    except (GoodputError, OSError, ValueError):  # the leader's says why
        return None


def _with_causes(overview: Overview, report: Report) -> Overview:
    """Return the overview of a job with the reasons of its disruptions that its report has."""
    known = restarts(report.totals.history)
    disruptions = [
        one if (same := known.get(one.attempt or 0)) is None else one._replace(reason=same.reason)
        for one in overview.disruptions
    ]
    return corrected_overview(replace(overview, disruptions=tuple(disruptions)), report.corrections)


def process_steps(bins: Sequence[StepBin], rows: int) -> list[ProcessSteps]:
    """Return the step bins of a process as at most `rows` rows; if there are more, neighbors are joined."""
    stored = rows_of_step_bins(bins)
    size = max(1, -(-len(stored) // max(1, rows)))
    return [_joined(stored[first : first + size]) for first in range(0, len(stored), size)]


def _joined(rows: Sequence[Row]) -> ProcessSteps:
    firsts, lasts, begins, counts, _, _, medians, longest, *_ = zip(*rows, strict=True)
    known = [(median, count) for median, count in zip(medians, counts, strict=True) if median != NONE]
    steps = sum(count for _, count in known)
    middle = sum(median * count for median, count in known) // steps if steps else NOT_KNOWN
    return ProcessSteps(min(firsts), max(lasts), begins[0], sum(counts), middle, max(NOT_KNOWN, *longest))

"""One run, live, dead or finished: its report, and what else is in its folder.

Everything that shows a run asks here. Whether its job still runs, and whether the journal was read just now or is
followed second after second, makes no difference to the report: there is one way to make it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from otel_goodput._accounting.checkpoints import RankStages
from otel_goodput._accounting.incidents import as_of
from otel_goodput._accounting.overview import Overview
from otel_goodput._accounting.stats import Pace
from otel_goodput._accounting.totals import NOT_KNOWN, Totals
from otel_goodput._journal.facts import Facts, read_facts
from otel_goodput._journal.incidents import ends_of, incidents_of
from otel_goodput._journal.loader_times import loaders
from otel_goodput._journal.mirror import Mirror, open_filesystem, plain
from otel_goodput._journal.notes import Note, RecordedReasons, in_force, read_notes, read_reasons
from otel_goodput._journal.rundir import MOST, ListedRun, RunDirectory, folder_name, runs
from otel_goodput._journal.usage import read_paces, usages
from otel_goodput._metrics.productivity import Inputs, read_inputs
from otel_goodput._runtime import files
from otel_goodput._text.redact import encodable, redacting_logger, without_credentials
from otel_goodput._timeline.damage import Damages
from otel_goodput._timeline.overviews import rank_stages
from otel_goodput._timeline.reader import all_events
from otel_goodput._timeline.recovery import Follower, Restored, restore
from otel_goodput._timeline.run_state import DIED, RUNNING, Culprit, EventsUntil, RunState, culprits, live, state_of
from otel_goodput.errors import JournalError
from otel_goodput.reports import ProgressCallback, no_progress
from otel_goodput.reports.detail import Detail, read_detail
from otel_goodput.reports.excerpt import News, Tail
from otel_goodput.reports.question import Question, Time, ns
from otel_goodput.reports.ranks import (
    Job,
    displaced_note,
    named,
    read_job,
    recorded_job,
    too_large,
    with_leaders,
    with_places,
)  # fmt: skip
from otel_goodput.reports.report import Corrections, OneProcess, Report, about, corrected
from otel_goodput.reports.rolling import rolling_of
from otel_goodput.semconv import PROCESS_COUNT

logger = redacting_logger(__name__)

# A run that is followed: how often the small files beside its journal and the figures of the other processes are read
# again, and at most one part in this many of a core is spent on it.
_AGAIN_S: Final = 15.0
_SHARE: Final = 1000
_BEFORE: Final = 4  # the latest attempts in whose facts settings are looked for
_QUICK: Final = 8  # a run of many is read in this part of the time that another may take


class RecordedRun:
    """One run; `mirror`: what its folder is copied by, of a run at a URL."""

    def __init__(self, folder: RunDirectory, mirror: Mirror | None = None) -> None:
        self.folder = folder
        self.mirror = mirror
        self._facts: dict[tuple[int, int], Facts] = {}  # of past attempts, which do not change
        self._restored: tuple[int, Restored] | None = None  # the process, and its journal; of a listed run

    @property
    def run_id(self) -> str:
        """The run's id; the folder's name if it is not known."""
        return self.folder.called()

    @property
    def about(self) -> dict[str, Any]:
        """The identity of the run, as a report has it."""
        return about(self.run_id, encodable(str(self.folder.identity().get("job_name", ""))))

    def count(self, attempt: int) -> int:
        """Return how many processes an attempt (counted from 0) has, by its leader; 0 if that is not known."""
        facts = self.facts(attempt)
        number = None if facts is None else facts.resource.get(PROCESS_COUNT)
        return min(number, MOST) if type(number) is int and number > 0 else 0

    def report(
        self,
        *,
        at: Time | None = None,
        windows: Sequence[tuple[Time, Time]] = (),
        exclusions: Sequence[tuple[Time, Time]] = (),
        ideal_step_time: float | None = None,
        process: int | None = None,
        others: bool = True,
        exact: bool = False,
        rolling: Sequence[int] = (),
        events: bool = False,
        records: bool = False,
    ) -> Report:
        """Return the account of the run: that of the job of all its ranks (rule R11), or of one process.

        The job's is as of the moment up to which all ranks have recorded. What is about single processes is the
        leader's. If there is no account of the job, the report is that of the first process, and says why.

        The whole journal is read if any of `at`, `windows`, `exclusions` and `ideal_step_time` is given, or a rolling
        window that was not kept while the run went on.

        Args:
            at: moment of the account; by default now while the job is running, else its last sign of life.
            windows, exclusions: (start, end) pairs.
            ideal_step_time: ns; by default it is estimated.
            process: index of the process whose account it is; by default that of the job.
            others: also read what takes a file of each process or attempt: the stages of checkpoints of all processes
                (not for a past moment), which process ended first, and what the attempts were started with.
            exact: read the journals of all ranks, however long that takes.
            rolling: lengths of the rolling windows, ns; by default those that were kept while the run went on.
            events: of a job, also keep its events for what is said of its ranks.
            records: read the job's own records, if there are any, even if the journals of all ranks are small.

        Raises:
            JournalError: `process` left no journal, or none that can be read; there is no account of the job, and
                `exact`.
            ValueError: a window or an exclusion ends before it starts.
        """
        with files.held(self.folder.journal):
            spans = tuple(dict.fromkeys(rolling))
            cuts = tuple(windows), tuple(exclusions)
            question = Question(at, *cuts, ideal_step_time, others, spans, events, records)
            return self._report(question, process, exact=exact)

    def _report(self, question: Question, process: int | None, *, exact: bool) -> Report:
        first, report, sidecars = self._first_of(self._candidates() if process is None else [process], question)
        ranks = self._ranks(sidecars.count)
        if ranks < 2:
            return report
        if note := displaced_note(self.folder, first):
            report = replace(report, notes=(*report.notes, note))
        if process is not None:
            own = [one for one in report.usage if one.process == process]
            timed = [one for one in report.loaders if one.process == process]
            return replace(report, process=OneProcess(first, ranks), usage=own, loaders=timed)
        job = self._job(report, sidecars.count, question, exact=exact)
        if isinstance(job, Job):
            return self._of_job(job, report, sidecars, question)
        if exact:
            raise JournalError(
                f"run {self.run_id!r}: {job}, so there is no account of the job of all its ranks; "
                "use --process for the account of one"
            )
        return replace(report, process=OneProcess(first, ranks, job))

    def first(self) -> int:
        """Return the index of the first process that left a journal; 0 if none did."""
        return self._candidates()[0]

    def _candidates(self) -> list[int]:
        return self.folder.processes() or [0]

    def _ranks(self, count: int) -> int:
        """Return how many ranks the job has, of which there are `count` by the leader."""
        return max(count, *(index + 1 for index in self._candidates()))

    def _first_of(self, processes: Iterable[int], question: Question) -> tuple[int, Report, _Sidecars]:
        """Return the first of `processes` whose journal can be read, and its account. Raises the first JournalError."""
        failure: JournalError | None = None
        for process in processes:
            try:
                return process, *self._of_process(process, question)
            except JournalError as error:
                failure = failure or error
        assert failure is not None
        raise failure

    def _of_process(self, process: int, question: Question) -> tuple[Report, _Sidecars]:
        """Return the account of one process, and what it has from the files beside its journal. Raises JournalError."""
        folder, source = self.folder, self._source(process)
        attempt, damages = source.attempt, source.damages
        if attempt < 0:
            note = damages.note()
            why = f"process {process} left no journal" if note is None else f"process {process}: {note.text}"
            raise JournalError(f"run {self.run_id!r}: {why}")
        state = state_of(folder.writing(attempt, process), source.last_sign)
        start = source.ledger.settled.begin
        moment = time.time_ns() if state == RUNNING and folder.alive(attempt, process) else source.last_sign
        if question.at is not None:
            moment = ns(question.at, start)
        if question.of_past:
            lives = EventsUntil(all_events(folder, process, damages), state, moment)
            totals = question.answer(lives, moment, start, source.ledger.settled.spans)
            standing = lives.state
        else:
            totals = source.ledger.totals(moment)
            standing = live(totals)
            if not totals.ended and state != RUNNING:
                standing = RunState(state, source.last_sign, totals.in_flight_step, totals.in_flight_since)
                if state == DIED:  # steps in flight are lost
                    totals = source.ledger.totals(moment, dead=True)
        totals = question.with_rolling(
            totals, moment, start, lambda: EventsUntil(all_events(folder, process, Damages()), state, moment)
        )
        sidecars = self._sidecars(process, whole=question.whole)
        totals, corrections = sidecars.complete(totals, attempt, others=question.others, stages=question.at is None)
        ends = ends_of(totals.history) | ({} if state == RUNNING else {attempt: source.last_sign})
        wrong = incidents_of(folder, ends, damages.small)
        if question.at is not None:
            # A killed process may have noticed one after its last sign of life.
            noticed = (each for each in wrong if each[1].opened <= moment)
            wrong = [(number, as_of(one, moment, source.last_sign)) for number, one in noticed]
        all_notes = (*sidecars.notes, sidecars.reasons.note, source.overlap, damages.note())
        notes = {note.kind: note for note in all_notes if note is not None}
        facts = tuple(one for one in sidecars.facts if one.started_at <= moment)
        damage = tuple(one for one in damages.listed if not one.harmless)
        report = Report(totals, sidecars.about, tuple(notes.values()), standing, damage, corrections, facts)
        report = replace(report, incidents=wrong)
        if question.others:
            # The times of loaders have no moments, so those of a past one are not known.
            timed = loaders(folder) if question.at is None else ()
            report = replace(report, usage=usages(folder, moment), loaders=timed)
        return report, sidecars

    def _job(self, leader: Report, count: int, question: Question, *, exact: bool) -> Job | str:
        """Return the account of the job of all ranks, or why there is none."""
        if len(self.folder.processes()) < 2:
            return "no other process left a journal in this folder"
        if not leader.totals.run.known:
            return NOT_KNOWN
        spans, with_events = [span for span, _ in leader.totals.rolling], question.of_past or bool(question.rolling)
        why = "" if exact else too_large(self.folder, parts=1 if question.others else _QUICK)
        if why or question.records or not question.others:
            own, standing = restore(self.folder.of_job, 0, spans), leader.standing or live(leader.totals)
            begun, shown = _begun(leader.totals), question.others or question.events
            job = recorded_job(self.folder, own, count, standing, begun, with_events=with_events, with_overview=shown)
            whole = job is not None and not job.notes and job.totals.attempts == leader.totals.attempts
            if why or (job is not None and (question.records or whole)):
                return job or why
        return read_job(self.folder, count, spans, with_events=with_events, keep=question.events)

    def _of_job(self, job: Job, leader: Report, sidecars: _Sidecars, question: Question) -> Report:
        """Return the report of a job with what its leader's says, and what is known of it beside the journal."""
        totals, standing, waits, start = job.totals, job.standing, job.waits, job.totals.started_at
        moment = job.at if question.at is None else min(ns(question.at, start), job.at)
        events = [event for event in job.events if event.time <= moment]
        if question.of_past:
            totals = question.answer(events, moment, start, [span for span, _ in totals.rolling])
            if moment < job.at:
                standing = RunState(RUNNING)
        totals = question.with_rolling(totals, moment, start, lambda: events)
        if question.at is not None:
            waits = waits._replace(now=(), waiting={})
        if question.others:
            waits = with_places(waits, {rank: facts for rank in named(waits) if (facts := self._latest_facts(rank))})
        totals = with_leaders(sidecars.inputs.complete(totals), leader.totals, standing)
        notes = {note.kind: note for note in (*leader.notes, *job.notes)}
        corrections = leader.corrections if totals.attempts == leader.totals.attempts else {}
        return replace(
            leader,
            totals=totals,
            notes=tuple(notes.values()),
            standing=standing,
            damage=job.damage,
            corrections=corrections,
            ranks=waits,
        )

    def _latest_facts(self, process: int) -> Facts | None:
        attempts = self.folder.attempts(process)
        return self.facts(attempts[-1], process) if attempts else None

    def detail(
        self,
        process: int = 0,
        *,
        report: Report | None = None,
        progress: ProgressCallback = no_progress,
        damages: Damages | None = None,
    ) -> Detail:
        """Read every step and phase in the journal of a process, whose `report` may be known.

        For `progress` and `damages` see :func:`~otel_goodput.reports.detail.read_detail`.

        Raises:
            JournalError: it left no journal, or none that can be read.
        """
        with files.held(self.folder.journal):
            report = report or self.report(process=process)
            at = time.time_ns() if report.state == RUNNING else report.totals.at
            detail = read_detail(self.folder, process, state=report.state, at=at, progress=progress, damages=damages)
        lost = any(one.uncertain is None or one.uncertain for one in report.damage)
        if detail.begin is None and not detail.steps and not detail.phases and lost:
            raise JournalError(f"run {self.run_id!r}: the journal of process {process} cannot be read")
        return detail

    def overview(self, report: Report, process: int = 0) -> Overview:
        """Return the overview of a process at the moment of its `report`, with attempts counted from 1."""
        ledger = self.restored(process).ledger
        return counted_from_one(ledger.overview(report.totals.at, dead=report.state == DIED))

    def restored(self, process: int = 0) -> Restored:
        """Return the journal of a process as a restart would read it. Does not raise."""
        if isinstance(self.folder, ListedRun) and self._restored is not None and self._restored[0] == process:
            return self._restored[1]
        attempts = self.folder.attempts(process)
        damages = Damages()
        facts = self._recent_facts(attempts[-1], process, damages) if attempts else None
        restored = restore(self.folder, process, rolling_of(facts), more=True)
        restored.damages.extend(damages)
        if isinstance(self.folder, ListedRun):
            self._restored = process, restored
        return restored

    def facts(self, attempt: int, process: int = 0) -> Facts | None:
        """Return what an attempt (counted from 0) ran on and with; None if it left nothing that can be read."""
        return self._facts_of(attempt, process, Damages())

    def _facts_of(self, attempt: int, process: int, damages: Damages) -> Facts | None:
        """Return the same; a file that is there and cannot be read is added to `damages`."""
        try:
            return self._facts.get((attempt, process)) or read_facts(self.folder, attempt, process)
        except (FileNotFoundError, NotADirectoryError):  # it left none, or not yet
            return None
        except (OSError, ValueError) as error:
            damages.small(self.folder.file("facts", attempt, process).name, error)
            return None

    def _recent_facts(self, attempt: int, process: int, damages: Damages) -> Facts | None:
        """Return the facts of an attempt, or of the latest one before it that left some: its settings may be the same.

        Files that are there and cannot be read are added to `damages`.
        """
        recent = range(attempt, max(-1, attempt - _BEFORE), -1)
        known = (self._facts_of(number, process, damages) for number in recent)
        return next((facts for facts in known if facts is not None), None)

    def all_facts(self, process: int = 0) -> list[Facts]:
        """Return the facts of all attempts of a process that left any, in their order."""
        with files.held(self.folder.journal):
            numbers = self.folder.attempts(process)
            known = [one for number in numbers if (one := self.facts(number, process)) is not None]
        for one in known:
            if one.attempt != numbers[-1] or isinstance(self.folder, ListedRun):
                self._facts[one.attempt, process] = one
        return known

    def listed(self) -> RecordedRun:
        """Return the run as its folder is now, for callers that need much of it: what is there is read once."""
        return RecordedRun(ListedRun(self.folder.path), self.mirror)

    def _source(self, process: int) -> Restored:
        return self.restored(process)

    def _sidecars(self, process: int, *, whole: bool) -> _Sidecars:
        return _Sidecars(self, process)


def _begun(leader: Totals) -> int:
    """When the latest job of a leader began, ns."""
    return max(leader.started_at or 0, *(one.time for one in leader.history[-1:] if one.attempt is not None), 0)


class FollowedRun(RecordedRun):
    """A run whose report is requested every second: only what is new is read.

    That of a job of several ranks is made of the job's own records; the journals of other ranks are not read.

    Attributes:
        leader: the latest report of process 0, also if that of the run is the job's.
    """

    def __init__(self, folder: RunDirectory, mirror: Mirror | None = None) -> None:
        super().__init__(folder, mirror)
        self._follower = Follower(folder)
        self._follower.keep(rolling_of(None))
        self._tail, self._tail_of_job = Tail(), Tail()
        self._job_follower = Follower(folder.of_job)
        self._places: tuple[int, dict[int, Facts | None]] = -1, {}  # the attempt, and the facts of ranks
        self.leader: Report | None = None
        self._kept = _Sidecars(self, 0)
        self._described = -1  # the latest attempt whose facts have been read

    def news(self, report: Report) -> News | None:
        """Return what is new, span by span, since the last call; None if that is not known. `report` is the latest."""
        if report.ranks is not None:
            return self._tail_of_job.news(self._job_follower, report.totals.at)
        return self._tail.news(self._follower, report.totals.at)

    def _of_process(self, process: int, question: Question) -> tuple[Report, _Sidecars]:
        self.leader, sidecars = super()._of_process(process, question)
        return self.leader, sidecars

    def _job(self, leader: Report, count: int, question: Question, *, exact: bool) -> Job | str:
        if not leader.totals.run.known:
            return NOT_KNOWN
        follower = self._job_follower
        follower.keep([span for span, _ in leader.totals.rolling])
        follower.poll()
        standing = leader.standing or live(leader.totals)
        job = recorded_job(self.folder, follower.state, count, standing, _begun(leader.totals), with_overview=False)
        return (
            job or "the leader has no account of the job yet, and the journals of all ranks are not read every second"
        )

    def _latest_facts(self, process: int) -> Facts | None:
        attempt = self._follower.state.attempt
        if self._places[0] != attempt:
            self._places = attempt, {}
        places = self._places[1]
        if process not in places:
            places[process] = super()._latest_facts(process)
        return places[process]

    def _candidates(self) -> list[int]:
        return [0]  # without a look at the folder

    def _source(self, process: int) -> Restored:
        if process:
            return super()._source(process)
        self._follower.poll()
        attempt = self._follower.state.attempt
        damages = Damages()
        if attempt != self._described and (facts := self._recent_facts(attempt, 0, damages)) is not None:
            self._described = facts.attempt  # it has none in its first seconds
            self._follower.keep(rolling_of(facts))
        self._follower.state.damages.extend(damages)
        return self._follower.state

    def _sidecars(self, process: int, *, whole: bool) -> _Sidecars:
        return self._kept if whole and not process else super()._sidecars(process, whole=whole)


class _Sidecars:
    """What a report says beyond the journal of its process, from the small files beside it and from other processes."""

    def __init__(self, run: RecordedRun, process: int) -> None:
        self.about: dict[str, Any] = {}  # identity of the run
        self.notes: tuple[Note, ...] = ()  # on the figures of the process
        self.reasons = RecordedReasons()  # later statements about disruptions
        self.facts: Sequence[Facts] = ()  # of the attempts
        self._run = run
        self._process = process
        self.count = 0
        self._paces: Sequence[Pace] = ()
        self._stages: dict[int, RankStages] | None = None  # of the other processes, if they are to be compared
        self.inputs = Inputs()
        self._culprits: dict[int, Culprit] = {}
        self._latest = 0  # the latest attempt before which it was looked which process ended first
        self._version: tuple[int, int] | None = None  # of the file with statements about disruptions
        self._attempt = -1
        self._due = float("-inf")  # when most of it is read again, by the monotonic clock

    def complete(self, totals: Totals, attempt: int, *, others: bool, stages: bool) -> tuple[Totals, Corrections]:
        """Return an account with what the others and the files beside the journal add, and what they correct.

        What may have changed is read; with `others` and `stages` also of more files.
        """
        folder = self._run.folder
        if (version := files.version(folder.reasons_path)) != self._version:
            self.reasons, self._version = read_reasons(folder), version
        began = [one for one in totals.history if one.attempt is not None and one.attempt > self._latest]
        if others and began:
            self._culprits |= culprits(folder, began)
            self._latest = max(one.attempt for one in began if one.attempt is not None)
        if time.monotonic() >= self._due or attempt != self._attempt:
            self._read(totals, attempt, others=others, stages=stages)
        totals = self.inputs.complete(totals)
        if self._paces:
            totals = replace(totals, paces=self._paces, processes=max(self.count, len(self._paces)))
        if self._stages is not None and totals.stages:
            own = {self._process: RankStages(self._process, totals.stages)}
            totals = replace(totals, rank_stages=[one for _, one in sorted((self._stages | own).items())])
        return corrected(totals, in_force(self.reasons.statements), self._culprits)

    def _read(self, totals: Totals, attempt: int, *, others: bool, stages: bool) -> None:
        folder, process = self._run.folder, self._process
        spent = time.thread_time()
        self.about = self._run.about
        self.notes = tuple(read_notes(folder, process))
        self.count = self._run.count(attempt)
        self._paces = read_paces(folder, attempt, totals.at)
        self.inputs = read_inputs(folder)
        if others:
            self.facts = self._run.all_facts(process)
        if others and stages:
            of_all = rank_stages(folder, process, totals.stages) if totals.stages else ()
            self._stages = {one.process: one for one in of_all}
        self._attempt = attempt
        self._due = time.monotonic() + max(_AGAIN_S, _SHARE * (time.thread_time() - spent))


def counted_from_one(overview: Overview) -> Overview:
    """Return an overview as a process has it, with its attempts counted from 1 instead of 0."""
    moved: dict[str, Any] = {
        name: [one._replace(attempt=one.attempt + 1) for one in getattr(overview, name)]
        for name in ("phases", "steps", "saves", "jobs", "numbering")
    }
    histogram = {
        (of, attempt + 1, fate, bucket): count for (of, attempt, fate, bucket), count in overview.histogram.items()
    }
    shifts = {attempt + 1: shift for attempt, shift in overview.shifts.items()}
    return replace(overview, histogram=histogram, shifts=shifts, **moved)


# --- places -----------------------------------------------------------------------------------------------------------


@contextmanager
def runs_at(place: str, run_id: str | None = None) -> Iterator[list[RecordedRun]]:
    """Yield the runs at `place`, or only the run `run_id`. Runs at a URL are copied to a temporary folder.

    Raises:
        JournalError: there is no such run, or the URL cannot be read.
    """
    if "://" not in place:
        yield _chosen([RecordedRun(run) for run in runs(Path(place))], run_id, place)
        return
    shown = without_credentials(place)
    with files.scratch() as copy:
        try:
            yield _chosen(list(_fetched(place.rstrip("/"), files.named(copy))), run_id, shown)
        except OSError as error:
            raise JournalError(f"{shown} cannot be read: {without_credentials(str(error))}") from error


def names_at(filesystem: Any, base: str, url: str) -> tuple[str, list[str]]:
    """Return the URL of the folder that holds runs, and the names in it; `url` may also be that of one run."""
    if filesystem.isdir(f"{base}/journal"):
        url, _, name = url.rpartition("/")
        return url, [name]
    return url, sorted(str(name).rstrip("/").rsplit("/", 1)[-1] for name in filesystem.ls(base, detail=False))


def _fetched(url: str, copy: Path) -> Iterator[RecordedRun]:
    url, names = names_at(*open_filesystem(url), url)
    for name in names:
        if not plain(name):
            logger.warning("%s: %r is not the folder of a run, and is left out", without_credentials(url), name)
            continue
        folder = RunDirectory(copy / name)
        mirror = Mirror(url, folder)
        if mirror.exists():
            try:
                mirror.fetch()
            except Exception as error:  # each fsspec filesystem raises its own errors
                if len(names) == 1:
                    raise
                why = without_credentials(str(error))
                logger.warning("%s: run %r cannot be read: %s", without_credentials(url), name, why)
            yield RecordedRun(folder, mirror)


def _chosen(candidates: list[RecordedRun], run_id: str | None, place: str) -> list[RecordedRun]:
    if run_id is not None:
        ids = [str(one.folder.identity().get("run_id", one.folder.path.name)) for one in candidates]
        named = folder_name(run_id)
        known = zip(ids, candidates, strict=True)
        candidates = [one for its_id, one in known if its_id == run_id or one.folder.path.name == named]
        if not candidates:
            raise JournalError(f"{place} holds no run {run_id!r}; it holds {', '.join(ids) or 'none'}")
    if not candidates:
        raise JournalError(f"{place} holds no run")
    return candidates

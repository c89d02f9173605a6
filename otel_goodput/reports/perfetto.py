"""A run as a trace for Perfetto and chrome://tracing: what an account knows, such as which steps were lost, is in it.

The format is Chrome's (docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU). Events may come in any
order, but of slices of one track that begin together, the outer one comes first. Times are µs from the run's first
record on, exact to the ns.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count
from operator import itemgetter
from typing import Any, Final, TypeAlias

from otel_goodput import semconv
from otel_goodput._accounting import rules
from otel_goodput._accounting.disruption import Disruption
from otel_goodput._accounting.events import NO_STEP
from otel_goodput._accounting.overview import NOT_KNOWN, Overview
from otel_goodput._runtime import files
from otel_goodput._text.durations import NS
from otel_goodput._text.quantities import format_duration
from otel_goodput._text.redact import encodable
from otel_goodput._timeline.damage import Damages
from otel_goodput.errors import JournalError
from otel_goodput.reports import ProgressCallback, no_progress
from otel_goodput.reports.detail import FAILED, INTERRUPTED, NONBLOCKING, Detail, Phase, Step
from otel_goodput.reports.report import Report, restarts
from otel_goodput.reports.run import RecordedRun
from otel_goodput.semconv import PHASES, STEP_KEPT, STEP_LOST, Category, Reason

Args: TypeAlias = "dict[str, int | float | bool | str]"

# The tracks of an attempt, in the order in which they are shown; the first has moments.
MOMENTS, JOB, PHASE, STEP, DEVICE, PART, COMPILE, LOADING, BACKGROUND, COMMIT = range(10)
TRACKS: Final = (
    "notices and disruptions", "job", "blocking phases", "steps", "device", "parts", "compilations",
    "loading beside training", "beside training", "checkpoints being committed",
)  # fmt: skip
_TRACK_OF: Final = {rules.JOB: JOB, rules.STEP: STEP, rules.PART: PART, rules.COMPILE: COMPILE}
_BACKGROUND_OF: Final = {rules.DATA_LOADING: LOADING, rules.SAVE: COMMIT}
_STATES: Final = (STEP_KEPT, STEP_LOST, Category.IN_FLIGHT, "none", "skipped")  # by the fate of a step
_CATEGORY: Final = "goodput"
_RUN: Final = 1  # number of the group of tracks with the counters of the run
_TRACK_NUMBERS: Final = 1 << 20  # numbers of tracks begin here; those of groups are below
_BEGINNING: Final = 64  # records that are looked at
_WAITED: Final = 50  # a wait of less than one part in so many of a bin is not shown
_WINDOW: Final = 3600 * NS  # of rolling goodput, in a run that is long enough
_WINDOW_SHARE: Final = 20  # of a shorter run it is one part in this many


class TraceWriter:
    """Writes the events of a trace, whose times are from `origin` on (ns), piece by piece."""

    def __init__(self, write: Callable[[bytes], object], origin: int) -> None:
        self._write = write
        self._origin = origin
        self._separator = f'{{"displayTimeUnit":"ns","otherData":{{"origin_unix_ns":"{origin}"}},"traceEvents":[\n'
        self.numbers = count(_TRACK_NUMBERS)  # of tracks, and of arrows
        self.events = 0  # slices, moments and values of counters so far

    def describe(self, group: int, name: str, order: int, track: int = 0) -> None:
        """Describe a group of tracks, or one of its tracks; groups and tracks are shown in the order of `order`."""
        what = "thread" if track else "process"
        for about, args in (("name", {"name": name}), ("sort_index", {"sort_index": order})):
            self._add({"ph": "M", "pid": group, "tid": track, "name": f"{what}_{about}", "args": args})

    def slice(self, group: int, track: int, begin: int, end: int, name: str, args: Args, into: int, *out: int) -> None:
        """Add a slice, inside of another one of the track or apart. Arrows go from a number in `out` to that `into`."""
        self.events += 1
        place = {"pid": group, "tid": track, "ts": begin, "cat": _CATEGORY}
        self._add({"ph": "X", **place, "name": name, "args": args}, end - begin)
        for arrow in out:
            self._add({"ph": "s", **place, "id": arrow, "name": "leads to"})
        if into:
            self._add({"ph": "f", **place, "id": into, "name": "leads to", "bp": "e"})

    def moment(self, group: int, track: int, time: int, name: str, args: Args) -> None:
        self.events += 1
        place = {"pid": group, "tid": track, "ts": time}
        self._add({"ph": "i", "s": "p", **place, "cat": _CATEGORY, "name": name, "args": args})

    def value(self, name: str, unit: str, time: int, value: float) -> None:
        """Add a value of a counter of the run."""
        self.events += 1
        self._add({"ph": "C", "pid": _RUN, "ts": time, "name": name, "args": {unit: value}})

    def close(self) -> None:
        self._write(b"\n]}\n")

    def _add(self, event: dict[str, Any], length: int | None = None) -> None:
        """Write an event; its `ts` is ns since the epoch, `length` ns."""
        times = ""
        if (time := event.pop("ts", None)) is not None:
            times = f',"ts":{_micros(time - self._origin)}'
        if length is not None:
            times += f',"dur":{_micros(length)}'
        # Numbers of µs are written as text: a float has not enough digits for the ns of a long run.
        text = json.dumps(event, separators=(",", ":"))
        self._write(f"{self._separator}{text[:-1]}{times}}}".encode())
        self._separator = ",\n"


def _micros(ns: int) -> str:
    """Write ns as µs, exactly."""
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    return f"{sign}{ns // 1000}.{ns % 1000:03d}"


class Lanes:
    """As many tracks as slices of one kind need. They come in order of their begin, an outer one before those in it."""

    def __init__(self, new: Callable[[int], int]) -> None:
        self._new = new  # makes a track, given how many there are, and returns its number
        self._open: list[tuple[int, list[int]]] = []  # numbers of tracks, and the ends of what is open there

    def place(self, begin: int, end: int) -> int:
        """Return the number of the track for a slice."""
        for number, ends in self._open:
            while ends and ends[-1] <= begin:
                ends.pop()
            if not ends or end <= ends[-1]:
                ends.append(end)
                return number
        number = self._new(len(self._open))
        self._open.append((number, [end]))
        return number


def export(
    run: RecordedRun,
    processes: Sequence[int],
    write: Callable[[bytes], object],
    *,
    progress: ProgressCallback = no_progress,
    damages: Damages | None = None,
) -> int:
    """Export a run and return how many slices, moments and values of counters were written.

    The steps and phases of one process at a time are held in memory. The counters are those of the first of
    `processes`. What has to be left out of the journals is added to `damages`.

    Raises:
        JournalError: none of the processes left a journal that can be read.
        OSError: it cannot be written.
    """
    with files.held(run.folder.journal):
        listed = run.listed()
        begins = {process: begin for process in processes if (begin := _begin(listed, process)) is not None}
        if not begins:
            which = ", ".join(map(str, processes))
            raise JournalError(f"run {run.run_id!r}: process {which} left no journal that can be read")
        writer = TraceWriter(write, min(begins.values()))
        writer.describe(_RUN, f"run {run.run_id}", _RUN)
        for process in begins:
            report = listed.report(process=process, others=False)
            detail = listed.detail(process, report=report, progress=progress, damages=damages)
            overview = listed.overview(report, process)
            roles = {facts.attempt + 1: facts.role for facts in listed.all_facts(process)}
            _ProcessTrace(writer, process, max(processes) + 1, roles, report, detail, overview).write()
            if process == min(begins):
                _write_counters(writer, report, detail, overview)
        if len(begins) > 1:
            with suppress(JournalError):  # the first process left nothing that can be read
                _write_job(writer, listed.report())
        writer.close()
    return writer.events


def _begin(run: RecordedRun, process: int) -> int | None:
    """Return the earliest time at the beginning of a journal, ns; None if there is none that can be read."""
    for segment in run.folder.segments(process)[:1]:
        with suppress(OSError, EOFError, ValueError):
            return min((record.time for record in segment.beginning(_BEGINNING)), default=0)
    return None


class _ProcessTrace:
    """The groups of tracks of one process, one for each attempt; there are at least `processes`.

    `roles`: what it did in a job of several roles, by attempt.
    """

    def __init__(
        self,
        writer: TraceWriter,
        process: int,
        processes: int,
        roles: Mapping[int, str],
        report: Report,
        detail: Detail,
        overview: Overview,
    ) -> None:
        self._writer = writer
        self._process, self._processes, self._roles = process, processes, roles
        self._detail, self._overview = detail, overview
        self._corrections = report.corrections
        self._restarts = restarts(report.totals.history)
        self._ends = {life.attempt: detail.reached if life.end == NOT_KNOWN else life.end for life in overview.jobs}
        self._lanes: dict[tuple[int, int], Lanes] = {}  # by attempt and kind
        self._groups: set[int] = set()  # that are described
        self._moments: defaultdict[int, list[tuple[int, str, Args]]] = defaultdict(list)  # by attempt
        self._into: dict[int, int] = {}  # arrows by their ends: index in Detail.steps, or -1 - index in Detail.phases
        self._out: defaultdict[int, list[int]] = defaultdict(list)
        self._latest = 0, NO_STEP  # attempt and number of the step that was written last

    def write(self) -> None:
        jobs = self._connect_jobs()
        commits = [commit for row, phase in enumerate(self._detail.phases) for commit in self._write_phase(row, phase)]
        for attempt, begin, end, name, number, arrow in sorted(commits):
            self._write(COMMIT, attempt, begin, end, name, _step_args(number), arrow)
        for at, step in enumerate(self._detail.steps):
            self._write_step(at, step)
        for begin, end, row in self._detail.work:
            if end != NOT_KNOWN:
                self._write_work(begin, end, row)
        begins = sorted((job.begin, attempt) for attempt, job in jobs.items())
        for attempt, job in jobs.items():
            if attempt in self._restarts:
                self._add_disruption(self._restarts[attempt], attempt, job.begin)
        for time, reason, withdrawn in self._overview.notices:
            if before := bisect_right(begins, (time, _TRACK_NUMBERS)):
                args: Args = {"withdrawn": True} if withdrawn else {}
                self._moments[begins[before - 1][1]].append((time, f"notice of {reason}", args))
        for attempt, moments in sorted(self._moments.items()):
            track = self._new_track(attempt, MOMENTS, 0)
            for time, name, about in sorted(moments, key=itemgetter(0)):
                self._writer.moment(self._group(attempt), track, time, name, about)

    def _connect_jobs(self) -> dict[int, Phase]:
        """Make the arrows from attempt to attempt, and to the step that each goes back to; return the first jobs."""
        jobs: dict[int, Phase] = {}
        back_to: dict[int, tuple[int, int]] = {}  # the step that an attempt goes back to, and the row of its job
        last: int | None = None
        for row, phase in enumerate(self._detail.phases):
            if phase.phase != rules.JOB:
                continue
            if phase.attempt not in jobs:
                jobs[phase.attempt] = phase
                if last is not None:
                    self._connect(-1 - last, -1 - row)
                if (restart := self._restarts.get(phase.attempt)) is not None and restart.to_step is not None:
                    back_to[phase.attempt] = restart.to_step, row
            last = row
        for at, step in enumerate(self._detail.steps):
            if step.attempt in back_to and back_to[step.attempt][0] == step.number:
                self._connect(-1 - back_to.pop(step.attempt)[1], at)
        return jobs

    def _connect(self, one: int, other: int) -> None:
        self._into[other] = next(self._writer.numbers)
        self._out[one].append(self._into[other])

    def _write_phase(self, row: int, phase: Phase) -> Iterator[tuple[int, int, int, str, int, int]]:
        """Write a phase; yield its commit: attempt, begin, end, name, step and arrow."""
        args = self._args(phase, phase.step)
        if phase.flags & FAILED:
            args["failed"] = True
        kind = _TRACK_OF.get(phase.phase, PHASE)
        if phase.flags & NONBLOCKING:
            args[semconv.GOODPUT_BLOCKING] = False
            kind = _BACKGROUND_OF.get(phase.phase, BACKGROUND) if kind == PHASE else kind
        if phase.phase == rules.JOB:
            args[semconv.ATTEMPT] = phase.attempt - 1  # as the resource of its spans has it
        durable = self._detail.durable.get(row)
        completed = phase.end != NOT_KNOWN and not phase.flags & FAILED
        if phase.phase == rules.SAVE and completed and (durable is None or durable > phase.end):
            arrow = next(self._writer.numbers)
            self._out[-1 - row].append(arrow)
            until = self._ends.get(phase.attempt, 0) if durable is None else durable
            name = "commit, never durable" if durable is None else "commit"
            yield phase.attempt, phase.end, max(phase.end, until), name, phase.step, arrow
        self._write_span(kind, phase, phase.name or PHASES[phase.phase], args, -1 - row)

    def _write_step(self, at: int, step: Step) -> None:
        state = _STATES[step.fate]
        name = str(semconv.Phase.STEP) if state == STEP_KEPT else f"{semconv.Phase.STEP} ({state})"
        args = self._args(step, step.given if step.number < 0 else step.number)
        args[semconv.GOODPUT_STEP_STATE] = state
        if step.flags & FAILED or step.end == NOT_KNOWN:
            args[semconv.GOODPUT_STEP_COMPLETED] = False
        self._write_span(STEP, step, name, args, at)
        if step.number == NO_STEP:
            return
        if self._latest[0] == step.attempt and step.number <= self._latest[1]:
            about: Args = {semconv.GOODPUT_DISRUPTION_REASON: Reason.ROLLBACK, semconv.GOODPUT_STEP: step.number}
            self._moments[step.attempt].append((step.begin, f"disruption: {Reason.ROLLBACK}", about))
        self._latest = step.attempt, step.number

    def _write_work(self, begin: int, end: int, row: int) -> None:
        of = self._detail.steps[row] if row >= 0 else self._detail.phases[-1 - row]
        if isinstance(of, Step):
            name, number = str(semconv.Phase.STEP), of.number
        else:
            name, number = of.name or PHASES[of.phase], of.step
        self._write(DEVICE, of.attempt, begin, end, name, _step_args(number))

    def _add_disruption(self, one: Disruption, attempt: int, time: int) -> None:
        args: Args = {
            semconv.GOODPUT_DISRUPTION_REASON: one.reason,
            "recovery_s": one.recovery / NS,
            "wasted_s": one.wasted / NS,
        }
        if (correction := self._corrections.get(attempt)) is not None and correction.by:
            args |= {"said_by": correction.by, "first_reason": correction.first}
        if one.to_step is not None:
            args["to_step"] = one.to_step
        self._moments[attempt].append((time, f"disruption: {one.reason}", args))

    def _args(self, of: Step | Phase, step: int) -> Args:
        args = _step_args(step)
        if of.end == NOT_KNOWN or of.flags & INTERRUPTED:
            args[semconv.GOODPUT_INTERRUPTED] = True
        return args

    def _write_span(self, kind: int, of: Step | Phase, name: str, args: Args, at: int) -> None:
        end = of.end if of.end != NOT_KNOWN else max(of.begin, self._ends.get(of.attempt, 0))
        self._write(kind, of.attempt, of.begin, end, name, args, self._into.get(at, 0), *self._out.get(at, ()))

    def _write(
        self, kind: int, attempt: int, begin: int, end: int, name: str, args: Args, into: int = 0, *out: int
    ) -> None:
        lanes = self._lanes.get((attempt, kind))
        if lanes is None:
            lanes = self._lanes[attempt, kind] = Lanes(lambda number: self._new_track(attempt, kind, number))
        track = lanes.place(begin, end)
        self._writer.slice(self._group(attempt), track, begin, end, encodable(name), args, into, *out)

    def _group(self, attempt: int) -> int:
        number = min(_RUN + 1 + (attempt - 1) * self._processes + self._process, _TRACK_NUMBERS - 1)
        if number not in self._groups:
            self._groups.add(number)
            process = f", process {self._process}" if self._processes > 1 else ""
            role = f" ({encodable(role)})" if (role := self._roles.get(attempt)) else ""
            self._writer.describe(number, f"attempt {attempt}{process}{role}", number)
        return number

    def _new_track(self, attempt: int, kind: int, number: int) -> int:
        track = next(self._writer.numbers)
        name = TRACKS[kind] + (f" {number + 1}" if number else "")
        self._writer.describe(self._group(attempt), name, kind, track)
        return track


def _write_job(writer: TraceWriter, report: Report) -> None:
    """Write for which ranks the job waited, above the tracks of its processes, and its goodput so far."""
    ranks, began = report.ranks, report.totals.started_at
    if ranks is None or began is None:
        return

    def new_track(number: int) -> int:
        track = next(writer.numbers)
        writer.describe(_RUN, f"the job waits for{f' {number + 1}' if number else ''}", number, track)
        return track

    lanes, costs = Lanes(new_track), ranks.costs.over_time
    for begin, end, cause, spent in sorted(costs.stretches(costs.width // _WAITED), key=lambda one: (one[0], -one[1])):
        begin, end = max(begin, began), min(end, report.totals.at)
        doing = encodable(f"{rules.NAMES[cause.category]} {cause.name}".rstrip())
        args: Args = {"rank": cause.rank, "category": doing, "waited_s": spent / NS}
        writer.slice(_RUN, lanes.place(begin, end), begin, end, f"rank {cause.rank}: {doing}", args, 0)
    overview, run = ranks.overview, Counter[int]()
    for at, held in enumerate(() if overview is None else overview.bins):
        run.update(held)
        if overview is not None and (elapsed := run.total()):
            time = min(overview.begin + (at + 1) * overview.width, report.totals.at)
            writer.value("goodput of the job", "%", time, 100 * run[rules.PRODUCTIVE] / elapsed)


def _step_args(step: int) -> Args:
    return {semconv.GOODPUT_STEP: step} if step >= 0 else {}


def _write_counters(writer: TraceWriter, report: Report, detail: Detail, overview: Overview) -> None:
    """Write progress at risk, goodput so far and in a rolling window, and active slices; of steps as they ended up."""
    for time, at_risk in overview.at_risk if report.totals.run.known else ():
        writer.value("at risk", "s", time, at_risk / NS)
    for time, active, _, _ in overview.slices:
        writer.value("active slices", "slices", time, float(active))
    if detail.begin is None or not report.totals.run.known:
        return
    width, bins = detail.bins()
    window = max(NS, min(_WINDOW, (detail.reached - detail.begin) // _WINDOW_SHARE))
    whose = "the run" if report.process is None else f"process {report.process.process}"
    of_whom = "" if report.process is None else f" of {whose}"
    recent = f"goodput{of_whom} of the last {format_duration(window / NS)}"
    most = max(1, round(window / width))
    whole, rolling = Counter[int](), Counter[int]()
    for at, held in enumerate(bins):
        whole.update(held)
        rolling.update(held)
        if at >= most:
            rolling.subtract(bins[at - most])
        time = min(detail.begin + (at + 1) * width, detail.reached)
        for name, sums in ((f"goodput of {whose}", whole), (recent, rolling)):
            if elapsed := sum(sums.values()):
                writer.value(name, "%", time, 100 * sums[rules.PRODUCTIVE] / elapsed)

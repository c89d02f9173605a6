"""Every step with its fate, every phase, and who owned each moment of one process's run, read from its journal.

Times are ns since the epoch by the account's clock, which never goes back; ``NOT_KNOWN`` where something has not
happened or was not observed. Attempts are counted from 1, as reports do.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby, islice
from typing import Final, NamedTuple

from otel_goodput._accounting import events as ev
from otel_goodput._accounting import rules
from otel_goodput._accounting.disruption import Disruption
from otel_goodput._accounting.events import NO_STEP, Event
from otel_goodput._accounting.ledger import Ledger
from otel_goodput._accounting.overview import BINS, KEPT, LOST, NOT_KNOWN
from otel_goodput._accounting.phase_history import Phases
from otel_goodput._accounting.resuming import Numbering, Stretch
from otel_goodput._accounting.tracing import EXCLUDED, StepTrace, Tracer
from otel_goodput._journal import records
from otel_goodput._journal.records import Record
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._timeline.damage import Damages
from otel_goodput._timeline.reader import Reader, ordered
from otel_goodput._timeline.run_state import ENDED, EventsUntil
from otel_goodput.reports import ProgressCallback, no_progress

# Flags of steps and phases, as the page has them.
NONBLOCKING: Final = 1
FAILED: Final = 2
IN_TRACE: Final = 4  # it has a span of its own in the trace
OUTLIER: Final = 8
INTERRUPTED: Final = 16
RECOMPILATION: Final = 32
SUMMED_UP: Final = 64  # too many of its name: the trace has a summary

UNREAD: Final = -1  # in place of a trace: the span's records were not read
NO_KEY: Final = 0  # of a job whose begin was not read
NEVER: Final = 1 << 63  # later than any record
_LEAST_WIDTH: Final = 1_000  # of a bin of time, ns
_BATCH: Final = 4096  # events accounted for at a time

Undone = Callable[[int, int], bool]  # given the number and the begin (ns) of a step


class Step(NamedTuple):
    """One execution of a step."""

    attempt: int
    number: int
    begin: int
    end: int  # of its phase on the host
    net: int  # its own time (rule R3)
    device_begin: int
    device_end: int
    fate: int
    clock: int
    flags: int
    key: int
    given: int = NO_STEP  # the number that its loop gave it
    trace: int = UNREAD  # id of the trace if another tracer has chosen it, else 0


@dataclass(slots=True)
class Phase:
    """One phase other than a step."""

    attempt: int
    phase: int
    name: str
    begin: int
    end: int
    step: int  # that it belongs to, or the label of a checkpoint
    flags: int
    key: int
    parent: int = 0  # key of the phase around it, 0 if that is the job or not known
    given: int = NO_STEP  # the number that it was recorded with
    trace: int = UNREAD  # as that of a step


@dataclass
class Detail:
    """The steps and phases of one process."""

    begin: int | None = None  # first job start, None if there was none
    reached: int = 0  # the moment of the account
    names: Sequence[str] = ()  # of custom phases, in order of their category numbers
    steps: list[Step] = field(default_factory=list)
    phases: list[Phase] = field(default_factory=list)
    owners: list[tuple[int, int, int]] = field(default_factory=list)  # (begin, end, category number), in order
    # What was on the device: (begin, end, index in `steps` or -1 - index in `phases`).
    work: list[tuple[int, int, int]] = field(default_factory=list)
    # By index in `phases`, when a checkpoint was durable; of a run that was read in full.
    durable: dict[int, int] = field(default_factory=dict)

    def partition(self, begin: int, end: int) -> Counter[int]:
        """Return the time in [`begin`, `end`] by category number, ns."""
        held: Counter[int] = Counter()
        at = bisect_right(self.owners, begin, key=lambda owner: owner[1])
        for start, stop, category in self.owners[at:]:
            if start >= end:
                break
            held[category] += min(stop, end) - max(start, begin)
        return held

    def bins(self) -> tuple[int, list[dict[int, int]]]:
        """Return the width of ``BINS`` bins of time from `begin` on, ns, and of each the time by category number."""
        begin = self.begin or 0
        # The times of a damaged journal need not be in order.
        end = max([self.reached, *(stop for _, stop, _ in self.owners)]) if begin else 0
        width = max(_LEAST_WIDTH, -(-(end - begin) // BINS))
        bins: list[dict[int, int]] = []
        for start, stop, category in self.owners if begin else ():
            start = max(start, begin)
            while start < stop:
                at = (start - begin) // width
                while len(bins) <= at:
                    bins.append({})
                edge = min(stop, begin + (at + 1) * width)
                bins[at][category] = bins[at].get(category, 0) + edge - start
                start = edge
        return width, bins


def read_detail(
    run: RunDirectory,
    process: int = 0,
    *,
    state: str = ENDED,
    at: int,
    past: bool = False,
    progress: ProgressCallback = no_progress,
    ledger: Ledger | None = None,
    damages: Damages | None = None,
) -> Detail:
    """Read a process's whole journal.

    Args:
        at: the moment of the account, ns, by the clock of the latest attempt.
        past: something may have been recorded long after `at`: it is left out, by whatever clock.
        progress: called with segments read, all segments, and what is read; then with zeros and what is accounted.
        ledger: is fed the same events.
        damages: what cannot be read, and is left out, is added to it.
    """
    damages = Damages() if damages is None else damages

    def attempts() -> Iterator[tuple[int, list[Record]]]:
        reader = Reader(run, process)
        for attempt, parts in groupby(reader.records(damages), lambda part: part.attempt):
            entries: list[Record] = []
            for part in parts:
                entries += part.entries
                progress(part.number, len(reader.segments), f"the journal of process {process}")
            yield attempt, entries

    builder = DetailBuilder()
    events = builder.events_of(attempts())
    if not past:
        events = _without_later(events, (run.attempts(process) or [0])[-1], at)
    until = EventsUntil(events, state, at if past else NEVER)
    return _accounted(builder, until, at, ledger, lambda count: progress(0, 0, f"process {process}: event {count:,}"))


def detail_of(
    events: Sequence[Event],
    *,
    state: str,
    at: int,
    past: bool = False,
    progress: ProgressCallback = no_progress,
    ledger: Ledger | None = None,
) -> Detail:
    """Return the detail of the `events` of a job, in the order of its account; for the rest see :func:`read_detail`."""
    builder = DetailBuilder()
    builder.know(events)
    until = EventsUntil(events, state, at if past else NEVER)
    return _accounted(builder, until, at, ledger, lambda count: progress(0, 0, f"the job: event {count:,}"))


def _accounted(
    builder: DetailBuilder, events: Iterable[Event], at: int, ledger: Ledger | None, counted: Callable[[int], None]
) -> Detail:
    count, remaining = 0, iter(events)
    while batch := list(islice(remaining, _BATCH)):
        for event in batch:
            builder.add(event)
        if ledger is not None:
            ledger.feed(batch)
        counted(count)
        count += len(batch)
    return builder.detail(at)


def _without_later(events: Iterable[Event], attempt: int, at: int) -> Iterator[Event]:
    """Leave out what `attempt`, the latest, recorded after `at`; clocks of attempts before it may have been ahead."""
    current = -1
    for event in events:
        if event.kind == ev.ATTEMPT:
            current = event.step
        elif current >= attempt and event.time > at:
            continue
        yield event


def read_part(
    parts: Sequence[tuple[int, list[Record]]],
    at: int,
    undone: Undone | None,
    *,
    dead: bool,
    shifts: Mapping[int, int] | None = None,
    numbering: Sequence[Stretch] = (),
) -> Detail:
    """Return the detail of a part of a journal: its records by attempt (from 0).

    What was open before is not known but for the job, so the first steps may lack what the device still had to do.
    `parts` may have the ends of phases after `at`, so that these are not taken for open.

    Args:
        at: until when, ns.
        undone: by disruptions of the whole run, see :func:`undone_by`; None: by those in `parts` alone.
        dead: the process of the last attempt in `parts` was over by `at`.
        shifts: by attempt (from 1), what is added to its times, ns.
        numbering: of the whole run, by attempt (from 1): which step each body is.
    """
    numbers = {attempt + 1 for attempt, _ in parts}
    known = [one._replace(attempt=one.attempt - 1) for one in numbering if one.attempt in numbers]
    builder = DetailBuilder(shifts or {}, known)
    for event in builder.events_of(parts):
        begins_job = event.kind == ev.START and event.phase == rules.JOB
        if event.kind != ev.ATTEMPT and not builder.running and not begins_job:
            builder.add(Event(event.time, ev.START, rules.JOB, key=NO_KEY))
        builder.add(event)
    if dead and parts:
        builder.add(Event(at, ev.ATTEMPT, step=parts[-1][0] + 1))
    return builder.detail(at - builder.tracer.shift, undone)


class _SpanRecords:
    """What the records of one attempt have of its spans that the account does not need, by the key of a phase."""

    def __init__(self, entries: Iterable[Record] = ()) -> None:
        self.flags: dict[int, int] = {}
        self.parents: dict[int, int] = {}
        self.traces: dict[int, int] = {}
        for kind, phase, flags, _, key, step, time in entries:
            if kind == ev.START:
                self.flags[key] = bool(flags & ev.NONBLOCKING) * NONBLOCKING | bool(flags & records.EXPORT) * IN_TRACE
            elif kind == ev.END and flags:
                seen = self.flags.get(key, 0)
                seen |= bool(flags & ev.FAILED) * FAILED | bool(flags & records.EXPORT) * IN_TRACE
                seen |= bool(flags & records.INTERRUPTED) * INTERRUPTED
                if phase == rules.STEP:
                    seen |= bool(flags & records.OUTLIER) * OUTLIER
                seen |= bool(flags & records.SUMMARIZED) * SUMMED_UP
                self.flags[key] = seen
            elif kind == records.PARENT:
                self.parents[key] = records.unsigned(step)
            elif kind == records.TRACE:
                self.traces[key] = records.foreign(step, time)


class DetailBuilder:
    """Makes a detail of events in the order of the account.

    For `shifts` and `numbering`, None if all of a run is added, see :func:`read_part`; attempts in it are from 0.
    """

    def __init__(self, shifts: Mapping[int, int] | None = None, numbering: Sequence[Stretch] | None = None) -> None:
        self._shifts = shifts or {}
        self._numbering = numbering
        self.tracer = Tracer(numbering=None if numbering is None else Numbering(numbering))
        # A record that names another attempt than its segment makes one without records.
        self._records: defaultdict[int, _SpanRecords] = defaultdict(_SpanRecords)
        self._detail = Detail()
        self._attempt = 0
        self._phases: Phases[Phase] = Phases()
        self._saves: dict[int, int] = {}  # by key: index in Detail.phases
        self._compiled: set[str] = set()
        self._job_seen = False

    def know(self, events: Iterable[Event]) -> None:
        """Take from events that will be added, attempt by attempt, what :meth:`events_of` takes from records."""
        attempt, entries = 0, list[Record]()
        for event in events:
            if event.kind == ev.ATTEMPT and entries:
                self._records[attempt + 1], entries = _SpanRecords(entries), []
            attempt = event.step if event.kind == ev.ATTEMPT else attempt
            entries.append(Record(event.kind, event.phase, event.flags, event.name, event.key, event.step, event.time))
        self._records[attempt + 1] = _SpanRecords(entries)

    @property
    def running(self) -> bool:
        """Whether a job is open, or has been, in this attempt."""
        return self.tracer.alive or self._job_seen

    def events_of(self, attempts: Iterable[tuple[int, list[Record]]]) -> Iterator[Event]:
        """Yield the events of all attempts in the order of the account."""
        for attempt, entries in attempts:
            self._records[attempt + 1] = _SpanRecords(entries)
            events = records.events_of(entries)
            if events and not any(event.kind == ev.ATTEMPT for event in events):
                if all(event.kind == ev.HEARTBEAT for event in events):
                    continue
                events.insert(0, Event(events[0].time, ev.ATTEMPT, step=attempt))  # its first record is lost
            yield from ordered(events)

    def add(self, event: Event) -> None:
        """Account for the next event."""
        time, kind, phase, key, step, *_ = event
        tracer = self.tracer
        alive = tracer.alive
        tracer.apply(event)
        if kind == ev.ATTEMPT:
            self._attempt, self._job_seen = step + 1, False
            tracer.shift = self._shifts.get(self._attempt, 0)
            self._phases.die()
            self._saves, self._compiled = {}, set()
        elif kind == ev.START and phase != rules.STEP:
            if phase == rules.JOB and tracer.alive and not alive:
                self._job_seen = True
            self._begin(event, time + tracer.shift)
        elif kind == ev.END:
            self._end(event, time + tracer.shift)
        elif kind == ev.DURABLE and key in self._saves:
            self._detail.durable[self._saves[key]] = time + tracer.shift

    def _begin(self, event: Event, now: int) -> None:
        if event.key in self._phases.opened:
            return
        spans = self._records[self._attempt]
        flags = spans.flags.get(event.key, 0) & ~(FAILED | INTERRUPTED | SUMMED_UP)
        parent = spans.parents.get(event.key, 0)
        given = event.step
        if given < 0 and (around := self.tracer.steps.running.get(parent)) is not None:
            given = self.tracer.columns["given"][around.ordinal]
        trace = spans.traces.get(event.key, 0)
        phase = Phase(
            self._attempt, event.phase, event.name, now, NOT_KNOWN, given, flags, event.key, parent, given, trace
        )  # fmt: skip
        if event.phase == rules.SAVE:
            self._saves[event.key] = len(self._detail.phases)
        self._detail.phases.append(phase)
        self._phases.start(event.key, phase)

    def _end(self, event: Event, now: int) -> None:
        phase = self._phases.end(event.key)
        if phase is None:
            return
        phase.end = max(phase.begin, now)
        if event.name and phase.phase == rules.COMPILE:
            phase.name = event.name
        phase.flags |= self._records[self._attempt].flags.get(event.key, 0)
        if phase.phase == rules.COMPILE and event.name:
            if event.name in self._compiled:
                phase.flags |= RECOMPILATION
            self._compiled.add(event.name)
        elif event.key in self._saves and not event.flags & (ev.FAILED | ev.PENDING):
            self._detail.durable[self._saves[event.key]] = phase.end

    def detail(self, at: int, undone: Undone | None = None) -> Detail:
        """Close the account at `at` (ns) and return it; `undone`: in the whole run, if only a part was added."""
        tracer, detail = self.tracer, self._detail
        tracer.reach(at)
        tracer.close()
        tracer.finish()
        for ordinal, fate in enumerate(tracer.fates.fates if undone else ()):
            begin, number = tracer.columns["start"][ordinal], tracer.columns["number"][ordinal]
            if undone and fate == KEPT and undone(number, begin):
                tracer.fates.fates[ordinal] = tracer.columns["fate"][ordinal] = LOST
        detail.begin, detail.reached, detail.names = tracer.begin, tracer.now, tracer.names
        detail.owners = [one for one in tracer.intervals() if one[2] != EXCLUDED]
        detail.steps = [self._step(step) for step in tracer.step_traces]
        stretches = tracer.steps.stretches if self._numbering is None else self._numbering
        number_phases(detail.phases, Numbering([one._replace(attempt=one.attempt + 1) for one in stretches]))
        rows = {(phase.attempt, phase.key): -1 - row for row, phase in enumerate(detail.phases)}
        for one in (*tracer.device_traces, *tracer.waiting()):
            place = one.step if one.step >= 0 else rows.get((one.attempt + 1, one.key))
            if place is not None and one.begin != NOT_KNOWN:
                detail.work.append((one.begin, one.end, place))
        return detail

    def _step(self, one: StepTrace) -> Step:
        spans = self._records[one.attempt + 1]
        flags = spans.flags.get(one.key, 0)
        end = NOT_KNOWN if one.wall == NOT_KNOWN else one.start + one.wall
        if end == NOT_KNOWN:
            flags &= ~(FAILED | INTERRUPTED)
        return Step(
            one.attempt + 1, one.number, one.start, end, one.net, one.device_begin, one.device_end, one.fate,
            one.clock, flags, one.key, one.given, spans.traces.get(one.key, 0),
        )  # fmt: skip


def number_phases(phases: Iterable[Phase], numbering: Numbering) -> None:
    """Find the steps that phases belong to which have the numbers of their loops."""
    for one in phases:
        one.step = numbering.of_phase(one.attempt, one.phase, one.begin, max(one.begin, one.end), one.given)


def undone_by(losses: Sequence[Disruption]) -> Undone:
    """Return whether one of the disruptions, after a kept step began, went back to it or a lower one: it is lost."""
    rollbacks = sorted((loss.time, loss.to_step) for loss in losses if loss.to_step is not None)
    times = [time for time, _ in rollbacks]
    # The lowest step that this disruption or a later one went back to.
    lowest = list(accumulate((step for _, step in reversed(rollbacks)), min))[::-1]

    def undone(number: int, begin: int) -> bool:
        later = bisect_right(times, begin)
        return later < len(lowest) and lowest[later] <= number

    return undone

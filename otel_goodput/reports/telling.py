"""Reads a process's journal, or a part of it, and tells it in full: see :mod:`~otel_goodput.reports.detail`.

Longer than other files: each event goes to the account and to what is told of it, by one teller.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, groupby
from typing import Final

from otel_goodput._accounting import events as ev
from otel_goodput._accounting import rules
from otel_goodput._accounting.events import Event
from otel_goodput._accounting.overview import KEPT, LOST, NOT_KNOWN, Loss, Save
from otel_goodput._accounting.phases import Phases
from otel_goodput._accounting.resuming import Numbering, Stretch
from otel_goodput._accounting.survey import losses as told_losses
from otel_goodput._accounting.tracing import EXCLUDED, StepTrace, Tracer
from otel_goodput._journal import records
from otel_goodput._journal.records import Record
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._timeline.damage import Damages
from otel_goodput._timeline.reader import Reader, ordered
from otel_goodput._timeline.standing import ENDED, Lives
from otel_goodput.reports.detail import (
    FAILED,
    IN_TRACE,
    INTERRUPTED,
    NONBLOCKING,
    OUTLIER,
    RECOMPILATION,
    SUMMED_UP,
    Attempt,
    Detail,
    Phase,
    Step,
)
from otel_goodput.semconv import REASONS

NO_KEY: Final = 0  # of a job whose begin was not read
NEVER: Final = 1 << 63  # later than any record
_EVENTS_A_REPORT: Final = 4096  # of progress
CORNERS: Final = 4000  # of the curve of unsaved progress
Progress = Callable[[int, int, str], None]


def tell(
    run: RunDirectory,
    process: int = 0,
    *,
    state: str = ENDED,
    asked: int,
    past: bool = False,
    progress: Progress | None = None,
) -> Detail:
    """Read a process's whole journal.

    Args:
        state: of the process, see :func:`~otel_goodput._timeline.standing.state_of`.
        asked: the moment of the account, ns, by the clock of the latest attempt.
        past: something may have been recorded long after `asked`: it is left out, by whatever clock.
        progress: called with segments read, all segments, and what is read; then with zeros and what is accounted.
    """
    teller = Teller()
    events = teller.heard(_attempts(run, process, progress))
    if not past:
        events = _of_latest(events, (run.attempts(process) or [0])[-1], asked)
    lives = Lives(events, state, asked if past else NEVER)
    for count, event in enumerate(lives):
        teller.take(event)
        if progress is not None and not count % _EVENTS_A_REPORT:
            progress(0, 0, f"process {process}: event {count:,}")
    return teller.detail(asked)


def _attempts(run: RunDirectory, process: int, progress: Progress | None) -> Iterator[tuple[int, list[Record]]]:
    """Yield the number and the records of each attempt. What cannot be read is left out; the report says so."""
    reader = Reader(run, process)
    for attempt, parts in groupby(reader.records(Damages()), lambda part: part.attempt):
        found: list[Record] = []
        for part in parts:
            found += part.entries
            if progress is not None:
                progress(part.count, len(reader.segments), f"the journal of process {process}")
        yield attempt, found


def _of_latest(events: Iterable[Event], attempt: int, asked: int) -> Iterator[Event]:
    """Leave out what the latest attempt recorded after `asked`; clocks of attempts before it may have been ahead."""
    current = -1
    for event in events:
        if event.kind == ev.ATTEMPT:
            current = event.step
        elif current >= attempt and event.time > asked:
            continue
        yield event


def tell_part(
    parts: Sequence[tuple[int, list[Record]]],
    asked: int,
    taken: Taken | None,
    *,
    dead: bool,
    shifts: Mapping[int, int] | None = None,
    numbering: Sequence[Stretch] = (),
) -> Detail:
    """Tell a part of a journal: its records by attempt (from 0).

    What was open before is not known but for the job, so the first steps may lack what the device still had to do. What
    `parts` tell of phases that end later counts, so that they are not taken for open.

    Args:
        asked: until when, ns.
        taken: by the disruptions of the whole run, which decide the fate of steps; None: by those of `parts` alone.
        dead: the process of the last attempt in `parts` was over by `asked`.
        shifts: by attempt (from 1), what is added to its times, ns.
        numbering: of the whole run, by attempt (from 1): which step each body is.
    """
    those = {attempt + 1 for attempt, _ in parts}
    known = [one._replace(attempt=one.attempt - 1) for one in numbering if one.attempt in those]
    teller = Teller(shifts or {}, known, curve=False)
    for event in teller.heard(parts):
        if (
            event.kind != ev.ATTEMPT
            and not teller.running
            and not (event.kind == ev.START and event.phase == rules.JOB)
        ):
            teller.take(Event(event.time, ev.START, rules.JOB, key=NO_KEY))
        teller.take(event)
    if dead and parts:
        teller.take(Event(asked, ev.ATTEMPT, step=parts[-1][0] + 1))
    return teller.detail(asked - teller.shift, taken)


class _Beside:
    """What the records of one attempt say that the account does not need, by the key of a phase."""

    def __init__(self, told: Iterable[Record] = ()) -> None:
        self.flags: dict[int, int] = {}
        self.parents: dict[int, int] = {}
        self.traces: dict[int, int] = {}
        for kind, phase, flags, _, key, step, time in told:
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


class Teller:
    """Feeds a tracer and keeps what it passes by; with `curve`, also how much progress was unsaved when."""

    def __init__(
        self,
        shifts: Mapping[int, int] | None = None,
        numbering: Sequence[Stretch] | None = None,
        *,
        curve: bool = True,
    ) -> None:
        self._curve = curve
        self._shifts = shifts or {}
        self._numbering = numbering
        self._tracer = Tracer(numbering=None if numbering is None else Numbering(numbering))
        # A record that says another attempt than its segment makes one that nothing was told of.
        self._beside: defaultdict[int, _Beside] = defaultdict(_Beside)
        self._found = Detail()
        self._attempt = 0
        self._phases: Phases[Phase] = Phases()
        self._saves: dict[int, int] = {}  # by key: index in Detail.saves
        self._compiled: set[str] = set()
        self._corners: list[tuple[int, int]] = []
        self._job = 0
        self._over = False

    @property
    def shift(self) -> int:
        """What is added to times of the current attempt, ns."""
        return self._tracer.shift

    @property
    def running(self) -> bool:
        """Whether a job is open, or has been, in this attempt."""
        return self._tracer.alive or self._over

    def heard(self, lives: Iterable[tuple[int, list[Record]]]) -> Iterator[Event]:
        """Yield the events of all attempts in the order of the account."""
        for attempt, told in lives:
            self._beside[attempt + 1] = _Beside(told)
            events = records.events_of(told)
            if events and not any(event.kind == ev.ATTEMPT for event in events):
                if all(event.kind == ev.HEARTBEAT for event in events):
                    continue
                events.insert(0, Event(events[0].time, ev.ATTEMPT, step=attempt))  # its first record is lost
            yield from ordered(events)

    def take(self, event: Event) -> None:
        time, kind, phase, key, step, flags, arg, _ = event
        tracer, found = self._tracer, self._found
        if kind == ev.ATTEMPT:
            tracer.apply(event)
            self._close_attempt()
            self._attempt, self._over = step + 1, False
            tracer.shift = self._shifts.get(self._attempt, 0)
            self._phases.die()
            self._saves, self._compiled = {}, set()
            return
        turning = (
            kind == ev.DURABLE
            or (kind == ev.END and (phase == rules.SAVE or key in self._saves))
            or (kind == ev.START and phase == rules.JOB)
            or (kind == ev.START and phase == rules.STEP and step <= tracer.steps.progress.top)
        )
        if turning:
            self._corner()
        alive = tracer.alive
        tracer.apply(event)
        now = time + tracer.shift
        if turning or (kind == ev.END and key not in self._phases.opened):
            self._corner(certainly=turning)
        if kind == ev.START and phase == rules.JOB and tracer.alive and not alive:
            if not found.attempts or found.attempts[-1].number != self._attempt:
                found.attempts.append(Attempt(self._attempt, tracer.now, tracer.now))
            found.attempts[-1].ended = found.attempts[-1].clean = False
            found.attempts[-1].shift = tracer.shift
            self._job, self._over = key, True
        if kind == ev.START and phase != rules.STEP:
            self._begin(event, now)
        elif kind == ev.END:
            self._end(event, now)
        elif kind == ev.DURABLE and key in self._saves:
            self._saved(key, durable=now)
        elif kind == ev.NOTICE:
            found.notices.append((now, REASONS[phase], bool(flags & ev.WITHDRAWN)))
        elif kind == ev.SLICES:
            found.slices.append((now, step, key, arg))

    def _begin(self, event: Event, now: int) -> None:
        if event.key in self._phases.opened:
            return
        beside = self._beside[self._attempt]
        flags = beside.flags.get(event.key, 0) & ~(FAILED | INTERRUPTED | SUMMED_UP)
        parent = beside.parents.get(event.key, 0)
        trace = beside.traces.get(event.key, 0)
        given = event.step
        if given < 0 and (around := self._tracer.steps.running.get(parent)) is not None:
            given = self._tracer.columns["given"][around.ordinal]
        told = Phase(
            self._attempt, event.phase, event.name, now, NOT_KNOWN, given, flags, event.key, parent, given, trace
        )  # fmt: skip
        self._found.phases.append(told)
        self._phases.start(event.key, told)
        if event.phase == rules.SAVE:
            self._saves[event.key] = len(self._found.saves)
            self._found.saves.append(Save(self._attempt, event.step, now, NOT_KNOWN, NOT_KNOWN, False))

    def _end(self, event: Event, now: int) -> None:
        told = self._phases.end(event.key, now, event.name)
        if told is None:
            return
        told.flags |= self._beside[self._attempt].flags.get(event.key, 0)
        if told.phase == rules.COMPILE and event.name:
            if event.name in self._compiled:
                told.flags |= RECOMPILATION
            self._compiled.add(event.name)
        elif told.phase == rules.SAVE and event.key in self._saves:
            failed = bool(event.flags & ev.FAILED)
            durable = NOT_KNOWN if failed or event.flags & ev.PENDING else told.end
            end = told.begin if told.flags & NONBLOCKING else told.end
            self._saved(event.key, end=end, durable=durable, failed=failed)
        elif event.key == self._job and self._found.attempts and not self._tracer.alive:
            self._found.attempts[-1].ended, self._found.attempts[-1].clean = True, not event.flags & ev.FAILED
            self._found.attempts[-1].reached = self._tracer.now

    def _saved(self, key: int, *, end: int = NOT_KNOWN, durable: int = NOT_KNOWN, failed: bool = False) -> None:
        at = self._saves[key]
        save = self._found.saves[at]
        self._found.saves[at] = save._replace(
            end=max(save.end, end), durable=max(save.durable, durable), failed=save.failed or failed
        )

    def _corner(self, certainly: bool = True) -> None:
        """Remember how much progress is not saved now; if there are many corners, only where the curve turns."""
        tracer, corners = self._tracer, self._corners
        if not self._curve or (not certainly and len(corners) > CORNERS):
            return
        if tracer.begin is not None:
            corners.append((tracer.now, tracer.steps.at_risk()))

    def _close_attempt(self) -> None:
        if self._found.attempts and not self._found.attempts[-1].ended:
            self._found.attempts[-1].reached = self._tracer.now

    def detail(self, asked: int, taken: Taken | None = None) -> Detail:
        """Close the account at `asked` (ns) and return what was told; `taken`: in the run, if only a part was told."""
        tracer, found = self._tracer, self._found
        tracer.reach(asked)
        tracer.close()
        self._close_attempt()
        if tracer.begin is not None:
            self._corner()
        tracer.finish()
        for ordinal, fate in enumerate(tracer.fates.fates if taken is not None else ()):
            begin, number = tracer.columns["start"][ordinal], tracer.columns["number"][ordinal]
            if taken is not None and fate == KEPT and taken(number, begin):
                tracer.fates.fates[ordinal] = tracer.columns["fate"][ordinal] = LOST
        found.begin, found.reached, found.names = tracer.begin, tracer.now, tracer.names
        for begin, end, category in tracer.intervals():
            if category == EXCLUDED:
                found.excluded.append((begin, end))
            else:
                found.owners.append((begin, end, category))
        found.at_risk = _thinned(self._corners, CORNERS)
        found.losses = told_losses(tracer)
        found.steps = [self._step(step) for step in tracer.step_traces]
        stretches = tracer.steps.stretches if self._numbering is None else self._numbering
        found.numbering = [one._replace(attempt=one.attempt + 1) for one in stretches]
        number_phases(found.phases, Numbering(found.numbering))
        rows = {(phase.attempt, phase.key): -1 - row for row, phase in enumerate(found.phases)}
        for one in (*tracer.device_traces, *tracer.waiting()):
            place = one.step if one.step >= 0 else rows.get((one.attempt + 1, one.key))
            if place is not None and one.begin != NOT_KNOWN:
                found.work.append((one.begin, one.end, place))
        return found

    def _step(self, one: StepTrace) -> Step:
        beside = self._beside[one.attempt + 1]
        flags = beside.flags.get(one.key, 0)
        end = NOT_KNOWN if one.wall == NOT_KNOWN else one.start + one.wall
        if end == NOT_KNOWN:
            flags &= ~(FAILED | INTERRUPTED)
        return Step(
            one.attempt + 1, one.number, one.start, end, one.net, one.device_begin, one.device_end, one.fate,
            one.clock, flags, one.key, one.given, beside.traces.get(one.key, 0),
        )  # fmt: skip


def number_phases(phases: Iterable[Phase], numbering: Numbering) -> None:
    """Say to which steps phases belong that have the numbers of their loops."""
    for one in phases:
        one.step = numbering.of_phase(one.attempt, one.phase, one.begin, max(one.begin, one.end), one.given)


class Taken:
    """Tells whether one of many disruptions took a step that was kept until then."""

    def __init__(self, losses: Sequence[Loss]) -> None:
        told = sorted((loss.time, loss.to_step) for loss in losses if loss.to_step is not None)
        self._times = [time for time, _ in told]
        # The lowest step that this disruption or a later one went back to.
        self._lowest = list(accumulate((step for _, step in reversed(told)), min))[::-1]

    def __call__(self, number: int, begin: int) -> bool:
        """Return whether a disruption after `begin` (ns) went back to the step `number` or a lower one."""
        later = bisect_right(self._times, begin)
        return later < len(self._lowest) and self._lowest[later] <= number


def _thinned(corners: list[tuple[int, int]], most: int) -> list[tuple[int, int]]:
    """Leave out corners on a straight line, then the least of the rest, until there are at most `most`."""
    kept: list[tuple[int, int]] = []
    for corner in corners:
        if kept and kept[-1] == corner:
            continue
        if len(kept) > 1 and kept[-1][1] == corner[1] == kept[-2][1]:
            kept.pop()
        kept.append(corner)
    if len(kept) <= most:
        return kept
    stride = -(-len(kept) // (most // 2))
    found: list[tuple[int, int]] = []
    for at in range(0, len(kept), stride):
        part = kept[at : at + stride]
        ends = {part.index(min(part, key=lambda one: one[1])), part.index(max(part, key=lambda one: one[1]))}
        found += [part[where] for where in sorted(ends)]
    return found

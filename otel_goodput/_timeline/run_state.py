"""The state of a run: running, ended, failed, died or silent; the step in which it died; and who died first.

A process to which a signal was announced was ended from outside. If some were and another ended without one, that one
crashed, and its launcher ended the rest. If all were, the scheduler ended them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from otel_goodput._accounting import events as ev
from otel_goodput._accounting import rules
from otel_goodput._accounting.disruption import Disruption
from otel_goodput._accounting.events import NO_STEP, Event
from otel_goodput._accounting.phase_history import Phases
from otel_goodput._accounting.rank_clocks import RankClock, spread_of
from otel_goodput._accounting.totals import Totals
from otel_goodput._journal import records
from otel_goodput._journal.clock_offsets import clocks_of, read_offsets
from otel_goodput._journal.rundir import ListedRun, RunDirectory
from otel_goodput._text.durations import NS
from otel_goodput.semconv import Reason

RUNNING: Final = "running"
ENDED: Final = "ended"
FAILED: Final = "failed"  # an exception ended the job
DIED: Final = "died"
SILENT: Final = "silent"  # no recent sign of life; the process runs elsewhere, so it may be alive
# Copies of a journal are uploaded every ten seconds, and an upload takes time.
RECENTLY_NS: Final = 60 * NS


class RunState(NamedTuple):
    """The state of a run at some time."""

    state: str  # ``RUNNING``, ``ENDED``, ``FAILED``, ``DIED`` or ``SILENT``
    last_sign: int | None = None  # last sign of life of a run that died or is silent, ns
    step: int | None = None  # the open step of such a run
    since: int | None = None  # when that step began, ns

    def to_json(self) -> dict[str, Any]:
        known = self.last_sign is not None and self.since is not None
        return {
            "state": self.state,
            "last_sign_of_life": None if self.last_sign is None else self.last_sign / NS,
            "last_step_open_s": ((self.last_sign or 0) - (self.since or 0)) / NS if known else None,
        }


def live(totals: Totals) -> RunState:
    """Return the state of a live process's own run: ended or failed if its job has ended, else running."""
    return RunState(ended(totals) or RUNNING)


def ended(totals: Totals) -> str:
    """Return how the latest job ended: ``ENDED``, ``FAILED``, or an empty text if it has not."""
    if not totals.ended:
        return ""
    return FAILED if totals.failed else ENDED


def state_of(writing: bool | None, last_sign: int) -> str:
    """Return the state of a process whose job has not ended; `writing` is that of :meth:`RunDirectory.writing`."""
    if writing is not None:
        return RUNNING if writing else DIED
    # This is a copy of the journal, e.g. from a URL: the process runs on another machine.
    return RUNNING if time.time_ns() - last_sign < RECENTLY_NS else SILENT


class Life:
    """What the events of a process say of its end, attempt by attempt.

    `whole`: they are all events of the run; else the latest ones of an attempt.
    """

    def __init__(self, *, whole: bool = True) -> None:
        self.attempt = -1  # number of the latest one
        self.last = -1  # latest time in it, ns
        self.acted = -1  # when it last began a phase, or ended one without an error, ns; -1 if that is not known
        self.reached = NO_STEP  # number of the latest step that it began
        self.begun = 0  # steps since its latest attempt began
        self.inside = False  # it has not ended that step without an error
        self.phases: Phases[Event] = Phases()  # those that are open
        self.error = ""  # of the latest job, as ``type: message``
        self.ended = ""  # how the latest job ended: ``ENDED``, ``FAILED``, or empty if it has not
        self.announced = False  # a signal or a notice has announced its end
        self._whole = whole
        self._job: int | None = None

    def take(self, event: Event) -> None:
        """Take the next event."""
        time, kind, phase, key, step, flags, _, _ = event
        if kind == ev.ATTEMPT:
            self.attempt, self.last, self._job, self.announced, self.begun = step, time, None, False, 0
        elif kind == ev.NOTICE:
            self.announced = not flags & ev.WITHDRAWN
        elif kind == ev.START and phase == rules.JOB and self._job is None:
            self._job, self.ended = key, ""
        elif kind == ev.END and phase == rules.JOB and (key == self._job or not self._whole):
            self._job, self.ended = None, FAILED if flags & ev.FAILED else ENDED
            self.error = event.name
        self.phases.take(kind, key, event)
        self.last = max(self.last, time)
        if kind == ev.START or (kind == ev.END and not flags & ev.FAILED):
            self.acted = max(self.acted, time)
            if phase == rules.STEP:
                self.inside = kind == ev.START
                self.begun += self.inside
                self.reached = step if self.inside else self.reached

    @property
    def step(self) -> Event | None:
        """The START of the step that is open, the innermost if there are several."""
        return next((one for one in reversed(self.phases.opened.values()) if one.phase == rules.STEP), None)


class EventsUntil:
    """Iterates over the events of a run up to the time `at` (ns), and finds the state of the run at that time.

    The `events` are all of the run, ordered by attempt and time. `latest` is the state of the latest attempt's process,
    if its job has not ended. `state` is known after the iteration.
    """

    def __init__(self, events: Iterable[Event], latest: str, at: int) -> None:
        self._events = events
        self._latest = latest
        self._at = at
        self.state = RunState(RUNNING)

    def __iter__(self) -> Iterator[Event]:
        """Yield the events up to the time of the question, and one more if the process had died by then."""
        life, latest = Life(), self._latest
        later = -1  # latest time of the attempt after the time of the question, ns
        for event in self._events:
            if event.kind == ev.ATTEMPT:
                if event.time > self._at and life.attempt >= 0:
                    latest = DIED  # this attempt began after the time of the question
                    break
                later = -1
            elif event.time > self._at:
                later = max(later, event.time)
                continue
            life.take(event)
            yield event
        last = max(life.last, later)
        if life.ended:
            self.state = RunState(life.ended)
        elif last < self._at and latest != RUNNING:
            step = life.step
            self.state = RunState(latest, last, *((None, None) if step is None else (step.step, step.time)))
        if self.state.state == DIED:
            # Steps in flight are lost, but the account learns of a death only from the start of the next attempt.
            yield Event(last, ev.ATTEMPT, step=life.attempt + 1)


# --- which process ended first ----------------------------------------------------------------------------------------

MOST_PROCESSES: Final = 256  # whose journals are read
MOST_ATTEMPTS: Final = 10  # the latest, for which they are
# A process that does nothing gives a sign of life every second: deaths closer than this have no order.
APART_NS: Final = 2_000_000_000
RAISED_NS: Final = 100_000_000  # the moment of an exception is recorded, but clocks of machines differ
# Collective operations time out after some minutes: then those that waited fail, and not the one that they waited for.
WAITED_NS: Final = 30_000_000_000
# What exceptions of gloo, NCCL, XLA and the runtimes' stores say when the process at the other end is gone.
PEER_IS_GONE: Final = re.compile(
    r"(reset|closed) by (remote )?peer|remote process exited|broken pipe|socket closed|heartbeat timeout", re.IGNORECASE
)


class Death(NamedTuple):
    """How a process ended in an attempt."""

    process: int
    sign: int  # its last sign of life, ns
    announced: bool  # a signal or a notice had announced it
    clean: bool  # its job had ended without an error
    failed: bool  # an exception ended its job
    step: int | None = None  # the step in which it was, or that failed; None if there was none
    reached: int = NO_STEP  # the latest step that it began; not known by default
    acted: int = -1  # when it last began a phase, or ended one without an error, ns
    peer_gone: bool = False  # the exception says that the process at the other end is gone
    begun: int | None = None  # how many steps it began; None if that is not known


class Culprit(NamedTuple):
    """Why an attempt ended, according to all of its processes."""

    reason: str
    # The one that ended first, or that the others had waited for until then; None if all were ended from outside, or if
    # that is not known.
    process: int | None
    known: bool = True  # it is known which process ended first, or that all were ended from outside


def culprits(run: RunDirectory, history: Sequence[Disruption]) -> dict[int, Culprit]:
    """Return why the latest disruptions came, by the number of the attempt that each began (from 1).

    Only of jobs of several processes, and only of ends that no platform announced.
    """
    processes = run.processes()
    by_attempt: dict[int, Culprit] = {}
    if len(processes) < 2:
        return by_attempt
    run = ListedRun(run.path)
    few = processes if len(processes) <= MOST_PROCESSES else []
    clocks = clocks_of(read_offsets(run))
    for entry in history[-MOST_ATTEMPTS:]:
        if entry.attempt is not None and entry.reason in (Reason.SIGNAL, Reason.CRASH):
            attempt = entry.attempt - 2
            of_attempt = {process: one[attempt] for process, one in clocks.items() if attempt in one}
            ends = [_death(run, process, attempt, of_attempt.get(process)) for process in few]
            deaths = [death for death in ends if death is not None]
            spread = spread_of(one.offsets[-1] for one in of_attempt.values())
            unknown = Culprit(entry.reason, None, known=False)
            by_attempt[entry.attempt] = culprit(deaths, entry.reason, spread) if len(deaths) > 1 else unknown
    return by_attempt


def culprit(deaths: Iterable[Death], reason: str, spread: int = 0) -> Culprit:
    """Return why several processes ended; `reason` is that of the leader's journal alone.

    `spread`: how far clocks of two of them may be apart after they were corrected, ns.
    """
    ended = sorted((one for one in deaths if not one.clean), key=lambda one: one.sign)
    crashed = [one for one in ended if not one.announced]
    if not crashed:
        return Culprit(reason, None)
    if (hung := _waited_for(ended)) is not None:
        return Culprit(Reason.CRASH, hung)
    failed = [one for one in crashed if one.failed]
    killed = [one for one in crashed if failed and not one.failed and one.sign <= failed[0].sign]
    certain = len(crashed) < len(ended)  # launchers announce the end to those that they end
    certain = certain or all(one.peer_gone for one in failed)
    if len(killed) != 1 or not certain:
        killed = [one for one in killed if one.sign < failed[0].sign - APART_NS - spread]
    if killed:
        failed, crashed = [], killed  # the others failed because of it
    first, *others = failed or crashed
    if len(failed) == 1 or not others:
        return Culprit(Reason.CRASH, first.process)
    apart = others[0].sign - first.sign > spread + (RAISED_NS if failed else APART_NS)
    return Culprit(Reason.CRASH, first.process if apart else None, known=apart)


def _waited_for(ended: Sequence[Death]) -> int | None:
    """Return the process that all others waited for, for long, in a step that it had not begun; None if none is.

    Their first step is expected of all.
    """
    waiting = [one for one in ended if one.step is not None]
    behind = [one for one in ended if one.step is None]
    if len(behind) != 1 or len({one.step for one in waiting}) != 1:
        return None
    one, step = behind[0], waiting[0].step or 0
    first = one.begun == 0 and all(each.begun == 1 for each in waiting)
    late = (first or NO_STEP < one.reached < step) and 0 < one.acted <= ended[0].sign - WAITED_NS
    return one.process if late and all(each.acted <= ended[0].sign - WAITED_NS for each in waiting) else None


def _death(run: RunDirectory, process: int, attempt: int, clock: RankClock | None) -> Death | None:
    """Read how a process ended in an attempt (from 0) from its last segment; None if it left none.

    `clock` corrects its times, if they are not by the leader's clock.
    """
    segments = run.segments(process, attempt, lambda *_: None)
    if not segments:
        return None
    try:
        entries = list(records.decode_segment(segments[-1].contents().data, records.Names()))
    except (OSError, EOFError, ValueError):
        return None
    life = Life(whole=False)
    for event in records.events_of(entries):
        life.take(event)
    clean, failed = life.ended == ENDED and not life.announced, life.ended == FAILED
    step = life.reached if life.inside else None
    last, acted = life.last, life.acted
    if clock is not None:
        last, acted = clock.common(last), clock.common(acted)
    peer_gone = PEER_IS_GONE.search(life.error) is not None
    begun = life.begun if len(segments) == 1 else None
    return Death(process, last, life.announced, clean, failed, step, life.reached, acted, peer_gone, begun)

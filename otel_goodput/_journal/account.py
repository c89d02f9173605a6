"""The live account of one process: events go to the journal first, and from the journal to the ledger.

There is no other way in, so a restart reads back exactly what the live figures were computed from.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from otel_goodput._accounting import Ledger, Totals
from otel_goodput._accounting import events as ev
from otel_goodput._accounting.events import events_of
from otel_goodput._accounting.phase_history import EndedPhases
from otel_goodput._accounting.totals import Brief
from otel_goodput._journal.journal import DRAINED, Journal
from otel_goodput._journal.notes import Note, Notes
from otel_goodput._journal.records import ERROR, TRACE, signed
from otel_goodput._runtime.host import Clock, Suspensions

# If the journal grows faster than the ledger can follow, callers must not wait forever.
PATIENCE_S: Final = 1.0
WAITING: Final = 4096  # durations that wait to be recorded; beyond, whoever feeds the ledger records them
_LONGEST: Final = (1 << 62) - 1  # less than device.NEVER


def fitting(number: int) -> int:
    """Clip a number to the range of a record's field."""
    return max(-_LONGEST, min(_LONGEST, number))


OnEvents = Callable[[list[ev.Event]], None]
OnDurations = Callable[[list[int], list[tuple[EndedPhases, str]]], None]
RecordSome = Callable[[float, int], bool]


@dataclass(slots=True)
class Listeners:
    """The listeners of one account. They are called on whichever thread feeds the ledger, while it is locked."""

    on_events: OnEvents | None = None  # with the events that the ledger takes
    on_single: OnEvents | None = None  # with those of them that are not of a steady loop
    # With the durations of completed steps, ns, and phases that have ended, each with its ``error.type`` or "". They
    # wait until they are recorded, which takes longer.
    on_durations: OnDurations | None = None
    record: RecordSome | None = None

    def listen_to_events(self, on_events: OnEvents | None) -> None:
        self.on_events = on_events

    def listen_to_single(self, on_single: OnEvents) -> None:
        self.on_single = on_single

    def listen_to_durations(self, on_durations: OnDurations, record: RecordSome) -> None:
        self.on_durations, self.record = on_durations, record

    def record_durations(self, seconds: float = math.inf, keep: int = 0) -> bool:
        """Record durations that wait, for about so many seconds, until `keep` are left; return whether more are."""
        return self.record is not None and self.record(seconds, keep)


class Account:
    """The journal and the ledger of one process.

    `clock` returns ns since the epoch; `leap` sets it forward by some ns, after the machine was suspended.
    """

    def __init__(
        self, journal: Journal, ledger: Ledger, clock: Clock, leap: Callable[[int], None] | None = None
    ) -> None:
        self.journal = journal
        self.ledger = ledger
        self.clock = clock
        self.append: Callable[..., None] = journal.append
        self.notes = Notes()
        self.listeners = Listeners()
        self.lock = threading.RLock()  # guards the ledger
        self.hanging = False  # the journal was not closed in time, perhaps never will be: the closer holds the ledger
        self.reached = 0  # time of the latest event fed to the ledger, ns
        self._answered = 0
        self._caught_up = False  # when the ledger was fed last
        self._leap = leap
        self._suspensions = Suspensions()
        self._looking = threading.Lock()
        # Set if this ledger cannot catch up any more: provides another one when totals are first read.
        self._recall: Callable[[], Ledger] | None = None
        self._recalled = False

    def begin_attempt(self, flags: int, seen: int, limit: int | None) -> None:
        """Write the first records of this process; `flags` are ``OWN_TRACES`` or 0.

        `seen` is the last sign of life of the attempt before when this one began, ns; 0 if there is none.
        What a step takes beyond `limit` (ns) is stalled time, if there is one.
        """
        self.append(ev.ATTEMPT, 0, flags, 0, seen, self.journal.attempt, self.clock())
        if limit:
            self.append(ev.LIMIT, 0, 0, 0, fitting(limit), ev.NO_STEP, self.clock())

    def look_for_suspension(self) -> None:
        """Record that the machine was suspended since this was last called, and set the clock forward, if it was.

        What happened since it woke up has times before that. So all durations are right, and at most as much of the
        account as passes between two calls lies too early.
        """
        if self._leap is None:
            return
        with self._looking:
            length = self._suspensions.noticed()
            if length:
                self.append(ev.SUSPENDED, 0, 0, 0, fitting(length), ev.NO_STEP, fitting(self.clock()))
                self._leap(length)

    def start(self, phase: int, key: int, step: int, flags: int, name: str, moment: int) -> None:
        """Record that a phase opens at `moment` (ns); `key` is its span id."""
        identity = self.journal.name(name) if name else 0
        self.append(ev.START, phase, flags, identity, key, fitting(step), fitting(moment))

    def end(self, phase: int, key: int, flags: int, moment: int, name: str = "") -> None:
        """Record that the phase `key` closes at `moment` (ns); `name` is the compiled function, for a compilation."""
        identity = self.journal.name(name) if name else 0
        self.append(ev.END, phase, flags, identity, key, ev.NO_STEP, fitting(moment))

    def error(self, phase: int, key: int, error: str, moment: int) -> None:
        """Record that the phase `key`, which is about to close, failed; `error` is the ``error.type``."""
        self.append(ERROR, phase, 0, self.journal.name(error), key, ev.NO_STEP, fitting(moment))

    def foreign_trace(self, key: int, trace_id: int) -> None:
        """Record that the span `key` is in a trace whose id is not derived from run and attempt."""
        self.append(TRACE, 0, 0, 0, key, signed(trace_id >> 64), signed(trace_id & (1 << 64) - 1))

    def slice_counts(self, active: int, available: int, total: int, moment: int) -> None:
        bound = 0xFFFF
        self.append(ev.SLICES, 0, min(total, bound), 0, min(available, bound), min(active, bound), fitting(moment))

    def notice(self, reason: int, moment: int, *, withdrawn: bool = False, ended_by: str = "") -> None:
        """Record that the platform announced the end of the job or withdrew that; `reason` indexes semconv.REASONS.

        `ended_by` is the signal that announced it, or the exit status of the attempt before.
        """
        identity = self.journal.name(ended_by) if ended_by else 0
        self.append(ev.NOTICE, reason, ev.WITHDRAWN if withdrawn else 0, identity, 0, ev.NO_STEP, fitting(moment))

    def durable(self, key: int, moment: int) -> None:
        """Record that the checkpoint of the save phase `key` is durable."""
        self.append(ev.DURABLE, 0, 0, 0, key, ev.NO_STEP, fitting(moment))

    def profiling(self, on: bool) -> None:
        """Record that a profiler that slows the steps runs from now on, or no more (rule R12)."""
        self.append(ev.PROFILING, 0, 0, 0, 0, int(on), self.clock())

    def orphan(self, recall: Callable[[], Ledger]) -> None:
        """Make the account passive in a forked child: it records nothing, calls nobody and waits for no inherited lock.

        If a thread of the parent was changing the ledger at the fork, our copy is inconsistent. `recall` then provides
        another ledger when totals are first read.
        """
        self.append = nothing
        self.journal.orphan()
        self.listeners = Listeners()
        self._looking = threading.Lock()
        if not self.lock.acquire(blocking=False):
            self._recall = recall
        self.lock = threading.RLock()

    def leave(self, recall: Callable[[], Ledger]) -> None:
        """Close the journal before the ledger has caught up; `recall` reads the rest when totals are read."""
        self._recall = recall

    def add_windows(self, spans: Sequence[int]) -> None:
        """Keep rolling windows of the lengths `spans` (ns), too."""
        with self.lock:
            self.ledger.add_windows(spans)

    # --- answers ------------------------------------------------------------------------------------------------------

    def refresh(self, patience: float = PATIENCE_S) -> bool:
        """Bring the ledger up to the end of the journal, for at most `patience` seconds; returns whether it got there.

        Do not call it on the training thread's hot path.
        """
        until = time.monotonic() + patience
        if self.hanging:
            self.hanging = False
            if self.lock.acquire(timeout=max(patience, 0.0)):
                self.lock.release()
            else:  # the disk hangs for good
                self.lock, self._recalled = threading.RLock(), True
        while self.take_some():
            if time.monotonic() >= until:
                return False
        return True

    def take_some(self, most: int = DRAINED) -> bool:
        """Feed the next events of the journal, about `most`, to the ledger; returns whether there are more."""
        listeners = self.listeners
        with self.lock:
            if self._recall is not None:
                recall, self._recall, self._recalled = self._recall, None, True
                self.ledger = recall()
            if self._recalled:
                return False  # this ledger does not continue at the journal's read position
            events, count = self.journal.drain(most)
            if events:
                self.reached = max(self.reached, events[-1].time)
                self.ledger.feed(events)
                if listeners.on_events is not None:
                    listeners.on_events([*events_of(events)])
                if listeners.on_single is not None:
                    listeners.on_single([one for one in events if isinstance(one, ev.Event)])
            finished, ended = self.ledger.take_collected()
            if listeners.on_durations is not None and (finished or ended):
                listeners.on_durations(finished, [(one, self.journal.errors.pop(one.key, "")) for one in ended])
        listeners.record_durations(keep=WAITING)
        self._caught_up = count < most
        return count >= most

    def totals(self, at: int | None = None, patience: float = PATIENCE_S) -> Totals:
        """The totals at `at` (ns; now by default), as one consistent snapshot.

        If the ledger has not caught up within `patience` seconds, the totals are those at the moment it has reached,
        and `Totals.behind` is how far back that is.
        """
        self.look_for_suspension()
        caught_up = self.refresh(patience)
        with self.lock:
            if at is not None:
                return self.ledger.totals(at)
            now, moment = self._moment(caught_up)
            return replace(self.ledger.totals(moment), behind=now - moment)

    def brief(self, patience: float = PATIENCE_S) -> Brief:
        """A part of :meth:`totals` now, for the keeper's thread, which has just fed the ledger."""
        caught_up = self._caught_up or self.refresh(patience)
        with self.lock:
            return self.ledger.brief(self._moment(caught_up)[1])

    def _moment(self, caught_up: bool) -> tuple[int, int]:
        """Return what time it is, and the moment of the answer, ns."""
        now = self.clock()
        self._answered = now if caught_up else min(now, max(self.reached, self._answered))
        return now, self._answered


def behind(totals: Totals) -> Note:
    """The note for totals of a ledger that has not caught up."""
    return Note(
        "behind",
        f"These figures are {totals.behind / 1e9:.1f} s old: the loop records faster than its records are processed. "
        "Nothing is lost: call report() again later, or run `otel-goodput report` after the run has ended.",
    )


def nothing(*_: object) -> None:
    """Replaces `append` in a forked child and after the end: records nothing."""

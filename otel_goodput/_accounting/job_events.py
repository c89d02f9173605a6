"""The job of several ranks as the events of one process, so that one ledger accounts it (rule R11).

The fate of its steps, start-up, stalled steps, disruptions and windows follow from these events by the same rules as
those of a process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from otel_goodput._accounting import events as ev
from otel_goodput._accounting.events import KEYS, NOT_KNOWN, Event, following
from otel_goodput._accounting.ledger import Ledger
from otel_goodput._accounting.ranks import DIED, ENDED, LEFT_BEHIND, OPEN, STEP_TIME, JobStep, Stretch
from otel_goodput._accounting.rules import (
    COMPILE,
    CUSTOM,
    CUSTOM_PHASE,
    ELASTIC_CATEGORY,
    ELASTIC_WAIT,
    EXCLUDED_TIME,
    EXCLUSION,
    JOB,
    NS,
    OWNERS,
    PROGRAM_STARTUP,
    RECOVERY,
    RESTORE,
    SAVE,
    STEP,
    SUSPENDED_TIME,
)  # fmt: skip

# category number -> phase whose time has it, and its name
_PHASES: Final = {
    **{category: (phase, "") for phase, category in OWNERS.items()},
    **{category: (ELASTIC_WAIT, kind) for kind, category in ELASTIC_CATEGORY.items()},
    PROGRAM_STARTUP: (COMPILE, ""),
    EXCLUDED_TIME: (EXCLUSION, ""),
}

LEFT: Final = 60 * NS  # ranks that one left behind go on without it, if they still do so long after its death

_FLAGS: Final = ev.FAILED | ev.LEFT | ev.IDLE
_make: Final = tuple.__new__  # a third of the time of a named tuple's constructor


class JobEvents:
    """Makes events of what a :class:`~otel_goodput._accounting.ranks.RankMerger` decides.

    Args:
        before: the account of the job so far, which they continue.
    """

    def __init__(self, before: Ledger | None = None) -> None:
        settled = None if before is None or before.settled.begin is None else before.settled
        self._key = 1 if settled is None else settled.now & KEYS
        self._attempt = -1 if settled is None else settled.steps.life.number  # the latest
        opened = () if before is None else before.opened
        self._job = next((one.key for one in opened if one.phase == JOB), 0)  # key of the attempt's job
        # No rank is there, or the job waits for one that is away.
        self._away = settled is None or not settled.alive
        self._ended = NOT_KNOWN  # when it was away, if the jobs of all ranks that are had ended cleanly, ns
        self._left_behind = False  # the attempt began without a rank that died,
        self._died = NOT_KNOWN  # of which this was the last sign of life, ns

    def events(self, items: Iterable[Stretch | JobStep]) -> Iterator[Event]:
        """Yield the events of successive `items`."""
        for item in items:
            if isinstance(item, JobStep):
                yield from self._begin(item.begin, item.flags & LEFT_BEHIND != 0)
                for step in item.singles():
                    number, begin, end, flags, stretches, _ = step
                    self._key = key = following(self._key)
                    yield _make(Event, (begin, ev.START, STEP, key, number, 0, 0, ""))
                    for stretch in stretches:
                        yield from self._phase(stretch)
                    if not flags & OPEN:
                        flags = flags & _FLAGS | (ev.RANK_DIED if flags & DIED else 0)
                        yield _make(Event, (end, ev.END, STEP, key, number, flags, 0, ""))
            elif item.category == RECOVERY:
                if self._attempt < 0:
                    yield from self._begin(item.begin)
                if not self._away:
                    yield Event(item.begin, ev.HEARTBEAT)  # the last sign of life
                    self._away = True
                    self._ended = item.begin if item.name == ENDED else NOT_KNOWN
                    self._left_behind = self._left_behind and item.begin - self._died <= LEFT
                    if not self._left_behind:
                        self._died = item.begin
            else:
                yield from self._begin(item.begin)
                yield from self._phase(item)

    def go_on(self, time: int) -> Iterator[Event]:
        """Yield the begin of the next attempt at `time` (ns) if the job is away: some of its ranks are there."""
        yield from self._begin(time)

    def end(self, time: int, *, failed: bool) -> Iterator[Event]:
        """Yield the end of the job at `time` (ns)."""
        yield from self._begin(time)
        self._away = True
        yield Event(time, ev.END, JOB, self._job, flags=ev.FAILED if failed else 0)

    def _next_key(self) -> int:
        self._key = following(self._key)
        return self._key

    def _begin(self, time: int, left_behind: bool = False) -> Iterator[Event]:
        """Begin an attempt of the job, if none is in progress.

        If those that were `left_behind` began the one before and did not go on for long, it begins again.
        """
        if self._away:
            self._away = False
            if self._ended != NOT_KNOWN:
                yield Event(self._ended, ev.END, JOB, self._job)
                self._ended = NOT_KNOWN
            self._attempt += not self._left_behind
            self._left_behind = left_behind
            yield Event(time, ev.ATTEMPT, 0, 0, self._attempt)
            self._job = self._next_key()
            yield Event(time, ev.START, JOB, self._job)

    def _phase(self, stretch: Stretch) -> Iterator[Event]:
        if stretch.category == SUSPENDED_TIME:
            yield Event(stretch.begin, ev.SUSPENDED, key=stretch.end - stretch.begin)
            return
        phase, name = (
            (CUSTOM_PHASE, stretch.name) if stretch.category == CUSTOM else _PHASES.get(stretch.category, (0, ""))
        )
        if not phase or stretch.category == STEP_TIME:
            return
        key = self._next_key()
        yield Event(stretch.begin, ev.START, phase, key, name=name)
        # Which checkpoints there are is recorded apart, and the ranks' steps are numbered: this is only time.
        yield Event(stretch.end, ev.END, phase, key, flags=ev.FAILED if phase in (SAVE, RESTORE) else 0)

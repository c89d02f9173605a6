"""How a run stands: whether it is running, has ended, or died; and what it was doing then."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from otel_goodput.accounting import events as ev
from otel_goodput.accounting import rules
from otel_goodput.accounting.events import Event
from otel_goodput.accounting.totals import NS, Totals
from otel_goodput.journal.rundir import RunDirectory

RUNNING: Final = "running"
ENDED: Final = "ended"
DIED: Final = "died"
SILENT: Final = "silent"  # nobody can tell from here whether the process lives: it has given no sign of life lately
# A copy of a journal is written every ten seconds, and takes some to arrive.
RECENTLY_NS: Final = 60 * NS


class Standing(NamedTuple):
    """How a run stands at a moment.

    Attributes:
        state: one of the above.
        last_sign: of a run that died or is silent: its last sign of life, ns.
        step, since: of such a run: the step it was in, if it was in one, and when that had begun, ns.
    """

    state: str
    last_sign: int | None = None
    step: int | None = None
    since: int | None = None

    def to_json(self) -> dict[str, Any]:
        known = self.last_sign is not None and self.since is not None
        return {
            "state": self.state,
            "last_sign_of_life": None if self.last_sign is None else self.last_sign / NS,
            "last_step_open_s": ((self.last_sign or 0) - (self.since or 0)) / NS if known else None,
        }


def live(totals: Totals) -> Standing:
    """As the job's own process has it, which is alive."""
    return Standing(ENDED if totals.ended else RUNNING)


def state_of(run: RunDirectory, attempt: int, process: int, last_sign: int) -> str:
    """Of the latest attempt's process, whose job has not ended."""
    if run.alive(attempt, process):
        return RUNNING
    if run.lock(attempt, process).path.exists():
        return DIED  # whoever held it let go of it
    # A copy, from a URL perhaps: where the process runs nobody knows here.
    return RUNNING if time.time_ns() - last_sign < RECENTLY_NS else SILENT


class Lives:
    """Follows the events of a run as they pass, and tells how its lives ended.

    Args:
        events: of the whole run, in the order of attempt and time.
        state: of the latest attempt's process, should its job not have ended.
        asked: time of the question, ns.
    """

    def __init__(self, events: Iterable[Event], state: str, asked: int) -> None:
        self._events = events
        self._state = state
        self._asked = asked
        self._begun = self._last = -1
        self._attempt = -1
        self._job: int | None = None
        self._ended = False
        self._step: tuple[int, int, int] | None = None  # key, number, start
        self.standing = Standing(RUNNING)

    def __iter__(self) -> Iterator[Event]:
        """The events up to the moment that was asked for; of a life that is over by then, that it is over."""
        later = False  # another attempt began before the moment, or after it
        for event in self._events:
            time, kind = event[0], event[1]
            if kind == ev.ATTEMPT:
                if time > self._asked and self._begun >= 0:
                    later = True
                    break
                self._begin(event)
            elif time > self._asked:
                self._last = max(self._last, time)
                continue
            else:
                self._follow(event)
            yield event
        self.standing = self._stands(later)
        if self.standing.state == DIED:
            # What was in flight is lost with it; only the next attempt would say so.
            yield Event(self._last, ev.ATTEMPT, step=self._attempt + 1)

    def _begin(self, event: Event) -> None:
        self._begun = self._last = event.time
        self._attempt = event.step
        self._job = self._step = None

    def _follow(self, event: Event) -> None:
        time, kind, phase, key = event[:4]
        if time > self._last:
            self._last = time
        if kind == ev.START:
            if phase == rules.STEP:
                self._step = key, event.step, time
            elif phase == rules.JOB:
                self._job, self._ended = key, False
        elif kind == ev.END:
            if self._step is not None and key == self._step[0]:
                self._step = None
            elif key == self._job:
                self._job, self._ended = None, True

    def _stands(self, later: bool) -> Standing:
        if self._ended:
            return Standing(ENDED)
        state = DIED if later else self._state
        if self._last >= self._asked or state == RUNNING:
            return Standing(RUNNING)
        number, since = self._step[1:] if self._step is not None else (None, None)
        return Standing(state, self._last, number, since)

"""The state of a run: running, ended, failed, died or silent; and the step in which it died."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from otel_goodput._accounting import events as ev
from otel_goodput._accounting import rules
from otel_goodput._accounting.events import Event
from otel_goodput._accounting.totals import Totals
from otel_goodput._text.durations import NS

RUNNING: Final = "running"
ENDED: Final = "ended"
FAILED: Final = "failed"  # an exception ended the job
DIED: Final = "died"
SILENT: Final = "silent"  # no recent sign of life; the process runs elsewhere, so it may be alive
# Copies of a journal are uploaded every ten seconds, and an upload takes time.
RECENTLY_NS: Final = 60 * NS


class Standing(NamedTuple):
    """The state of a run at some time.

    Attributes:
        state: ``RUNNING``, ``ENDED``, ``FAILED``, ``DIED`` or ``SILENT``.
        last_sign: last sign of life of a run that died or is silent, ns; else None.
        step, since: the open step of such a run, and when that step began, ns; None if no step was open.
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
    """Return the state of a live process's own run: ended or failed if its job has ended, else running."""
    return Standing(ended(totals) or RUNNING)


def ended(totals: Totals) -> str:
    """Return how the latest job ended: ``ENDED``, ``FAILED``, or an empty text if it has not."""
    if not totals.ended:
        return ""
    return FAILED if totals.failed else ENDED


def state_of(writing: bool | None, last_sign: int) -> str:
    """Return the state of a process in the latest attempt, if its job has not ended.

    Args:
        writing: see :meth:`RunDirectory.writing`.
        last_sign: its last sign of life, ns.
    """
    if writing is not None:
        return RUNNING if writing else DIED
    # This is a copy of the journal, e.g. from a URL: the process runs on another machine.
    return RUNNING if time.time_ns() - last_sign < RECENTLY_NS else SILENT


class Lives:
    """Iterates over the events of a run up to the time of a question, and finds the state of the run at that time.

    Args:
        events: of the whole run, ordered by attempt and time.
        state: of the latest attempt's process, used if its job has not ended.
        at: time of the question, ns.

    Attributes:
        standing: state of the run at `at`; known after the iteration.
    """

    def __init__(self, events: Iterable[Event], state: str, at: int) -> None:
        self._events = events
        self._state = state
        self._at = at
        self._begun = self._last = -1
        self._attempt = -1
        self._job: int | None = None
        self._ended = ""  # how the latest job ended
        self._step: tuple[int, int, int] | None = None  # key, number, start
        self.standing = Standing(RUNNING)

    def __iter__(self) -> Iterator[Event]:
        """Yield the events up to the time of the question, and one more if the process had died by then."""
        later = False  # whether another attempt began after the time of the question
        for event in self._events:
            time, kind = event[0], event[1]
            if kind == ev.ATTEMPT:
                if time > self._at and self._begun >= 0:
                    later = True
                    break
                self._begin(event)
            elif time > self._at:
                self._last = max(self._last, time)
                continue
            else:
                self._follow(event)
            yield event
        self.standing = self._stands(later)
        if self.standing.state == DIED:
            # Steps in flight are lost, but the account learns of a death only from the start of the next attempt.
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
                self._job, self._ended = key, ""
        elif kind == ev.END:
            if self._step is not None and key == self._step[0]:
                self._step = None
            elif key == self._job:
                self._job, self._ended = None, FAILED if event.flags & ev.FAILED else ENDED

    def _stands(self, later: bool) -> Standing:
        if self._ended:
            return Standing(self._ended)
        state = DIED if later else self._state
        if self._last >= self._at or state == RUNNING:
            return Standing(RUNNING)
        number, since = self._step[1:] if self._step is not None else (None, None)
        return Standing(state, self._last, number, since)

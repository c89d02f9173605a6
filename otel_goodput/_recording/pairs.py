"""Phases whose start and end are calls of their own, as in ml-goodput-measurement.

An end may never come: its users write it only on success. A step has none: it ends where the next one starts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from otel_goodput.semconv import ELASTIC_SCALE_UP, ELASTIC_SLICE_DOWN, Phase

P = TypeVar("P")


def waited_for(event_type: str) -> str:
    """What a wait for slices is for, of ``semconv.ELASTIC_WAITS``, from ml-goodput-measurement's type of it."""
    return ELASTIC_SCALE_UP if ELASTIC_SCALE_UP in event_type.lower() else ELASTIC_SLICE_DOWN


@dataclass(frozen=True, eq=False)
class _Opened(Generic[P]):
    """An open phase: of ``semconv.Phase``, with a name or number, opened by a thread; and what stands for it."""

    phase: str
    name: str | int
    thread: int
    stands: P

    def over(self, phase: str, name: str | int, thread: int) -> bool:
        """Whether it is over when another one starts."""
        if Phase.JOB in (phase, self.phase):
            return phase == Phase.JOB
        if self.thread != thread:
            return False
        # Nothing blocks a step that starts. A wait for slices ends what was tried.
        return phase in (Phase.STEP, Phase.ELASTIC_WAIT) or (self.phase, self.name) == (phase, name)


class Pairs(Generic[P]):
    """Matches ends with starts. Times are ns since the epoch; None is now.

    Args:
        begin: called with the phase, its name or number, and the time of its start; returns what stands for it.
        end: called with that, the time, and whether the phase was given up.

    Attributes:
        unmatched: number of ends without a start; they are ignored.
    """

    def __init__(
        self, begin: Callable[[str, str | int, int | None], P], end: Callable[[P, int | None, bool], None]
    ) -> None:
        self._begin = begin
        self._end = end
        self._lock = threading.RLock()
        self._opened: list[_Opened[P]] = []  # the innermost last
        self.unmatched = 0

    def start(self, phase: str, name: str | int = "", time: int | None = None) -> None:
        """A phase starts, and ends what cannot be open any more."""
        mine = threading.get_ident()
        with self._lock:
            for one in reversed(tuple(self._opened)):
                if one.over(phase, name, mine):
                    self._close(one, time, given_up=not one.phase == phase == Phase.STEP)
            self._opened.append(_Opened(phase, name, mine, self._begin(phase, name, time)))

    def end(self, phase: str, name: str | int = "", time: int | None = None) -> bool:
        """A phase ends; with the job everything does. Returns whether it had started; else nothing is done."""
        mine = threading.get_ident()
        with self._lock:
            matches = [one for one in self._opened if (one.phase, one.name) == (phase, name)]
            if not matches:
                self.unmatched += 1
                return False
            last = next((one for one in reversed(matches) if one.thread == mine), matches[-1])
            for one in reversed(tuple(self._opened)) if phase == Phase.JOB else ():
                if one is not last:
                    self._close(one, time, given_up=one.phase != Phase.STEP)
            self._close(last, time, given_up=False)
            return True

    def _close(self, one: _Opened[P], time: int | None, *, given_up: bool) -> None:
        self._opened.remove(one)
        self._end(one.stands, time, given_up)

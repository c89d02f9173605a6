"""Which spans of an attempt have not reached the exporters, as far as its journal tells."""

from __future__ import annotations

from collections import deque
from typing import Any, Final, NamedTuple

from otel_goodput.accounting import events as ev
from otel_goodput.accounting import rules
from otel_goodput.records import EXPORT, EXPORTED, NAME, PARENT, TRACE, Record, unsigned
from otel_goodput.sampling import Summary, Thinner

MOMENTS: Final = 1_000_000_000  # ns
REMEMBERED: Final = 4096  # ended spans; the exporters' queues hold fewer


class SpanEntry(NamedTuple):
    """A span as the journal has it: `end` is None while it is open; `parent` and `trace` 0 where they are the job's."""

    key: int
    phase: int
    name: str
    step: int
    flags: int
    start: int
    parent: int = 0
    trace: int = 0
    end: int | None = None
    end_flags: int = 0


class SpanBook:
    """Follows one attempt's records; says what a restart has to export in its place.

    Attributes:
        last_sign: latest timestamp that the attempt left, ns.
        summaries: stretches of thinned steps not known to have been exported.
    """

    def __init__(self) -> None:
        self.last_sign = 0
        self.summaries: list[Summary] = []
        self._open: dict[int, SpanEntry] = {}
        self._ended: deque[SpanEntry] = deque()
        self._first = 1  # place of the first of them among all spans that ended
        self._places: dict[int, int] = {}
        self._reached: dict[int, int] = {}  # outlet -> place up to which it has exported
        self._thinner = Thinner()

    def take(self, record: Record) -> None:
        """The next record of the attempt."""
        kind, phase, flags, name, key, step, time = record
        if kind < NAME and time > self.last_sign:
            self.last_sign = time
        if kind == ev.START:
            self._open[key] = SpanEntry(key, phase, name, step, flags, time)
            if phase == rules.SAVE:
                self._thinner.cut()
        elif kind == ev.END:
            opened = self._open.pop(key, None)
            if opened is None:
                return
            if flags & EXPORT:
                self._places[key] = self._first + len(self._ended)
                self._ended.append(opened._replace(end=time, end_flags=flags))
                if len(self._ended) > REMEMBERED:
                    self._drop()
            elif opened.phase == rules.STEP:
                self._thinner.add(opened.step, opened.start, time)
        elif kind == PARENT and key in self._open:
            self._open[key] = self._open[key]._replace(parent=unsigned(step))
        elif kind == TRACE and key in self._open:
            self._open[key] = self._open[key]._replace(trace=unsigned(step) << 64 | unsigned(time))
        elif kind == EXPORTED:
            self._reached[phase] = max(self._reached.get(phase, 0), self._places.get(key, 0))
            self._forget()

    def _forget(self) -> None:
        """Drop what every outlet has exported."""
        self.summaries += self._thinner.summaries()
        common = min(self._reached.values())
        while self._ended and self._first <= common:
            done = self._drop()
            # A summary is handed over within moments of its last step.
            while self.summaries and self.summaries[0].end + MOMENTS < (done.end or 0):
                self.summaries.pop(0)

    def _drop(self) -> SpanEntry:
        done = self._ended.popleft()
        self._first += 1
        self._places.pop(done.key, None)
        return done

    def unexported(self) -> list[SpanEntry]:
        """Spans that ended and may not have been exported, in the order of their ends."""
        return list(self._ended)

    def open(self) -> list[SpanEntry]:
        """Spans that never ended and belong into the trace: of steps, also one that was not sampled, for it failed."""
        return list(self._open.values())

    def rest(self) -> list[Summary]:
        """Stretches of thinned steps that may not have been exported, the last one included."""
        return self.summaries + self._thinner.summaries(final=True)

    def to_state(self) -> dict[str, Any]:
        return {
            "last_sign": self.last_sign,
            "open": [list(entry) for entry in self._open.values()],
            "ended": [list(entry) for entry in self._ended],
            "first": self._first,
            "reached": list(self._reached.items()),
            "thinned": self._thinner.held(),
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> SpanBook:
        book = cls()
        book.last_sign = state["last_sign"]
        for fields in state["open"]:
            entry = SpanEntry(*fields)
            book._open[entry.key] = entry
        book._ended.extend(SpanEntry(*fields) for fields in state["ended"])
        book._first = state["first"]
        book._places = {entry.key: place for place, entry in enumerate(book._ended, book._first)}
        book._reached = dict(state["reached"])
        for number, start, end in state["thinned"]:
            book._thinner.add(number, start, end)
        return book

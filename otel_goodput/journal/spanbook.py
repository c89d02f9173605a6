"""Which spans of an attempt have not reached the exporters, as far as its journal tells."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from otel_goodput.accounting import events as ev
from otel_goodput.accounting import rules
from otel_goodput.journal.records import EXPORT, EXPORTED, NAME, OWN_TRACES, PARENT, RECORD, TRACE, Record, unsigned
from otel_goodput.journal.thinning import SUMMARY, Summary, Thinner

MOMENTS: Final = 1_000_000_000  # ns
ATTEMPTS: Final = 16  # whose debts are remembered
REMEMBERED: Final = 4096  # ended spans, and summaries; the exporters' queues hold fewer

# A SpanEntry without the call of its constructor: this is done for every record.
_entry = tuple.__new__


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


class Debt:
    """What a dead attempt owes the exporters, in the order in which it is to be exported: the job last.

    Attributes:
        attempt: its number.
        last_sign: latest timestamp that it left, ns; what was open ended then.
        own_traces: its steps have traces of their own.
        spans: the spans.
        summaries: the stretches of thinned steps.
    """

    def __init__(
        self, attempt: int, last_sign: int, own_traces: bool, spans: list[SpanEntry], summaries: list[Summary]
    ) -> None:
        self.attempt = attempt
        self.last_sign = last_sign
        self.own_traces = own_traces
        self.spans = spans
        self.summaries = summaries
        self.places = {entry.key: place for place, entry in enumerate(spans, 1)}
        self.reached: dict[int, int] = {}  # outlet -> how many have left through it

    def paid(self, outlets: Iterable[int]) -> bool:
        """Whether every one of `outlets` has exported everything."""
        return all(self.reached.get(outlet, 0) >= len(self.spans) for outlet in outlets)

    def to_state(self) -> list[Any]:
        return [self.attempt, self.last_sign, self.own_traces, self.spans, self.summaries, list(self.reached.items())]

    @classmethod
    def from_state(cls, state: list[Any]) -> Debt:
        attempt, last_sign, own_traces, spans, summaries, reached = state
        debt = cls(
            attempt,
            last_sign,
            own_traces,
            [SpanEntry(*entry) for entry in spans],
            [Summary(*summary) for summary in summaries],
        )
        debt.reached = dict(reached)
        return debt


class SpanBook:
    """Follows one attempt's records; says what a restart has to export in its place.

    Attributes:
        attempt: its number.
        last_sign: latest timestamp that the attempt left, ns.
        summaries: stretches of thinned steps not known to have been exported.
        debts: what attempts before it still owe.
    """

    def __init__(self, attempt: int = -1, debts: Sequence[Debt] = ()) -> None:
        self.attempt = attempt
        self.debts = list(debts)
        self.own_traces = False
        self.last_sign = 0
        self.summaries: list[Summary] = []
        self._open: dict[int, SpanEntry] = {}
        self._ended: deque[SpanEntry] = deque()
        self._first = 1  # place of the first of them among all spans that ended
        self._places: dict[int, int] = {}
        self._reached: dict[int, int] = {}  # outlet -> place up to which it has exported
        self._thinner = Thinner()
        self._thinned = 0  # steps since the last look for summaries

    def take(self, record: Record) -> None:
        """The next record of the attempt."""
        kind, phase, flags, name, key, step, time = record
        if kind < NAME and time > self.last_sign:
            self.last_sign = time
        if kind == ev.START:
            parent = self._step(step) if phase == rules.COMPILE and step >= 0 else 0
            self._open[key] = SpanEntry(key, phase, name, step, flags, time, parent)
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
                self._thin(opened, time)
        elif kind == PARENT and key in self._open:
            self._open[key] = self._open[key]._replace(parent=unsigned(step))
        elif kind == TRACE and key in self._open:
            self._open[key] = self._open[key]._replace(trace=unsigned(step) << 64 | unsigned(time))
        elif kind == EXPORTED:
            self._reached[phase] = max(self._reached.get(phase, 0), self._places.get(key, 0))
            self._forget()
            for debt in self.debts:
                debt.reached[phase] = max(debt.reached.get(phase, 0), debt.places.get(key, 0))
            self.debts = [debt for debt in self.debts if not debt.paid(self._reached)]
        elif kind == ev.ATTEMPT:
            self.own_traces = bool(flags & OWN_TRACES)

    def _step(self, number: int) -> int:
        """The key of the open step of that number; 0 where there is none."""
        opened = reversed(self._open.values())
        return next((entry.key for entry in opened if entry.phase == rules.STEP and entry.step == number), 0)

    def _sum_up(self) -> None:
        """Where nothing is ever exported, no EXPORTED comes: what is held must not grow with the run."""
        self._thinned = 0
        self.summaries += self._thinner.summaries()
        del self.summaries[:-REMEMBERED]

    def follow(self, data: memoryview, names: Sequence[str]) -> None:
        """As :meth:`take` for all records in `data`: our own, from memory, so that none needs a check."""
        opened, last = self._open, self.last_sign
        for kind, phase, flags, name, key, step, time, _ in RECORD.iter_unpack(data):
            if kind == ev.START and (phase == rules.STEP or phase == rules.DATA_LOADING):
                opened[key] = _entry(SpanEntry, (key, phase, "", step, flags, time, 0, 0, None, 0))
            elif kind == ev.END and not flags & EXPORT:
                entry = opened.pop(key, None)
                if entry is not None and entry.phase == rules.STEP:
                    self._thin(entry, time)
            else:
                if kind and kind != NAME:
                    self.take(Record(kind, phase, flags, names[name], key, step, time))
                continue
            if time > last:
                last = time
        self.last_sign = max(last, self.last_sign)

    def _thin(self, entry: SpanEntry, end: int) -> None:
        self._thinner.add(entry.step, entry.start, end)
        self._thinned += 1
        if self._thinned >= SUMMARY:
            self._sum_up()

    def _forget(self) -> None:
        """Drop what every outlet has exported."""
        self._sum_up()
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

    def successor(self, attempt: int) -> SpanBook:
        """The book of the next attempt; what this one still owes is a debt there."""
        debts = self.debts
        spans = [*self._ended, *reversed(self._open.values())]
        if self.attempt >= 0 and spans:
            summaries = self.summaries + self._thinner.summaries(final=True)
            debts = [*debts, Debt(self.attempt, self.last_sign, self.own_traces, spans, summaries)]
        return SpanBook(attempt, debts[-ATTEMPTS:])

    @property
    def unexported(self) -> int:
        """How many of the attempt's ended spans, as far as they are remembered, are not known to have been exported."""
        return len(self._ended)

    def to_state(self) -> dict[str, Any]:
        return {
            "attempt": self.attempt,
            "debts": [debt.to_state() for debt in self.debts],
            "own_traces": self.own_traces,
            "last_sign": self.last_sign,
            "open": [list(entry) for entry in self._open.values()],
            "ended": [list(entry) for entry in self._ended],
            "first": self._first,
            "reached": list(self._reached.items()),
            "summaries": [list(summary) for summary in self.summaries],
            "thinned": self._thinner.held(),
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> SpanBook:
        book = cls(state["attempt"], [Debt.from_state(debt) for debt in state["debts"]])
        book.own_traces = state["own_traces"]
        book.last_sign = state["last_sign"]
        for fields in state["open"]:
            entry = SpanEntry(*fields)
            book._open[entry.key] = entry
        book._ended.extend(SpanEntry(*fields) for fields in state["ended"])
        book._first = state["first"]
        book._places = {entry.key: place for place, entry in enumerate(book._ended, book._first)}
        book._reached = dict(state["reached"])
        book.summaries = [Summary(*summary) for summary in state.get("summaries", ())]
        for number, start, end in state["thinned"]:
            book._thinner.add(number, start, end)
        return book

"""Which spans of an attempt have not reached the exporters, as far as its journal tells."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import Any, Final

from otel_goodput.accounting import events as ev
from otel_goodput.accounting import rules
from otel_goodput.journal.records import (
    CONTINUED,
    DETAILED,
    EXPORT,
    EXPORTED,
    FLOOD,
    HALF,
    MOST_TOLD,
    NAME,
    OWN_TRACES,
    PARENT,
    RECORD,
    ROOT,
    SUMMED,
    TRACE,
    Record,
    unsigned,
)
from otel_goodput.journal.thinning import SUMMARY, Summary, Thinner
from otel_goodput.journal.unexported import ENDLESS, NO_PHASE, SpanEntry, Unexported
from otel_goodput.semconv import PHASES

MOMENTS: Final = 1_000_000_000  # ns
ATTEMPTS: Final = 16  # whose unexported spans are remembered
OPEN: Final = 4  # of what was not to be exported when it began, and is for it is interrupted; of a small share 1
REMEMBERED: Final = 4096  # ended spans, and summaries; the exporters' queues hold fewer



def _integer(found: object, bits: int) -> None:
    if not isinstance(found, int) or not -(1 << bits) <= found < 1 << bits:
        raise ValueError(f"{found!r} in the place of an integer")


# A SpanEntry without the call of its constructor: this is done for every record.
_entry = tuple.__new__


class SpanIndex:
    """Follows one attempt's records; says what a restart has to export in its place.

    Attributes:
        attempt: its number.
        last_sign: latest timestamp that the attempt left, ns.
        summaries: stretches of thinned steps not known to have been exported.
        floods: names, and stretches of other phases that are left out for there are too many of them, likewise.
        unexported: what attempts before it did not export.
    """

    def __init__(self, attempt: int = -1, unexported: Sequence[Unexported] = ()) -> None:
        self.attempt = attempt
        self.unexported = list(unexported)
        self.own_traces = False
        self.rooted = False
        self.steps, self.share, self.group = ENDLESS, ENDLESS, 0
        self._cuts = True  # a summary of steps ends where a checkpoint is saved
        self.last_sign = 0
        self.summaries: list[Summary] = []
        self._open: dict[int, SpanEntry] = {}
        self._ended: deque[SpanEntry] = deque()
        self._first = 1  # place of the first of them among all spans that ended
        self._places: dict[int, int] = {}
        self._reached: dict[int, int] = {}  # exporter -> place up to which it has exported
        self.floods: list[tuple[str, Summary]] = []
        self._summed: dict[tuple[int, str], int] = {}  # exporter, name -> ns up to which it has exported summaries
        self._thinner = Thinner()
        self._thinners: dict[str, Thinner] = {}  # of other phases, by name
        self._thinned = 0  # since the last look for summaries

    def take(self, record: Record) -> None:
        """The next record of the attempt."""
        kind, phase, flags, name, key, step, time = record
        if kind < NAME and time > self.last_sign:
            self.last_sign = time
        if kind == ev.START:
            parent = self._step(step) if phase == rules.COMPILE and step >= 0 else 0
            self._open[key] = SpanEntry(key, phase, name, step, flags, time, parent)
            if phase == rules.SAVE and flags & EXPORT and self._cuts:
                self._thinner.cut()
        elif kind == ev.END:
            opened = self._open.pop(key, None)
            if opened is None:
                return
            if flags & EXPORT:
                self._end(opened._replace(end=time, end_flags=flags))
            elif opened.phase == rules.STEP:
                self._thin(opened, time)
            elif flags & FLOOD:
                self._leave_out(name or opened.name or PHASES[opened.phase], opened.start, time)
        elif kind == PARENT and key in self._open:
            self._open[key] = self._open[key]._replace(parent=unsigned(step))
        elif kind == TRACE and key in self._open:
            self._open[key] = self._open[key]._replace(trace=unsigned(step) << 64 | unsigned(time))
        elif kind == EXPORTED and flags & SUMMED:
            self._sum_up()
            theirs = [left.summed for left in self.unexported if left.attempt == key]
            for summed in [self._summed] if key == self.attempt else theirs:
                summed[phase, name] = max(summed.get((phase, name), 0), time)
            self.summaries = self._unsummed(self.summaries)
            self.floods = self._unsummed_floods(self.floods)
        elif kind == EXPORTED:
            self._reached[phase] = max(self._reached.get(phase, 0), self._places.get(key, 0))
            self._forget()
            for left in self.unexported:
                left.reached[phase] = max(left.reached.get(phase, 0), left.places.get(key, 0))
            self.unexported = [left for left in self.unexported if not left.exported_by(self._reached)]
        elif kind == ROOT and not self.rooted:
            self.rooted = True
            self._end(SpanEntry(key, NO_PHASE, "", step, flags, time, end=time))
        elif kind == CONTINUED and phase == 0:
            self.steps, self.share, self._cuts = max(1, key), flags & MOST_TOLD, bool(flags & DETAILED)
            self.group, most = divmod(step, HALF)
            self._thinner = Thinner(max(1, most), self.steps)
        elif kind == CONTINUED:
            before, number = divmod(step, HALF)
            self._end(SpanEntry(key, NO_PHASE, "", number, flags, time, parent=before, end=time))
        elif kind == ev.ATTEMPT:
            self.own_traces = bool(flags & OWN_TRACES)

    def _end(self, entry: SpanEntry) -> None:
        self._places[entry.key] = self._first + len(self._ended)
        self._ended.append(entry)
        if len(self._ended) > REMEMBERED:
            self._drop()

    def _step(self, number: int) -> int:
        """The key of the open step of that number; 0 where there is none."""
        opened = reversed(self._open.values())
        return next((entry.key for entry in opened if entry.phase == rules.STEP and entry.step == number), 0)

    def _unsummed(self, summaries: list[Summary], name: str = "") -> list[Summary]:
        """Those that not every exporter has exported."""
        common = min((self._summed.get((exporter, name), 0) for exporter in self._reached), default=0)
        return [summary for summary in summaries if summary.end > common]

    def _unsummed_floods(self, floods: list[tuple[str, Summary]]) -> list[tuple[str, Summary]]:
        return [(name, summary) for name, summary in floods if self._unsummed([summary], name)]

    def _sum_up(self) -> None:
        """Where nothing is ever exported, no EXPORTED comes: what is held must not grow with the run."""
        self._thinned = 0
        self.summaries += self._thinner.summaries()
        del self.summaries[:-REMEMBERED]
        for name, thinner in self._thinners.items():
            self.floods += [(name, summary) for summary in thinner.summaries()]
        del self.floods[:-REMEMBERED]

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
                elif entry is not None and flags & FLOOD:
                    self._leave_out(names[name] or entry.name or PHASES[entry.phase], entry.start, time)
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

    def _leave_out(self, name: str, start: int, end: int) -> None:
        thinner = self._thinners.get(name)
        if thinner is None:
            thinner = self._thinners[name] = Thinner()
        thinner.add(0, start, end)
        self._thinned += 1
        if self._thinned >= SUMMARY:
            self._sum_up()

    def _forget(self) -> None:
        """Drop what every exporter has exported."""
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

    def successor(self, attempt: int) -> SpanIndex:
        """The index of the next attempt; what this one did not export is unexported there."""
        unexported = self.unexported
        spans = [*self._ended, *self._interrupted()]
        if self.attempt >= 0 and spans:
            # Of copies: whoever asks twice is told the same.
            summaries = self._unsummed(self.summaries + deepcopy(self._thinner).summaries(final=True))
            floods = list(self.floods)
            for name, thinner in deepcopy(self._thinners).items():
                floods += [(name, summary) for summary in thinner.summaries(final=True)]
            left = Unexported(self.attempt, self.last_sign, self.own_traces, spans, summaries, self.rooted)
            left.floods, left.summed = self._unsummed_floods(floods), dict(self._summed)
            left.steps, left.share, left.group = self.steps, self.share, self.group
            before = self._first - 1
            left.reached = {exporter: max(0, place - before) for exporter, place in self._reached.items()}
            unexported = [*unexported, left]
        return SpanIndex(attempt, unexported[-ATTEMPTS:])

    def _interrupted(self) -> list[SpanEntry]:
        """What was open, innermost first, as far as the trace has room for it."""
        left = 1 if self.share < OPEN else OPEN
        found = []
        for entry in reversed(self._open.values()):
            if not entry.flags & EXPORT:
                if not left or entry.phase == rules.JOB:
                    continue
                left -= 1
            found.append(entry)
        return found

    @property
    def opened(self) -> Iterable[SpanEntry]:
        """The spans that are open."""
        return self._open.values()

    def prove(self) -> None:
        """See that all of it is of the form that it should be. Raises ValueError or TypeError where it is not."""
        entries = [*self._open.values(), *self._ended, *(entry for left in self.unexported for entry in left.spans)]
        for entry in entries:
            for number in (*entry[:2], *entry[3:8], entry.end_flags, entry.end or 0):
                _integer(number, 128)
            if not isinstance(entry.name, str) or not NO_PHASE <= entry.phase < len(PHASES):
                raise ValueError("it has a span that is none")
        floods = [*self.floods, *(flood for left in self.unexported for flood in left.floods)]
        if not all(isinstance(name, str) for name in (*self._thinners, *(name for name, _ in floods))):
            raise ValueError("it has a name that is none")
        thinners = (self._thinner, *self._thinners.values())
        for summary in (
            *self.summaries,
            *(summary for left in self.unexported for summary in left.summaries),
            *(summary for _, summary in floods),
        ):
            for number in summary:
                _integer(number, 63)
        sizes = [self._thinner.most, self.steps, *(left.steps for left in self.unexported)]
        for number in (
            *(left.attempt for left in self.unexported), *(left.last_sign for left in self.unexported), self.attempt,
            self.last_sign, self._first, *self._reached, *self._reached.values(),
            *sizes, self.share, *(left.share for left in self.unexported),
            self.group, *(left.group for left in self.unexported),
            *(number for thinner in thinners for held in thinner.held() for number in held),
            *(number for summed in (self._summed, *(left.summed for left in self.unexported))
              for (exporter, _), end in summed.items() for number in (exporter, end)),
        ):  # fmt: skip
            _integer(number, 63)
        if min(sizes) < 1:
            raise ValueError("it has a trace that holds nothing")

    @property
    def own_unexported(self) -> int:
        """How many of the attempt's ended spans, as far as they are remembered, are not known to have been exported."""
        return len(self._ended)

    @property
    def all_unexported(self) -> int:
        """As :attr:`unexported`, with what the attempts before it did not export."""
        return self.own_unexported + sum(
            len(left.spans) - min((left.reached.get(exporter, 0) for exporter in self._reached), default=0)
            for left in self.unexported
        )

    def to_state(self) -> dict[str, Any]:
        return {
            "attempt": self.attempt,
            "debts": [left.to_state() for left in self.unexported],
            "own_traces": self.own_traces,
            "rooted": self.rooted,
            "bounds": [self.steps, self.share, self.group, self._thinner.most, self._cuts],
            "last_sign": self.last_sign,
            "open": [list(entry) for entry in self._open.values()],
            "ended": [list(entry) for entry in self._ended],
            "first": self._first,
            "reached": list(self._reached.items()),
            "summed": [(*whose, end) for whose, end in self._summed.items()],
            "summaries": [list(summary) for summary in self.summaries],
            "thinned": self._thinner.held(),
            "floods": [[name, list(summary)] for name, summary in self.floods],
            "left_out": {name: thinner.held() for name, thinner in self._thinners.items()},
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> SpanIndex:
        index = cls(state["attempt"], [Unexported.from_state(left) for left in state["debts"]])
        index.own_traces = state["own_traces"]
        index.rooted = state.get("rooted", False)
        if "bounds" in state:
            index.steps, index.share, index.group, most, index._cuts = state["bounds"]
            index._thinner = Thinner(most, index.steps)
        index.last_sign = state["last_sign"]
        for fields in state["open"]:
            entry = SpanEntry(*fields)
            index._open[entry.key] = entry
        index._ended.extend(SpanEntry(*fields) for fields in state["ended"])
        index._first = state["first"]
        index._places = {entry.key: place for place, entry in enumerate(index._ended, index._first)}
        index._reached = dict(state["reached"])
        index._summed = {(exporter, name): end for exporter, name, end in state.get("summed", ())}
        index.summaries = [Summary(*summary) for summary in state.get("summaries", ())]
        for number, start, end in state["thinned"]:
            index._thinner.add(number, start, end)
        index.floods = [(name, Summary(*summary)) for name, summary in state.get("floods", ())]
        for name, held in state.get("left_out", {}).items():
            thinner = index._thinners[name] = Thinner()
            for number, start, end in held:
                thinner.add(number, start, end)
        return index

"""Tracks, from the journal's records, which spans of an attempt have not been exported."""

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
    HALF,
    LOADING,
    MOST_TOLD,
    NAME,
    OWN_TRACES,
    PARENT,
    RECORD,
    ROOT,
    STEPPING,
    SUMMARIZED,
    SUMMED,
    TRACE,
    Record,
    following,
    foreign,
    unsigned,
)
from otel_goodput.journal.thinning import SUMMARY, Summary, Thinner
from otel_goodput.journal.unexported import ENDLESS, NO_PHASE, SpanEntry, Unexported
from otel_goodput.semconv import PHASES

MOMENTS: Final = 1_000_000_000  # ns
ATTEMPTS: Final = 16  # number of attempts whose unexported spans are remembered
OPEN: Final = 4  # unsampled spans exported because they were interrupted; 1 if the share of a trace is small
REMEMBERED: Final = 4096  # ended spans, and summaries, that are remembered; the exporters' queues hold fewer


def _integer(found: object, bits: int) -> None:
    if not isinstance(found, int) or not -(1 << bits) <= found < 1 << bits:
        raise ValueError(f"{found!r} instead of an integer")


# Makes a SpanEntry without calling its constructor, because this runs for every record.
_entry = tuple.__new__


class SpanIndex:
    """Follows the records of one attempt, so that a restart can export the spans that the attempt did not.

    Attributes:
        attempt: number of the attempt.
        last_sign: latest timestamp of the attempt, ns.
        summaries: summaries of unsampled steps that are not known to be exported.
        phase_summaries: (name, summary) of other phases, left out because there are too many; not known to be exported.
        unexported: what earlier attempts did not export.
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
        self._first = 1  # number of the first of them, counted from 1 over all ended spans
        self._places: dict[int, int] = {}
        self._reached: dict[int, int] = {}  # exporter -> number of the last ended span that it has exported
        self.phase_summaries: list[tuple[str, Summary]] = []
        self._summed: dict[tuple[int, str], int] = {}  # exporter, name -> ns; summaries that end by then are exported
        self._thinner = Thinner()
        self._thinners: dict[str, Thinner] = {}  # for other phases, by name
        self._thinned = 0  # spans since summaries were last made

    def take(self, record: Record) -> None:
        """Take the next record of the attempt."""
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
            elif flags & SUMMARIZED:
                self._leave_out(name or opened.name or PHASES[opened.phase], opened.start, time)
        elif kind == PARENT and key in self._open:
            self._open[key] = self._open[key]._replace(parent=unsigned(step))
        elif kind == TRACE and key in self._open:
            self._open[key] = self._open[key]._replace(trace=foreign(step, time))
        elif kind == EXPORTED and flags & SUMMED:
            self._sum_up()
            theirs = [left.summed for left in self.unexported if left.attempt == key]
            for summed in [self._summed] if key == self.attempt else theirs:
                summed[phase, name] = max(summed.get((phase, name), 0), time)
            self.summaries = self._unsummed(self.summaries)
            self.phase_summaries = self._unsummed_phases(self.phase_summaries)
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
        """The key of the open step with this number; 0 if there is none."""
        opened = reversed(self._open.values())
        return next((entry.key for entry in opened if entry.phase == rules.STEP and entry.step == number), 0)

    def _unsummed(self, summaries: list[Summary], name: str = "") -> list[Summary]:
        """The summaries that not every exporter has exported."""
        common = min((self._summed.get((exporter, name), 0) for exporter in self._reached), default=0)
        return [summary for summary in summaries if summary.end > common]

    def _unsummed_phases(self, phase_summaries: list[tuple[str, Summary]]) -> list[tuple[str, Summary]]:
        return [(name, summary) for name, summary in phase_summaries if self._unsummed([summary], name)]

    def _sum_up(self) -> None:
        """Make summaries and bound their number: without exporters, no EXPORTED record ever removes them."""
        self._thinned = 0
        self.summaries += self._thinner.summaries()
        del self.summaries[:-REMEMBERED]
        for name, thinner in self._thinners.items():
            self.phase_summaries += [(name, summary) for summary in thinner.summaries()]
        del self.phase_summaries[:-REMEMBERED]

    def follow(self, data: memoryview, names: Sequence[str]) -> None:
        """Take all records in `data`. They are this process's own, from memory, so checksums are not verified."""
        opened, last = self._open, self.last_sign
        for kind, phase, flags, name, key, step, time, _ in RECORD.iter_unpack(data):
            if kind == ev.START and (phase == rules.STEP or phase == rules.DATA_LOADING):
                opened[key] = _entry(SpanEntry, (key, phase, "", step, flags, time, 0, 0, None, 0))
            elif kind == ev.END and not flags & EXPORT:
                entry = opened.pop(key, None)
                if entry is not None and entry.phase == rules.STEP:
                    self._thin(entry, time)
                elif entry is not None and flags & SUMMARIZED:
                    self._leave_out(names[name] or entry.name or PHASES[entry.phase], entry.start, time)
            elif kind in (LOADING, STEPPING):
                entry = opened.pop(key, None)
                if entry is not None:
                    if flags & EXPORT:
                        self._end(entry._replace(end=time, end_flags=flags))
                    elif kind == LOADING:
                        self._thin(entry, time)
                begun, export = following(key), EXPORT if phase else 0
                which = rules.DATA_LOADING if kind == LOADING else rules.STEP
                opened[begun] = _entry(SpanEntry, (begun, which, "", step, export, time, 0, 0, None, 0))
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
        """Drop the spans that every exporter has exported."""
        self._sum_up()
        common = min(self._reached.values())
        while self._ended and self._first <= common:
            done = self._drop()
            # A summary is exported within a second of its last step.
            while self.summaries and self.summaries[0].end + MOMENTS < (done.end or 0):
                self.summaries.pop(0)

    def _drop(self) -> SpanEntry:
        done = self._ended.popleft()
        self._first += 1
        self._places.pop(done.key, None)
        return done

    def successor(self, attempt: int) -> SpanIndex:
        """Return the index for the next attempt. What this one did not export is in its `unexported`."""
        unexported = self.unexported
        spans = [*self._ended, *self._interrupted()]
        if self.attempt >= 0 and spans:
            # On copies, so that a second call returns the same.
            summaries = self._unsummed(self.summaries + deepcopy(self._thinner).summaries(final=True))
            phase_summaries = list(self.phase_summaries)
            for name, thinner in deepcopy(self._thinners).items():
                phase_summaries += [(name, summary) for summary in thinner.summaries(final=True)]
            left = Unexported(self.attempt, self.last_sign, self.own_traces, spans, summaries)
            left.phase_summaries, left.summed = self._unsummed_phases(phase_summaries), dict(self._summed)
            left.steps, left.share, left.group = self.steps, self.share, self.group
            before = self._first - 1
            left.reached = {exporter: max(0, place - before) for exporter, place in self._reached.items()}
            unexported = [*unexported, left]
        return SpanIndex(attempt, unexported[-ATTEMPTS:])

    def _interrupted(self) -> list[SpanEntry]:
        """The spans that were open, innermost first, as far as the trace has room for them."""
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
        """Check that the whole index is well-formed. Raises ValueError or TypeError if it is not."""
        entries = [*self._open.values(), *self._ended, *(entry for left in self.unexported for entry in left.spans)]
        for entry in entries:
            for number in (*entry[:2], *entry[3:8], entry.end_flags, entry.end or 0):
                _integer(number, 128)
            if not isinstance(entry.name, str) or not NO_PHASE <= entry.phase < len(PHASES):
                raise ValueError("it has an invalid span")
        phase_summaries = [
            *self.phase_summaries,
            *(one for left in self.unexported for one in left.phase_summaries),
        ]
        if not all(isinstance(name, str) for name in (*self._thinners, *(name for name, _ in phase_summaries))):
            raise ValueError("it has an invalid name")
        thinners = (self._thinner, *self._thinners.values())
        for summary in (
            *self.summaries,
            *(summary for left in self.unexported for summary in left.summaries),
            *(summary for _, summary in phase_summaries),
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
            raise ValueError("it has an empty trace")

    @property
    def own_unexported(self) -> int:
        """Number of remembered ended spans of this attempt that are not known to be exported."""
        return len(self._ended)

    @property
    def all_unexported(self) -> int:
        """As :attr:`own_unexported`, plus the spans that earlier attempts did not export."""
        return self.own_unexported + sum(
            len(left.spans) - min((left.reached.get(exporter, 0) for exporter in self._reached), default=0)
            for left in self.unexported
        )

    def to_state(self) -> dict[str, Any]:
        return {
            "attempt": self.attempt,
            "earlier_attempts": [left.to_state() for left in self.unexported],
            "own_traces": self.own_traces,
            "has_root": self.rooted,
            "steps_per_trace": self.steps,
            "spans_per_trace": self.share,
            "process_group": self.group,
            "steps_per_summary": self._thinner.most,
            "summaries_end_at_saves": self._cuts,
            "last_sign": self.last_sign,
            "open_spans": [list(entry) for entry in self._open.values()],
            "ended_spans": [list(entry) for entry in self._ended],
            "first_ended": self._first,
            "exported_spans": list(self._reached.items()),
            "exported_summaries": [(*whose, end) for whose, end in self._summed.items()],
            "step_summaries": [list(summary) for summary in self.summaries],
            "unsampled_steps": self._thinner.held(),
            "phase_summaries": [[name, list(summary)] for name, summary in self.phase_summaries],
            "unsampled_phases": {name: thinner.held() for name, thinner in self._thinners.items()},
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> SpanIndex:
        index = cls(state["attempt"], [Unexported.from_state(left) for left in state["earlier_attempts"]])
        index.own_traces = state["own_traces"]
        index.rooted = state["has_root"]
        index.steps, index.share, index.group = (
            state["steps_per_trace"],
            state["spans_per_trace"],
            state["process_group"],
        )
        index._thinner, index._cuts = Thinner(state["steps_per_summary"], index.steps), state["summaries_end_at_saves"]
        index.last_sign = state["last_sign"]
        for fields in state["open_spans"]:
            entry = SpanEntry(*fields)
            index._open[entry.key] = entry
        index._ended.extend(SpanEntry(*fields) for fields in state["ended_spans"])
        index._first = state["first_ended"]
        index._places = {entry.key: place for place, entry in enumerate(index._ended, index._first)}
        index._reached = dict(state["exported_spans"])
        index._summed = {(exporter, name): end for exporter, name, end in state["exported_summaries"]}
        index.summaries = [Summary(*summary) for summary in state["step_summaries"]]
        for number, start, end in state["unsampled_steps"]:
            index._thinner.add(number, start, end)
        index.phase_summaries = [(name, Summary(*summary)) for name, summary in state["phase_summaries"]]
        for name, held in state["unsampled_phases"].items():
            thinner = index._thinners[name] = Thinner()
            for number, start, end in held:
                thinner.add(number, start, end)
        return index

"""Tracks, from the journal's records, which spans of an attempt have not been exported."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from otel_goodput._accounting import codec, rules
from otel_goodput._accounting import events as ev
from otel_goodput._accounting.codec import FLAG, KEY, NUMBER, TEXT, Each, Pairs, Part, Row, State, Whole, field
from otel_goodput._accounting.events import KEYS, following
from otel_goodput._accounting.phase_history import Phases
from otel_goodput._journal import records
from otel_goodput._journal.records import EXPORT, LOAD, LOADING, NAME, STEPPING, TURN, TURN_STRIDE
from otel_goodput._journal.thinning import SUMMARY, SUMMARY_ENTRY, Summary, Thinner
from otel_goodput.semconv import PHASES

MOMENTS: Final = 1_000_000_000  # ns
ATTEMPTS: Final = 16  # number of attempts whose unexported spans are remembered
OPEN: Final = 4  # unsampled spans exported because they were interrupted; 1 if the share of a trace is small
REMEMBERED: Final = 4096  # ended spans, and summaries, that are remembered; the exporters' queues hold fewer


# Phase of an entry that is the root of a trace: number `step`, after trace number `parent`.
NO_PHASE: Final = -1
ENDLESS: Final = 1 << 62


class SpanEntry(NamedTuple):
    """A span in the journal. `end` is None while it is open; `parent` and `trace` are 0 if they are the job's."""

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


_WIDE: Final = Whole(-(1 << 128), 1 << 128)  # trace ids have 128 bits
SPAN_ENTRY: Final = Row(
    _WIDE, Whole(NO_PHASE, len(PHASES)), TEXT, *[_WIDE] * 5, codec.Optional(_WIDE), _WIDE, make=SpanEntry._make
)
REACHED: Final = Pairs(NUMBER, NUMBER)  # by exporter
SUMMED_BY: Final = Pairs(Row(NUMBER, TEXT), NUMBER)  # by exporter and name
PHASE_SUMMARIES: Final = Each(Row(TEXT, SUMMARY_ENTRY))


class Unexported(State):
    """What a dead attempt did not export, in the order in which to export it: the job last."""

    attempt: int = field(NUMBER)
    last_sign: int = field(NUMBER)  # its latest timestamp, ns; spans that were open get it as their end
    own_traces: bool = field(FLAG)  # each step has a trace of its own
    steps: int = field(Whole(1), ENDLESS, key="steps_per_trace")
    share: int = field(NUMBER, ENDLESS, key="spans_per_trace")  # spans of this process that fit into one trace
    spans: list[SpanEntry] = field(Each(SPAN_ENTRY), make=list)
    summaries: list[Summary] = field(Each(SUMMARY_ENTRY), make=list, key="step_summaries")
    # Name and summary of other phases that were left out.
    phase_summaries: list[tuple[str, Summary]] = field(PHASE_SUMMARIES, make=list)
    # By exporter, how many of the spans it has exported.
    reached: dict[int, int] = field(REACHED, make=dict, key="exported_spans")
    # By exporter and name (empty for steps), the time (ns) up to which summaries are exported.
    summed: dict[tuple[int, str], int] = field(SUMMED_BY, make=dict, key="exported_summaries")

    def __init__(self, **fields: Any) -> None:
        super().__init__()
        self.__dict__.update(fields)
        self.loaded()

    def loaded(self) -> None:
        self.places = {entry.key: place for place, entry in enumerate(self.spans, 1)}

    def exported_by(self, exporters: Iterable[int]) -> bool:
        """Whether every one of `exporters` has exported everything."""
        return all(self.reached.get(exporter, 0) >= len(self.spans) for exporter in exporters)

    def summed_by(self, summary: Summary, name: str = "") -> frozenset[int]:
        """The exporters that have exported a summary; `name` is that of the phases, or empty for steps."""
        return frozenset(exporter for (exporter, of), end in self.summed.items() if of == name and summary.end <= end)


# Makes a SpanEntry without calling its constructor, because this runs for every record.
_entry = tuple.__new__


class SpanIndex(State):
    """Follows the records of one attempt, so that a restart can export the spans that the attempt did not."""

    attempt: int = field(NUMBER, -1)
    # What earlier attempts did not export.
    unexported: list[Unexported] = field(Each(Part(lambda: Unexported)), make=list, key="earlier_attempts")
    own_traces: bool = field(FLAG, False)
    rooted: bool = field(FLAG, False, key="has_root")
    steps: int = field(Whole(1), ENDLESS, key="steps_per_trace")
    share: int = field(NUMBER, ENDLESS, key="spans_per_trace")
    # A summary of steps ends where a checkpoint is saved.
    _cuts: bool = field(FLAG, True, key="summaries_end_at_saves")
    last_sign: int = field(NUMBER, 0)  # latest timestamp, ns
    # Of unsampled steps, and of other phases left out because there are too many, that are not known to be exported.
    summaries: list[Summary] = field(Each(SUMMARY_ENTRY), make=list, key="step_summaries")
    phase_summaries: list[tuple[str, Summary]] = field(PHASE_SUMMARIES, make=list)
    _open: dict[int, SpanEntry] = field(Pairs(KEY, SPAN_ENTRY), make=dict, key="open_spans")
    _ended: deque[SpanEntry] = field(Each(SPAN_ENTRY, make=deque), make=deque, key="ended_spans")
    # Number of the first of them, counted from 1 over all ended spans.
    _first: int = field(NUMBER, 1, key="first_ended")
    # Exporter -> number of the last ended span that it has exported.
    _reached: dict[int, int] = field(REACHED, make=dict, key="exported_spans")
    # Exporter, name -> ns; summaries that end by then are exported.
    _summed: dict[tuple[int, str], int] = field(SUMMED_BY, make=dict, key="exported_summaries")
    _thinner: Thinner = field(Part(lambda: Thinner), make=Thinner, key="unsampled_steps")
    # For other phases, by name.
    _thinners: dict[str, Thinner] = field(Pairs(TEXT, Part(lambda: Thinner)), make=dict, key="unsampled_phases")
    _thinned = 0  # spans since summaries were last made

    def __init__(self, attempt: int = -1, unexported: Sequence[Unexported] = ()) -> None:
        super().__init__()
        self.attempt = attempt
        self.unexported = list(unexported)
        self.loaded()

    def loaded(self) -> None:
        self._places = {entry.key: place for place, entry in enumerate(self._ended, self._first)}
        self._phases = Phases(self._open)

    def _take(self, kind: int, phase: int, flags: int, name: str, key: int, step: int, time: int) -> None:
        """Take a record of another kind than the frequent ones."""
        if kind < NAME and time > self.last_sign:
            self.last_sign = time
        if kind == ev.START:
            parent = self._step(step) if phase == rules.COMPILE and step >= 0 else 0
            self._phases.start(key, SpanEntry(key, phase, name, step, flags, time, parent))
            if phase == rules.SAVE and flags & EXPORT and self._cuts:
                self._thinner.cut()
        elif kind == ev.END:
            opened = self._phases.end(key)
            if opened is not None:
                self._end(opened._replace(end=max(opened.start, time), end_flags=flags))
        elif kind == records.PARENT and key in self._open:
            self._open[key] = self._open[key]._replace(parent=records.unsigned(step))
        elif kind == records.TRACE and key in self._open:
            self._open[key] = self._open[key]._replace(trace=records.foreign(step, time))
        elif kind == records.EXPORTED and flags & records.SUMMED:
            self._sum_up()
            theirs = [left.summed for left in self.unexported if left.attempt == key]
            for summed in [self._summed] if key == self.attempt else theirs:
                summed[phase, name] = max(summed.get((phase, name), 0), time)
            self.summaries = self._unsummed(self.summaries)
            self.phase_summaries = self._unsummed_phases(self.phase_summaries)
        elif kind == records.EXPORTED:
            self._reached[phase] = max(self._reached.get(phase, 0), self._places.get(key, 0))
            self._forget()
            for left in self.unexported:
                left.reached[phase] = max(left.reached.get(phase, 0), left.places.get(key, 0))
            self.unexported = [left for left in self.unexported if not left.exported_by(self._reached)]
        elif kind == records.ROOT and not self.rooted:
            self.rooted = True
            self._end(SpanEntry(key, NO_PHASE, "", step, flags, time, end=time))
        elif kind == records.CONTINUED and phase == 0:
            self.steps, self.share, self._cuts = max(1, key), flags & records.MOST_SPANS, bool(flags & records.DETAILED)
            self._thinner = Thinner(max(1, step), self.steps)
        elif kind == records.CONTINUED:
            before, number = divmod(step, records.HALF)
            self._end(SpanEntry(key, NO_PHASE, "", number, 0, time, parent=before, end=time))
        elif kind == ev.ATTEMPT:
            self.own_traces = bool(flags & records.OWN_TRACES)

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
        """Make summaries and bound their number: without exporters, no records.EXPORTED record ever removes them."""
        self._thinned = 0
        self.summaries += self._thinner.summaries()
        del self.summaries[:-REMEMBERED]
        for name, thinner in self._thinners.items():
            self.phase_summaries += [(name, summary) for summary in thinner.summaries()]
        del self.phase_summaries[:-REMEMBERED]

    def follow(self, entries: Iterable[tuple[Any, ...]], names: Sequence[str] | None = None) -> None:
        """Take the fields of many records, in less time than one by one. `names`: their names are indices of these."""
        opened, last = self._open, self.last_sign  # paired as by Phases, without calls
        for kind, phase, flags, name, key, step, time in entries:
            if kind == ev.START and (phase == rules.STEP or phase == rules.DATA_LOADING):
                opened.setdefault(key, _entry(SpanEntry, (key, phase, "", step, flags, time, 0, 0, None, 0)))
            elif kind == ev.END and not flags & EXPORT:
                entry = opened.pop(key, None)
                if entry is not None and entry.phase == rules.STEP:
                    self._thin(self._thinner, entry.step, entry.start, time)
                elif entry is not None and flags & records.SUMMARIZED:
                    own = (name if names is None else names[name]) or entry.name or PHASES[entry.phase]
                    if own not in self._thinners:
                        self._thinners[own] = Thinner()
                    self._thin(self._thinners[own], 0, entry.start, time)
            elif kind in (LOADING, STEPPING):
                entry = opened.pop(key, None)
                if entry is not None:
                    if flags & EXPORT:
                        self._end(entry._replace(end=max(entry.start, time), end_flags=flags))
                    elif kind == LOADING:
                        self._thin(self._thinner, entry.step, entry.start, time)
                begun, export = following(key), EXPORT if phase else 0
                which = rules.DATA_LOADING if kind == LOADING else rules.STEP
                opened.setdefault(begun, _entry(SpanEntry, (begun, which, "", step, export, time, 0, 0, None, 0)))
            elif kind == TURN:
                entry = opened.pop(key, None)
                if entry is not None:
                    self._thin(self._thinner, entry.step, entry.start, time - step % LOAD)
                begun, number = key + TURN_STRIDE & KEYS, (step & KEYS) // LOAD  # inlined: a loop makes one a turn
                opened.setdefault(begun, _entry(SpanEntry, (begun, rules.STEP, "", number, 0, time, 0, 0, None, 0)))
            else:
                if kind and kind != NAME:
                    self._take(kind, phase, flags, name if names is None else names[name], key, step, time)
                continue
            if time > last:
                last = time
        self.last_sign = max(last, self.last_sign)

    def _thin(self, thinner: Thinner, step: int, start: int, end: int) -> None:
        thinner.add(step, start, end if end > start else start)
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
            last = [
                (name, summary)
                for name, thinner in self._thinners.items()
                for summary in thinner.clone().summaries(final=True)
            ]
            left = Unexported(
                attempt=self.attempt,
                last_sign=self.last_sign,
                own_traces=self.own_traces,
                steps=self.steps,
                share=self.share,
                spans=spans,
                summaries=self._unsummed(self.summaries + self._thinner.clone().summaries(final=True)),
                phase_summaries=self._unsummed_phases(self.phase_summaries + last),
                reached={exporter: max(0, place - self._first + 1) for exporter, place in self._reached.items()},
                summed=dict(self._summed),
            )
            unexported = [*unexported, left]
        return SpanIndex(attempt, unexported[-ATTEMPTS:])

    def _interrupted(self) -> list[SpanEntry]:
        """The spans that were open, innermost first, as far as the trace has room for them."""
        left = 1 if self.share < OPEN else OPEN
        interrupted = []
        for entry in reversed(self._open.values()):
            if not entry.flags & EXPORT:
                if not left or entry.phase == rules.JOB or entry.flags & records.DROPPED:
                    continue
                left -= 1
            interrupted.append(entry)
        return interrupted

    @property
    def opened(self) -> Iterable[SpanEntry]:
        """The spans that are open."""
        return self._open.values()

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

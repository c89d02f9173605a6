"""Spans read from the journal, and those of them that a dead attempt did not export."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from otel_goodput._accounting.codec import FLAG, NUMBER, TEXT, Each, Optional, Pairs, Row, State, Whole, field
from otel_goodput._journal.thinning import SUMMARY_ENTRY, Summary
from otel_goodput.semconv import PHASES

# Phase of an entry that is the root of a trace: number `step`, after trace number `parent`, of the group `flags`.
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
    _WIDE, Whole(NO_PHASE, len(PHASES)), TEXT, *[_WIDE] * 5, Optional(_WIDE), _WIDE, make=SpanEntry._make
)
REACHED: Final = Pairs(NUMBER, NUMBER)  # by exporter
SUMMED: Final = Pairs(Row(NUMBER, TEXT), NUMBER)  # by exporter and name
PHASE_SUMMARIES: Final = Each(Row(TEXT, SUMMARY_ENTRY))


class Unexported(State):
    """What a dead attempt did not export, in the order in which to export it: the job last.

    Attributes:
        attempt: number of the attempt.
        last_sign: its latest timestamp, ns; spans that were open get it as their end.
        own_traces: each step has a trace of its own.
        spans: the spans.
        summaries: the summaries of unsampled steps.
        phase_summaries: (name, summary) of other phases that were left out.
        steps: number of steps in one trace.
        share: number of spans of this process that fit into one trace.
        group: the group of processes that share a trace.
        reached: by exporter, how many of the spans it has exported.
        summed: by (exporter, name), the time (ns) up to which summaries are exported; the name is empty for steps.
    """

    attempt: int = field(NUMBER)
    last_sign: int = field(NUMBER)
    own_traces: bool = field(FLAG)
    steps: int = field(Whole(1), ENDLESS, key="steps_per_trace")
    share: int = field(NUMBER, ENDLESS, key="spans_per_trace")
    group: int = field(NUMBER, 0, key="process_group")
    spans: list[SpanEntry] = field(Each(SPAN_ENTRY), make=list)
    summaries: list[Summary] = field(Each(SUMMARY_ENTRY), make=list, key="step_summaries")
    phase_summaries: list[tuple[str, Summary]] = field(PHASE_SUMMARIES, make=list)
    reached: dict[int, int] = field(REACHED, make=dict, key="exported_spans")
    summed: dict[tuple[int, str], int] = field(SUMMED, make=dict, key="exported_summaries")

    def __init__(
        self, attempt: int, last_sign: int, own_traces: bool, spans: list[SpanEntry], summaries: list[Summary]
    ) -> None:
        super().__init__()
        self.attempt = attempt
        self.last_sign = last_sign
        self.own_traces = own_traces
        self.spans = spans
        self.summaries = summaries
        self.loaded()

    def loaded(self) -> None:
        self.places = {entry.key: place for place, entry in enumerate(self.spans, 1)}

    def exported_by(self, exporters: Iterable[int]) -> bool:
        """Whether every one of `exporters` has exported everything."""
        return all(self.reached.get(exporter, 0) >= len(self.spans) for exporter in exporters)

    def summed_by(self, summary: Summary, name: str = "") -> frozenset[int]:
        """The exporters that have exported a summary; `name` is that of the phases, or empty for steps."""
        return frozenset(exporter for (exporter, of), end in self.summed.items() if of == name and summary.end <= end)

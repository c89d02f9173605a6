"""Spans as the journal has them, and which of them a dead attempt did not export."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from otel_goodput.journal.thinning import Summary

# Of the entry that is the root of one of the attempt's traces: `step` is which, behind `parent`, of the group `flags`.
NO_PHASE: Final = -1
ENDLESS: Final = 1 << 62


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


class Unexported:
    """What a dead attempt did not export, in the order in which it is to be exported: the job last.

    Attributes:
        attempt: its number.
        last_sign: latest timestamp that it left, ns; what was open ended then.
        own_traces: its steps have traces of their own.
        spans: the spans.
        summaries: the stretches of thinned steps.
        floods: names, and stretches of other phases that were left out.
        steps: in one trace.
        share: spans of this process that fit into one.
        group: of processes that share one.
        rooted: its trace has a root of its own; in journals of older versions the job of process 0 is it.
        reached: how many of the spans have left through which exporter.
        summed: up to when (ns) summaries have left through which exporter, by name; of steps that is empty.
    """

    def __init__(
        self,
        attempt: int,
        last_sign: int,
        own_traces: bool,
        spans: list[SpanEntry],
        summaries: list[Summary],
        rooted: bool = False,
    ) -> None:
        self.attempt = attempt
        self.last_sign = last_sign
        self.own_traces = own_traces
        self.spans = spans
        self.summaries = summaries
        self.floods: list[tuple[str, Summary]] = []
        self.steps, self.share, self.group = ENDLESS, ENDLESS, 0
        self.rooted = rooted
        self.places = {entry.key: place for place, entry in enumerate(spans, 1)}
        self.reached: dict[int, int] = {}
        self.summed: dict[tuple[int, str], int] = {}

    def exported_by(self, exporters: Iterable[int]) -> bool:
        """Whether every one of `exporters` has exported everything."""
        return all(self.reached.get(exporter, 0) >= len(self.spans) for exporter in exporters)

    def summed_by(self, summary: Summary, name: str = "") -> frozenset[int]:
        """The exporters that have exported a summary; `name` is that of the phases, of steps empty."""
        return frozenset(exporter for (exporter, of), end in self.summed.items() if of == name and summary.end <= end)

    def to_state(self) -> list[Any]:
        reached = list(self.reached.items())
        summed = [(*whose, end) for whose, end in self.summed.items()]
        later = [self.rooted, self.floods, summed, self.steps, self.share, self.group]
        return [self.attempt, self.last_sign, self.own_traces, self.spans, self.summaries, reached, *later]

    @classmethod
    def from_state(cls, state: list[Any]) -> Unexported:
        attempt, last_sign, own_traces, spans, summaries, reached, *later = state
        left = cls(
            attempt,
            last_sign,
            own_traces,
            [SpanEntry(*entry) for entry in spans],
            [Summary(*summary) for summary in summaries],
            bool(later[0]) if later else False,
        )
        left.reached = dict(reached)
        left.floods = [(name, Summary(*summary)) for name, summary in (later[1] if len(later) > 1 else ())]
        left.summed = {(exporter, name): end for exporter, name, end in (later[2] if len(later) > 2 else ())}
        left.steps, left.share, left.group = later[3:6] if len(later) > 5 else (ENDLESS, ENDLESS, 0)
        return left

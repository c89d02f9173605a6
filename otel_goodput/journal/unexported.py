"""Spans read from the journal, and those of them that a dead attempt did not export."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from otel_goodput.journal.thinning import Summary

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


class Unexported:
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

    def __init__(
        self,
        attempt: int,
        last_sign: int,
        own_traces: bool,
        spans: list[SpanEntry],
        summaries: list[Summary],
    ) -> None:
        self.attempt = attempt
        self.last_sign = last_sign
        self.own_traces = own_traces
        self.spans = spans
        self.summaries = summaries
        self.phase_summaries: list[tuple[str, Summary]] = []
        self.steps, self.share, self.group = ENDLESS, ENDLESS, 0
        self.places = {entry.key: place for place, entry in enumerate(spans, 1)}
        self.reached: dict[int, int] = {}
        self.summed: dict[tuple[int, str], int] = {}

    def exported_by(self, exporters: Iterable[int]) -> bool:
        """Whether every one of `exporters` has exported everything."""
        return all(self.reached.get(exporter, 0) >= len(self.spans) for exporter in exporters)

    def summed_by(self, summary: Summary, name: str = "") -> frozenset[int]:
        """The exporters that have exported a summary; `name` is that of the phases, or empty for steps."""
        return frozenset(exporter for (exporter, of), end in self.summed.items() if of == name and summary.end <= end)

    def to_state(self) -> dict[str, Any]:
        return {
            "attempt": self.attempt,
            "last_sign": self.last_sign,
            "own_traces": self.own_traces,
            "steps_per_trace": self.steps,
            "spans_per_trace": self.share,
            "process_group": self.group,
            "spans": self.spans,
            "exported_spans": list(self.reached.items()),
            "exported_summaries": [(*whose, end) for whose, end in self.summed.items()],
            "step_summaries": self.summaries,
            "phase_summaries": self.phase_summaries,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Unexported:
        left = cls(
            state["attempt"],
            state["last_sign"],
            state["own_traces"],
            [SpanEntry(*entry) for entry in state["spans"]],
            [Summary(*summary) for summary in state["step_summaries"]],
        )
        left.steps, left.share, left.group = state["steps_per_trace"], state["spans_per_trace"], state["process_group"]
        left.reached = dict(state["exported_spans"])
        left.summed = {(exporter, name): end for exporter, name, end in state["exported_summaries"]}
        left.phase_summaries = [(name, Summary(*summary)) for name, summary in state["phase_summaries"]]
        return left

"""Decides which phases other than steps are exported as spans; frequent ones are sampled, as steps are.

Accounting and metrics see every phase. Of each name, the first phases are exported, then one in ten, after a thousand
one in a hundred, and so on. Phases that fail, take far longer than others of the same name, or contain an exported span
are exported too. The rest is summarized in ``phases`` spans.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from typing import Final

from opentelemetry.trace import SpanContext
from opentelemetry.util.types import AttributeValue

from otel_goodput._journal.thinning import Summary, Thinner
from otel_goodput._recording.budget import VITAL, Budget
from otel_goodput._recording.sampling import StepSampler
from otel_goodput._recording.volumes import Volumes
from otel_goodput.semconv import (
    GOODPUT_BLOCKING,
    GOODPUT_COMPILE_FUNCTION,
    GOODPUT_CUSTOM_NAME,
    GOODPUT_ELASTIC_KIND,
    GOODPUT_PART_NAME,
    GOODPUT_PHASE,
    Phase,
)

FIRST: Final = 100  # phases of a name exported in full; in each step, its loads, and its parts of each name
OTHERS: Final = 5_000  # the user's own spans in one trace before we warn; backends show 10,000 spans of a trace
NAMES: Final = 100  # gates with a name of their own; later names share one gate per phase

# The attribute that holds the name of a phase, for phases that have one.
_NAME_ATTRIBUTES: Final = {
    Phase.CUSTOM: GOODPUT_CUSTOM_NAME,
    Phase.PART: GOODPUT_PART_NAME,
    Phase.ELASTIC_WAIT: GOODPUT_ELASTIC_KIND,
    Phase.COMPILE: GOODPUT_COMPILE_FUNCTION,
}


def name_in(attributes: Mapping[str, AttributeValue]) -> str:
    """Return the name of the phase (custom or part name, elastic kind, compiled function); may be empty."""
    attribute = _NAME_ATTRIBUTES.get(str(attributes.get(GOODPUT_PHASE)), "")
    return str(attributes.get(attribute, "") or "")


def sparse(ordinal: int) -> bool:
    """Return whether to export number `ordinal` (from 0): the first 100, then one in 10, from 1000 on one in 100, …"""
    if ordinal < FIRST:
        return True
    every = 10
    while ordinal >= every * FIRST:
        every *= 10
    return ordinal % every == 0


class Gate:
    """Decides which phases of one name are exported; safe to use from any thread.

    Attributes:
        name: name of the spans.
        shared: phases of several names share this gate.
        thinner: collects the phases that are not exported.
    """

    __slots__ = ("_begun", "_failed", "_pace", "name", "shared", "thinner")

    def __init__(self, name: str, thinner: Thinner, *, shared: bool) -> None:
        self.name = name
        self.shared = shared
        self.thinner = thinner
        # next(count) is atomic, so no lock is needed.
        self._begun = count()
        self._failed = count()
        self._pace = StepSampler(1)

    def take(self) -> bool:
        """Count a phase that begins; return whether it is exported whatever happens in it."""
        return sparse(next(self._begun))

    def stands_out(self, duration: int, failed: bool) -> bool:
        """Count a phase that took `duration` ns; return whether to export it for being slow or a (sampled) failure."""
        slow = self._pace.slow(duration)
        return sparse(next(self._failed)) if failed else slow

    def leave_out(self, start: int, end: int) -> None:
        """Add a phase from `start` to `end` (ns), which is not exported, to the summary."""
        self.thinner.add(0, start, end)


class Admission:
    """The gates of one recorder.

    Args:
        budget: how many spans fit into each trace.
        volumes: the traces of the attempt.

    Attributes:
        left_out: gates of open phases that are not sampled, by span id; without steps, loads and parts.
        kept: span ids in `left_out` that are exported after all, because a span inside them is.
    """

    def __init__(self, budget: Budget, volumes: Volumes) -> None:
        self.budget = budget
        self.volumes = volumes
        self._others: dict[int, int] = {}  # number of the user's own spans, by trace id
        self.left_out: dict[int, Gate] = {}
        self.kept: set[int] = set()
        self._gates: dict[tuple[str, str, bool], Gate] = {}
        self._thinners: dict[str, Thinner] = {}
        self._crowd: dict[str, Iterator[int]] = {}  # counters of loads and parts in the latest step
        self._step: object = None

    def gate(self, phase: str, name: str, aside: bool = False) -> Gate:
        """Return the gate for phases of kind `phase` with this `name`, creating it if needed.

        Phases that do not block training (`aside`) have a separate gate. A save and its background part are then
        counted separately, and either both are sampled or neither is.
        """
        gate = self._gates.get((phase, name, aside))
        if gate is None:
            shared = len(self._gates) >= NAMES
            if shared:
                name = ""
            title = name or phase
            thinner = self._thinners.setdefault(title, Thinner())
            gate = self._gates.setdefault((phase, name, aside), Gate(title, thinner, shared=shared))
        return gate

    def gate_of(self, attributes: Mapping[str, AttributeValue]) -> Gate:
        """Same as :meth:`gate`, for the phase of a span with these attributes."""
        aside = attributes.get(GOODPUT_BLOCKING) is False
        return self.gate(str(attributes[GOODPUT_PHASE]), name_in(attributes), aside)

    def takes(self, attributes: Mapping[str, AttributeValue], trace_id: int) -> bool:
        """Count a phase that begins; return whether its span is exported whatever happens in it."""
        if attributes[GOODPUT_PHASE] == Phase.JOB:  # all other phases are inside it
            return not self.budget.small and self.afford(trace_id, VITAL)
        return self.gate_of(attributes).take() and self.afford(trace_id, self.budget.phases)

    def afford(self, trace_id: int, worth: int) -> bool:
        """Reserve room in a trace for one more span of this `worth`; return False if there is none."""
        return self.budget.take(trace_id, worth)

    def claim(self, context: SpanContext) -> bool:
        """Export an open phase that was not sampled, because others ask for its identity; return False if not."""
        key = context.span_id
        if key in self.left_out and key not in self.kept and self.afford(context.trace_id, self.budget.phases):
            self.kept.add(key)
        return key in self.kept

    def keep(self, context: SpanContext) -> None:
        """Export an open phase after all, if it was not sampled."""
        key = context.span_id
        if key in self.left_out and key not in self.kept:
            self.kept.add(key)
            self.budget.spend(context.trace_id)

    def crowded(self, trace_id: int) -> bool:
        """Count a span of the user's own; return True once per trace of the attempt, when there are too many."""
        if self.volumes.number_of(trace_id) is None:
            return False
        self._others[trace_id] = others = self._others.get(trace_id, 0) + 1
        return others == OTHERS

    def crowds(self, step: object, phase: str, name: str) -> Gate | None:
        """Count a load or part that begins in or after `step`; return its gate if there are too many to export it."""
        if step is not self._step:
            self._step, self._crowd = step, {}
        begun = self._crowd.setdefault(name or phase, count())
        return None if sparse(next(begun)) else self.gate(phase, name)

    def summaries(self, *, final: bool = False) -> Iterator[tuple[str, Summary]]:
        """Yield (name, summary) for the phases that were not exported. Not called on the training thread."""
        for name, thinner in self._thinners.copy().items():
            for summary in thinner.summaries(final=final):
                yield name, summary

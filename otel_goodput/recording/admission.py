"""Which phases other than steps become spans: a flood of them is thinned as steps are.

Accounting and metrics see every phase. Exported are the first ones of a name, then one in ten, after a thousand one in
a hundred, and so on; and those that fail, take far longer than the others of their name, or have something exported in
them. The rest is summed up in ``phases`` spans.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from typing import Final

from opentelemetry.trace import SpanContext
from opentelemetry.util.types import AttributeValue

from otel_goodput.journal.thinning import Summary, Thinner
from otel_goodput.recording.budget import VITAL, Budget
from otel_goodput.recording.sampling import StepSampler
from otel_goodput.recording.volumes import Volumes
from otel_goodput.semconv import (
    GOODPUT_BLOCKING,
    GOODPUT_COMPILE_FUNCTION,
    GOODPUT_CUSTOM_NAME,
    GOODPUT_ELASTIC_KIND,
    GOODPUT_PART_NAME,
    GOODPUT_PHASE,
    Phase,
)

FIRST: Final = 100  # of a name exported in full; in a step, of its loads, and of its parts of a name
OTHERS: Final = 5_000  # that are not ours in a trace; backends show 10,000 in all
NAMES: Final = 100  # told apart; those that come later are one

# Which attribute names a phase, beside the phase itself.
_NAME_ATTRIBUTES: Final = {
    Phase.CUSTOM: GOODPUT_CUSTOM_NAME,
    Phase.PART: GOODPUT_PART_NAME,
    Phase.ELASTIC_WAIT: GOODPUT_ELASTIC_KIND,
    Phase.COMPILE: GOODPUT_COMPILE_FUNCTION,
}


def name_in(attributes: Mapping[str, AttributeValue]) -> str:
    """What the user, or the phase's kind, calls the phase of a span with these attributes; may be empty."""
    attribute = _NAME_ATTRIBUTES.get(str(attributes.get(GOODPUT_PHASE)), "")
    return str(attributes.get(attribute, "") or "")


def sparse(ordinal: int) -> bool:
    """Whether the one behind `ordinal` others is among those that stand for them."""
    if ordinal < FIRST:
        return True
    every = 10
    while ordinal >= every * FIRST:
        every *= 10
    return ordinal % every == 0


class Gate:
    """The phases of one name; any thread's.

    Attributes:
        name: of their spans.
        shared: by phases of several names.
        thinner: those that are left out.
    """

    __slots__ = ("_begun", "_failed", "_pace", "name", "shared", "thinner")

    def __init__(self, name: str, thinner: Thinner, *, shared: bool) -> None:
        self.name = name
        self.shared = shared
        self.thinner = thinner
        # Both are counted by one instruction, whatever the thread.
        self._begun = count()
        self._failed = count()
        self._pace = StepSampler(1)

    def take(self) -> bool:
        """One begins: is it exported whatever happens in it?"""
        return sparse(next(self._begun))

    def stands_out(self, duration: int, failed: bool) -> bool:
        """One is over after `duration` ns: is it exported, though it was not to be?"""
        slow = self._pace.slow(duration)
        return sparse(next(self._failed)) if failed else slow

    def leave_out(self, start: int, end: int) -> None:
        """One from `start` to `end` (ns) is not exported."""
        self.thinner.add(0, start, end)


class Admission:
    """The gates of one recorder.

    Args:
        budget: what there is room for.
        volumes: the traces of the attempt.

    Attributes:
        left_out: open phases that are not exported unless something happens, by span id; steps, loads and parts aside.
        kept: those of them that are, for something in them is.
    """

    def __init__(self, budget: Budget, volumes: Volumes) -> None:
        self.budget = budget
        self.volumes = volumes
        self._others: dict[int, int] = {}  # spans that are not ours, by trace
        self.left_out: dict[int, Gate] = {}
        self.kept: set[int] = set()
        self._gates: dict[tuple[str, str, bool], Gate] = {}
        self._thinners: dict[str, Thinner] = {}
        self._crowd: dict[str, Iterator[int]] = {}  # in the latest step
        self._step: object = None

    def gate(self, phase: str, name: str, aside: bool = False) -> Gate:
        """Of the phases `phase` that their user calls `name`.

        Those `aside` hold up nothing and have one of their own: a save and what goes on of it are taken together.
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
        """As :meth:`gate`, of the phase of a span with these attributes."""
        aside = attributes.get(GOODPUT_BLOCKING) is False
        return self.gate(str(attributes[GOODPUT_PHASE]), name_in(attributes), aside)

    def takes(self, attributes: Mapping[str, AttributeValue], trace_id: int) -> bool:
        """The phase of a span with these attributes begins: is it exported whatever happens in it?"""
        if attributes[GOODPUT_PHASE] == Phase.JOB:  # all others are in one
            return not self.budget.small and self.afford(trace_id, VITAL)
        return self.gate_of(attributes).take() and self.afford(trace_id, self.budget.phases)

    def afford(self, trace_id: int, worth: int) -> bool:
        """Whether there is room in a trace for one more span `worth` that much; then it is taken."""
        return self.budget.take(trace_id, worth)

    def keep(self, context: SpanContext) -> None:
        """The open phase with that span is exported after all, where it is one that was to be left out."""
        key = context.span_id
        if key in self.left_out and key not in self.kept:
            self.kept.add(key)
            self.budget.spend(context.trace_id)

    def crowded(self, trace_id: int) -> bool:
        """A span that is none of ours begins; whether there are too many of them in one of the attempt's traces now."""
        if self.volumes.number_of(trace_id) is None:
            return False
        self._others[trace_id] = others = self._others.get(trace_id, 0) + 1
        return others == OTHERS

    def crowds(self, step: object, phase: str, name: str) -> Gate | None:
        """A load or a part begins in `step` or behind it; its gate where it is left out for there are too many."""
        if step is not self._step:
            self._step, self._crowd = step, {}
        begun = self._crowd.setdefault(name or phase, count())
        return None if sparse(next(begun)) else self.gate(phase, name)

    def summaries(self, *, final: bool = False) -> Iterator[tuple[str, Summary]]:
        """Names, and stretches of what was left out of them; not on the training thread."""
        for name, thinner in self._thinners.copy().items():
            for summary in thinner.summaries(final=final):
                yield name, summary

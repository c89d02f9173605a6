"""Decides which steps and phases are exported as spans, so that backends can show the trace of a million steps.

The first steps are exported, then one in N. Of each name of other phases, the first are exported, then one in ten,
after a thousand one in a hundred, and so on. What is slow, has failed, or contains an exported span is exported too.
The rest is summarized in ``steps`` and ``phases`` spans, see :mod:`~otel_goodput._journal.thinning`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Final

from opentelemetry.context import Context
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Decision, ParentBased, Sampler, SamplingResult
from opentelemetry.trace import Link, SpanContext, SpanKind, TraceState
from opentelemetry.util.types import Attributes, AttributeValue

from otel_goodput import semconv
from otel_goodput._accounting.stats import MAD_SCALE, median
from otel_goodput._journal.thinning import Summary, Thinner
from otel_goodput._recording.finished import NAME_ATTRIBUTES
from otel_goodput._recording.trace_layout import FIRST, VITAL, Budget, TraceLayout
from otel_goodput.semconv import Phase

RECENT: Final = 128  # recent steps from which the threshold of outliers is computed
REVIEW: Final = 64  # steps between two computations of the threshold
REVIEW_NS: Final = 1_000_000 * REVIEW  # of steps, at least: reviews of shorter ones would take longer than the steps
FIRST_REVIEW: Final = 8  # step of the first one; then 16, 32, 64, as an outlier may be among the first steps
# An outlier is far outside the recent spread, clearly slower than the recent median, and slower than nearly all steps.
OUTLIER_SPREADS: Final = 6.0
OUTLIER_RATIO: Final = 1.25
SLOWER: Final = 2  # recent steps that may be slower than an outlier
# Steps of very different durations have many outliers; at most BUDGET in BUDGETED steps are exported.
BUDGET: Final = 5
BUDGETED: Final = 16 * REVIEW  # steps
FLEETING: Final = 3  # a step left at the head of its loop takes less than 1 / FLEETING of any recent step


class StepSampler:
    """Decides which steps are exported: the first 100, then multiples of `every`. Used by the training thread only.

    Attributes:
        threshold: a step that takes longer is an outlier, ns.
        due: number of the next step that may be exported, as of the latest :meth:`take`; those before need not be
            counted.
        recent: durations of the recent steps, and of those since the latest review, ns.
        enough: how many of them there are when the threshold is computed again.
    """

    __slots__ = ("_interval", "_left", "_renewed", "_seen", "_started", "due", "enough", "every", "recent", "threshold")

    def __init__(self, every: int) -> None:
        self.every = max(1, every)
        self._started = self.due = 0
        self._seen = 0  # steps, at the latest review
        self._left = BUDGET
        self._renewed = BUDGETED  # steps at which more outliers may be exported
        self._interval = self.enough = FIRST_REVIEW
        self.recent: list[int] = []
        self.threshold = 1 << 62  # until the first review

    def take(self, number: int) -> bool:
        """Count a step that starts; return whether it is exported whatever happens in it."""
        self._started = started = self._started + 1
        since = number % self.every
        self.due = number + 1 if started < FIRST else number - since + self.every
        return not since or started <= FIRST

    def would_take(self, number: int) -> bool:
        """Return whether the next step would be exported if it had this number."""
        return self._started < FIRST or number % self.every == 0

    def slow(self, duration: int) -> bool:
        """Add a step that took `duration` ns; return whether it is an outlier to be exported."""
        self.recent.append(duration)
        return (duration > self.threshold or len(self.recent) >= self.enough) and self.judge(duration)

    def judge(self, duration: int) -> bool:
        """Return whether the step that was added last is an outlier to be exported, and review the threshold if due."""
        slow = duration > self.threshold
        if len(self.recent) >= self.enough:
            self._review()
        if slow:
            slow = self._left > 0
            self._left -= 1
        return slow

    def fleeting(self, duration: int) -> bool:
        """Return whether a step of `duration` ns did no work: it is far shorter than the shortest recent step."""
        return bool(self.recent) and duration * FLEETING < min(self.recent[-RECENT:])

    def usual(self) -> int | None:
        """Return the median duration of recent steps, ns; None before the first."""
        return median(self.recent[-RECENT:]) if self.recent else None

    def _review(self) -> None:
        del self.recent[:-RECENT]
        recent = sorted(self.recent)
        middle = median(recent, ordered=True)
        spread = MAD_SCALE * median([abs(duration - middle) for duration in recent])
        nearly_all = recent[-1 - SLOWER]
        self.threshold = int(max(middle * OUTLIER_RATIO, middle + OUTLIER_SPREADS * spread, nearly_all))
        self._seen += self._interval
        due = max(REVIEW, min(BUDGETED, REVIEW_NS // max(1, middle)))
        self._interval = min(self._seen, due)
        self.enough = len(recent) + self._interval
        if self._seen >= self._renewed:
            self._left, self._renewed = BUDGET, self._seen + BUDGETED


class PhaseSampler(Sampler):
    """Records every phase and samples those whose attributes and trace `take` accepts; others follow their parents."""

    def __init__(self, take: Callable[[Mapping[str, AttributeValue], int], bool]) -> None:
        self._take = take
        self._others = ParentBased(ALWAYS_ON)

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        if attributes and semconv.GOODPUT_PHASE in attributes:
            taken = self._take(attributes, trace_id)
            return SamplingResult(Decision.RECORD_AND_SAMPLE if taken else Decision.RECORD_ONLY, attributes)
        return self._others.should_sample(parent_context, trace_id, name, kind, attributes, links)

    def get_description(self) -> str:
        return "PhaseSampler"


OTHERS: Final = 5_000  # the user's own spans in one trace before we warn; backends show 10,000 spans of a trace
NAMES: Final = 100  # gates with a name of their own; later names share one gate per phase


def name_in(attributes: Mapping[str, AttributeValue]) -> str:
    """Return the name of the phase (custom or part name, elastic kind, compiled function); may be empty."""
    attribute = NAME_ATTRIBUTES.get(str(attributes.get(semconv.GOODPUT_PHASE)), "")
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
    """Decides which phases of one name, or of several (`shared`), are exported; safe to use from any thread."""

    __slots__ = ("_begun", "_failed", "_pace", "leave_out", "name", "shared")

    def __init__(self, name: str, thinner: Thinner, *, shared: bool) -> None:
        self.name = name
        self.shared = shared
        self.leave_out: Callable[[int, int], None] = partial(thinner.add, 0)  # a phase from its start to its end, ns
        # next(count) is atomic, so no lock is needed.
        self._begun = count()
        self._failed = count()
        self._pace = StepSampler(1)

    def take(self) -> bool:
        return sparse(next(self._begun))

    def stands_out(self, duration: int, failed: bool) -> bool:
        """Count a phase that took `duration` ns; return whether to export it for being slow or a (sampled) failure."""
        slow = self._pace.slow(duration)
        return sparse(next(self._failed)) if failed else slow


class Admission:
    """The gates of one recorder.

    Attributes:
        left_out: gates of open phases that are not sampled, by span id; without steps, loads and parts.
        kept: span ids in `left_out` that are exported after all, because a span inside them is.
    """

    def __init__(self, budget: Budget, layout: TraceLayout) -> None:
        self.budget = budget
        self.afford = budget.take
        self.layout = layout
        self._others: dict[int, int] = {}  # number of the user's own spans, by trace id
        self.left_out: dict[int, Gate] = {}
        self.kept: set[int] = set()
        self._gates: dict[tuple[str, str, bool], Gate] = {}
        self._thinners: dict[str, Thinner] = {}
        self._crowd: dict[str, Iterator[int]] = {}  # counters of loads and parts in the latest step
        self._step: object = None

    def gate(self, phase: str, name: str, aside: bool = False) -> Gate:
        """Return the gate for phases of kind `phase` with this `name`.

        Those that do not block (`aside`) have another one: a save and its background part are both sampled, or neither.
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
        aside = attributes.get(semconv.GOODPUT_BLOCKING) is False
        return self.gate(str(attributes[semconv.GOODPUT_PHASE]), name_in(attributes), aside)

    def takes(self, attributes: Mapping[str, AttributeValue], trace_id: int) -> bool:
        """Count a phase that begins; return whether its span is exported whatever happens in it."""
        if attributes[semconv.GOODPUT_PHASE] == Phase.JOB:  # all other phases are inside it
            return not self.budget.small and self.afford(trace_id, VITAL)
        return self.gate_of(attributes).take() and self.afford(trace_id, self.budget.phases)

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
        if self.layout.number_of(trace_id) is None:
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

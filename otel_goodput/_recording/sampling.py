"""Decides which steps are exported as spans, so that backends can still show the trace of a million steps.

Accounting sees every step. The first steps are exported, then one in N, and those that are slow, have failed, or
contain something worth seeing; :mod:`~otel_goodput._journal.thinning` summarizes the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from opentelemetry.context import Context
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Decision, ParentBased, Sampler, SamplingResult
from opentelemetry.trace import Link, SpanKind, TraceState
from opentelemetry.util.types import Attributes, AttributeValue

from otel_goodput._accounting.stats import MAD_SCALE, median
from otel_goodput._recording.volumes import FIRST
from otel_goodput.semconv import GOODPUT_PHASE

RECENT: Final = 128  # recent steps from which the threshold of outliers is computed
REVIEW: Final = 64  # steps between two computations of the threshold
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
    """Decides which steps are exported; used by the training thread only.

    Args:
        every: after the first 100 steps, export the steps whose number is a multiple of this.

    Attributes:
        threshold: a step that takes longer is an outlier, ns.
        recent: durations of the recent steps, ns.
        until_review: number of steps until the threshold is computed again.
    """

    __slots__ = ("_interval", "_left", "_seen", "_started", "every", "recent", "threshold", "until_review")

    def __init__(self, every: int) -> None:
        self.every = max(1, every)
        self._started = 0
        self._seen = 0  # steps, at the latest review
        self._left = BUDGET
        self._interval = self.until_review = FIRST_REVIEW
        self.recent: deque[int] = deque(maxlen=RECENT)
        self.threshold = 1 << 62  # until the first review

    def take(self, number: int) -> bool:
        """Count a step that starts; return whether it is exported whatever happens in it."""
        self._started += 1
        return self._started <= FIRST or number % self.every == 0

    def would_take(self, number: int) -> bool:
        """Return whether the next step would be exported if it had this number."""
        return self._started < FIRST or number % self.every == 0

    def due_after(self, number: int) -> int:
        """Return the number of the next step after `number` that may be exported; those before need not be counted."""
        return number + 1 if self._started < FIRST else (number // self.every + 1) * self.every

    def slow(self, duration: int) -> bool:
        """Add a step that took `duration` ns; return whether it is an outlier to be exported."""
        self.recent.append(duration)
        self.until_review -= 1
        return self.judge(duration)

    def judge(self, duration: int) -> bool:
        """Return whether the step that was added last is an outlier to be exported, and review the threshold if due.

        Need not be called for a step that is below the threshold while no review is due.
        """
        slow = duration > self.threshold
        if self.until_review <= 0:
            self._review()
        if slow:
            slow = self._left > 0
            self._left -= 1
        return slow

    def fleeting(self, duration: int) -> bool:
        """Return whether a step of `duration` ns did no work: it is far shorter than the shortest recent step."""
        return bool(self.recent) and duration * FLEETING < min(self.recent)

    def usual(self) -> int | None:
        """Return the median duration of recent steps, ns; None before the first."""
        return median(self.recent) if self.recent else None

    def _review(self) -> None:
        recent = sorted(self.recent)
        middle = median(recent, ordered=True)
        spread = MAD_SCALE * median([abs(duration - middle) for duration in recent])
        nearly_all = recent[-1 - SLOWER]
        self.threshold = int(max(middle * OUTLIER_RATIO, middle + OUTLIER_SPREADS * spread, nearly_all))
        self._seen += self._interval
        self._interval = self.until_review = min(self._seen, REVIEW)
        if self._seen % BUDGETED == 0:
            self._left = BUDGET


class PhaseSampler(Sampler):
    """Records every phase and samples those that `take` accepts; other spans follow their parents.

    Args:
        take: called with the attributes and the trace id of a new phase; returns whether to export it.
    """

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
        if attributes and GOODPUT_PHASE in attributes:
            taken = self._take(attributes, trace_id)
            return SamplingResult(Decision.RECORD_AND_SAMPLE if taken else Decision.RECORD_ONLY, attributes)
        return self._others.should_sample(parent_context, trace_id, name, kind, attributes, links)

    def get_description(self) -> str:
        return "PhaseSampler"

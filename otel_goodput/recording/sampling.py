"""Which steps become spans: a trace of a million steps must stay openable.

Accounting sees every step. Exported are the first ones, then one in N, and those that are slow, failed, or hold
something worth seeing; :mod:`~otel_goodput.journal.thinning` sums up the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from opentelemetry.context import Context
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Decision, ParentBased, Sampler, SamplingResult
from opentelemetry.trace import Link, SpanKind, TraceState
from opentelemetry.util.types import Attributes, AttributeValue

from otel_goodput.accounting.stats import MAD_SCALE, median
from otel_goodput.semconv import GOODPUT_PHASE

FIRST: Final = 100  # steps of an attempt exported in full
RECENT: Final = 128  # steps that tell what is slow
REVIEW: Final = 64  # steps from one look at them to the next
FIRST_REVIEW: Final = 8  # and at its doubles: a slow step may be among the first
# An outlier is far out of the recent spread, noticeably slower than the recent median, and slower than nearly all.
OUTLIER_SPREADS: Final = 6.0
OUTLIER_RATIO: Final = 1.25
SLOWER: Final = 2  # of the recent ones may have been slower
# Steps that scatter have many that are far out; so many are shown.
BUDGET: Final = 5
BUDGETED: Final = 16 * REVIEW  # steps
FLEETING: Final = 3  # a step that is left at its loop's head takes less than this part of any other


class StepSampler:
    """Decides, step by step; used by the training thread only.

    Args:
        every: after the first 100 steps, export the steps whose number is a multiple of this.
    """

    __slots__ = ("_left", "_recent", "_review_at", "_seen", "_started", "every", "threshold")

    def __init__(self, every: int) -> None:
        self.every = max(1, every)
        self._started = 0
        self._seen = 0
        self._left = BUDGET
        self._review_at = FIRST_REVIEW
        self._recent = [0] * RECENT
        self.threshold = 1 << 62  # ns; a longer step is an outlier

    def take(self, number: int) -> bool:
        """A step starts: is it exported whatever happens in it?"""
        self._started += 1
        return self._started <= FIRST or number % self.every == 0

    def would_take(self, number: int) -> bool:
        """Whether the step that starts next, if it has this number, is exported."""
        return self._started < FIRST or number % self.every == 0

    def slow(self, duration: int) -> bool:
        """A step took `duration` ns: is it an outlier?"""
        slow = duration > self.threshold
        seen = self._seen
        self._recent[seen % RECENT] = duration
        self._seen = seen = seen + 1
        if seen >= self._review_at:
            self._review()
        if slow:
            slow = self._left > 0
            self._left -= 1
        return slow

    def fleeting(self, duration: int) -> bool:
        """Whether a step of `duration` ns was only begun: it is far shorter than the shortest of the recent ones."""
        recent = self._recent[: self._seen]
        return bool(recent) and duration * FLEETING < min(recent)

    def _review(self) -> None:
        recent = sorted(self._recent[: self._seen])
        middle = median(recent, ordered=True)
        spread = MAD_SCALE * median([abs(duration - middle) for duration in recent])
        nearly_all = recent[-1 - SLOWER]
        self.threshold = int(max(middle * OUTLIER_RATIO, middle + OUTLIER_SPREADS * spread, nearly_all))
        self._review_at += min(self._seen, REVIEW)
        if self._seen % BUDGETED == 0:
            self._left = BUDGET


class PhaseSampler(Sampler):
    """Phases are always recorded, and exported where they are taken; other spans follow their parents.

    Args:
        take: whether the phase of a span with these attributes, about to begin in this trace, is exported.
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

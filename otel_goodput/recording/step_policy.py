"""Which steps, loads and parts are exported, decided twice: when one begins, and when it is over."""

from __future__ import annotations

from typing import Final

from otel_goodput.accounting.rules import STEP
from otel_goodput.recording.admission import Admission
from otel_goodput.recording.budget import NOTABLE, ROUTINE, VITAL
from otel_goodput.recording.sampling import StepSampler
from otel_goodput.recording.short_span import ShortSpan
from otel_goodput.semconv import PHASES

# A decision: one of the first three, and SLOW beside it.
THINNED: Final = 0  # not exported; a step is counted in a summary
SAMPLED: Final = 1  # exported whatever happens in it
KEPT: Final = 2  # exported for what happened in it
SLOW: Final = 4  # it took far longer than the steps before it
EXPORTED: Final = SAMPLED | KEPT


class StepPolicy:
    """Decides for one recorder.

    Args:
        sampler: which steps are exported.
        admission: which loads and parts are, and what there is room for.
        own_traces: each step has a trace of its own, which has room for it.
    """

    def __init__(self, sampler: StepSampler, admission: Admission, *, own_traces: bool) -> None:
        self.sampler = sampler
        self._admission = admission
        self._detailed = admission.budget.detailed or own_traces  # this process shows single steps

    def at_begin(self, span: ShortSpan, step: ShortSpan | None, latest: ShortSpan) -> int:
        """``SAMPLED`` or ``THINNED``.

        A step is the `step` itself. A load or a part is along with the one that is open, else it is taken for one
        behind the `latest`; it gets a gate where it is left out for there are too many.
        """
        if step is span:
            sampled = self.sampler.take(span.step) and self._detailed
        elif not (self._detailed and self.sampler.would_take(span.step) if step is None else step.sampled):
            return THINNED
        else:
            span.gate = self._admission.crowds(step or latest, PHASES[span.phase], span.title)
            sampled = span.gate is None
        return SAMPLED if sampled and self._room(span, ROUTINE) else THINNED

    def at_end(self, span: ShortSpan, duration: int, *, failed: bool) -> int:
        """The decision on a span that took `duration` ns; what is ``KEPT`` has its room taken."""
        slow = SLOW if span.phase == STEP and not failed and self.sampler.slow(duration) else 0
        if span.sampled:
            return SAMPLED | slow
        if (failed or slow) and self._room(span, VITAL if failed else NOTABLE):
            return KEPT | slow
        return slow

    def spend(self, span: ShortSpan) -> None:
        """A span is exported after all, for something in it is."""
        parent = span.parent()
        if parent is not None:
            self._admission.budget.spend(parent.trace_id)

    def _room(self, span: ShortSpan, worth: int) -> bool:
        """Whether its trace has room for a span `worth` that much; that of a step of its own has."""
        parent = span.parent()
        return parent is None or self._admission.afford(parent.trace_id, worth)

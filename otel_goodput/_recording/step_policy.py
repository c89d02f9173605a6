"""Decides which steps, loads and parts are exported, first when one begins, and again when it ends."""

from __future__ import annotations

from typing import Final

from opentelemetry.trace import SpanContext

from otel_goodput._accounting.rules import STEP
from otel_goodput._recording.sampling import Admission, StepSampler
from otel_goodput._recording.short_span import ShortSpan
from otel_goodput._recording.trace_layout import NOTABLE, ROUTINE, VITAL
from otel_goodput.semconv import PHASES

# A decision is one of the first three, possibly combined with SLOW.
THINNED: Final = 0  # not exported; a step is counted in a summary
SAMPLED: Final = 1  # exported whatever happens in it
KEPT: Final = 2  # exported because of what happened in it
SLOW: Final = 4  # it took far longer than the steps before it
EXPORTED: Final = SAMPLED | KEPT


class StepPolicy:
    """Decides which steps, loads and parts of one recorder are exported.

    Args:
        sampler: decides which steps are sampled.
        admission: limits the loads and parts, and the spans in each trace.
        own_traces: each step has a trace of its own, which always has room for it.
    """

    def __init__(self, sampler: StepSampler, admission: Admission, *, own_traces: bool) -> None:
        self.sampler = sampler
        self._admission = admission
        self._take = admission.budget.take
        self._detailed = admission.budget.detailed or own_traces  # this process exports single steps

    def at_begin(self, span: ShortSpan, step: ShortSpan | None, latest: ShortSpan) -> int:
        """Return ``SAMPLED`` or ``THINNED`` for a span that begins.

        A load or part is sampled if its step is, unless there are too many of them; its `gate` is then set.

        Args:
            span: the step, load or part.
            step: the open step, which is `span` itself for a step; None if none is open.
            latest: the latest step; a load without an open step counts as one after it.
        """
        if step is span:
            sampled = self.sample(span.step)
        elif not (self.would_sample(span.step) if step is None else step.sampled):
            return THINNED
        else:
            span.gate = self._admission.crowds(step or latest, PHASES[span.phase], span.title)
            sampled = span.gate is None
        return SAMPLED if sampled and self._room(span, ROUTINE) else THINNED

    def at_end(self, span: ShortSpan, duration: int, *, failed: bool) -> int:
        """Return the decision on a span that took `duration` ns; for ``KEPT``, room in its trace has been reserved."""
        slow = SLOW if span.phase == STEP and not failed and self.sampler.slow(duration) else 0
        if span.sampled:
            return SAMPLED | slow
        if (failed or slow) and self._room(span, VITAL if failed else NOTABLE):
            return KEPT | slow
        return slow

    def sample(self, number: int) -> bool:
        """Count a step that begins; return whether it is exported whatever happens in it, if there is room for it."""
        return self.sampler.take(number) and self._detailed

    def would_sample(self, number: int) -> bool:
        """Return whether step `number` would be, if it began now."""
        return self._detailed and self.sampler.would_take(number)

    def claim(self, span: ShortSpan) -> bool:
        """Reserve room for an open span whose identity others ask for; return False if its trace has none."""
        return self._room(span, ROUTINE)

    def affords_slow(self, step: ShortSpan) -> bool:
        """Have `step`, which was slow, exported if there is room for it in its trace; return whether there is."""
        if not self._room(step, NOTABLE):
            return False
        step.keep(paid=True)
        return True

    def affords(self, parent: SpanContext | None, worth: int = ROUTINE) -> bool:
        """Reserve room for a span with this parent; return False if its trace has none. A root always has room."""
        return parent is None or self._take(parent.trace_id, worth)

    def spend(self, span: ShortSpan) -> None:
        """Count a span that is exported after all, because a span inside it is."""
        parent = span.parent
        if parent is not None:
            self._admission.budget.spend(parent.trace_id)

    def _room(self, span: ShortSpan, worth: int) -> bool:
        return self.affords(span.parent, worth)

"""The traces of this attempt as this process uses them: their roots, its job, and the parents of its spans."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from opentelemetry import trace as trace_api
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext

from otel_goodput._accounting.events import NO_STEP
from otel_goodput._journal.account import Account, nothing
from otel_goodput._journal.records import CONTINUED, DETAILED, HALF, MOST_SPANS, ROOT
from otel_goodput._recording import ids
from otel_goodput._recording.emitter import SpanEmitter
from otel_goodput._recording.finished import attempt_span, continuation_span, continued_span
from otel_goodput._recording.trace_layout import Budget, TraceLayout


class AttemptTraces:
    """Chooses the trace and the parent of every span.

    Attributes:
        own: each step has a trace of its own.
        job_context, job_span: of the latest job, on which hangs what has no other parent; no span before the first.
        job_key: span id of the first job.
    """

    def __init__(
        self, account: Account, emitter: SpanEmitter, budget: Budget, layout: TraceLayout, process: int, *, own: bool
    ) -> None:
        self.budget = budget
        self.layout = layout
        self.run_id = layout.run_id
        self.attempt = layout.attempt
        self.process = process
        self.identity = (self.run_id, self.attempt, process)
        self.own = own
        self.job_context: SpanContext = ids.job_span_context(self.run_id, self.attempt, process)
        self.job_span: trace_api.Span | None = None
        self.job_key = self.job_context.span_id
        self._clock = account.clock
        self._append: Callable[..., None] = account.append
        self._emitter = emitter
        self._begun: dict[int, object] = {0: None}
        self._latest = 0  # number of the trace begun last
        self._rooted = process > 0  # only process 0 writes the attempt's root
        self._roots: list[ReadableSpan] = []  # the root, until it is emitted
        self.held = False  # the root is not emitted yet: it may still be withdrawn

    def parent_of(self, step: int, around: SpanContext) -> SpanContext:
        """Return the parent for a span in or for `step` that is opened inside `around` (which may be invalid)."""
        layout = self.layout
        number = layout.number(step)
        if around.is_valid and not self.budget.small:
            theirs = layout.number_of(around.trace_id)
            if theirs is None or theirs == number or step < 0:
                return around
        return self.root(number)

    def root(self, number: int) -> SpanContext:
        """Return the default parent for this process's spans in the attempt's trace `number`, beginning that trace."""
        if number:
            if number not in self._begun:
                self._continue(number)
            return self.layout.root(number)
        return self.layout.root(0) if self.budget.small else self.job_context

    def record_layout(self, longest: int) -> None:
        """Record the layout, and that a summary has at most `longest` steps, for a restart that exports the rest."""
        budget = self.budget
        if budget.limit:
            flags = min(budget.most, MOST_SPANS) | (DETAILED if budget.detailed else 0)
            self._append(CONTINUED, 0, flags, 0, self.layout.steps, longest, self._clock())

    @property
    def parent_of_job(self) -> SpanContext:
        """The attempt's root, which process 0 exports for all."""
        root = self.layout.root(0)
        return SpanContext(root.trace_id, root.span_id, True, ids.SAMPLED) if self.process else root

    def begin_root(self, moment: int) -> None:
        """Have process 0 record the attempt's root once, which the job begins at `moment` (ns); see `write_root`."""
        if not self._rooted:
            self._rooted = True
            self._roots.append(attempt_span(self.run_id, self.attempt, self._emitter.resource, moment))
            self._append(ROOT, 0, 0, 0, self.layout.root(0).span_id, NO_STEP, moment)

    def write_root(self) -> None:
        if self.held:
            return
        with suppress(IndexError):
            self._emitter.emit(self._roots.pop())

    def close(self) -> None:
        self._append = nothing

    def _continue(self, number: int) -> None:
        """Begin the trace `number`, unless another thread has; process 0 emits its spans."""
        before, token = self._latest, object()
        if self._begun.setdefault(number, token) is not token:
            return
        self._latest = number
        if self.process:
            return  # process 0 emits them for all processes
        layout, moment = self.layout, self._clock()
        self._append(CONTINUED, 1, 0, 0, layout.root(number).span_id, before * HALF + number, moment)
        for make in (continued_span, continuation_span):
            self._emitter.emit(make(layout, number, before, self._emitter.resource, moment))

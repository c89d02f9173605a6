"""Records the phases of one job: opens their spans, and exports summaries off the training thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from opentelemetry import trace as trace_api
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext, Tracer
from opentelemetry.util import types

from otel_goodput.accounting import rules
from otel_goodput.accounting.events import NO_STEP
from otel_goodput.journal.account import Account
from otel_goodput.journal.thinning import SUMMARY, Thinner
from otel_goodput.recording import ids
from otel_goodput.recording.admission import Admission
from otel_goodput.recording.attempt_traces import AttemptTraces
from otel_goodput.recording.budget import VITAL
from otel_goodput.recording.emitter import SpanEmitter
from otel_goodput.recording.fast_span import FastSpan
from otel_goodput.recording.hooks import Hooks
from otel_goodput.recording.job_spans import JobSpans
from otel_goodput.recording.job_thread import JobThread
from otel_goodput.recording.misuse import Misuse
from otel_goodput.recording.open_spans import OpenSpans
from otel_goodput.recording.short_span import ShortSpan
from otel_goodput.recording.span_processor import PhaseSpanProcessor
from otel_goodput.recording.step_line import StepLine
from otel_goodput.recording.step_policy import StepPolicy
from otel_goodput.recording.summaries import phases_span, steps_span
from otel_goodput.semconv import GOODPUT_PHASE, GOODPUT_STEP, GOODPUT_TRACE_NUMBER, Phase

Find = Callable[[], "PhaseTracer | None"]

LONGEST_TICK_S: Final = 1.0
LONGEST_STRETCH: Final = 100_000  # maximum number of steps in a summary


class PhaseTracer(StepLine):
    """Records phases into an account and a tracer provider.

    Args:
        account: receives the events.
        tracer: starts the spans of all phases but steps, loads and parts.
        generator: generates span ids; None with the user's own provider.
        thread: the job's thread.
        hooks: the callbacks.
        policy: decides which steps, loads and parts are exported.
        admission: decides which other phases are exported.
        traces: chooses traces and parents.
        spans: the open spans.
        emitter: exports the spans that `tracer` does not start.
        processor: accounts for the spans that `tracer` starts.
        find: returns the current recorder; None if nothing records.
    """

    def __init__(
        self,
        account: Account,
        tracer: Tracer,
        generator: ids.PrivateIdGenerator | None,
        thread: JobThread,
        hooks: Hooks,
        policy: StepPolicy,
        admission: Admission,
        traces: AttemptTraces,
        spans: OpenSpans,
        emitter: SpanEmitter,
        processor: PhaseSpanProcessor,
        find: Find,
    ) -> None:
        misused = Misuse(account.notes)
        steps = admission.volumes.steps
        stretch = min(-(-steps // admission.budget.summaries()), LONGEST_STRETCH)
        super().__init__(
            account=account,
            thread=thread,
            hooks=hooks,
            policy=policy,
            traces=traces,
            admission=admission,
            spans=spans,
            emitter=emitter,
            jobs=JobSpans(account, tracer, generator, traces, thread, misused),
            misused=misused,
            thinner=Thinner(max(SUMMARY, stretch), steps),
            generator=generator or ids.PrivateIdGenerator(),
            find=find,
        )
        self._tracer = tracer
        self._samples_parents = generator is None  # the user's own provider, whose sampler may follow the parent's flag
        self._processor = processor
        self._ticking = threading.Lock()
        self._summing = threading.Lock()
        self.latest: ShortSpan = self._first()
        traces.tell_bounds(self.thinner.most)

    def _first(self) -> FastSpan:
        """Return a placeholder for the latest step before the first."""
        span = FastSpan(self, rules.STEP, -1, None, None, None)
        span.unfold()
        return span

    # --- steps, loads and parts ---------------------------------------------------------------------------------------

    def step(
        self, number: int, start: int | None = None, end: int | None = None, blocking: bool | None = None
    ) -> FastSpan:
        """Return the span of a step, not begun yet; times in ns."""
        return FastSpan(self, rules.STEP, number, blocking, start, end)

    def loop_step(self, number: int) -> FastSpan:
        """Same as :meth:`step`, for a step of ``steps()``."""
        # A flag and not a subclass: the interpreter is faster if a call site sees only one class.
        span = FastSpan(self, rules.STEP, number, None, None, None)
        span.in_loop = True
        return span

    def load(
        self,
        start: int | None = None,
        end: int | None = None,
        blocking: bool | None = None,
        step: int | None = None,
    ) -> FastSpan:
        """Return the span of a data load, not begun yet, for `step` or else :meth:`load_number`; times in ns."""
        if step is None:
            step = self.load_number()
        return FastSpan(self, rules.DATA_LOADING, step, blocking, start, end)

    def part(self, name: str) -> FastSpan:
        """Return the span of a part of the open step, not begun yet."""
        return FastSpan.of_part(self, name)

    def restored(self, step: int) -> None:
        """Note that the checkpoint of `step` was restored: by default, the next step is the one after it."""
        if self.blocks(None):
            self.stand_for_restored(self.step(step))

    # --- other phases -------------------------------------------------------------------------------------------------

    def start_span(self, name: str, attributes: dict[str, types.AttributeValue], start: int | None) -> trace_api.Span:
        """Start a span of the SDK under the current one, or else under the job; `start` in ns."""
        if self.hooks.before_phase is not None:
            self.hooks.before_phase()
        around = trace_api.get_current_span()
        if self._samples_parents:
            self.spans.hold(around)  # first: with an unsampled parent, the phase might not be recorded, nor accounted
        context = None
        step = self.spans.step if self.blocks(None) else None
        if step is not None and step.step >= 0:
            attributes.setdefault(GOODPUT_STEP, step.step)
        parent = around.get_span_context()
        hidden = parent.is_valid and not isinstance(around, ShortSpan) and not parent.trace_flags.sampled
        number = self.latest.step if step is None else step.step
        if step is not None and hidden and parent.span_id not in self.admission.left_out:
            # The span in between was dropped with its step, before the step turned out to be worth exporting.
            parent = step.get_span_context()
            context = trace_api.set_span_in_context(step)
        elif (placed := self.traces.parent_of(number, parent)) is not parent:
            parent = placed
            context = trace_api.set_span_in_context(trace_api.NonRecordingSpan(placed))
        if trace := self.traces.volumes.number_of(parent.trace_id):
            attributes[GOODPUT_TRACE_NUMBER] = trace
        return self._tracer.start_span(name, context=context, attributes=attributes, start_time=start or self.clock())

    def seen(self, span: trace_api.Span) -> trace_api.Span:
        """Return the parent for spans inside `span`: `span`, or the attempt's root if there was no room for `span`."""
        if self.admission.budget.small and span.get_span_context().span_id in self.admission.left_out:
            return trace_api.NonRecordingSpan(self.traces.root(0))
        return span

    def ensure_ended(self, span: trace_api.Span) -> None:
        """Record the end of `span` in the journal, if an interrupt prevented that."""
        if isinstance(span, ReadableSpan):
            self._processor.on_end(span)

    def end_job(self, *, failed: bool) -> None:
        """End the implicit job and what is open in it, because the user's job ends or recording stops."""
        named = [span for span in tuple(self.spans.phases.values()) if span is not self.jobs.implicit]
        if not self.closed and any((span.attributes or {}).get(GOODPUT_PHASE) == Phase.JOB for span in named):
            return  # a job is still open around the one that ended

        def end() -> int:
            self.end_inner(left=not failed)
            return self.clock()

        self.jobs.end_implicit(end, failed=failed)

    # --- off the training thread --------------------------------------------------------------------------------------

    def tick(self, *, final: bool = False) -> None:
        """Export what is ready: roots, compilations, and summaries; with `final` also incomplete summaries."""
        # The keeper, a flush and the shutdown may run this at once; one stuck in an exporter must not block the others.
        if not self._ticking.acquire(timeout=LONGEST_TICK_S):
            return
        try:
            self.traces.write_roots()  # JobSpans.start() may have been interrupted before it wrote them
            if final:
                self.number_loads(NO_STEP)
            self.hooks.tick()
            self.sum_up(final=final)
        finally:
            self._ticking.release()

    def sum_up(self, *, final: bool = False) -> None:
        """Export summaries of steps and phases that were not exported; with `final` also incomplete summaries."""
        traces, emitter = self.traces, self.emitter
        place = (traces.identity, emitter.resource, emitter.scope)
        with self._summing:
            for summary in self.thinner.summaries(final=final):
                number = traces.volumes.number(summary.first)
                if self._has_room(root := traces.root(number)):
                    emitter.emit(steps_span(summary, root, number, *place))
            for name, summary in self.admission.summaries(final=final):
                number = traces.volumes.number(self.latest.step)
                if self._has_room(root := traces.root(number)):
                    emitter.emit(phases_span(name, summary, root, number, *place))

    def _has_room(self, root: SpanContext) -> bool:
        """Reserve room for a summary in the trace of `root`; return False if there is none."""
        return not self.admission.budget.small and self.admission.afford(root.trace_id, VITAL)

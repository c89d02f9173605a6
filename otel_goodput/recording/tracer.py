"""What records the phases of one job: opens their spans, and does what is due off the training thread."""

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
LONGEST_STRETCH: Final = 100_000  # steps in a summary


class PhaseTracer(StepLine):
    """Records phases into an account and a tracer provider.

    Args:
        account: where the events go.
        tracer: starts the spans of all phases but steps, loads and parts.
        generator: makes span ids; None where the provider is the user's own.
        thread: the job's.
        hooks: who is told.
        policy: which steps, loads and parts are exported.
        admission: which other phases are.
        traces: where spans hang.
        spans: the open ones.
        emitter: takes the spans that `tracer` does not make.
        processor: follows the spans that it does make.
        find: gives what records by now; None: nothing does.
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
        self._samples_parents = generator is None  # the user's own provider, whose sampler goes by the parent's flag
        self._processor = processor
        self._ticking = threading.Lock()
        self._summing = threading.Lock()
        self.latest: ShortSpan = self._first()
        traces.tell_bounds(self.thinner.most)

    def _first(self) -> FastSpan:
        """What stands for the latest step where there has been none."""
        span = FastSpan(self, rules.STEP, -1, None, None, None)
        span.unfold()
        return span

    # --- steps, loads and parts ---------------------------------------------------------------------------------------

    def step(
        self, number: int, start: int | None = None, end: int | None = None, blocking: bool | None = None
    ) -> FastSpan:
        """The span of a step, not begun yet; times in ns."""
        return FastSpan(self, rules.STEP, number, blocking, start, end)

    def loop_step(self, number: int) -> FastSpan:
        """As :meth:`step`, of a loop that may be left."""
        # No class of its own: the interpreter is quick where all objects at a place are of one class.
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
        """The span of a data load, not begun yet: for `step`, else as :meth:`load_number` says."""
        if step is None:
            step = self.load_number()
        return FastSpan(self, rules.DATA_LOADING, step, blocking, start, end)

    def part(self, name: str) -> FastSpan:
        """The span of a part of the open step, not begun yet."""
        return FastSpan.of_part(self, name)

    def restored(self, step: int) -> None:
        """The checkpoint of `step` was restored: training goes on behind it, or with it, as its user numbers them."""
        if self.blocks(None):
            self.stand_for_restored(self.step(step))

    # --- other phases -------------------------------------------------------------------------------------------------

    def start_span(self, name: str, attributes: dict[str, types.AttributeValue], start: int | None) -> trace_api.Span:
        """A span of the SDK, under the current one or else under the job."""
        if self.hooks.before_phase is not None:
            self.hooks.before_phase()
        around = trace_api.get_current_span()
        if self._samples_parents:
            self.spans.hold(around)  # before: a phase in what is not sampled would not be seen, and not be accounted
        context = None
        step = self.spans.step if self.blocks(None) else None
        if step is not None and step.step >= 0:
            attributes.setdefault(GOODPUT_STEP, step.step)
        parent = around.get_span_context()
        hidden = parent.is_valid and not isinstance(around, ShortSpan) and not parent.trace_flags.sampled
        number = self.latest.step if step is None else step.step
        if step is not None and hidden and parent.span_id not in self.admission.left_out:
            # The span between was thinned out with its step before that turned out to be worth keeping.
            parent = step.get_span_context()
            context = trace_api.set_span_in_context(step)
        elif (placed := self.traces.parent_of(number, parent)) is not parent:
            parent = placed
            context = trace_api.set_span_in_context(trace_api.NonRecordingSpan(placed))
        if trace := self.traces.volumes.number_of(parent.trace_id):
            attributes[GOODPUT_TRACE_NUMBER] = trace
        return self._tracer.start_span(name, context=context, attributes=attributes, start_time=start or self.clock())

    def seen(self, span: trace_api.Span) -> trace_api.Span:
        """What others hang on in `span`: where its job is not exported for want of room, the attempt's root."""
        if self.admission.budget.small and span.get_span_context().span_id in self.admission.left_out:
            return trace_api.NonRecordingSpan(self.traces.root(0))
        return span

    def ensure_ended(self, span: trace_api.Span) -> None:
        """The journal has the end of `span`, whatever interrupted that."""
        if isinstance(span, ReadableSpan):
            self._processor.on_end(span)

    def end_job(self, *, failed: bool) -> None:
        """The job that was opened is over, or everything is; so is the one that was begun for want of it."""
        named = [span for span in tuple(self.spans.phases.values()) if span is not self.jobs.implicit]
        if not self.closed and any((span.attributes or {}).get(GOODPUT_PHASE) == Phase.JOB for span in named):
            return  # it was one within another

        def end() -> int:
            self.end_inner(left=not failed)
            return self.clock()

        self.jobs.end_implicit(end, failed=failed)

    # --- off the training thread --------------------------------------------------------------------------------------

    def tick(self, *, final: bool = False) -> None:
        """Export what lies ready: compilations, summaries of steps, with `final` of all of them."""
        # The keeper, a flush and the end may meet here; an exporter stuck in one of them must not hold up the end.
        if not self._ticking.acquire(timeout=LONGEST_TICK_S):
            return
        try:
            self.traces.write_roots()  # whoever laid them ready may have been interrupted
            if final:
                self.number_loads(NO_STEP)
            self.hooks.tick()
            self.sum_up(final=final)
        finally:
            self._ticking.release()

    def sum_up(self, *, final: bool = False) -> None:
        """Export summaries of what was thinned out; with `final` of all of it."""
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
        """Whether there is room for a summary in the trace of `root`."""
        return not self.admission.budget.small and self.admission.afford(root.trace_id, VITAL)

"""The spans of the SDK that are phases: how they are started, the job among them, and the events of the ledger.

Every span with ``goodput.phase`` counts, whoever starts it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from opentelemetry import trace as trace_api
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Decision, Sampler, StaticSampler
from opentelemetry.trace import Link, SpanContext, Status, StatusCode, Tracer
from opentelemetry.util import types

from otel_goodput import semconv
from otel_goodput._accounting import events as ev
from otel_goodput._accounting import rules
from otel_goodput._journal.account import Account, nothing
from otel_goodput._journal.records import DROPPED, ERRED, EXPORT, INTERRUPTED, LARGEST, PARENT, SUMMARIZED, signed
from otel_goodput._recording import ids, misuse
from otel_goodput._recording.attempt_traces import AttemptTraces
from otel_goodput._recording.emitter import SpanEmitter
from otel_goodput._recording.finished import PhaseReadableSpan, sampled_copy
from otel_goodput._recording.hooks import Hooks
from otel_goodput._recording.misuse import Misuse
from otel_goodput._recording.nesting import identity
from otel_goodput._recording.open_spans import JobThread, OpenSpans
from otel_goodput._recording.plain import error_name
from otel_goodput._recording.sampling import OTHERS, Admission, Gate, name_in
from otel_goodput._recording.short_span import ShortSpan
from otel_goodput._recording.trace_layout import NOTABLE, VITAL
from otel_goodput._runtime.guard import contain, guarded, report_once
from otel_goodput._text.redact import shown
from otel_goodput.semconv import SCOPE_NAME


class PhaseSpanProcessor(SpanProcessor):
    """Feeds an account from the spans of a tracer provider.

    Without `traces`, ids do not derive from run and attempt. Of the open `spans`, this maintains `phases`. `emitter`
    exports spans that were not sampled and are exported after all. Without `admission`, another sampler decides.
    """

    def __init__(
        self,
        account: Account,
        thread: JobThread,
        hooks: Hooks | None = None,
        traces: AttemptTraces | None = None,
        spans: OpenSpans | None = None,
        emitter: SpanEmitter | None = None,
        admission: Admission | None = None,
    ) -> None:
        self._account = account
        self._thread = thread
        self._hooks = hooks or Hooks()
        self._job_trace = 0 if traces is None else traces.layout.root(0).trace_id
        self._job_key = 0 if traces is None else traces.job_key
        self._spans = spans
        self._open: dict[int, Span] = {} if spans is None else spans.phases
        self._emitter = emitter
        self._admission = admission
        # Of open spans, by span id: index into semconv.PHASES, and gate.
        self._phases: dict[int, tuple[int, Gate | None]] = {}
        self._misused = Misuse(account.notes)
        self._live = True

    @guarded(None)
    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        if isinstance(cast(trace_api.Span, span), ShortSpan):
            return  # its journal has it already
        attributes = span.attributes
        named = attributes.get(semconv.GOODPUT_PHASE) if attributes else None
        if named is None or attributes is None or not self._live:
            admission, context = self._admission, span.context
            sampled = named is None and self._live and context.trace_flags.sampled
            if sampled and admission is not None and admission.crowded(context.trace_id):
                self._misused.warn(misuse.OWN_SPANS, count=OTHERS)
            return
        phase = rules.PHASE_INDEX.get(str(named))
        if phase is None:
            report_once("unknown phase", "a span has the unknown goodput.phase=%r and is not accounted for", named)
            return
        step = attributes.get(semconv.GOODPUT_STEP, ev.NO_STEP)
        if not isinstance(step, int) or (phase == rules.STEP and step < 0) or abs(step) > LARGEST:
            why = "a %s span needs goodput.step, an integer >= 0, but has %r; it is not accounted for"
            report_once("step number", why, named, step)
            return
        if span.start_time is not None and abs(span.start_time) > LARGEST:
            report_once("span time", "a %s span starts at %d ns and is not accounted for", named, span.start_time)
            return
        if self._admission is None and self._emitter is not None and span.context.trace_flags.sampled:
            self._emitter.follow(span)
        if phase == rules.JOB:
            self._thread.take()
        blocking = attributes.get(semconv.GOODPUT_BLOCKING)
        admission, context = self._admission, span.context
        gate = None if admission is None else admission.gate_of(attributes)
        flags = DROPPED if admission is None else 0
        if context.trace_flags.sampled:
            flags = EXPORT
            # On the user's own provider, PhaseTracer.start_span() has held what is around.
            scope = span.instrumentation_scope
            held = admission is None and phase != rules.JOB and scope is not None and scope.name == SCOPE_NAME
            if self._spans is not None and not held:
                self._spans.hold(self._spans.nesting.here())
        elif admission is not None and gate is not None:
            admission.left_out[context.span_id] = gate
        if not self._thread.blocks(blocking if isinstance(blocking, bool) else None):
            flags |= ev.NONBLOCKING
        elif phase in rules.OWNERS and not isinstance(blocking, bool) and self._thread.in_another_task():
            flags |= ev.OVERLAPPING
        name = name_in(attributes)
        if phase == rules.CUSTOM_PHASE and not name:
            name = span.name
        self._phases[context.span_id] = phase, gate
        self._open[context.span_id] = span
        start = span.start_time or self._account.clock()
        device = self._hooks.device
        # What a step dispatches is not the work of a phase that runs at the same time.
        in_step = flags & ev.OVERLAPPING and self._spans is not None and self._spans.step is not None
        if device is not None and not flags & ev.NONBLOCKING and not in_step:
            device.begin(context.span_id, phase, start)
        self._account.start(phase, context.span_id, step, flags, name, start)
        self._thread.latest_change = object()
        if context.trace_id != self._job_trace:
            self._account.foreign_trace(context.span_id, context.trace_id)
        if span.parent is not None and span.parent.span_id != self._job_key:
            self._account.append(PARENT, 0, 0, 0, context.span_id, signed(span.parent.span_id), start)

    def _left_out(self, gate: Gate | None, context: SpanContext, start: int, end: int, failed: bool) -> bool:
        """Return whether a phase from `start` to `end` (ns) is not exported; if so, its gate summarizes it."""
        key, admission = context.span_id, self._admission
        if gate is None or admission is None:
            return False
        stands_out = gate.stands_out(max(0, end - start), failed)
        if key not in admission.left_out or key in admission.kept:
            return False
        if stands_out and admission.afford(context.trace_id, VITAL if failed else NOTABLE):
            return False
        gate.leave_out(start, end)
        return True

    def _forget(self, key: int) -> bool:
        """Forget a phase whose end is in the journal; return whether it was not sampled at its begin."""
        self._thread.latest_change = object()
        self._open.pop(key, None)
        self._phases.pop(key, None)
        if self._admission is None:
            return False
        self._admission.kept.discard(key)
        return self._admission.left_out.pop(key, None) is not None

    @guarded(None)
    def on_end(self, span: ReadableSpan) -> None:
        if isinstance(span, PhaseReadableSpan) or not self._open or not self._live:
            return
        context = span.get_span_context()
        if context is None or context.span_id not in self._open:
            return
        attributes = span.attributes or {}
        flags = ERRED | ev.FAILED if span.status.status_code is StatusCode.ERROR else 0
        if attributes.get(semconv.GOODPUT_STEP_COMPLETED) is False:
            flags |= ev.FAILED
        if attributes.get(semconv.GOODPUT_CHECKPOINT_DURABLE) is False:
            flags |= ev.PENDING
        if attributes.get(semconv.GOODPUT_INTERRUPTED):
            flags |= INTERRUPTED
        phase, gate = self._phases[context.span_id]
        if rules.PHASE_INDEX.get(str(attributes.get(semconv.GOODPUT_PHASE))) != phase:
            self._misused.warn(misuse.CHANGED, key=semconv.GOODPUT_PHASE)
        end = min(span.end_time or self._account.clock(), LARGEST)
        if self._hooks.device is not None:
            self._hooks.device.end(context.span_id, end)
        name = ""
        if phase == rules.COMPILE:
            name = str(attributes.get(semconv.GOODPUT_COMPILE_FUNCTION) or "")
        elif phase == rules.JOB and attributes.get(semconv.ERROR_TYPE):
            message = (span.status.description or "").partition(": ")[2]
            kind = str(attributes[semconv.ERROR_TYPE])
            name = shown(f"{kind}: {message}" if message else kind)
        left_out = self._left_out(gate, context, span.start_time or end, end, bool(flags & ev.FAILED))
        if left_out:
            flags |= SUMMARIZED
        elif self._admission is not None or context.trace_flags.sampled:
            flags |= EXPORT
        if left_out and gate is not None and gate.shared:
            name = gate.name  # otherwise the journal has the name from the START record
        if phase != rules.STEP and (error := attributes.get(semconv.ERROR_TYPE)):
            self._account.error(phase, context.span_id, str(error), end)
        self._account.end(phase, context.span_id, flags, end, name)
        # Only now, so that it is ended again if an interrupt came before.
        if self._forget(context.span_id) and not left_out and self._spans is not None and self._emitter is not None:
            self._emitter.emit(sampled_copy(span, self._spans.adopt(span)))

    @guarded(None)
    def shutdown(self) -> None:
        if self._live:
            self.end_open()
            self._account.refresh()

    def end_open(self) -> None:
        """End the open phases, innermost first, mark them as interrupted, and stop recording."""
        for span in reversed(list(self._open.values())):
            span.set_attribute(semconv.GOODPUT_INTERRUPTED, True)
            if (span.attributes or {}).get(semconv.GOODPUT_CHECKPOINT_DURABLE):
                span.set_attribute(semconv.GOODPUT_CHECKPOINT_DURABLE, False)
            span.set_status(Status(StatusCode.ERROR, "interrupted by shutdown"))
            span.end()
        self._live = False

    @guarded(False)
    def force_flush(self, timeout_millis: int = 30000) -> bool:
        self._account.refresh()
        return True


StartPhase = Callable[..., trace_api.Span]  # (name, context, attributes, start_time, links=())


def phase_starter(
    tracer: Tracer,
    other: Callable[[Sampler, Sequence[SpanProcessor]], Tracer],
    processor: PhaseSpanProcessor,
    spans: OpenSpans,
    emitter: SpanEmitter,
) -> StartPhase:
    """Return what starts the spans of phases with the `tracer` of the provider in use, and loses none of the account.

    A phase that the user's sampler drops, or at whose start their sampler or span processor raises, gets a span of
    another provider: `other` returns a tracer of one with this sampler and these span processors.
    """
    dropped = other(StaticSampler(Decision.RECORD_ONLY), [processor])
    refused = other(ALWAYS_ON, [processor, emitter])

    def start(
        name: str,
        context: Context,
        attributes: Mapping[str, types.AttributeValue],
        start_time: int,
        links: Sequence[Link] = (),
    ) -> trace_api.Span:
        how: dict[str, Any] = {"context": context, "attributes": attributes, "links": links, "start_time": start_time}
        before = set(spans.phases)
        try:
            span = tracer.start_span(name, **how)
        except Exception as error:
            contain("start of a span", error)
            begun = spans.begun_at(start_time)
            if begun is not None and begun.context.span_id not in before:  # a processor added after ours has raised
                return begun
            return refused.start_span(name, **how)
        return span if span.is_recording() else dropped.start_span(name, **how)

    return start


class JobSpans:
    """Opens the jobs of one recorder, one after the other, and passes its records to the account.

    `append` appends a record to the journal. If no job is open, the record of a blocking phase begins one: `implicit`,
    as long as it is open. There is no `generator` of ids with the user's own provider.
    """

    def __init__(
        self,
        account: Account,
        start_phase: StartPhase,
        generator: ids.PrivateIdGenerator | None,
        traces: AttemptTraces,
        thread: JobThread,
        misused: Misuse,
    ) -> None:
        self.append: Callable[..., None] = self._append_outside
        self._account = account
        self._start_phase = start_phase
        self._generator = generator
        self._traces = traces
        self._thread = thread
        self._misused = misused
        self._begun = 0
        self._over = False  # a job has ended
        self.of_trainer = False  # a trainer opens the steps: its user has no place for a job
        self.implicit: trace_api.Span | None = None
        self._closed = False

    @property
    def none_yet(self) -> bool:
        return not self._begun

    def start(self, start: int) -> trace_api.Span:
        """Begin a job at `start` (ns), linked to the previous attempt, to the span around it and to an earlier job.

        It is a child of the attempt's root, which is exported at once: the trace can be viewed while the job runs.
        """
        traces = self._traces
        links = []
        if traces.attempt > 0:
            links.append(Link(ids.attempt_span_context(traces.run_id, traces.attempt - 1, traces.process)))
        around = identity(trace_api.get_current_span())
        if around.is_valid:
            links.append(Link(around))
        if self._begun:
            # The process opens a job again: another span in the same trace.
            links.append(Link(traces.job_context))
        itself = ids.job_span_context(*traces.identity, self._begun)
        self._begun += 1
        self._pass_on(self._account.append)
        if self._generator is not None:
            # Before the job's record, so that a restart can tell the root from the job even if we die in between.
            traces.begin_root(start)
            self._generator.fix_next(itself.trace_id, itself.span_id)
        parent = trace_api.set_span_in_context(trace_api.NonRecordingSpan(traces.parent_of_job), Context())
        attributes: dict[str, types.AttributeValue] = {semconv.GOODPUT_PHASE: semconv.Phase.JOB}
        span = self._start_phase(semconv.Phase.JOB, parent, attributes, start, links)
        if self._generator is None and span.get_span_context().trace_flags.sampled:
            traces.begin_root(start)  # a job that the user's sampler drops is not exported, nor is its root
        traces.write_root()
        traces.job_context, traces.job_span = span.get_span_context(), span
        return span

    def begin_implicit(self, start: int) -> None:
        """Begin a job at `start` (ns), which lasts until the process ends, or becomes the one that the user opens."""
        if self._closed:
            return  # a phase that found the recorder before its shutdown
        self.implicit = self.start(start)
        self._pass_on(self._append_outside)

    def begin_around(self, start: int) -> None:
        """Begin the job of a whole program at `start` (ns): an implicit one that is no misuse.

        Nothing of it is exported until ``AttemptTraces.held`` is False again: the program may configure itself.
        """
        self._traces.held = True
        self.implicit = self.start(start)

    def take_over(self) -> trace_api.Span | None:
        """Return the implicit job for the job that the user opens now; None if there is none."""
        job, self.implicit = self.implicit, None
        if job is not None:
            self._thread.take()
            self._pass_on(self._account.append)
        return job

    def end_implicit(self, end: Callable[[], int], *, error: BaseException | None) -> None:
        """End the implicit job, if there is one, at the time that `end` returns (ns); `error` ended the program."""
        job, self.implicit = self.implicit, None
        if job is not None and job.is_recording():
            moment = end()
            if error is not None:
                job.set_attribute(semconv.ERROR_TYPE, error_name(error))
                job.set_status(StatusCode.ERROR, f"{type(error).__name__}: {error}")
            job.end(moment)
        self._over = True
        self._pass_on(self._append_outside)

    def close(self) -> None:
        self._closed, self.append = True, nothing
        self._thread.latest_change = object()

    def _pass_on(self, append: Callable[..., None]) -> None:
        if not self._closed:
            self.append = append
            self._thread.latest_change = object()

    def _append_outside(self, kind: int, phase: int, flags: int, *record: int) -> None:
        """Append a record outside of the user's job, which the start of a blocking phase begins implicitly."""
        if kind == ev.START and phase != rules.COMPILE and not flags & ev.NONBLOCKING:
            if self.none_yet and not self._over:
                self.begin_implicit(record[-1])
            if phase == rules.STEP:
                if self._over or not self.of_trainer:
                    self._misused.warn(misuse.AFTER_JOB if self._over else misuse.NO_JOB)
                self._pass_on(self._account.append)
        self._account.append(kind, phase, flags, *record)

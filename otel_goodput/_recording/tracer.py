"""Records the phases of one job: opens their spans, and exports summaries off the training thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import context as context_api
from opentelemetry import trace as trace_api
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.sdk.trace.sampling import Sampler
from opentelemetry.trace import INVALID_SPAN_CONTEXT, SpanContext, Status, StatusCode, Tracer
from opentelemetry.util import types

from otel_goodput import semconv
from otel_goodput._accounting import rules
from otel_goodput._accounting.events import LABEL, NO_STEP, NONBLOCKING
from otel_goodput._accounting.resuming import Past
from otel_goodput._journal.account import Account
from otel_goodput._recording import plain
from otel_goodput._recording.attempt_traces import AttemptTraces
from otel_goodput._recording.compile_phases import CompilePhases
from otel_goodput._recording.emitter import SpanEmitter
from otel_goodput._recording.fast_span import FastSpan
from otel_goodput._recording.finished import summary_span
from otel_goodput._recording.hooks import Hooks
from otel_goodput._recording.ids import SAMPLED, PrivateIdGenerator
from otel_goodput._recording.misuse import Misuse
from otel_goodput._recording.nesting import Nested, Nesting, identity
from otel_goodput._recording.open_spans import JobThread, OpenSpans
from otel_goodput._recording.sampling import Admission, StepSampler
from otel_goodput._recording.span_processor import JobSpans, PhaseSpanProcessor, phase_starter
from otel_goodput._recording.step_line import CheckpointLabels, StepLine, StepPolicy
from otel_goodput._recording.trace_layout import VITAL, Budget, TraceLayout, steps_in_a_trace
from otel_goodput._runtime.guard import contain, guarded
from otel_goodput._settings.config import Config
from otel_goodput._settings.options import OWN
from otel_goodput.semconv import Phase

Find = Callable[[], "PhaseTracer | None"]

LONGEST_TICK_S: Final = 1.0


class PhaseTracer(StepLine):
    """Records phases into an account and a tracer provider.

    Args:
        attempt: id of the run, and number of the attempt.
        tracer: of the provider in use; its spans reach `processor`.
        other: returns a tracer of a provider that has this sampler and these span processors.
        generator: generates span ids, also for `tracer` unless that is of a provider of the user's.

    Attributes:
        processor: records the spans of all phases but steps, loads, parts and compilations.
    """

    def __init__(
        self,
        config: Config,
        account: Account,
        past: Past,
        attempt: tuple[str, int],
        emitter: SpanEmitter,
        tracer: Tracer,
        other: Callable[[Sampler, Sequence[SpanProcessor]], Tracer],
        generator: PrivateIdGenerator,
        find: Callable[[], StepLine | None],
    ) -> None:
        shared, own = config.tracer_provider is not None, config.step_traces == OWN
        limit, process = config.trace_spans, config.process_index
        thread, hooks, misused = JobThread(), Hooks(), Misuse(account.notes)
        budget = Budget(limit, config.process_count, leads=config.leads)
        layout = TraceLayout(*attempt, steps_in_a_trace(limit, config.step_sampling))
        admission = Admission(budget, layout)
        policy = StepPolicy(StepSampler(config.step_sampling), admission, own_traces=own)
        traces = AttemptTraces(account, emitter, budget, layout, process, own=own)
        nesting = Nesting(emitter.resource, shared=shared, ours=lambda trace: layout.number_of(trace) is not None)
        spans = OpenSpans(thread, admission, traces, nesting)
        processor = PhaseSpanProcessor(account, thread, hooks, traces, spans, emitter, None if shared else admission)
        starter = phase_starter(tracer, other, processor, spans, emitter)
        jobs = JobSpans(account, starter, None if shared else generator, traces, thread, misused)
        labels, new_key = CheckpointLabels(past), generator.new_span_id
        super().__init__(account, hooks, policy, spans, emitter, jobs, misused, new_key, find, labels)
        self.compilations = CompilePhases(self)
        self.processor = processor
        self._start_phase = starter
        self._ticking = threading.Lock()
        self._summing = threading.Lock()
        first = self.step(-1)
        first.unfold()
        self.begin(first)

    # --- steps, loads (not begun yet; times in ns) and parts ----------------------------------------------------------

    def step(
        self, number: int, start: int | None = None, end: int | None = None, blocking: bool | None = None
    ) -> FastSpan:
        return FastSpan(self, rules.STEP, number, blocking, start, end)

    def load(self, start: int | None = None, end: int | None = None, blocking: bool | None = None) -> FastSpan:
        return FastSpan(self, rules.DATA_LOADING, self.load_number(), blocking, start, end)

    def stage(self, name: str, step: int | None, start: int, end: int, *, shown: bool = True) -> None:
        """Record a part of the phase around the caller that is over, from `start` to `end` (ns).

        `step` is the number of the step that the phase belongs to. The span is exported if the phase's is and `shown`.
        """
        if self.closed:
            return
        around = identity(self.nesting.here())
        number = NO_STEP if step is None else step
        if not (shown and around.is_valid):
            key = self.new_key()
            flags = 0 if self.blocks(None) else NONBLOCKING
            self.account.start(rules.PART, key, number, flags, name, start)
            self.account.end(rules.PART, key, 0, end)
            return
        part = FastSpan(self, rules.PART, number, None, start, end)
        part.title, part.label = name, self.account.journal.name(name)
        with part:
            if around.trace_flags.sampled:
                part.keep()

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def restored(self, label: int | None, key: int | None = None) -> None:
        """Note that the checkpoint `label` was restored: by default, the next step follows those that it stands for.

        `label`: None if it is not known; `key`: of the open restore that did not know it when it began.
        """
        if label is not None and key is not None:
            self._label(key, label)
        if not self.blocks(None) or self._in_custom():
            return
        self.hooks.give_way(True)
        latest = self.begun
        done = None if label is None else self.labels.restore(label, latest, again=self.unsure)
        if done is not None:
            self._begun_before = latest
            self.latest = self._restored = self.step(done)  # never begins
        self.forget_number()

    def _in_custom(self) -> bool:
        """Whether a custom phase is open amid training: what an evaluation restores does not move it (rule R4)."""
        opened = [span.attributes or {} for span in tuple(self.spans.phases.values())]
        customs = [one for one in opened if one.get(semconv.GOODPUT_PHASE) == Phase.CUSTOM]
        return self.begun >= 0 and any(one.get(semconv.GOODPUT_BLOCKING) is not False for one in customs)

    def saves(self, label: int | None, key: int | None = None) -> None:
        """Note that a checkpoint with this `label` (None: that of the open step) begins to be saved.

        `key`: of the open save that did not know the label when it began.
        """
        if label is not None and key is not None:
            self._label(key, label)
        step = self.spans.step
        done = self.latest.step if step is not None and label in (None, step.step) else self.last_done
        if label is None and step is not None:
            label = step.step
        if label is not None:
            self.labels.save(label, done)

    @property
    def last_done(self) -> int:
        """Number of the last step that is done now; ``NO_STEP`` before the first.

        So is the open step on the training thread, if it has done any work.
        """
        latest, step = self.latest, self.spans.step
        if step is None:
            return latest.step - latest.undone
        fleeting = self.policy.sampler.fleeting(self.clock() - step.start_time)
        return step.step - (not self.blocks(None) or fleeting)

    def _label(self, key: int, label: int) -> None:
        """Record that the open save or restore `key` is of the checkpoint `label`."""
        self.jobs.append(LABEL, 0, 0, 0, key, label, self.clock())

    # --- other phases -------------------------------------------------------------------------------------------------

    def start_span(self, name: str, attributes: dict[str, types.AttributeValue], start: int | None) -> trace_api.Span:
        """Start a span of the SDK under the current one, or else under the job; `start` in ns."""
        self.hooks.before_phase()
        nesting, traces, around = self.nesting, self.traces, self.nesting.here()
        if nesting.shared:
            self.spans.hold(around)  # first: a sampler that follows the parent's flag would drop the phase
        step = self.spans.step if self.blocks(None) else None
        # A restored checkpoint has nothing to do with the open step.
        if step is not None and step.step >= 0 and attributes[semconv.GOODPUT_PHASE] != Phase.CHECKPOINT_RESTORE:
            attributes.setdefault(semconv.GOODPUT_STEP, step.step)
        number = self.latest.step if step is None else step.step
        inside = identity(around)
        parent = traces.parent_of(number, inside)
        if trace := traces.layout.number_of(parent.trace_id):
            attributes[semconv.GOODPUT_TRACE_NUMBER] = trace
        if parent is not inside or (isinstance(around, Nested) and not nesting.shared):
            around = trace_api.NonRecordingSpan(parent)  # a tracer that asked a phase would have it exported
        context = trace_api.set_span_in_context(around)
        return self._start_phase(name, context, attributes, start or self.clock())

    def end_job(self, error: BaseException | None) -> None:
        """End the implicit job and what is open in it, because the user's job or the recording ends, with `error`."""
        named = [span for span in tuple(self.spans.phases.values()) if span is not self.jobs.implicit]
        if not self.closed and any((span.attributes or {}).get(semconv.GOODPUT_PHASE) == Phase.JOB for span in named):
            return  # a job is still open around the one that ended

        def end() -> int:
            self.end_inner(left=error is None)
            return self.clock()

        self.jobs.end_implicit(end, error=error)

    def in_step(self) -> bool | None:
        """Whether a step is open, and no other phase in it that holds up training; None if no job is open."""
        if (job := self.traces.job_span) is None or not job.is_recording():
            return None
        if self.spans.step is None:
            return False
        others = (span.attributes or {} for span in tuple(self.spans.phases.values()) if span is not job)
        return all(
            one.get(semconv.GOODPUT_PHASE) == Phase.JOB or one.get(semconv.GOODPUT_BLOCKING) is False for one in others
        )

    # --- off the training thread --------------------------------------------------------------------------------------

    def tick(self, *, final: bool = False) -> None:
        """Export what is ready: roots, compilations, and summaries; with `final` also incomplete summaries."""
        # The keeper, a flush and the shutdown may run this at once; one stuck in an exporter must not block the others.
        if not self._ticking.acquire(timeout=LONGEST_TICK_S):
            return
        try:
            self.lapse()
            self.traces.write_root()  # JobSpans.start() may have been interrupted before it wrote them
            if final:
                self.number_loads(NO_STEP)
            self.hooks.tick()
            self.sum_up(final=final)
        finally:
            self._ticking.release()

    def sum_up(self, *, final: bool = False) -> None:
        """Export summaries of steps and phases that were not exported; with `final` also incomplete summaries."""
        traces, emitter, admission = self.traces, self.emitter, self.admission
        with self._summing:
            steps = [("", one, one.first) for one in self.thinner.summaries(final=final)]
            phases = [(name, one, self.latest.step) for name, one in admission.summaries(final=final)]
            for name, summary, step in (*steps, *phases):
                number = traces.layout.number(step)
                root = traces.root(number)
                if not admission.budget.small and admission.afford(root.trace_id, VITAL):
                    emitter.emit(summary_span(summary, name, root, number, traces.identity, emitter.resource))


class PhaseSpan(Nested):
    """Passes everything on to the SDK's `span` of a phase, except requests for its identity."""

    _line: StepLine

    def __init__(self, line: StepLine, span: trace_api.Span) -> None:
        self.span = span
        self._line = line
        self.within = within = context_api.get_current()
        self.outer = line.nesting.place(within).phase

    @property
    def identity(self) -> SpanContext:
        return self.span.get_span_context()

    @property
    def sampled(self) -> bool:
        context = self.identity
        return context.trace_flags.sampled or context.span_id in self._line.admission.kept

    @property
    def closed(self) -> bool:
        return not self.span.is_recording()

    def _claim(self) -> bool:
        return self._line.admission.claim(self.identity)

    def enclosing(self) -> SpanContext:
        around = self.around
        if isinstance(around, Nested):
            return around.shown()
        parent: SpanContext | None = getattr(self.span, "parent", None)
        return parent or INVALID_SPAN_CONTEXT

    def shown(self) -> SpanContext:
        shown = super().shown()
        if shown is self.identity and not shown.trace_flags.sampled and self.sampled:
            # The SDK's span keeps the flag that it began with.
            self._shown = shown = SpanContext(shown.trace_id, shown.span_id, False, SAMPLED, shown.trace_state)
        return shown

    # --- passed on ----------------------------------------------------------------------------------------------------

    if not TYPE_CHECKING:  # otherwise a type checker would accept any name

        def __getattr__(self, name: str) -> Any:
            if name == "span":  # it is being copied, and has no attributes yet
                raise AttributeError(name)
            return getattr(self.span, name)

    def end(self, end_time: int | None = None) -> None:
        self.span.end(end_time)

    @guarded(None)
    def set_attributes(self, attributes: Mapping[str, types.AttributeValue]) -> None:
        self.span.set_attributes(plain.attributes(attributes))

    @guarded(None)
    def set_attribute(self, key: str, value: types.AttributeValue) -> None:
        self.span.set_attributes(plain.attribute(key, value))

    @guarded(None)
    def add_event(self, name: str, attributes: types.Attributes = None, timestamp: int | None = None) -> None:
        title = plain.text(name) or plain.quoted(name)
        self.span.add_event(title, plain.attributes(attributes), plain.integer(timestamp))

    @guarded(None)
    def add_link(self, context: SpanContext, attributes: types.Attributes = None) -> None:
        self.span.add_link(context, plain.attributes(attributes))

    @guarded(None)
    def update_name(self, name: str) -> None:
        self.span.update_name(plain.text(name) or plain.quoted(name))

    def is_recording(self) -> bool:
        return self.span.is_recording()

    @guarded(None)
    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        self.span.set_status(status, plain.text(description))


class Save(PhaseSpan):
    """The span of a checkpoint save; :meth:`durable` marks the checkpoint as durable."""

    def durable(self) -> None:
        """Mark the checkpoint as safely stored: the steps it covers are no longer at risk.

        Needed only after ``checkpoint_save(step, durable=False)``, for saves that continue in the background.
        """
        try:
            if self.is_recording():
                self.set_attribute(semconv.GOODPUT_CHECKPOINT_DURABLE, True)
            else:
                self._line.account.durable(self.identity.span_id, self._line.clock())
        except Exception as error:
            contain("checkpoint durable", error)

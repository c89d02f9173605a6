"""What records the phases of one job: spans to the exporters, events to the account."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, Final

from opentelemetry import trace as trace_api
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, StatusCode, Tracer
from opentelemetry.util import types

from otel_goodput.accounting import rules
from otel_goodput.accounting.events import NO_STEP, NONBLOCKING, START
from otel_goodput.accounting.totals import Totals
from otel_goodput.guard import contain, report_once
from otel_goodput.journal.account import Account
from otel_goodput.journal.records import CONTINUED, DETAILED, HALF, INTERRUPTED, MOST_TOLD, PARENT, ROOT, signed
from otel_goodput.journal.thinning import SUMMARY, Summary, Thinner
from otel_goodput.recording import ids
from otel_goodput.recording.admission import Admission
from otel_goodput.recording.budget import NOTABLE, ROUTINE, VITAL, Budget
from otel_goodput.recording.continuations import ContinuationSpan, continued_span
from otel_goodput.recording.finished import AttemptSpan, PhaseReadableSpan
from otel_goodput.recording.job_thread import JobThread
from otel_goodput.recording.misuse import Misuse
from otel_goodput.recording.observation import Device
from otel_goodput.recording.sampling import StepSampler
from otel_goodput.recording.step_span import TIMED, FastSpan, current_span
from otel_goodput.recording.summaries import phases_span
from otel_goodput.recording.volumes import Volumes
from otel_goodput.semconv import (
    GOODPUT_PHASE,
    GOODPUT_STEP,
    GOODPUT_STEPS_COUNT,
    GOODPUT_STEPS_FIRST,
    GOODPUT_STEPS_LAST,
    GOODPUT_STEPS_MAX,
    GOODPUT_STEPS_MEDIAN,
    GOODPUT_STEPS_MIN,
    GOODPUT_STEPS_P90,
    GOODPUT_STEPS_SUM,
    GOODPUT_TRACE_NUMBER,
    PHASES,
    SCOPE_NAME,
    STEPS_SUMMARY_SPAN,
    Phase,
)
from otel_goodput.version import __version__

Append = Callable[..., None]
Find = Callable[[], "PhaseTracer | None"]

SAMPLED_ONE_IN: Final = TIMED + 1
LONGEST_TICK_S: Final = 1.0
KEPT_BACK: Final = 16  # loads; more of them before the first step wait for none
LONGEST_STRETCH: Final = 100_000  # steps in a summary
LONGEST_SAMPLE: Final = 100_000  # ns


class PhaseTracer:
    """Records phases into an account and a tracer provider.

    Args:
        account: where the events go.
        tracer: starts the spans of all phases but steps and data loads.
        sinks: the processors that take finished fast spans.
        resource: of the spans.
        generator: makes span ids; None where the provider is the user's own.
        thread: the job's thread, shared with the span processor.
        run_id, attempt, process: identity of this process.
        sampler: which steps are exported.
        own_traces: give each step a trace of its own.
        admission: which other phases are exported.
    """

    def __init__(
        self,
        account: Account,
        tracer: Tracer,
        sinks: Sequence[SpanProcessor],
        resource: Resource,
        generator: ids.PrivateIdGenerator | None,
        thread: JobThread,
        run_id: str,
        attempt: int,
        process: int,
        sampler: StepSampler,
        own_traces: bool = False,
        admission: Admission | None = None,
    ) -> None:
        self.account = account
        self.tracer = tracer
        self.sinks = tuple(sinks)
        self.starters = tuple(
            sink for sink in sinks if type(sink).on_start is not SpanProcessor.on_start and not _ignores_starts(sink)
        )
        self.resource = resource
        self.generator = generator
        self.thread = thread
        self.run_id = run_id
        self.attempt = attempt
        self.process = process
        self.sampler = sampler
        self.own_traces = own_traces
        self.admission = admission or Admission(Budget(), Volumes(run_id, attempt))
        self.budget, self.volumes = self.admission.budget, self.admission.volumes
        self._begun: dict[int, object] = {0: None}  # traces
        self._volume = 0  # the latest of them
        self.scope = InstrumentationScope(SCOPE_NAME, __version__)
        self.clock = account.clock
        self.append: Append = self._append_first
        self.blocks = thread.blocks
        self.misused = Misuse(account.notes)
        self.job_context: SpanContext = ids.job_span_context(run_id, attempt, process)
        self.job_span: trace_api.Span | None = None  # the latest job's
        self.open_spans: dict[int, FastSpan] = {}
        self.open_step: FastSpan | None = None  # the latest, whatever the thread
        self.unsure = attempt > 0  # no step has begun since what may have gone on elsewhere
        self.loads: deque[tuple[FastSpan, Callable[[], None]]] = deque()  # exported once their step is known
        self.latest: FastSpan = FastSpan(self, rules.STEP, -1, None, None, None)  # the step begun, or restored, last
        self.latest.unfold()
        self._restored: FastSpan | None = None  # stands for the step restored latest
        self._implicit: trace_api.Span | None = None  # the job's, where nobody has opened one
        self.handled = 0  # id of the exception that was being handled when the latest loop began
        self.find: Find = lambda: None if self.closed else self
        self.closed = False
        stretch = min(-(-self.volumes.steps // self.budget.summaries()), LONGEST_STRETCH)
        self.thinner = Thinner(max(SUMMARY, stretch), self.volumes.steps)
        self.observe: Callable[[FastSpan, Any], None] | None = None  # the device clock's
        self.device: Device | None = None  # the device clock
        self.compiled = 0  # when the training thread's latest compilation was over, ns
        self.annotate: Callable[..., AbstractContextManager[Any]] | None = None  # the profiler's
        self.settle: Callable[[], None] | None = None  # end what nobody will say of that it is over
        self.look_around: Callable[[], None] | None = None  # for libraries that were imported meanwhile
        self.background: list[Callable[[], None]] = []  # further work at every tick
        self.opened: Callable[[], list[Span]] = list  # the spans of open phases but steps, loads and parts
        self.open_span: Callable[[int], Span | None] = _nothing  # the one of them with that id
        self.end_span: Callable[[ReadableSpan], None] = _nothing  # tells the journal of one that has ended
        self.queue_depth: Callable[[], int] | None = None  # batches that lie ready
        self.overhead = 0  # ns, estimated
        self._keys = generator or ids.PrivateIdGenerator()
        self.new_key = self._keys.new_span_id
        self._ticking = threading.Lock()
        self._summing = threading.Lock()
        self._jobs = 0
        self._rooted = process > 0  # process 0 writes the attempt's root
        self._roots: deque[ReadableSpan] = deque()
        self._first_job = self.job_context.span_id

    # --- fast spans ---------------------------------------------------------------------------------------------------

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

    def next_number(self) -> int:
        """The number of the next step where nobody says it: behind the one begun last, or restored since."""
        latest = self.latest
        return latest.step if latest.undone else latest.step + 1

    def restored(self, step: int) -> None:
        """The checkpoint of `step` was restored: training goes on behind it, or with it, as its user numbers them."""
        if self.blocks(None):
            self.latest = self._restored = self.step(step)
            self.unsure = True

    def go_back(self, number: int) -> None:
        """The step `number` begins, and it is none beyond the latest."""
        latest = self.latest
        if latest is not self._restored and not (latest.undone and latest.step == number):
            self.misused.back(number, latest.step)

    def sweep(self, now: int) -> None:
        """End at `now` (ns) the steps, loads and parts that are open on this thread: a step begins or has ended on it.

        They were interrupted on their way in or out, or their loop is held and was left. Those of other tasks of an
        event loop go on.
        """
        span = current_span()
        inside = set()
        while isinstance(span, FastSpan) and span not in inside:
            inside.add(span)
            span = span.around
        for span in reversed(list(self.open_spans.values())):
            if span in inside or (span.said[0] is None and not _in_event_loop()):
                span.abandon(now, left=span.in_loop)

    def end_inner(self, *, left: bool) -> None:
        """The job ends: so do the steps, loads and parts that are still open in it; `left`: by no exception."""
        now = self.clock()
        for span in reversed(list(self.open_spans.values())):
            if span.blocks:
                span.abandon(now, left=left and span.in_loop)
        self.number_loads(NO_STEP)

    def load(
        self,
        start: int | None = None,
        end: int | None = None,
        blocking: bool | None = None,
        step: int | None = None,
    ) -> FastSpan:
        """The span of a data load, not begun yet: for `step`, else for the one that is open, else for the next one.

        Where none has begun since a restore, its number is that of the step that will.
        """
        if step is None:
            if self.open_step is not None:
                step = self.open_step.step
            else:
                step = NO_STEP if self.unsure else self.next_number()
        return FastSpan(self, rules.DATA_LOADING, step, blocking, start, end)

    def keep_back(self, load: FastSpan, emit: Callable[[], None]) -> None:
        """A load is over whose step nobody knows yet: `emit` hands it to the exporters."""
        if len(self.loads) >= KEPT_BACK:
            self.number_loads(NO_STEP)
        self.loads.append((load, emit))

    def number_loads(self, number: int) -> None:
        """The step of the loads that were kept back begins; or none will."""
        self.unsure = self.unsure and number < 0
        while self.loads:
            try:
                load, emit = self.loads.popleft()
            except IndexError:  # another thread was quicker
                return
            load.renumber(number)
            emit()

    def again(self, span: FastSpan) -> AbstractContextManager[trace_api.Span]:
        """A new span like one that was used as a decorator, of whoever records by now."""
        tracer = self.find()
        if tracer is None:
            return nullcontext(trace_api.INVALID_SPAN)
        blocking, start, end = span.said
        if span.phase == rules.PART:
            return tracer.part(span.title)
        if span.phase == rules.STEP:
            return tracer.step(span.step, start, end, blocking)
        return tracer.load(start, end, blocking)

    def part(self, name: str) -> FastSpan:
        """The span of a part of the open step, not begun yet."""
        step = self.open_step
        if step is None and self.blocks(None):
            self.misused.part_outside(name)
        span = FastSpan(self, rules.PART, NO_STEP if step is None else step.step, None, None, None)
        span.title, span.label = name, self.account.journal.name(name)
        return span

    def loaded(self) -> int | None:
        """Batches that lie ready; None: nobody says."""
        return None if self.queue_depth is None else self.queue_depth()

    def close(self) -> None:
        """Record no more; whoever still holds this tracer calls into nothing."""
        self.closed = True
        self.append = _nothing
        self.observe = self.device = self.queue_depth = None
        self.sinks = ()

    def takes(self, span: FastSpan) -> bool:
        """A fast span begins: is it exported whatever happens in it? A load is along with its step."""
        if span.phase == rules.STEP:
            self.open_step = span
            return self.sampler.take(span.step) and self._detailed and self._afford(span, ROUTINE)
        around = self.open_step
        if not (self._detailed and self.sampler.would_take(span.step) if around is None else around.sampled):
            return False
        span.gate = self.admission.crowds(around or self.latest, PHASES[span.phase], span.title)
        return span.gate is None and self._afford(span, ROUTINE)

    @property
    def _detailed(self) -> bool:
        """Whether this process shows single steps."""
        return self.budget.detailed or self.own_traces

    def _afford(self, span: FastSpan, worth: int) -> bool:
        """Whether its trace has room for a fast span `worth` that much; that of a step of its own has."""
        parent = span.parent()
        return parent is None or self.admission.afford(parent.trace_id, worth)

    def spend(self, span: FastSpan) -> None:
        """A fast span is exported after all, for something in it is."""
        parent = span.parent()
        if parent is not None:
            self.budget.spend(parent.trace_id)

    def parent_of(self, step: int, around: SpanContext) -> SpanContext:
        """The parent of what begins in or for `step`, where `around` is the span around it, if there is one."""
        volumes = self.volumes
        number = volumes.number(step)
        if around.is_valid and not self.budget.small:
            theirs = volumes.number_of(around.trace_id)
            if theirs is None or theirs == number or step < 0:
                return around
        return self.root(number)

    def root(self, number: int) -> SpanContext:
        """What spans of this process hang on in the attempt's trace of that number, if on no other."""
        if number:
            if number not in self._begun:
                self._continue(number)
            return self.volumes.root(number)
        return self.volumes.root(0) if self.budget.small else self.job_context

    def seen(self, span: trace_api.Span) -> trace_api.Span:
        """What others hang on in `span`: where its job is not exported for want of room, the attempt's root."""
        if self.budget.small and span.get_span_context().span_id in self.admission.left_out:
            return trace_api.NonRecordingSpan(self.root(0))
        return span

    def _continue(self, number: int) -> None:
        """A trace begins."""
        before, token = self._volume, object()
        if self._begun.setdefault(number, token) is not token:
            return
        self._volume = number
        if self.process:
            return  # process 0 says it for all
        moment = self.clock()
        for group in range(self.budget.groups):
            for span in self._further(group, number, before, moment):
                self.emit(span)

    def _further(self, group: int, number: int, before: int, moment: int) -> tuple[ReadableSpan, ...]:
        """What begins a trace of a group of processes, behind its trace `before`, at `moment` (ns)."""
        volumes = self.volumes.of(group)
        place = (volumes, number, before, self.resource, self.scope, moment)
        self.append(CONTINUED, 1, group, 0, volumes.root(number).span_id, before * HALF + number, moment)
        return continued_span(*place), ContinuationSpan(*place)

    def tell_bounds(self) -> None:
        """The journal knows which trace a step is in, for whoever has to export it in our place."""
        if self.budget.limit:
            flags = min(self.budget.most, MOST_TOLD) | (DETAILED if self.budget.detailed else 0)
            most = self.budget.group * HALF + self.thinner.most
            self.account.append(CONTINUED, 0, flags, 0, self.volumes.steps, most, self.clock())

    def exports(self, span: FastSpan, duration: int, failed: bool) -> tuple[bool, bool]:
        """Whether a fast span that took `duration` ns is exported, and whether because it was slow."""
        if span.phase != rules.STEP:
            exported, slow = span.sampled or failed, False
        else:
            if self.open_step is span:
                self.open_step = None
            slow = not failed and self.sampler.slow(duration)
            exported = failed or slow or span.sampled
        if exported and not span.sampled:
            exported = self._afford(span, VITAL if failed else NOTABLE)
            if exported:
                span.keep(paid=True)
        if exported and failed and span.phase != rules.STEP:
            self.hold()
        if exported and self.admission.left_out:
            self.keep_around(span.around)
        return exported, slow

    def announce(self, span: FastSpan, within: Context) -> None:
        """A fast span begins that will be exported: tell the journal its parent, and processors that want to know."""
        parent = span.parent()
        # What hangs on the root of its step's trace says so by its number.
        if parent is not None and parent.span_id != self._first_job and not self.volumes.is_root(parent, span.step):
            self.append(PARENT, 0, 0, 0, span.key, signed(parent.span_id), span.start_time)
        for sink in self.starters:
            sink.on_start(span, within)  # type: ignore[arg-type]

    def emit(self, span: ReadableSpan) -> None:
        """Hand a finished span to the exporters' processors."""
        for sink in self.sinks:
            sink.on_end(span)

    def step_trace(self, number: int) -> int:
        if number < 0:  # somebody asks before it is known: that is the best guess
            number = self.next_number()
        return ids.step_trace_id(self.run_id, self.attempt, number)

    def check_end(self, start: int, end: int) -> int:
        report_once(
            "end before start", "a phase ends %.6f s before it starts; it counts with no length", (start - end) / 1e9
        )
        return start

    # --- other spans --------------------------------------------------------------------------------------------------

    def start_job(self, attributes: dict[str, types.AttributeValue], start: int | None) -> trace_api.Span:
        """The job's span: identity from run and attempt, linked to the previous attempt and to the span around it.

        It is a child of the attempt's root, which has no length and is written at once: there is a trace to look at
        while the job runs, and no span is written twice.
        """
        start = start or self.clock()
        links = []
        if self.attempt > 0:
            links.append(Link(ids.attempt_span_context(self.run_id, self.attempt - 1, self.process)))
        around = trace_api.get_current_span().get_span_context()
        if around.is_valid:
            links.append(Link(around))
        if self._jobs:
            # The process opens its job again: another span of the same trace.
            links.append(Link(self.job_context))
        identity = ids.job_span_context(self.run_id, self.attempt, self.process, self._jobs)
        self._jobs += 1
        self._tell_all()
        root = self._root(start)
        parent = trace_api.set_span_in_context(trace_api.NonRecordingSpan(root), Context())
        if self.generator is not None:
            self.generator.fix_next(identity.trace_id, identity.span_id)
        span = self.tracer.start_span(Phase.JOB, context=parent, attributes=attributes, links=links, start_time=start)
        if not span.is_recording():
            self._roots.clear()  # the user's own sampler does not want the job
        self._write_root()
        self.job_context = span.get_span_context()
        self.job_span = span
        return span

    def _root(self, moment: int) -> SpanContext:
        """The identity of the attempt's root, which is laid ready where the first job begins, at `moment` (ns)."""
        root = self.volumes.root(0)
        if self.process:
            return SpanContext(root.trace_id, root.span_id, True, ids.SAMPLED)
        if not self._rooted:
            self._rooted = True
            self._roots.append(AttemptSpan(self.run_id, self.attempt, self.resource, self.scope, moment))
            # Before the job's: a restart is to know which of them the root is, however far we get.
            self.append(ROOT, 0, 0, 0, root.span_id, NO_STEP, moment)
            for group in range(1, self.budget.groups):
                self._roots += self._further(group, 0, 0, moment)
        return root

    def _write_root(self) -> None:
        """And those of further groups of processes."""
        with suppress(IndexError):
            while True:
                self.emit(self._roots.popleft())

    @property
    def jobless(self) -> bool:
        """Whether no job has been opened yet."""
        return not self._jobs

    def begin_implicit(self, start: int) -> None:
        """A phase begins at `start` (ns) outside of any job: the job begins with it.

        It lasts until the end, or is the one that is opened later.
        """
        self._implicit = self.start_job({GOODPUT_PHASE: Phase.JOB}, start)
        self.append = self._append_first

    def take_over(self) -> trace_api.Span | None:
        """The job is opened here and now, after some of its phases: the span of the one that began with them."""
        job, self._implicit = self._implicit, None
        if job is not None:
            self.thread.take()
            self._tell_all()
        return job

    def end_job(self, *, failed: bool) -> None:
        """The job that was opened is over, or everything is; so is the one that was begun for want of it."""
        named = (span for span in self.opened() if span is not self._implicit)
        if not self.closed and any((span.attributes or {}).get(GOODPUT_PHASE) == Phase.JOB for span in named):
            return  # it was one within another
        job, self._implicit = self._implicit, None
        if job is not None and job.is_recording():
            self.end_inner(left=not failed)
            if failed:
                job.set_status(StatusCode.ERROR)
            job.end(self.clock())
        if not self.closed:
            self.append = self._append_after

    def _tell_all(self) -> None:
        if not self.closed:
            self.append = self.account.append

    def _append_first(self, kind: int, phase: int, flags: int, *record: int) -> None:
        """Before a job is opened: what holds up training begins one."""
        if kind == START and phase != rules.COMPILE and not flags & NONBLOCKING:
            if self.jobless:
                self.begin_implicit(record[-1])
            if phase == rules.STEP:
                self.misused.outside()
                self._tell_all()
        self.account.append(kind, phase, flags, *record)

    def _append_after(self, kind: int, phase: int, flags: int, *record: int) -> None:
        """After the job: steps do not count any more."""
        if kind == START and phase == rules.STEP and not flags & NONBLOCKING:
            self.misused.after()
            self._tell_all()
        self.account.append(kind, phase, flags, *record)

    def start_span(self, name: str, attributes: dict[str, types.AttributeValue], start: int | None) -> trace_api.Span:
        """A span of the SDK, under the current one or else under the job."""
        if self.look_around is not None:
            self.look_around()
        around = trace_api.get_current_span()
        context = None
        step = self.open_step if self.blocks(None) else None
        if step is not None and step.step >= 0:
            attributes.setdefault(GOODPUT_STEP, step.step)
        parent = around.get_span_context()
        hidden = parent.is_valid and not isinstance(around, FastSpan) and not parent.trace_flags.sampled
        if step is not None and hidden and parent.span_id not in self.admission.left_out:
            # The span between was thinned out with its step before that turned out to be worth keeping.
            parent = step.get_span_context()
            context = trace_api.set_span_in_context(step)
        elif (placed := self.parent_of(self.latest.step if step is None else step.step, parent)) is not parent:
            parent = placed
            context = trace_api.set_span_in_context(trace_api.NonRecordingSpan(placed))
        if number := self.volumes.number_of(parent.trace_id):
            attributes[GOODPUT_TRACE_NUMBER] = number
        span = self.tracer.start_span(name, context=context, attributes=attributes, start_time=start or self.clock())
        if span.get_span_context().span_id not in self.admission.left_out:
            self.keep_around(around)
        return span

    def keep_around(self, span: trace_api.Span) -> None:
        """Something is exported in `span`: so is that, and what is around it of phases that were to be left out."""
        if self.budget.small:
            return
        if isinstance(span, FastSpan):
            span.keep()
        admission = self.admission
        around: trace_api.Span | None = span
        while around is not None and admission.left_out:
            if isinstance(around, FastSpan):
                if not around.closed:
                    around.keep()
                around = around.around
                continue
            key = around.get_span_context().span_id
            if key in admission.left_out and key not in admission.kept:
                admission.kept.add(key)
                self.budget.spend(around.get_span_context().trace_id)
            parent = getattr(around, "parent", None)
            around = None if parent is None else self._open_one(parent.span_id)

    def _open_one(self, key: int) -> trace_api.Span | None:
        """The open phase with this span id, if there is one."""
        return self.open_spans.get(key) or self.open_span(key)

    def adopt(self, span: ReadableSpan) -> SpanContext | None:
        """`span` was not to be exported and is after all, and so is what is around it; returns its parent."""
        parent = span.parent
        if parent is None or self.budget.small:
            return None if parent is None else self.root(self.volumes.number_of(parent.trace_id) or 0)
        if parent.trace_flags.sampled:
            return parent
        around = self._open_one(parent.span_id)
        if around is None:
            return self.root(self.volumes.number_of(parent.trace_id) or 0)  # over before
        self.keep_around(around)
        return parent

    def begun_at(self, start: int) -> Span | None:
        """The latest open span that began at `start` (ns): whoever began it was interrupted before it knew."""
        return next((span for span in reversed(self.opened()) if span.start_time == start), None)

    def ensure_ended(self, span: trace_api.Span) -> None:
        """The journal has the end of `span`, whatever interrupted that."""
        if isinstance(span, ReadableSpan):
            self.end_span(span)

    def hold(self) -> FastSpan | None:
        """Something worth seeing happens, here and now: the step that holds it, if any, is exported along with it."""
        step = self.open_step
        if step is None or not self.blocks(None) or self.budget.small:
            return None
        step.keep()
        return step

    # --- background ---------------------------------------------------------------------------------------------------

    def tick(self, *, final: bool = False) -> None:
        """Work off the training thread: compilations, summaries of steps, with `final` of all of them."""
        # The keeper, a flush and the end may meet here; an exporter stuck in one of them must not hold up the end.
        if not self._ticking.acquire(timeout=LONGEST_TICK_S):
            return
        try:
            self._write_root()  # whoever laid it ready may have been interrupted
            if final:
                self.number_loads(NO_STEP)
            for work in tuple(self.background):
                work()
            self.sum_up(final=final)
        finally:
            self._ticking.release()

    def sum_up(self, *, final: bool = False) -> None:
        """Off the training thread: summaries of the steps that were thinned out; with `final` of all of them."""
        with self._summing:
            for summary in self.thinner.summaries(final=final):
                root = self.root(self.volumes.number(summary.first))
                if self._sums(root):
                    self.emit(self._summary_span(summary, root))
            identity = (self.run_id, self.attempt, self.process)
            for name, summary in self.admission.summaries(final=final):
                root = self.root(self.volumes.number(self.latest.step))
                if self._sums(root):
                    number = self.volumes.number_of(root.trace_id) or 0
                    self.emit(phases_span(name, summary, identity, root, number, self.resource, self.scope))

    def _sums(self, root: SpanContext) -> bool:
        """Whether there is room for a sum in the trace of `root`."""
        return not self.budget.small and self.admission.afford(root.trace_id, VITAL)

    def _summary_span(self, summary: Summary, root: SpanContext) -> PhaseReadableSpan:
        key = ids.summary_span_id(self.run_id, self.attempt, self.process, summary.first, summary.start)
        context = SpanContext(root.trace_id, key, False, ids.SAMPLED)
        return PhaseReadableSpan(
            STEPS_SUMMARY_SPAN,
            context,
            root,
            self.resource,
            summary_attributes(summary, self.volumes.number_of(root.trace_id) or 0),
            start_time=summary.start,
            end_time=summary.end,
            instrumentation_scope=self.scope,
        )

    def totals(self) -> Totals:
        """The account now."""
        return self.account.totals()

    def sample_overhead(self, took: int) -> None:
        """One of the timed entries or exits of fast spans took `took` ns; it stands for those that are not timed."""
        # What the scheduler or the interpreter's lock took meanwhile is not ours.
        self.overhead += min(took, LONGEST_SAMPLE) * SAMPLED_ONE_IN

    def close_open(self) -> None:
        """End the fast spans that are open and mark them as interrupted."""
        for span in reversed(list(self.open_spans.values())):
            try:
                span.abandon(self.clock(), INTERRUPTED)
            except Exception as error:
                contain("closing open spans", error)


def _in_event_loop() -> bool:
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None


def _nothing(*_: Any) -> None:
    """What is recorded after the end."""


def summary_attributes(summary: Summary, number: int = 0) -> dict[str, types.AttributeValue]:
    """The attributes of a ``steps`` span in the attempt's trace of that number."""
    return {
        **({GOODPUT_TRACE_NUMBER: number} if number else {}),
        GOODPUT_STEPS_FIRST: summary.first,
        GOODPUT_STEPS_LAST: summary.last,
        GOODPUT_STEPS_COUNT: summary.steps,
        GOODPUT_STEPS_SUM: summary.total,
        GOODPUT_STEPS_MIN: summary.min,
        GOODPUT_STEPS_MEDIAN: summary.median,
        GOODPUT_STEPS_P90: summary.p90,
        GOODPUT_STEPS_MAX: summary.max,
    }


def _ignores_starts(sink: SpanProcessor) -> bool:
    """The SDK's exporting processors override on_start with nothing."""
    return type(sink).__module__.startswith("opentelemetry.sdk.trace")

"""The job's span: opened by its user, or begun by the first phase that nobody has opened a job for."""

from __future__ import annotations

from collections.abc import Callable

from opentelemetry import trace as trace_api
from opentelemetry.context import Context
from opentelemetry.trace import Link, StatusCode, Tracer
from opentelemetry.util import types

from otel_goodput.accounting import rules
from otel_goodput.accounting.events import NONBLOCKING, START
from otel_goodput.journal.account import Account, nothing
from otel_goodput.recording import ids
from otel_goodput.recording.attempt_traces import AttemptTraces
from otel_goodput.recording.job_thread import JobThread
from otel_goodput.recording.misuse import Misuse
from otel_goodput.semconv import GOODPUT_PHASE, Phase


class JobSpans:
    """The jobs of one recorder, one after the other, and the way of its records into the account.

    Args:
        account: where records go.
        tracer: starts the spans.
        generator: makes span ids; None where the provider is the user's own.
        traces: the attempt's, which the jobs are in.
        thread: the job's.
        misused: is told of steps outside of a job.

    Attributes:
        append: puts a record into the journal; before a job is opened, one that holds up training begins it.
    """

    def __init__(
        self,
        account: Account,
        tracer: Tracer,
        generator: ids.PrivateIdGenerator | None,
        traces: AttemptTraces,
        thread: JobThread,
        misused: Misuse,
    ) -> None:
        self.append: Callable[..., None] = self._append_first
        self._account = account
        self._tracer = tracer
        self._generator = generator
        self._traces = traces
        self._thread = thread
        self._misused = misused
        self._begun = 0
        self._implicit: trace_api.Span | None = None  # the one that nobody has opened
        self._closed = False

    @property
    def none_yet(self) -> bool:
        """Whether no job has begun."""
        return not self._begun

    @property
    def implicit(self) -> trace_api.Span | None:
        """The job that nobody has opened, if it is such a one."""
        return self._implicit

    def start(self, start: int) -> trace_api.Span:
        """Begin a job at `start` (ns): identity from run and attempt, linked to the previous attempt and to the span
        around it.

        It is a child of the attempt's root, which has no length and is written at once: there is a trace to look at
        while the job runs, and no span is written twice.
        """
        traces = self._traces
        links = []
        if traces.attempt > 0:
            links.append(Link(ids.attempt_span_context(traces.run_id, traces.attempt - 1, traces.process)))
        around = trace_api.get_current_span().get_span_context()
        if around.is_valid:
            links.append(Link(around))
        if self._begun:
            # The process opens its job again: another span of the same trace.
            links.append(Link(traces.job_context))
        identity = ids.job_span_context(*traces.identity, self._begun)
        self._begun += 1
        self._tell_all()
        root = traces.begin_root(start)
        parent = trace_api.set_span_in_context(trace_api.NonRecordingSpan(root), Context())
        if self._generator is not None:
            self._generator.fix_next(identity.trace_id, identity.span_id)
        attributes: dict[str, types.AttributeValue] = {GOODPUT_PHASE: Phase.JOB}
        span = self._tracer.start_span(Phase.JOB, context=parent, attributes=attributes, links=links, start_time=start)
        if not span.is_recording():
            traces.forget_roots()
        traces.write_roots()
        traces.job_context = span.get_span_context()
        traces.job_span = span
        return span

    def begin_implicit(self, start: int) -> None:
        """A phase begins at `start` (ns) outside of any job: the job begins with it.

        It lasts until the end, or is the one that is opened later.
        """
        self._implicit = self.start(start)
        self.append = self._append_first

    def take_over(self) -> trace_api.Span | None:
        """The job is opened here and now, after some of its phases: the span of the one that began with them."""
        job, self._implicit = self._implicit, None
        if job is not None:
            self._thread.take()
            self._tell_all()
        return job

    def end_implicit(self, end: Callable[[], int], *, failed: bool) -> None:
        """The job is over: so is the one that nobody has opened, at what `end` returns (ns)."""
        job, self._implicit = self._implicit, None
        if job is not None and job.is_recording():
            moment = end()
            if failed:
                job.set_status(StatusCode.ERROR)
            job.end(moment)
        if not self._closed:
            self.append = self._append_after

    def close(self) -> None:
        """Record no more."""
        self._closed = True
        self.append = nothing

    def _tell_all(self) -> None:
        if not self._closed:
            self.append = self._account.append

    def _append_first(self, kind: int, phase: int, flags: int, *record: int) -> None:
        """Before a job is opened: what holds up training begins one."""
        if kind == START and phase != rules.COMPILE and not flags & NONBLOCKING:
            if self.none_yet:
                self.begin_implicit(record[-1])
            if phase == rules.STEP:
                self._misused.outside()
                self._tell_all()
        self._account.append(kind, phase, flags, *record)

    def _append_after(self, kind: int, phase: int, flags: int, *record: int) -> None:
        """After the job: steps do not count any more."""
        if kind == START and phase == rules.STEP and not flags & NONBLOCKING:
            self._misused.after()
            self._tell_all()
        self._account.append(kind, phase, flags, *record)

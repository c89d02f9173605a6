"""The job's span: opened by the user, or begun implicitly by the first phase outside of any job."""

from __future__ import annotations

from collections.abc import Callable

from opentelemetry import trace as trace_api
from opentelemetry.context import Context
from opentelemetry.trace import Link, StatusCode
from opentelemetry.util import types

from otel_goodput._accounting import rules
from otel_goodput._accounting.events import NONBLOCKING, START
from otel_goodput._journal.account import Account, nothing
from otel_goodput._recording import ids, misuse, nesting
from otel_goodput._recording.attempt_traces import AttemptTraces
from otel_goodput._recording.misuse import Misuse
from otel_goodput._recording.open_spans import JobThread
from otel_goodput._recording.plain import error_name
from otel_goodput._recording.span_processor import PhaseSpans
from otel_goodput.semconv import ERROR_TYPE, GOODPUT_PHASE, Phase


class JobSpans:
    """Opens the jobs of one recorder, one after the other, and passes its records to the account.

    `append` appends a record to the journal. If no job is open, the record of a blocking phase begins one. There is no
    `generator` of ids with the user's own provider.
    """

    def __init__(
        self,
        account: Account,
        starter: PhaseSpans,
        generator: ids.PrivateIdGenerator | None,
        traces: AttemptTraces,
        thread: JobThread,
        misused: Misuse,
    ) -> None:
        self.append: Callable[..., None] = self._append_first
        self._account = account
        self._starter = starter
        self._generator = generator
        self._traces = traces
        self._thread = thread
        self._misused = misused
        self._begun = 0
        self._implicit: trace_api.Span | None = None
        self._closed = False

    @property
    def none_yet(self) -> bool:
        return not self._begun

    @property
    def implicit(self) -> trace_api.Span | None:
        """The open job if it was begun implicitly, else None."""
        return self._implicit

    def start(self, start: int) -> trace_api.Span:
        """Begin a job at `start` (ns), linked to the previous attempt, to the span around it and to an earlier job.

        It is a child of the attempt's root, which has no duration and is exported at once, so that the trace can be
        viewed while the job runs and no span is exported twice.
        """
        traces = self._traces
        links = []
        if traces.attempt > 0:
            links.append(Link(ids.attempt_span_context(traces.run_id, traces.attempt - 1, traces.process)))
        around = nesting.identity(trace_api.get_current_span())
        if around.is_valid:
            links.append(Link(around))
        if self._begun:
            # The process opens a job again: another span in the same trace.
            links.append(Link(traces.job_context))
        identity = ids.job_span_context(*traces.identity, self._begun)
        self._begun += 1
        self._pass_on_all()
        if self._generator is not None:
            # Before the job's record, so that a restart can tell the root from the job even if we die in between.
            traces.begin_root(start)
            self._generator.fix_next(identity.trace_id, identity.span_id)
        parent = trace_api.set_span_in_context(trace_api.NonRecordingSpan(traces.parent_of_job), Context())
        attributes: dict[str, types.AttributeValue] = {GOODPUT_PHASE: Phase.JOB}
        span = self._starter.start(Phase.JOB, parent, attributes, start, links)
        if self._generator is None and span.get_span_context().trace_flags.sampled:
            traces.begin_root(start)  # a job that the user's sampler drops is not exported, nor is its root
        traces.write_root()
        traces.place_job(span)
        return span

    def begin_implicit(self, start: int) -> None:
        """Begin an implicit job at `start` (ns), for a phase outside of any job.

        It lasts until the end of the process, or becomes the job that the user opens later.
        """
        if self._closed:
            return  # a phase that found the recorder before its shutdown
        self._implicit = self.start(start)
        self._pass_on(self._append_first)

    def take_over(self) -> trace_api.Span | None:
        """Return the implicit job for the job that the user opens now; None if there is none."""
        job, self._implicit = self._implicit, None
        if job is not None:
            self._thread.take()
            self._pass_on_all()
        return job

    def end_implicit(self, end: Callable[[], int], *, error: BaseException | None) -> None:
        """End the implicit job, if there is one, at the time that `end` returns (ns); `error` ended the program."""
        job, self._implicit = self._implicit, None
        if job is not None and job.is_recording():
            moment = end()
            if error is not None:
                job.set_attribute(ERROR_TYPE, error_name(error))
                job.set_status(StatusCode.ERROR, f"{type(error).__name__}: {error}")
            job.end(moment)
        if not self._closed:
            self._pass_on(self._append_after)

    def close(self) -> None:
        self._closed = True
        self._pass_on(nothing)

    def _pass_on(self, append: Callable[..., None]) -> None:
        self.append = append
        self._thread.latest_change = object()

    def _pass_on_all(self) -> None:
        if not self._closed:
            self._pass_on(self._account.append)

    def _append_first(self, kind: int, phase: int, flags: int, *record: int) -> None:
        """Append a record before the user opens a job: the start of a blocking phase begins an implicit job."""
        if kind == START and phase != rules.COMPILE and not flags & NONBLOCKING:
            if self.none_yet:
                self.begin_implicit(record[-1])
            if phase == rules.STEP:
                self._misused.warn(misuse.NO_JOB)
                self._pass_on_all()
        self._account.append(kind, phase, flags, *record)

    def _append_after(self, kind: int, phase: int, flags: int, *record: int) -> None:
        """Append a record after the end of the job: warn of steps, which no longer count."""
        if kind == START and phase == rules.STEP and not flags & NONBLOCKING:
            self._misused.warn(misuse.AFTER_JOB)
            self._pass_on_all()
        self._account.append(kind, phase, flags, *record)

"""The phases that are open: who is in whom, and who is exported because something in them is."""

from __future__ import annotations

from opentelemetry import trace as trace_api
from opentelemetry.sdk.trace import ReadableSpan, Span
from opentelemetry.trace import SpanContext

from otel_goodput.recording.admission import Admission
from otel_goodput.recording.attempt_traces import AttemptTraces
from otel_goodput.recording.job_thread import JobThread
from otel_goodput.recording.short_span import ShortSpan


class OpenSpans:
    """Those of one recorder.

    Args:
        thread: the job's.
        admission: which phases are left out.
        traces: where spans hang whose parent is gone.

    Attributes:
        short: steps, loads and parts, by span id, in the order of their begin.
        phases: the spans of all others, likewise.
        step: the step begun last that is open, whatever the thread.
    """

    def __init__(self, thread: JobThread, admission: Admission, traces: AttemptTraces) -> None:
        self.short: dict[int, ShortSpan] = {}
        self.phases: dict[int, Span] = {}
        self.step: ShortSpan | None = None
        self._thread = thread
        self._admission = admission
        self._traces = traces

    def find(self, key: int) -> trace_api.Span | None:
        """The open phase with this span id, if there is one."""
        return self.short.get(key) or self.phases.get(key)

    def begun_at(self, start: int) -> Span | None:
        """The latest of `phases` that began at `start` (ns): whoever began it was interrupted before it knew."""
        return next((span for span in reversed(list(self.phases.values())) if span.start_time == start), None)

    def hold(self, around: trace_api.Span) -> None:
        """Something is exported here and now, in `around`: so is the step that holds it, and what is between them."""
        if self._admission.budget.small:
            return
        if self.step is not None and self._thread.blocks(None):
            self.step.keep()
        self.keep(around)

    def keep(self, span: trace_api.Span) -> None:
        """Something is exported in `span`: so is that, and what is around it of phases that were to be left out."""
        admission = self._admission
        if admission.budget.small:
            return
        if isinstance(span, ShortSpan):
            span.keep()
        around: trace_api.Span | None = span
        while around is not None and admission.left_out:
            if isinstance(around, ShortSpan):
                if not around.closed:
                    around.keep()
                around = around.around
                continue
            admission.keep(around.get_span_context())
            parent = getattr(around, "parent", None)
            around = None if parent is None else self.find(parent.span_id)

    def adopt(self, span: ReadableSpan) -> SpanContext | None:
        """`span` was not to be exported and is after all, and so is what is around it; returns its parent."""
        parent = span.parent
        if parent is None:
            return None
        if not self._admission.budget.small:
            if parent.trace_flags.sampled:
                return parent
            around = self.find(parent.span_id)
            if around is not None:
                self.keep(around)
                return parent
        return self._traces.root_of(parent.trace_id)  # it is over before, or this process does not show it

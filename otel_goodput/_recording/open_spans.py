"""The open phases, and the export of those that contain an exported span."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import get_ident

from opentelemetry import trace as trace_api
from opentelemetry.sdk.trace import ReadableSpan, Span
from opentelemetry.trace import SpanContext

from otel_goodput._accounting.rules import DATA_LOADING
from otel_goodput._recording.attempt_traces import AttemptTraces
from otel_goodput._recording.job_thread import JobThread
from otel_goodput._recording.nesting import Nesting, identity
from otel_goodput._recording.sampling import Admission
from otel_goodput._recording.short_span import ShortSpan


@dataclass(eq=False)
class OpenSpans:
    """The open phases of one recorder.

    Attributes:
        short: open steps, loads and parts, in the order of their begin, by an id each; the phases of a loop share one.
        phases: spans of all other open phases, by span id, in the order of their begin.
        step: the open step that began last, on any thread.
    """

    thread: JobThread
    admission: Admission
    traces: AttemptTraces
    nesting: Nesting
    short: dict[int, ShortSpan] = field(default_factory=dict)
    phases: dict[int, Span] = field(default_factory=dict)
    step: ShortSpan | None = None

    def find(self, key: int) -> trace_api.Span | None:
        """Return the open phase with this span id; None if there is none."""
        short = (span for span in tuple(self.short.values()) if span.key == key)
        return next(short, None) or self.phases.get(key)

    def forget(self, span: ShortSpan, entry: int) -> None:
        """Take `span` for ended, unless another one has its `entry` in `short`."""
        if self.short.get(entry) is span:
            del self.short[entry]

    def loading(self) -> bool:
        """Return whether this thread is in a data load."""
        here = get_ident()
        return any(span.phase == DATA_LOADING and span.thread == here for span in tuple(self.short.values()))

    def begun_at(self, start: int) -> Span | None:
        """Return the latest of `phases` that began at `start` (ns), if its opener was interrupted before it had it."""
        return next((span for span in reversed(list(self.phases.values())) if span.start_time == start), None)

    def hold(self, around: trace_api.Span) -> None:
        """Export the open step and the phases around a span that is exported on this thread inside `around`."""
        if self.admission.budget.small:
            return
        if self.step is not None and self.thread.blocks(None):
            self.step.keep()
        self.keep(around)

    def keep(self, span: trace_api.Span) -> None:
        """Export `span` and the unsampled phases around it, because a span inside `span` is exported."""
        admission = self.admission
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
            admission.keep(identity(around))
            parent = getattr(around, "parent", None)
            around = None if parent is None else self.find(parent.span_id)

    def adopt(self, span: ReadableSpan) -> SpanContext | None:
        """Export the phases around `span`, which was not sampled and is exported after all; return its parent."""
        parent = span.parent
        if parent is None:
            return None
        if not self.admission.budget.small:
            if parent.trace_flags.sampled:
                return parent
            around = self.find(parent.span_id)
            if around is not None:
                self.keep(around)
                return parent
        return self.traces.root_of(parent.trace_id)  # its parent has ended, or this process does not export it

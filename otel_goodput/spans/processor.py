"""Turns spans into the ledger's events, live: any span that carries ``goodput.phase`` counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.trace import Status, StatusCode

from otel_goodput.accounting import events as ev
from otel_goodput.accounting import rules
from otel_goodput.guard import guarded, report_once
from otel_goodput.journal.account import TOLD, Account, EndedPhase
from otel_goodput.journal.records import ERRED, EXPORT, INTERRUPTED, PARENT, signed
from otel_goodput.semconv import (
    ERROR_TYPE,
    GOODPUT_BLOCKING,
    GOODPUT_CHECKPOINT_DURABLE,
    GOODPUT_COMPILE_FUNCTION,
    GOODPUT_CUSTOM_NAME,
    GOODPUT_ELASTIC_KIND,
    GOODPUT_INTERRUPTED,
    GOODPUT_PART_NAME,
    GOODPUT_PHASE,
    GOODPUT_STEP,
    GOODPUT_STEP_COMPLETED,
    Phase,
)
from otel_goodput.spans.finished import PhaseReadableSpan
from otel_goodput.spans.job_thread import JobThread
from otel_goodput.spans.misuse import Misuse
from otel_goodput.spans.observation import Device

# Which attribute names a phase, beside the phase itself.
_NAME_ATTRIBUTES: Final = {
    Phase.CUSTOM: GOODPUT_CUSTOM_NAME,
    Phase.PART: GOODPUT_PART_NAME,
    Phase.ELASTIC_WAIT: GOODPUT_ELASTIC_KIND,
    Phase.COMPILE: GOODPUT_COMPILE_FUNCTION,
}


class PhaseSpanProcessor(SpanProcessor):
    """Feeds an account from the spans of a tracer provider.

    Args:
        account: where events go.
        thread: the job's thread.
        job_trace: trace id of the job where it follows from run and attempt, else 0.
    """

    def __init__(self, account: Account, thread: JobThread, job_trace: int = 0, job_key: int = 0) -> None:
        self._account = account
        self._thread = thread
        self._job_trace = job_trace
        self._job_key = job_key
        self._open: dict[int, Span] = {}
        self._phases: dict[int, int] = {}  # what they are, by span id
        self._misused = Misuse(account.notes)
        self._aside: set[int] = set()  # span ids of open phases that hold up nothing
        self._live = True
        self.hold: Callable[[], object] = lambda: None  # told of every phase that begins, before it does
        self.device: Device | None = None  # told of blocking phases that may put work on a device

    @guarded(None)
    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        attributes = span.attributes
        named = attributes.get(GOODPUT_PHASE) if attributes else None
        if named is None or attributes is None or not self._live:
            return
        phase = rules.PHASE_INDEX.get(str(named))
        if phase is None:
            report_once("unknown phase", "a span says goodput.phase=%r, which is no phase; it does not count", named)
            return
        step = attributes.get(GOODPUT_STEP, ev.NO_STEP)
        if not isinstance(step, int) or (phase == rules.STEP and step < 0):
            report_once(
                "step number", "a %s span needs goodput.step, an int from 0, but has %r; it does not count", named, step
            )
            return
        self.hold()
        if phase == rules.JOB:
            self._thread.take()
        blocking = attributes.get(GOODPUT_BLOCKING)
        flags = EXPORT
        if not self._thread.blocks(blocking if isinstance(blocking, bool) else None):
            flags |= ev.NONBLOCKING
            self._aside.add(span.context.span_id)
        name = str(attributes.get(_NAME_ATTRIBUTES.get(str(named), ""), "") or "")
        if phase == rules.CUSTOM_PHASE and not name:
            name = span.name
        context = span.get_span_context()
        self._phases[context.span_id] = phase
        self._open[context.span_id] = span
        start = span.start_time or self._account.clock()
        if self.device is not None and not flags & ev.NONBLOCKING:
            self.device.begin(context.span_id, phase, start)
        self._account.start(phase, context.span_id, step, flags, name, start)
        if context.trace_id != self._job_trace:
            self._account.foreign_trace(context.span_id, context.trace_id)
        if span.parent is not None and span.parent.span_id != self._job_key:
            self._account.append(PARENT, 0, 0, 0, context.span_id, signed(span.parent.span_id), start)

    @guarded(None)
    def on_end(self, span: ReadableSpan) -> None:
        if isinstance(span, PhaseReadableSpan) or not self._open or not self._live:
            return
        context = span.get_span_context()
        if context is None or context.span_id not in self._open:
            return
        attributes = span.attributes or {}
        flags = EXPORT
        if span.status.status_code is StatusCode.ERROR:
            flags |= ERRED
        if span.status.status_code is StatusCode.ERROR or attributes.get(GOODPUT_STEP_COMPLETED) is False:
            flags |= ev.FAILED
        if attributes.get(GOODPUT_CHECKPOINT_DURABLE) is False:
            flags |= ev.PENDING
        if attributes.get(GOODPUT_INTERRUPTED):
            flags |= INTERRUPTED
        phase = self._phases[context.span_id]
        if rules.PHASE_INDEX.get(str(attributes.get(GOODPUT_PHASE))) != phase:
            self._misused.changed(GOODPUT_PHASE)
        end = span.end_time or self._account.clock()
        if self.device is not None:
            self.device.end(context.span_id, end)
        function = str(attributes.get(GOODPUT_COMPILE_FUNCTION) or "") if phase == rules.COMPILE else ""
        self._account.end(phase, context.span_id, flags, end, function)
        self._open.pop(context.span_id, None)  # only now: who is interrupted before ends it once more
        self._phases.pop(context.span_id, None)
        if phase != rules.STEP and (phase not in TOLD or flags & ev.FAILED):
            name = str(attributes.get(GOODPUT_PART_NAME if phase == rules.PART else GOODPUT_CUSTOM_NAME) or "")
            error = str(attributes.get(ERROR_TYPE) or "")
            self._account.phases.append(
                EndedPhase(
                    phase, name, context.span_id not in self._aside, error, max(0, end - (span.start_time or end))
                )
            )
        self._aside.discard(context.span_id)

    def opened(self) -> list[Span]:
        """The spans of open phases, in the order of their begin."""
        return list(self._open.values())

    @guarded(None)
    def shutdown(self) -> None:
        """End what is open, innermost first, and mark it as interrupted."""
        if not self._live:
            return
        for span in reversed(list(self._open.values())):
            span.set_attribute(GOODPUT_INTERRUPTED, True)
            if (span.attributes or {}).get(GOODPUT_CHECKPOINT_DURABLE):
                span.set_attribute(GOODPUT_CHECKPOINT_DURABLE, False)
            span.set_status(Status(StatusCode.ERROR, "interrupted by shutdown"))
            span.end()
        self._live = False
        self._account.refresh()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        self._account.refresh()
        return True

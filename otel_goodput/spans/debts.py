"""The spans that attempts which died still owe, as their journals tell them."""

from __future__ import annotations

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, Status, StatusCode
from opentelemetry.util import types

from otel_goodput.accounting import events as ev
from otel_goodput.accounting import rules
from otel_goodput.journal import records
from otel_goodput.journal.rundir import RunDirectory
from otel_goodput.journal.spanbook import Debt, SpanBook, SpanEntry
from otel_goodput.journal.thinning import Summary
from otel_goodput.semconv import (
    ATTEMPT,
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
    PHASES,
    SCOPE_NAME,
    SERVICE_INSTANCE_ID,
    STEPS_SUMMARY_SPAN,
    Phase,
)
from otel_goodput.spans import ids
from otel_goodput.spans.finished import PhaseReadableSpan
from otel_goodput.spans.tracer import summary_attributes
from otel_goodput.version import __version__

_NAME_ATTRIBUTE = {
    Phase.CUSTOM: GOODPUT_CUSTOM_NAME,
    Phase.PART: GOODPUT_PART_NAME,
    Phase.ELASTIC_WAIT: GOODPUT_ELASTIC_KIND,
    Phase.COMPILE: GOODPUT_COMPILE_FUNCTION,
}


def owed_spans(run: RunDirectory, book: SpanBook, run_id: str, process: int, resource: Resource) -> list[ReadableSpan]:
    """The spans that the attempts before that of `book` still owe, the oldest attempt's first, parents after children.

    Those that were open are closed at the attempt's last sign of life, with status ERROR and ``goodput.interrupted``.
    """
    spans = []
    for debt in book.debts:
        if run.recovered_path(debt.attempt, process).exists():
            continue
        theirs = Resource({ATTEMPT: debt.attempt, SERVICE_INSTANCE_ID: ids.instance_id(run_id, debt.attempt, process)})
        build = _Builder(run_id, debt, process, resource.merge(theirs))
        spans += [build.summary(summary) for summary in debt.summaries]
        spans += [build.span(entry) for entry in debt.spans]
    return spans


class _Builder:
    def __init__(self, run_id: str, debt: Debt, process: int, resource: Resource) -> None:
        self._identity = (run_id, debt.attempt, process)
        self._debt = debt
        self._resource = resource
        self._job = ids.job_span_context(*self._identity)
        self._scope = InstrumentationScope(SCOPE_NAME, __version__)

    def span(self, entry: SpanEntry) -> ReadableSpan:
        phase = PHASES[entry.phase]
        attributes: dict[str, types.AttributeValue] = {GOODPUT_PHASE: phase}
        if entry.step >= 0:
            attributes[GOODPUT_STEP] = entry.step
        if entry.name and phase in _NAME_ATTRIBUTE:
            attributes[_NAME_ATTRIBUTE[phase]] = entry.name
        if entry.flags & ev.NONBLOCKING:
            attributes[GOODPUT_BLOCKING] = False
        if entry.phase == rules.SAVE:
            attributes[GOODPUT_CHECKPOINT_DURABLE] = entry.end is not None and not entry.end_flags & (
                ev.FAILED | ev.PENDING
            )
        interrupted = entry.end is None or bool(entry.end_flags & records.INTERRUPTED)
        if interrupted:
            attributes[GOODPUT_INTERRUPTED] = True
        if phase == Phase.STEP and (interrupted or entry.end_flags & ev.FAILED):
            attributes[GOODPUT_STEP_COMPLETED] = False
        failed = interrupted or bool(entry.end_flags & records.ERRED)
        status = Status(StatusCode.ERROR, "the process died" if interrupted else None) if failed else Status()
        own = self._own_trace(entry) if self._debt.own_traces else 0
        trace = own or entry.trace or self._job.trace_id
        links = (Link(self._job),) if own else self._links(entry)
        context = SpanContext(trace, entry.key, False, ids.SAMPLED)
        return PhaseReadableSpan(
            entry.name if phase in (Phase.CUSTOM, Phase.PART) and entry.name else phase,
            context,
            None if own else self._parent(entry, trace),
            self._resource,
            attributes,
            (),
            links,
            status=status,
            start_time=entry.start,
            end_time=max(entry.start, self._debt.last_sign if entry.end is None else entry.end),
            instrumentation_scope=self._scope,
        )

    def _own_trace(self, entry: SpanEntry) -> int:
        """Of steps, and of loads that are not inside one; 0 for all others."""
        if entry.phase == rules.STEP or (entry.phase == rules.DATA_LOADING and not entry.parent):
            run_id, attempt, _ = self._identity
            return ids.step_trace_id(run_id, attempt, entry.step)
        return 0

    def _parent(self, entry: SpanEntry, trace: int) -> SpanContext | None:
        run_id, attempt, process = self._identity
        if entry.phase == rules.JOB:
            return ids.job_span_context(run_id, attempt) if process else None
        if entry.parent:
            return SpanContext(trace, entry.parent, False, ids.SAMPLED)
        return self._job

    def _links(self, entry: SpanEntry) -> tuple[Link, ...]:
        run_id, attempt, process = self._identity
        if entry.phase == rules.JOB and attempt > 0:
            return (Link(ids.job_span_context(run_id, attempt - 1, process)),)
        return ()

    def summary(self, summary: Summary) -> ReadableSpan:
        key = ids.summary_span_id(*self._identity, summary.first, summary.start)
        context = SpanContext(self._job.trace_id, key, False, ids.SAMPLED)
        return PhaseReadableSpan(
            STEPS_SUMMARY_SPAN,
            context,
            self._job,
            self._resource,
            summary_attributes(summary),
            start_time=summary.start,
            end_time=summary.end,
            instrumentation_scope=self._scope,
        )

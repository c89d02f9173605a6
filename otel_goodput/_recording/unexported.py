"""Rebuilds, from their journals, the spans that dead attempts did not export."""

from __future__ import annotations

from typing import NamedTuple

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, Status, StatusCode

from otel_goodput._accounting import events as ev
from otel_goodput._accounting import rules
from otel_goodput._journal import records
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._journal.thinning import Summary
from otel_goodput._recording import ids
from otel_goodput._recording.finished import (
    AttemptSpan,
    ContinuationSpan,
    PhaseReadableSpan,
    phase_attributes,
    summary_span,
)
from otel_goodput._recording.trace_layout import SMALL, TraceLayout
from otel_goodput._timeline.span_index import NO_PHASE, SpanEntry, SpanIndex, Unexported
from otel_goodput.semconv import (
    ATTEMPT,
    GOODPUT_CHECKPOINT_DURABLE,
    PHASES,
    SCOPE_NAME,
    SERVICE_INSTANCE_ID,
    TRACE_ID,
    Phase,
)
from otel_goodput.version import __version__

# Phases in the trace that their step number selects; all others are in trace 0.
_OF_STEPS = frozenset({rules.STEP, rules.DATA_LOADING, rules.PART, rules.COMPILE})


class UnexportedSpan(NamedTuple):
    """A span that a dead attempt did not export to all exporters; those in `exported_by` (numbers) have it already."""

    span: ReadableSpan
    exported_by: frozenset[int]


def unexported_spans(
    run: RunDirectory, index: SpanIndex, run_id: str, process: int, resource: Resource, latest: int
) -> list[UnexportedSpan]:
    """Return the spans that the attempts before that of `index` did not export, oldest first, parents after children.

    Open spans end at the attempt's last sign of life, with status ERROR and ``goodput.interrupted``. An open job is
    linked to the next attempt, if there is one: `latest` is the number of the last attempt.
    """
    spans = []
    for left in index.unexported:
        recovered = run.recovered_by(left.attempt, process)
        theirs: dict[str, int | str] = {
            ATTEMPT: left.attempt,
            SERVICE_INSTANCE_ID: ids.instance_id(run_id, left.attempt, process),
        }
        if TRACE_ID in resource.attributes:
            theirs[TRACE_ID] = f"{ids.attempt_trace_id(run_id, left.attempt):032x}"
        build = _Builder(run_id, left, process, resource.merge(Resource(theirs)), left.attempt < latest)
        if left.share >= SMALL:
            spans += [UnexportedSpan(build.summary(one), recovered | left.summed_by(one)) for one in left.summaries]
            for name, summary in left.phase_summaries:
                spans.append(UnexportedSpan(build.summary(summary, name), recovered | left.summed_by(summary, name)))
        for place, entry in enumerate(left.spans, 1):
            exported_by = frozenset(exporter for exporter, reached in left.reached.items() if place <= reached)
            spans.append(UnexportedSpan(build.span(entry), recovered | exported_by))
    return spans


class _Builder:
    def __init__(self, run_id: str, left: Unexported, process: int, resource: Resource, followed: bool) -> None:
        self._identity = (run_id, left.attempt, process)
        self._left = left
        self._resource = resource
        self._followed = followed
        self._root = ids.attempt_span_context(run_id, left.attempt)
        self._job = ids.job_span_context(*self._identity)
        self._scope = InstrumentationScope(SCOPE_NAME, __version__)
        self._layout = TraceLayout(run_id, left.attempt, left.steps, left.group)
        if left.share < SMALL:
            self._job = self._layout.root(0)

    def span(self, entry: SpanEntry) -> ReadableSpan:
        if entry.phase == NO_PHASE:
            run_id, attempt, _ = self._identity
            group = entry.flags
            if entry.step > 0 or group:
                place = (max(0, entry.step), entry.parent, self._resource, self._scope, entry.start)
                return ContinuationSpan(self._layout.of(group), *place)
            return AttemptSpan(run_id, attempt, self._resource, self._scope, entry.start)
        phase = PHASES[entry.phase]
        interrupted = entry.end is None or bool(entry.end_flags & records.INTERRUPTED)
        end_flags = entry.end_flags | (records.INTERRUPTED if interrupted else 0)
        failed = interrupted or bool(entry.end_flags & records.ERRED)
        status = Status(StatusCode.ERROR, "the process died" if interrupted else None) if failed else Status()
        own = self._own_trace(entry) if self._left.own_traces else 0
        trace = own or entry.trace or self._around(entry).trace_id
        number = self._layout.number_of(trace) or 0
        attributes = phase_attributes(entry.phase, entry.step, entry.name, entry.flags, end_flags, number)
        if entry.phase == rules.SAVE:
            attributes[GOODPUT_CHECKPOINT_DURABLE] = entry.end is not None and not end_flags & (ev.FAILED | ev.PENDING)
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
            end_time=max(entry.start, self._left.last_sign if entry.end is None else entry.end),
            instrumentation_scope=self._scope,
        )

    def _job_at(self, moment: int) -> SpanContext:
        """Return the job at `moment` (ns). Its id does not follow from the run if a user's provider has begun it."""
        jobs = [entry for entry in self._left.spans if entry.phase == rules.JOB and entry.start <= moment]
        if not jobs or self._left.share < SMALL:
            return self._job
        latest = max(jobs, key=lambda entry: entry.start)
        return SpanContext(latest.trace or self._root.trace_id, latest.key, True, ids.SAMPLED)

    def _around(self, entry: SpanEntry) -> SpanContext:
        """Return the default parent of a span: the root of the trace that its step selects, or the job."""
        number = self._layout.number(entry.step) if entry.phase in _OF_STEPS else 0
        if entry.trace:  # a foreign trace: no step number selects it
            return self._job
        return self._layout.root(number) if number else self._job

    def _own_trace(self, entry: SpanEntry) -> int:
        """Return the id of the separate trace of a step or of a load outside of a step; 0 for all other spans."""
        if entry.step >= 0 and (entry.phase == rules.STEP or (entry.phase == rules.DATA_LOADING and not entry.parent)):
            run_id, attempt, _ = self._identity
            return ids.step_trace_id(run_id, attempt, entry.step)
        return 0

    def _parent(self, entry: SpanEntry, trace: int) -> SpanContext | None:
        if entry.parent:
            return SpanContext(trace, entry.parent, False, ids.SAMPLED)
        if entry.phase != rules.JOB:
            return self._around(entry)
        # In a foreign trace, the job is a root itself.
        return None if entry.trace or entry.key == self._root.span_id else self._root

    def _links(self, entry: SpanEntry) -> tuple[Link, ...]:
        run_id, attempt, process = self._identity
        if entry.phase != rules.JOB:
            return ()
        # A job that ended may have been exported without a note of it, and then without a link to the next attempt.
        followed = self._followed and entry.end is None
        linked = [attempt - 1] * (attempt > 0) + [attempt + 1] * followed
        return tuple(Link(ids.attempt_span_context(run_id, each, process)) for each in linked)

    def summary(self, summary: Summary, name: str = "") -> ReadableSpan:
        number = 0 if name else self._layout.number(summary.first)
        parent = self._layout.root(number) if number else self._job_at(summary.end)
        return summary_span(summary, name, parent, number, self._identity, self._resource, self._scope)

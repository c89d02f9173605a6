"""Finished spans for exporters: roots of traces, links between traces, summaries, and phases that are exported late.

The account already includes what they stand for. Roots and links have no duration, so that each is exported at once and
only once. What a dead attempt did not export is rebuilt from its journal (:func:`unexported_spans`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, Status, StatusCode
from opentelemetry.util import types

from otel_goodput import semconv
from otel_goodput._accounting import events as ev
from otel_goodput._accounting import rules
from otel_goodput._journal import records
from otel_goodput._journal.records import INTERRUPTED, OUTLIER
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._journal.thinning import Summary
from otel_goodput._recording import ids
from otel_goodput._recording.trace_layout import SMALL, TraceLayout
from otel_goodput._timeline.span_index import NO_PHASE, SpanEntry, SpanIndex, Unexported
from otel_goodput.version import __version__

UNSET: Final = Status(StatusCode.UNSET)


class PhaseReadableSpan(ReadableSpan):
    """A finished span for exporters. Its type tells our span processor that the ledger already includes it."""


class AttemptSpan(PhaseReadableSpan):
    """The root of an attempt's trace, linked to the previous attempt's."""


class ContinuationSpan(PhaseReadableSpan):
    """The root of a further trace, linked to the root of the previous trace and to the attempt's root."""


class Origin(NamedTuple):
    """What all spans of an attempt have in common, and what makes them."""

    resource: Resource
    scope: InstrumentationScope

    def span(
        self,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        start: int,
        end: int,
        attributes: types.Attributes = None,
        links: Sequence[Link] = (),
        status: Status = UNSET,
        kind: type[PhaseReadableSpan] = PhaseReadableSpan,
    ) -> PhaseReadableSpan:
        """Return a finished span; times in ns."""
        return kind(
            name, context, parent, self.resource, attributes, (), links, status=status,
            start_time=start, end_time=end, instrumentation_scope=self.scope,
        )  # fmt: skip


_NAMES: Final = {
    rules.CUSTOM_PHASE: semconv.GOODPUT_CUSTOM_NAME,
    rules.PART: semconv.GOODPUT_PART_NAME,
    rules.PHASE_INDEX[semconv.Phase.ELASTIC_WAIT]: semconv.GOODPUT_ELASTIC_KIND,
    rules.COMPILE: semconv.GOODPUT_COMPILE_FUNCTION,
}


def phase_attributes(
    phase: int, step: int, name: str, flags: int, end_flags: int, trace: int
) -> dict[str, types.AttributeValue]:
    """Return the attributes of a phase that follow from its records, of a living attempt and of a dead one.

    Args:
        phase: index into ``semconv.PHASES``.
        step: number of its step; negative if it has none.
        name: its name, empty if it has none.
        flags, end_flags: those of its START and its END; 0 for an END that is still to come.
        trace: the number of its trace.
    """
    attributes: dict[str, types.AttributeValue] = {semconv.GOODPUT_PHASE: semconv.PHASES[phase]}
    if step >= 0:
        attributes[semconv.GOODPUT_STEP] = step
    if name and phase in _NAMES:
        attributes[_NAMES[phase]] = name
    if flags & ev.NONBLOCKING:
        attributes[semconv.GOODPUT_BLOCKING] = False
    if trace:
        attributes[semconv.GOODPUT_TRACE_NUMBER] = trace
    if end_flags:
        if phase == rules.STEP and end_flags & (ev.FAILED | INTERRUPTED):
            attributes[semconv.GOODPUT_STEP_COMPLETED] = False
        if end_flags & OUTLIER:
            attributes[semconv.GOODPUT_STEP_OUTLIER] = True
        if end_flags & INTERRUPTED:
            attributes[semconv.GOODPUT_INTERRUPTED] = True
    return attributes


def attempt_span(run_id: str, attempt: int, origin: Origin, moment: int) -> PhaseReadableSpan:
    """Return the root of an attempt's trace; `moment` is when the first job began, ns."""
    root = ids.attempt_span_context(run_id, attempt)
    context = SpanContext(root.trace_id, root.span_id, False, ids.SAMPLED)
    links = (Link(ids.attempt_span_context(run_id, attempt - 1)),) if attempt > 0 else ()
    return origin.span(semconv.ATTEMPT_SPAN, context, None, moment, moment, None, links, kind=AttemptSpan)


def sampled_copy(span: ReadableSpan, parent: SpanContext | None) -> PhaseReadableSpan:
    """Return a copy of the finished, unsampled `span` that is sampled and has the parent `parent`."""
    context = span.get_span_context()
    if context is not None:
        context = SpanContext(context.trace_id, context.span_id, False, ids.SAMPLED, context.trace_state)
    return PhaseReadableSpan(
        span.name,
        context,
        parent,
        span.resource,
        span.attributes,
        span.events,
        span.links,
        span.kind,
        status=span.status,
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )


def _attributes(layout: TraceLayout, number: int) -> dict[str, int]:
    """Return the attributes that identify trace `number`: its number and its group, without those that are 0."""
    attributes = {semconv.GOODPUT_TRACE_NUMBER: number, semconv.GOODPUT_TRACE_GROUP: layout.group}
    return {key: value for key, value in attributes.items() if value}


def continuation_span(layout: TraceLayout, number: int, before: int, origin: Origin, moment: int) -> PhaseReadableSpan:
    """Return the root of the trace `number` of a group, which follows `before` (see :meth:`TraceLayout.behind`).

    `moment` is when the new trace's first span began, ns.
    """
    behind, first = layout.behind(number, before), layout.of(0).root(0)
    links = [Link(behind), *([Link(first)] if behind.span_id != first.span_id else [])]
    own = _attributes(layout, number)
    root = layout.root(number)
    return origin.span(semconv.CONTINUATION_SPAN, root, None, moment, moment, own, links, kind=ContinuationSpan)


def continued_span(layout: TraceLayout, number: int, before: int, origin: Origin, moment: int) -> PhaseReadableSpan:
    """Return the span in the previous trace that links to the root of trace `number`, begun at `moment` (ns)."""
    parent = layout.behind(number, before)
    theirs = layout if parent == layout.root(before) else layout.of(layout.group - 1)
    key = ids.continued_span_id(layout.run_id, layout.attempt, number, layout.group)
    context, links = SpanContext(parent.trace_id, key, False, ids.SAMPLED), [Link(layout.root(number))]
    own = _attributes(theirs, before)
    return origin.span(semconv.CONTINUED_SPAN, context, parent, moment, moment, own, links)


# Attributes of a summary: the number of steps or phases, and of their durations the sum, minimum, median, P90, maximum.
_STEPS: Final = (
    *(semconv.GOODPUT_STEPS_COUNT, semconv.GOODPUT_STEPS_SUM, semconv.GOODPUT_STEPS_MIN),
    *(semconv.GOODPUT_STEPS_MEDIAN, semconv.GOODPUT_STEPS_P90, semconv.GOODPUT_STEPS_MAX),
)
_PHASES: Final = (
    *(semconv.GOODPUT_PHASES_COUNT, semconv.GOODPUT_PHASES_SUM, semconv.GOODPUT_PHASES_MIN),
    *(semconv.GOODPUT_PHASES_MEDIAN, semconv.GOODPUT_PHASES_P90, semconv.GOODPUT_PHASES_MAX),
)


def summary_span(
    summary: Summary,
    name: str,
    parent: SpanContext,
    number: int,
    identity: tuple[str, int, int],
    origin: Origin,
) -> PhaseReadableSpan:
    """Return the span that stands for many unexported steps, or for many unexported phases of one name.

    Args:
        summary: the figures of the steps or phases.
        name: name of the phases; empty for steps.
        parent: the span's parent.
        number: which of the attempt's traces it is in.
        identity: run id, attempt and process.
        origin: of the span.
    """
    figures = (summary.steps, summary.total, summary.min, summary.median, summary.p90, summary.max)
    attributes: dict[str, types.AttributeValue] = dict(zip(_PHASES if name else _STEPS, figures, strict=True))
    if name:
        key = ids.phases_span_id(*identity, name, summary.start)
        attributes[semconv.GOODPUT_PHASES_NAME] = name
    else:
        key = ids.summary_span_id(*identity, summary.first, summary.start)
        attributes |= {semconv.GOODPUT_STEPS_FIRST: summary.first, semconv.GOODPUT_STEPS_LAST: summary.last}
    if number:
        attributes[semconv.GOODPUT_TRACE_NUMBER] = number
    kind = semconv.PHASES_SUMMARY_SPAN if name else semconv.STEPS_SUMMARY_SPAN
    context = SpanContext(parent.trace_id, key, False, ids.SAMPLED)
    return origin.span(kind, context, parent, summary.start, summary.end, attributes)


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
            semconv.ATTEMPT: left.attempt,
            semconv.SERVICE_INSTANCE_ID: ids.instance_id(run_id, left.attempt, process),
        }
        if semconv.TRACE_ID in resource.attributes:
            theirs[semconv.TRACE_ID] = f"{ids.attempt_trace_id(run_id, left.attempt):032x}"
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
        self._origin = Origin(resource, InstrumentationScope(semconv.SCOPE_NAME, __version__))
        self._followed = followed
        self._root = ids.attempt_span_context(run_id, left.attempt)
        self._job = ids.job_span_context(*self._identity)
        self._layout = TraceLayout(run_id, left.attempt, left.steps, left.group)
        if left.share < SMALL:
            self._job = self._layout.root(0)

    def span(self, entry: SpanEntry) -> ReadableSpan:
        if entry.phase == NO_PHASE:
            run_id, attempt, _ = self._identity
            group = entry.flags
            if entry.step > 0 or group:
                number, layout = max(0, entry.step), self._layout.of(group)
                return continuation_span(layout, number, entry.parent, self._origin, entry.start)
            return attempt_span(run_id, attempt, self._origin, entry.start)
        phase = semconv.PHASES[entry.phase]
        interrupted = entry.end is None or bool(entry.end_flags & INTERRUPTED)
        end_flags = entry.end_flags | (INTERRUPTED if interrupted else 0)
        failed = interrupted or bool(entry.end_flags & records.ERRED)
        status = Status(StatusCode.ERROR, "the process died" if interrupted else None) if failed else Status()
        own = self._own_trace(entry) if self._left.own_traces else 0
        trace = own or entry.trace or self._around(entry).trace_id
        number = self._layout.number_of(trace) or 0
        attributes = phase_attributes(entry.phase, entry.step, entry.name, entry.flags, end_flags, number)
        if entry.phase == rules.SAVE:
            durable = entry.end is not None and not end_flags & (ev.FAILED | ev.PENDING)
            attributes[semconv.GOODPUT_CHECKPOINT_DURABLE] = durable
        return self._origin.span(
            entry.name if phase in (semconv.Phase.CUSTOM, semconv.Phase.PART) and entry.name else phase,
            SpanContext(trace, entry.key, False, ids.SAMPLED),
            None if own else self._parent(entry, trace),
            entry.start,
            max(entry.start, self._left.last_sign if entry.end is None else entry.end),
            attributes,
            (Link(self._job),) if own else self._links(entry),
            status,
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
        return summary_span(summary, name, parent, number, self._identity, self._origin)

"""Finished spans for exporters: phases of this attempt and of dead ones, summaries, roots of traces, and links between.

A phase's span is made from its records, whoever recorded it, and from what the user has set on it. Roots and links have
no duration, so that each is exported at once and only once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode
from opentelemetry.util import types

from otel_goodput import semconv
from otel_goodput._accounting import events as ev
from otel_goodput._accounting import rules
from otel_goodput._journal import records
from otel_goodput._journal.facts import facts_of
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._journal.thinning import Summary
from otel_goodput._recording import ids
from otel_goodput._recording.trace_layout import SMALL, TraceLayout
from otel_goodput._timeline.span_index import NO_PHASE, SpanEntry, SpanIndex, Unexported
from otel_goodput.semconv import PHASES, SCOPE_NAME, Phase
from otel_goodput.version import __version__

SCOPE: Final = InstrumentationScope(SCOPE_NAME, __version__)
UNSET: Final = Status()
# The attribute that holds the name of a phase, for phases that have one.
NAME_ATTRIBUTES: Final[dict[str, str]] = {
    Phase.CUSTOM: semconv.GOODPUT_CUSTOM_NAME,
    Phase.PART: semconv.GOODPUT_PART_NAME,
    Phase.ELASTIC_WAIT: semconv.GOODPUT_ELASTIC_KIND,
    Phase.COMPILE: semconv.GOODPUT_COMPILE_FUNCTION,
}
# Attributes of resources that an attempt recorded, and that may be others in the one that exports its spans.
_RECORDED: Final = (semconv.PROCESS_COUNT, semconv.PROCESS_PID, semconv.HOST_NAME)
_NAMED_SO: Final = frozenset({rules.CUSTOM_PHASE, rules.PART})  # the span has the phase's own name
# Phases in the trace that their step number selects; all others are in trace 0.
_OF_STEPS: Final = frozenset({rules.STEP, rules.DATA_LOADING, rules.PART, rules.COMPILE})


class PhaseReadableSpan(ReadableSpan):
    """A finished span for exporters. Its type tells our span processor that the ledger already includes it."""


def is_attempt(span: ReadableSpan) -> bool:
    """Whether `span` is the root of an attempt's trace."""
    return isinstance(span, PhaseReadableSpan) and span.name == semconv.ATTEMPT_SPAN


def phase_attributes(
    phase: int, name: str, step: int, flags: int, end_flags: int, number: int
) -> dict[str, types.AttributeValue]:
    """Return the attributes that follow from the records of a phase in trace `number`."""
    kind = PHASES[phase]
    attributes: dict[str, types.AttributeValue] = {semconv.GOODPUT_PHASE: kind}
    if step >= 0:
        attributes[semconv.GOODPUT_STEP] = step
    if name and kind in NAME_ATTRIBUTES:
        attributes[NAME_ATTRIBUTES[kind]] = name
    if flags & ev.NONBLOCKING:
        attributes[semconv.GOODPUT_BLOCKING] = False
    if number:
        attributes[semconv.GOODPUT_TRACE_NUMBER] = number
    if end_flags:
        if phase == rules.STEP and end_flags & (ev.FAILED | records.INTERRUPTED):
            attributes[semconv.GOODPUT_STEP_COMPLETED] = False
        if end_flags & records.OUTLIER:
            attributes[semconv.GOODPUT_STEP_OUTLIER] = True
        if end_flags & records.INTERRUPTED:
            attributes[semconv.GOODPUT_INTERRUPTED] = True
    return attributes


def phase_span(
    entry: SpanEntry,
    context: SpanContext,
    parent: SpanContext | None,
    number: int,
    resource: Resource,
    attributes: Mapping[str, types.AttributeValue] | None = None,
    title: str | None = None,
    events: Sequence[Event] = (),
    links: Sequence[Link] = (),
    status: Status = UNSET,
) -> PhaseReadableSpan:
    """Return the span of a phase in trace `number`, from its records and what else is known of it.

    `attributes` are those that do not follow from the records; `title` is a name that the user gave it later.
    """
    described = phase_attributes(entry.phase, entry.name, entry.step, entry.flags, entry.end_flags, number)
    if attributes:
        described.update(attributes)
    name = title or (entry.name if entry.phase in _NAMED_SO else "") or PHASES[entry.phase]
    times = (entry.start, entry.end)
    return PhaseReadableSpan(  # by position, which is quicker
        name, context, parent, resource, described, events, links, SpanKind.INTERNAL, None, status, *times, SCOPE
    )


def sampled_copy(span: ReadableSpan, parent: SpanContext | None) -> PhaseReadableSpan:
    """Return a copy of the finished, unsampled `span` that is sampled and has the parent `parent`."""
    context = span.get_span_context()
    if context is not None:
        context = SpanContext(context.trace_id, context.span_id, False, ids.SAMPLED, context.trace_state)
    own = (span.name, context, parent, span.resource, span.attributes, span.events, span.links, span.kind)
    return PhaseReadableSpan(*own, None, span.status, span.start_time, span.end_time, span.instrumentation_scope)


def attempt_span(run_id: str, attempt: int, resource: Resource, moment: int) -> PhaseReadableSpan:
    """Return the root of an attempt's trace, linked to the previous one's; `moment`: when its first job began, ns."""
    links = (Link(ids.attempt_span_context(run_id, attempt - 1)),) if attempt > 0 else ()
    context = ids.trace_root_context(run_id, attempt, 0)
    return _span(semconv.ATTEMPT_SPAN, context, None, resource, {}, links, moment, moment)


def continuation_span(
    layout: TraceLayout, number: int, before: int, resource: Resource, moment: int
) -> PhaseReadableSpan:
    """Return the root of trace `number`, begun at `moment` (ns), linked to that of trace `before` and the attempt's."""
    links = [Link(layout.root(before)), *([Link(layout.root(0))] if before else [])]
    attributes = {semconv.GOODPUT_TRACE_NUMBER: number}
    return _span(semconv.CONTINUATION_SPAN, layout.root(number), None, resource, attributes, links, moment, moment)


def continued_span(layout: TraceLayout, number: int, before: int, resource: Resource, moment: int) -> PhaseReadableSpan:
    """Return the span in trace `before` that links to the root of trace `number`, begun at `moment` (ns)."""
    parent = layout.root(before)
    key = ids.span_id("follow", layout.run_id, layout.attempt, number)
    context = SpanContext(parent.trace_id, key, False, ids.SAMPLED)
    attributes = {semconv.GOODPUT_TRACE_NUMBER: before} if before else {}
    links = [Link(layout.root(number))]
    return _span(semconv.CONTINUED_SPAN, context, parent, resource, attributes, links, moment, moment)


def watched_span(
    kind: str,
    number: int,
    identity: tuple[str, int, int],
    parent: SpanContext,
    resource: Resource,
    attributes: Mapping[str, types.AttributeValue],
    links: Sequence[Link],
    start: int,
    end: int,
) -> PhaseReadableSpan:
    """Return the span of an incident or a profile; `kind` is its name. `identity`: run, attempt, whose it is."""
    context = ids.watched_span_context(kind, *identity, number)
    return _span(kind, context, parent, resource, attributes, links, start, end)


def _span(
    name: str,
    context: SpanContext,
    parent: SpanContext | None,
    resource: Resource,
    attributes: Mapping[str, types.AttributeValue],
    links: Sequence[Link],
    start: int,
    end: int,
) -> PhaseReadableSpan:
    span = (name, context, parent, resource, attributes, (), links, SpanKind.INTERNAL, None, UNSET, start, end, SCOPE)
    return PhaseReadableSpan(*span)  # by position, which is quicker


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
    summary: Summary, name: str, parent: SpanContext, number: int, identity: tuple[str, int, int], resource: Resource
) -> PhaseReadableSpan:
    """Return the span in trace `number` that stands for many unexported steps, or phases of one `name`."""
    figures = (summary.steps, summary.total, summary.min, summary.median, summary.p90, summary.max)
    attributes: dict[str, types.AttributeValue] = dict(zip(_PHASES if name else _STEPS, figures, strict=True))
    if name:
        key = ids.span_id("flood", *identity, name, summary.start)
        attributes[semconv.GOODPUT_PHASES_NAME] = name
    else:
        key = ids.span_id("steps", *identity, summary.first, summary.start)
        attributes |= {semconv.GOODPUT_STEPS_FIRST: summary.first, semconv.GOODPUT_STEPS_LAST: summary.last}
    if number:
        attributes[semconv.GOODPUT_TRACE_NUMBER] = number
    title = semconv.PHASES_SUMMARY_SPAN if name else semconv.STEPS_SUMMARY_SPAN
    context = SpanContext(parent.trace_id, key, False, ids.SAMPLED)
    return _span(title, context, parent, resource, attributes, (), summary.start, summary.end)


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
        theirs = resource_of_attempt(run, run_id, left.attempt, process, resource)
        dead = _DeadAttempt(run_id, left, process, theirs, left.attempt < latest)
        if left.share >= SMALL:
            spans += [UnexportedSpan(dead.summary(one), recovered | left.summed_by(one)) for one in left.summaries]
            for name, summary in left.phase_summaries:
                spans.append(UnexportedSpan(dead.summary(summary, name), recovered | left.summed_by(summary, name)))
        for place, entry in enumerate(left.spans, 1):
            exported_by = frozenset(exporter for exporter, reached in left.reached.items() if place <= reached)
            spans.append(UnexportedSpan(dead.span(entry), recovered | exported_by))
    return spans


def resource_of_attempt(run: RunDirectory, run_id: str, attempt: int, process: int, resource: Resource) -> Resource:
    """Return the resource of a process that was part of an attempt, by what it recorded; `resource`: of this one."""
    theirs: dict[str, int | str] = {
        semconv.ATTEMPT: attempt,
        semconv.SERVICE_INSTANCE_ID: ids.instance_id(run_id, attempt, process),
        **_known(run, attempt, process),
    }
    if semconv.TRACE_ID in resource.attributes:
        theirs[semconv.TRACE_ID] = f"{ids.attempt_trace_id(run_id, attempt):032x}"
    return resource.merge(Resource(theirs))


def _known(run: RunDirectory, attempt: int, process: int) -> dict[str, int | str]:
    """Return what is known of a process that was part of an attempt, as attributes of its resource."""
    facts = facts_of(run, attempt, process)
    if facts is None:
        return {}
    recorded = {name: facts.resource.get(name) for name in _RECORDED} | {semconv.ROLE: facts.role or None}
    return {name: value for name, value in recorded.items() if isinstance(value, (int, str))}


class _DeadAttempt:
    """Completes the records of a dead attempt: what its process knew follows from the run's id and the layout."""

    def __init__(self, run_id: str, left: Unexported, process: int, resource: Resource, followed: bool) -> None:
        self._identity = (run_id, left.attempt, process)
        self._left = left
        self._resource = resource
        self._followed = followed
        self._root = ids.attempt_span_context(run_id, left.attempt)
        self._layout = TraceLayout(run_id, left.attempt, left.steps)
        self._job = self._layout.root(0) if left.share < SMALL else ids.job_span_context(*self._identity)

    def span(self, entry: SpanEntry) -> ReadableSpan:
        run_id, attempt, _ = self._identity
        if entry.phase == NO_PHASE:
            if entry.step > 0:
                return continuation_span(self._layout, entry.step, entry.parent, self._resource, entry.start)
            return attempt_span(run_id, attempt, self._resource, entry.start)
        interrupted = entry.end is None or bool(entry.end_flags & records.INTERRUPTED)
        end_flags = entry.end_flags | (records.INTERRUPTED if interrupted else 0)
        failed = interrupted or bool(entry.end_flags & records.ERRED)
        own = self._left.own_traces and entry.step >= 0 and _has_trace(entry)
        trace = entry.trace or self._around(entry).trace_id
        if own:
            trace = ids.step_trace_id(run_id, attempt, entry.step)
        attributes = {}
        if entry.phase == rules.SAVE:
            durable = entry.end is not None and not end_flags & (ev.FAILED | ev.PENDING)
            attributes[semconv.GOODPUT_CHECKPOINT_DURABLE] = durable
        end = max(entry.start, self._left.last_sign if entry.end is None else entry.end)
        return phase_span(
            entry._replace(end=end, end_flags=end_flags),
            SpanContext(trace, entry.key, False, ids.SAMPLED),
            None if own else self._parent(entry, trace),
            self._layout.number_of(trace) or 0,
            self._resource,
            attributes,
            links=(Link(self._job),) if own else self._links(entry),
            status=Status(StatusCode.ERROR, "the process died" if interrupted else None) if failed else UNSET,
        )

    def summary(self, summary: Summary, name: str = "") -> ReadableSpan:
        number = 0 if name else self._layout.number(summary.first)
        parent = self._layout.root(number) if number else self._job_at(summary.end)
        return summary_span(summary, name, parent, number, self._identity, self._resource)

    def _job_at(self, moment: int) -> SpanContext:
        """Return the job at `moment` (ns). Its id does not follow from the run if a user's provider has begun it."""
        jobs = [entry for entry in self._left.spans if entry.phase == rules.JOB and entry.start <= moment]
        if not jobs or self._left.share < SMALL:
            return self._job
        latest = max(jobs, key=lambda entry: entry.start)
        return SpanContext(latest.trace or self._root.trace_id, latest.key, True, ids.SAMPLED)

    def _around(self, entry: SpanEntry) -> SpanContext:
        """Return the default parent of a span: the root of the trace that its step selects, or the job."""
        of_step = entry.phase in _OF_STEPS and not entry.trace  # no step number selects a foreign trace
        number = self._layout.number(entry.step) if of_step else 0
        return self._layout.root(number) if number else self._job

    def _parent(self, entry: SpanEntry, trace: int) -> SpanContext | None:
        if entry.parent:
            return SpanContext(trace, entry.parent, False, ids.SAMPLED)
        if entry.phase != rules.JOB:
            return self._around(entry)
        # In a foreign trace, the job is a root itself.
        return None if entry.trace or entry.key == self._root.span_id else self._root

    def _links(self, entry: SpanEntry) -> tuple[Link, ...]:
        if entry.phase != rules.JOB:
            return ()
        run_id, attempt, process = self._identity
        # A job that ended may have been exported without a note of it, and then without a link to the next attempt.
        followed = self._followed and entry.end is None
        linked = [attempt - 1] * (attempt > 0) + [attempt + 1] * followed
        return tuple(Link(ids.attempt_span_context(run_id, each, process)) for each in linked)


def _has_trace(entry: SpanEntry) -> bool:
    """Whether a phase has a trace of its own if steps have: a step, and a load outside of a step."""
    return entry.phase == rules.STEP or (entry.phase == rules.DATA_LOADING and not entry.parent)

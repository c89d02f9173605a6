"""Spans of incidents: of those that end, and of those that a dead attempt left open or has not exported.

Their ids follow from the run, so that one which is exported again is the same span.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import Link, SpanContext
from opentelemetry.util import types

from otel_goodput import semconv
from otel_goodput._accounting.incidents import Incident
from otel_goodput._accounting.ranks import NOBODY
from otel_goodput._journal.incidents import IncidentFile, end_of
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._recording import ids
from otel_goodput._recording.finished import UnexportedSpan, resource_of_attempt, watched_span


def incident_attributes(incident: Incident) -> dict[str, types.AttributeValue]:
    """Return what is known of an incident, without its cost."""
    source = incident.source
    known: dict[str, types.AttributeValue] = {
        semconv.GOODPUT_INCIDENT_KIND: incident.kind,
        semconv.GOODPUT_INCIDENT_CAUSE: source.category,
        semconv.GOODPUT_INCIDENT_PHASE: source.name,
        semconv.GOODPUT_INCIDENT_LINE: incident.line,
        semconv.GOODPUT_INCIDENT_EVIDENCE: incident.evidence,
    }
    if source.rank != NOBODY:
        known[semconv.GOODPUT_RANK] = source.rank
    return {name: value for name, value in known.items() if value not in ("", ())}


def incident_span(
    incident: Incident,
    whose: tuple[str, int, int],
    job: SpanContext,
    resource: Resource,
    more: Mapping[str, types.AttributeValue] | None = None,
    links: Sequence[Link] = (),
) -> ReadableSpan:
    """Return the span of an incident that is over, a child of the `job`; `more` are further attributes.

    `whose`: run, attempt and process that noticed it.
    """
    attributes = {**incident_attributes(incident), semconv.GOODPUT_INCIDENT_COST: incident.cost, **(more or {})}
    end = incident.began if incident.ended is None else max(incident.began, incident.ended)
    named = semconv.INCIDENT_SPAN, incident.number, whose
    return watched_span(*named, job, resource, attributes, links, incident.began, end)


def incident_key(whose: tuple[str, int, int], number: int) -> int:
    """Return the span id of an incident of a run, attempt and process."""
    return ids.watched_span_context(semconv.INCIDENT_SPAN, *whose, number).span_id


def unexported_incidents(
    run: RunDirectory,
    files: Iterable[IncidentFile],
    delivered: Mapping[int, frozenset[int]],
    ends: Mapping[int, int],
    run_id: str,
    resource: Resource,
) -> Iterator[UnexportedSpan]:
    """Yield the spans of incidents that attempts have left, as their `files` say, and who has exported them.

    `delivered` has the numbers of the exporters that have delivered a span, by its id; `ends` when attempts (counted
    from 0) ended, ns: what an attempt left open ended with it.
    """
    for file in files:
        whose = run_id, file.attempt, file.process
        end, recovered = end_of(file.attempt, ends), run.recovered_by(file.attempt, file.process)
        theirs: Resource | None = None
        for incident in file.incidents:
            died = incident.ended is None
            if died:
                if end is None:
                    continue
                incident = incident._replace(ended=max(end, incident.began))
            elif not file.tells:
                continue  # an earlier version of this package has exported it, or it is too late
            theirs = theirs or resource_of_attempt(run, *whose, resource)
            trace, parent = file.jobs.get(incident.number, (0, 0))
            job = SpanContext(trace, parent, True, ids.SAMPLED) if trace and parent else ids.job_span_context(*whose)
            span = incident_span(incident, whose, job, theirs, {semconv.GOODPUT_INTERRUPTED: True} if died else None)
            known = delivered.get(incident_key(whose, incident.number), frozenset())
            yield UnexportedSpan(span, known | recovered)

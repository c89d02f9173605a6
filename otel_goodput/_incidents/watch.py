"""Watches the account of the job for incidents, off the training thread, and records those that there are."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final, Protocol

from opentelemetry.trace import Link, Span
from opentelemetry.util import types

from otel_goodput import semconv
from otel_goodput._accounting.incident_detector import Detector, Limits
from otel_goodput._accounting.incidents import STEP, Incident, Source, observation, source_of
from otel_goodput._accounting.job import OpenNow
from otel_goodput._accounting.ranks import NOBODY, STEP_TIME
from otel_goodput._accounting.totals import Brief
from otel_goodput._journal.incidents import IncidentSheet, delivered_by, ends_of
from otel_goodput._journal.rundir import RunDirectory, profile_name
from otel_goodput._live.live_job import LATE_NS, JobBrief
from otel_goodput._recording.finished import UnexportedSpan
from otel_goodput._recording.ids import watched_span_context
from otel_goodput._recording.incident_spans import incident_attributes, incident_span, unexported_incidents
from otel_goodput._recording.tracer import PhaseTracer
from otel_goodput._runtime.guard import contain, containing
from otel_goodput._settings.config import Config
from otel_goodput._text.redact import redacting_logger
from otel_goodput.reports import incidents as words
from otel_goodput.semconv import Category, IncidentKind

logger = redacting_logger("otel_goodput")

# Returns a part of the account of the job, or of this process if it is the only one; None: another process watches it.
Briefs = Callable[[], "tuple[Brief, JobBrief | None] | None"]
# Adds what else is known of an incident that opens or goes on: its line, and sentences of evidence.
Explain = Callable[[Incident], Incident]


# Returns the profiles of an incident by its number, each with its rank and its number there.
Taken = Callable[[int], "Sequence[tuple[int, int]]"]


class Listener(Protocol):
    """Is given each incident once when it opens and once when it has ended, on the keeper's thread: must not wait."""

    def opened(self, incident: Incident) -> object: ...

    def ended(self, incident: Incident) -> object: ...


PATIENCE: Final = 3  # looks for which the opening of a hang is held back until it is known where it stands
MISSED: Final = 3  # looks, and the account of a job may be old
APART: Final = 6  # ranks that wait for another one before the first step wait so small a part of what all may take
LOOKS: Final = 24  # at the account, until it knows how the attempt before ended
RECOMPILED: Final = 3  # functions that are named
SHARE: Final = 100  # a look takes at most one part in so many of the time, also at many ranks that step apart


class IncidentWatch:
    """Looks at the account every few seconds.

    Args:
        config: the configuration in force.
        tracer: of the job's phases: incidents are spans, too.
        sheet: keeps the incidents.
        briefs: returns what is looked at.
        place: returns the run, None if it has no folder, and the attempt, counted from 0.
        hand_over: has the exporters that lack them export spans of earlier attempts.
    """

    def __init__(
        self,
        config: Config,
        tracer: PhaseTracer,
        sheet: IncidentSheet,
        briefs: Briefs,
        place: Callable[[], tuple[RunDirectory | None, int]],
        hand_over: Callable[[Iterable[UnexportedSpan]], object],
    ) -> None:
        every = config.incidents or 0
        self._limits = Limits(window=every, start=config.watchdog.start)
        self._apart = replace(self._limits, start=(self._limits.start or self._limits.unknown) // APART)
        self._every, self._process_count = every, config.process_count
        self._tracer, self._sheet, self._briefs = tracer, sheet, briefs
        self._place, self._hand_over = place, hand_over
        self._detector = Detector(self._limits)
        self._whole = False  # it is the account of all ranks
        self._due = 0
        self._took = deque[int](maxlen=3)  # processor time of the latest looks, ns
        self._recompilations = 0
        self._caught_up = tracer.traces.attempt == 0 or not config.leads  # with what the attempt before left open
        self._patience = LOOKS  # for that
        self._listeners: list[Listener] = []
        self._held_back: dict[int, int] = {}  # incidents of which listeners do not know yet: looks left
        self._explainers: list[Explain] = []
        self._taken: Taken = lambda _: ()

    def listen(self, listener: Listener) -> None:
        """Have `listener` hear of incidents."""
        self._listeners.append(listener)

    def explain_by(self, explain: Explain) -> None:
        """Have `explain` add to incidents what else is known of them."""
        self._explainers.append(explain)

    def link_by(self, taken: Taken) -> None:
        """Have spans of incidents link to their profiles, which `taken` returns."""
        self._taken = taken

    def tick(self) -> None:
        """Look if it is time to; for the keeper's thread."""
        now = self._tracer.clock()
        if now < self._due or (job_span := self._tracer.traces.job_span) is None:
            return
        missed = 0 < self._due < now - MISSED * self._every
        self._due = now + self._every
        if missed and self._process_count > 1:
            return  # this process was stopped: the others know better what went on meanwhile, and tell in a moment
        began = time.thread_time_ns()
        self._look(now, job_span)
        self._took.append(time.thread_time_ns() - began)
        self._due = now + max(self._every, SHARE * min(self._took))  # once, the garbage collector may have taken long

    def _look(self, now: int, job_span: Span) -> None:
        if not self._caught_up:
            self._catch_up()
        if not job_span.is_recording():  # the job is over, and so is what was wrong with it
            self._end(self._detector.close(now))
            return
        account = self._briefs()
        if account is None:
            self._end(self._detector.close(now))
            return
        brief, job = account
        if self._process_count > 1 and (job is not None) != self._whole:
            self._end(self._detector.close(now))
            first, self._whole = self._detector.number, job is not None
            self._detector = Detector(self._limits, first)
        waits, doing = (None, None) if job is None else (job.waits, _doing(job.now))
        seen = observation(brief, self._tracer.traces.attempt, waits, doing)
        if now - seen.at > LATE_NS:  # a rank does not say what it does: then the time since a step is as of now
            seen = seen._replace(at=now)
        waiting = job is not None and not seen.stepped and doing is not None and doing.rank != NOBODY
        self._detector.limits = self._apart if waiting else self._limits
        for incident in self._detector.look(seen):
            self._take(self._explained(incident, brief))
        self._recompilations = brief.recompilations

    def _catch_up(self) -> None:
        """Export the incidents that earlier attempts left open or have not exported, once they have been read."""
        if (account := self._briefs()) is None or (left := self._sheet.left()) is None:
            return
        traces, emitter, history = self._tracer.traces, self._tracer.emitter, account[0].history
        self._patience -= 1
        if self._patience and not any(one.attempt == traces.attempt + 1 for one in history):
            return  # the account does not know yet how the attempt before ended
        self._caught_up = True
        run, _ = self._place()
        if run is None:
            return
        ends = ends_of(history)
        for one in unexported_incidents(run, left, delivered_by(left), ends, traces.run_id, emitter.resource):
            died = semconv.GOODPUT_INTERRUPTED in (one.span.attributes or {})
            if died and not one.exported_by and one.span.resource.attributes[semconv.ATTEMPT] == traces.attempt - 1:
                emitter.emit(one.span)  # nobody has had it, the user's own processors neither
            else:
                self._hand_over([one])

    def close(self) -> None:
        """Look a last time; what is still wrong ends with the job."""
        if self._tracer.traces.job_span is not None:
            self._due, self._patience = 0, 1
            self.tick()
            self._end(self._detector.close(self._tracer.clock()))

    def _end(self, incidents: Sequence[Incident]) -> None:
        for incident in incidents:
            known = self._sheet.get(incident.number) or incident
            source = known.source if known.source.phase == incident.source.phase else incident.source
            self._take(incident._replace(source=source, line=known.line, evidence=known.evidence))

    def _explained(self, incident: Incident, brief: Brief) -> Incident:
        if (known := self._sheet.get(incident.number)) is not None:
            incident = incident._replace(line=known.line, evidence=known.evidence)
        elif (count := brief.recompilations - self._recompilations) > 0:
            names, reasons = list(brief.recompiled)[:RECOMPILED], self._tracer.hooks.recompiled
            which = ", ".join(f"{name}: {reasons[name]}" if name in reasons else name for name in names)
            incident = incident._replace(evidence=(*incident.evidence, f"{count} recompilations ({which})"))
        for explain in self._explainers:
            try:
                incident = explain(incident)
            except Exception as error:
                contain("the cause of an incident", error)
        return incident

    def _take(self, incident: Incident) -> None:
        new = self._sheet.get(incident.number) is None
        job_context = self._tracer.traces.job_context
        self._sheet.put(incident, (job_context.trace_id, job_context.span_id) if new else None)
        if new:
            logger.warning("incident: %s", words.sentence(words.to_json(incident, self._tracer.traces.attempt)))
            if (job := self._tracer.traces.job_span) is not None and job.is_recording():
                job.add_event(semconv.GOODPUT_INCIDENT_EVENT, incident_attributes(incident), incident.opened)
        if incident.ended is not None:
            self._export(incident)
        if new:
            self._held_back[incident.number] = PATIENCE if incident.kind == IncidentKind.HANG else 0
        self._report(incident)

    def _export(self, incident: Incident) -> None:
        """Make the span of an incident that is over."""
        traces, emitter, links = self._tracer.traces, self._tracer.emitter, list[Link]()
        more: dict[str, types.AttributeValue] = {}
        for rank, number in self._taken(incident.number):
            path = f"journal/{profile_name(traces.attempt, rank, number)}"
            more[semconv.GOODPUT_PROFILE_PATH] = path
            context = watched_span_context(semconv.PROFILE_SPAN, traces.run_id, traces.attempt, rank, number)
            links.append(Link(context, {semconv.GOODPUT_PROFILE_PATH: path}))
        emitter.emit(incident_span(incident, traces.identity, traces.job_context, emitter.resource, more, links))

    def _report(self, incident: Incident) -> None:
        """Report the opening and the end of an incident to those who listen."""
        over = incident.ended is not None
        left = self._held_back.get(incident.number)
        if left is not None:
            self._held_back[incident.number] = left - 1
            if left <= 0 or incident.line or over:
                del self._held_back[incident.number]
                for listener in self._listeners:
                    with containing("the report of an incident"):
                        listener.opened(incident._replace(ended=None))
        if over:
            for listener in self._listeners:
                with containing("the report of an incident"):
                    listener.ended(incident)


def _doing(now: OpenNow) -> Source | None:
    """Return what goes on in a job: what a silent rank was doing, or the one that the others wait for."""
    for rank in now.silent:
        opened = now.ranks[rank].opened if rank in now.ranks else None
        return Source(Category.OTHER if opened is None else opened.phase, "" if opened is None else opened.name, rank)
    cause = now.cause
    if cause is None:
        return None
    # In a step they wait for each other: which one the others wait for, only their stacks tell.
    return Source(STEP) if cause.category == STEP_TIME else source_of(cause)

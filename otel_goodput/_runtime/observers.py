"""What observes a job in addition to its phases: the device clock, integrations, and notices of the platform."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import Link, SpanContext
from opentelemetry.util import types

from otel_goodput._accounting import Totals
from otel_goodput._accounting.disruption import with_causes
from otel_goodput._accounting.totals import Brief
from otel_goodput._disruption.launchers import exit_code, exit_reason, launches, unseen
from otel_goodput._disruption.metadata import Maintenance, metadata_host
from otel_goodput._disruption.notices import Notices
from otel_goodput._disruption.signals import SIGNALS, Signals
from otel_goodput._incidents.causes import Causes, Throttling
from otel_goodput._incidents.changes import ChangedSettings
from otel_goodput._incidents.evidence import EVIDENCE_REQUEST, Announced, Evidence
from otel_goodput._incidents.inputs import InputQueue
from otel_goodput._incidents.loader import LoaderStages
from otel_goodput._incidents.notify import Notifier, Subject
from otel_goodput._incidents.own_time import OwnTimeSampler
from otel_goodput._incidents.profiler import REQUEST, Profiler
from otel_goodput._incidents.watch import IncidentWatch
from otel_goodput._incidents.watchdog import STACKS_REQUEST, Watchdog
from otel_goodput._integrations import Integrations, torch_flops
from otel_goodput._integrations.device_clock import DeviceClock
from otel_goodput._integrations.torch_flops import StepFlops
from otel_goodput._integrations.usage import UsageSampler
from otel_goodput._journal.profiles import NO_INCIDENT, Profile
from otel_goodput._journal.requests import Inbox
from otel_goodput._journal.saved_files import SavedFiles
from otel_goodput._live import LiveAccount
from otel_goodput._live.live_job import JobBrief, JobFigures
from otel_goodput._metrics.productivity import Inputs, Productivity
from otel_goodput._recording.finished import UnexportedSpan, watched_span
from otel_goodput._recording.hooks import ProfiledSteps
from otel_goodput._recording.ids import watched_span_context
from otel_goodput._recording.tracer import PhaseTracer
from otel_goodput._runtime.guard import containing
from otel_goodput._settings.config import Config
from otel_goodput._settings.options import Watch
from otel_goodput._text.redact import redacting_logger
from otel_goodput.reports.own_times import explained
from otel_goodput.semconv import (
    GOODPUT_DISRUPTION_REASON,
    GOODPUT_NOTICE_EVENT,
    GOODPUT_NOTICE_SOURCE,
    GOODPUT_PROFILE_CAUSE,
    GOODPUT_PROFILE_EVENT,
    GOODPUT_PROFILE_FUNCTION,
    GOODPUT_PROFILE_LINE,
    GOODPUT_PROFILE_PATH,
    GOODPUT_PROFILE_TRACE,
    INCIDENT_SPAN,
    PROFILE_SPAN,
    REASONS,
)

logger = redacting_logger("otel_goodput")

USAGE_S: Final = 0.5  # for a last sample of processor and memory
LIMIT_NS: Final = 300 * 10**9  # Slurm's --signal announces the time limit so long before it, or less
_SIGNALS: Final = frozenset(one.name for one in SIGNALS)


class Observers:
    """The observers of one recorder.

    `figures` returns the account, and more of it if it is of all ranks. `hand_over` exports spans of earlier attempts,
    `flush` and `finish` export everything so far, and end the recorder, within so many seconds. Threads and signal
    handlers begin with :meth:`start`, because they call these, which may need the observers.

    Attributes:
        requests: of commands to this process.
        profiler: profiles steps.
        watchdog: writes the stacks of a job that stands still.
        incidents: watches the account of the job; None in a process that does not lead, or if nobody wants that.
    """

    def __init__(
        self,
        config: Config,
        tracer: PhaseTracer,
        productivity: Productivity,
        figures: Callable[[], tuple[Totals, JobFigures | None]],
        live: LiveAccount,
        hand_over: Callable[[Iterable[UnexportedSpan]], object],
        flush: Callable[[float], object],
        finish: Callable[[float], object],
    ) -> None:
        self._tracer = tracer
        self._processes = config.process_count
        self._productivity = productivity
        self._figures = figures
        self._live, self._before = live, live.before
        self.device_clock = DeviceClock(tracer, config.device_clock, config.process_count, patience=config.grace_period)
        journal = lambda: None if live.provisional else live.opened.run  # noqa: E731
        tracer.hooks.files = files = SavedFiles(journal, (config.process_index, config.leader))
        tracer.hooks.at_tick(files.keep)
        tracer.hooks.stages = live.loader
        self._integrations = Integrations(config.integrations, tracer)
        self._integrations.poll()
        self._usage: UsageSampler | None = None
        if live.usage is not None and config.usage_interval is not None:
            self._usage = UsageSampler(live.usage, config.usage_interval, tracer.clock)
        self.notices = Notices(self._record, flush, config.grace_period, self._withdraw)
        clock, attempt = tracer.clock, tracer.traces.attempt
        if attempt and (code := exit_code()):
            # Before the job starts: this is why the previous attempt ended, unless that has recorded a reason itself.
            tracer.account.notice(REASONS.index(exit_reason(code)), clock(), ended_by=f"exit status {code}")
        tracer.hooks.device = self.device_clock
        place = lambda: (None if live.provisional else live.opened.run, live.attempt)  # noqa: E731
        watchdog = config.watchdog if live.opened.run is not None else Watch(on=False)
        self.watchdog = Watchdog(watchdog, tracer.account, place, lambda: tracer.thread.identity)
        tracer.hooks.at_tick(self.watchdog.tick)
        self.requests = Inbox(place, config.process_index, clock)
        self.profiler = profiler = Profiler(
            place,
            config.process_index,
            clock,
            lambda: tracer.thread.identity,
            lambda: tracer.latest.step,
            config.profile,
            tracer.account.profiling,
            self._announce,
            self._mark,
        )
        self.requests.on(REQUEST, profiler.answer)
        self.requests.on(STACKS_REQUEST, self.watchdog.answer)
        tracer.hooks.at_tick(self.device_clock.poll, self._integrations.poll, self._find_peak)
        tracer.hooks.at_tick(self.requests.look, profiler.look)
        self._flops: StepFlops | None = None
        if "torch_flops" in config.integrations and config.leads:
            learned = lambda flops: productivity.learn(Inputs(flops_per_step=flops))  # noqa: E731
            self._flops = StepFlops(tracer, config.process_count, self._flops_wanted, learned)
            tracer.hooks.at_tick(self._flops.tick)
        live.pause_by(profiler.pause)
        self._announced = Announced()
        if config.incidents is not None:
            inputs = InputQueue(tracer.hooks.queue_depth, clock)
            changes = ChangedSettings(lambda: tracer.traces.job_span, lambda: tracer.latest, clock)
            stages = LoaderStages(live.loader.times, clock)
            tracer.hooks.at_tick(inputs.look, stages.look, changes.look)
            which = config.process_index, config.process_count
            self._evidence = Evidence(place, *which, clock, (inputs, stages, changes, self._announced))
            self.requests.on(EVIDENCE_REQUEST, self._evidence.answer)
        self.incidents: IncidentWatch | None = None
        self._notifier: Notifier | None = None
        if config.incidents is not None and (config.leads or live.ranks is not None):
            watched = self._brief if config.leads else partial(_standing_in, live)
            self.incidents = IncidentWatch(config, tracer, live.incidents, watched, place, hand_over)
            if (of_ranks := live.ranks) is not None:
                own_times = of_ranks.own_times
                self.incidents.explain_by(lambda incident: explained(incident, own_times()))
            causes = Causes(place, config.process_index, config.process_count, profiler, self.watchdog.fired)
            self.incidents.explain_by(causes.explain)
            self.incidents.link_by(causes.taken)
            self.incidents.explain_by(self._evidence.explain)
            self.incidents.explain_by(Throttling(live.usages).explain)
            if config.notify and live.opened.run is not None:
                subject = lambda: _subject(config, live)  # noqa: E731
                self._notifier = Notifier(config, subject, live.incidents, live.facts.labels)
                self.incidents.listen(self._notifier)
            tracer.hooks.at_tick(self.incidents.tick)
        if (ranks := live.ranks) is not None and config.incidents is not None:
            own_time = OwnTimeSampler(lambda: tracer.thread.identity, tracer.in_step)
            tracer.hooks.at_tick(own_time.tick)
            ranks.sample_by(lambda: own_time.counts)
        self._signals: Signals | None = None
        if "signals" in config.integrations:
            self._signals = Signals(self.notices, clock, config.grace_period, finish)
        self._maintenance: Maintenance | None = None
        if "maintenance" in config.integrations and (host := metadata_host()) is not None:
            self._maintenance = Maintenance(self.notices, clock, host)
        if config.leads and (text := unseen(attempt)):
            logger.warning("%s", text)

    def start(self, config: Config) -> None:
        """Listen to signals, to the platform and to the cluster."""
        if self._notifier is not None and config.leads:
            self._notifier.begin()
        if self._signals is not None:
            self._signals.install()
            self._tracer.hooks.at_tick(self._signals.renew)  # libraries replace handlers silently
        if self._maintenance is not None:
            self._maintenance.start()
        if config.leads and "kubernetes" in config.integrations:
            self._ask_cluster(self._tracer.clock(), submitted=config.submitted_at is None)

    def announce(self, reason: str, seconds: float) -> bool:
        """Take note of `reason`, one of ``semconv.REASONS``; return whether what follows was done within `seconds`."""
        self.notices.announce(reason, self._tracer.clock())
        return self.notices.settled(seconds)

    def close(self, seconds: float) -> None:
        """Remove all hooks and handlers; waits for callbacks and for steps on the device, `seconds` at most."""
        until = time.monotonic() + seconds
        self.watchdog.close()
        if self._signals is not None:
            self._signals.remove()
        if self._maintenance is not None:
            self._maintenance.stop()
        self.profiler.close(seconds / 4)
        self.notices.close(seconds / 4)
        if self._flops is not None:
            self._flops.close()
        self._integrations.remove()
        self._tracer.close_open()
        if self._notifier is not None:
            self._notifier.ending = True
        if self.incidents is not None:
            with containing("incidents"):
                self.incidents.close()
        if self._notifier is not None and not self._notifier.shutdown(seconds / 4):
            logger.warning("an incident could not be reported before the end of the job")
        if self._usage is not None:
            self._usage.close(min(USAGE_S, until - time.monotonic()))
        self.device_clock.close(until - time.monotonic())

    def _brief(self) -> tuple[Brief, JobBrief | None]:
        """Return what is looked at for incidents."""
        self.device_clock.settle()
        self._tracer.hooks.settle()
        own, job = self._live.brief()
        return own if job is None else _with_leaders(job.brief, own), job

    def _record(self, reason: str, moment: int, about: dict[str, types.AttributeValue]) -> None:
        span = self._tracer.traces.job_span
        if _finished(span):
            return  # closing a notebook, or stopping a script in its last lines, disrupts no job
        self._announced.take(reason, moment, about)
        source = str(about.get(GOODPUT_NOTICE_SOURCE, ""))
        limits = (launch for launch in launches() if launch.ends_at is not None and moment > launch.ends_at - LIMIT_NS)
        limit = next((f" at the time limit of {launch.name}" for launch in limits), "")
        ended_by = f"{source}{limit}" if source in _SIGNALS else ""
        self._tracer.account.notice(REASONS.index(reason), moment, ended_by=ended_by)
        if span is not None and span.is_recording():
            span.add_event(GOODPUT_NOTICE_EVENT, {GOODPUT_DISRUPTION_REASON: reason, **about}, moment)

    def _mark(self, number: int, began: int, ended: int | None) -> None:
        """Have the spans of steps link to that of a profile, which has begun, or is over."""
        hooks = self._tracer.hooks
        if ended is None:
            span = watched_span_context(PROFILE_SPAN, *self._tracer.traces.identity, number)
            hooks.profiled = ProfiledSteps(span, began)
        elif hooks.profiled is not None:
            hooks.profiled.ended = ended

    def _announce(self, profile: Profile, file: str, watched_by: int) -> None:
        traces, emitter, profiled = self._tracer.traces, self._tracer.emitter, self._tracer.hooks.profiled
        about = {
            GOODPUT_PROFILE_CAUSE: profile.cause,
            GOODPUT_PROFILE_PATH: f"journal/{file}",
            GOODPUT_PROFILE_FUNCTION: profile.grown[0].name if profile.grown else "",
            GOODPUT_PROFILE_LINE: profile.line,
            GOODPUT_PROFILE_TRACE: profile.trace,
        }
        about = {key: text for key, text in about.items() if text}
        span = traces.job_span
        if span is not None and span.is_recording():
            span.add_event(GOODPUT_PROFILE_EVENT, about, profile.ended)
        linked = list[SpanContext]()
        if profile.incident != NO_INCIDENT:
            whose = traces.run_id, traces.attempt, watched_by
            linked.append(watched_span_context(INCIDENT_SPAN, *whose, profile.incident))

        def made() -> ReadableSpan:
            links = [Link(one) for one in (*linked, *(() if profiled is None else profiled.steps))]
            own = profile.number, traces.identity, traces.job_context, emitter.resource
            return watched_span(PROFILE_SPAN, *own, about, links, profile.began, profile.ended)

        emitter.postpone(made)  # behind the spans of its steps
        grew = f"; {profile.grown[0].name} ({profile.line}) takes more of the time" if profile.grown else ""
        logger.info("profile %d was taken (%s): %s%s", profile.number, profile.cause, profile.note, grew)

    def _withdraw(self, left: str | None, moment: int, about: dict[str, types.AttributeValue]) -> None:
        self._announced.withdraw(moment, about)
        self._tracer.account.notice(0, moment, withdrawn=True)
        if left is not None:
            self._tracer.account.notice(REASONS.index(left), moment)

    def _ask_cluster(self, began: int, *, submitted: bool) -> None:
        """Ask in the background how this attempt was started, and if `submitted` when the run was submitted.

        `began` is when the program called ``configure()``, ns.
        """
        from otel_goodput._resources import kubernetes  # imported late: most jobs run outside of a cluster

        def submitted_at(answer: kubernetes.Submission) -> None:
            started = self._figures()[0].started_at
            # A pod created after the run's start belongs to a later attempt, and says nothing of the submission.
            if started is None or answer.moment <= started:
                self._productivity.learn(Inputs(submitted_at=answer.moment))

        def ask(cluster: kubernetes.Cluster) -> None:
            self._tracer.hooks.waits = kubernetes.waits_of(cluster, began, before=self._before())

        kubernetes.seek(submitted_at if submitted else None, then=ask)

    def _flops_wanted(self) -> bool:
        """Whether the program goodput lacks nothing but the FLOPs of a step."""
        inputs = self._productivity.inputs
        return not inputs.flops_per_step and bool(inputs.peak_flops or torch_flops.peak(self._processes))

    def _find_peak(self) -> None:
        """If the FLOPs of a step are known but not the peak, take the peak from the devices once there are some."""
        inputs = self._productivity.inputs
        if not inputs.flops_per_step or inputs.peak_flops:
            return
        from otel_goodput._integrations import flops

        peak = torch_flops.peak(self._processes)
        if flops.backend_started() or peak:
            self._tracer.hooks.not_at_tick(self._find_peak)
            self._productivity.learn(Inputs(peak_flops=peak or flops.peak_of_all()))


def _subject(config: Config, live: LiveAccount) -> Subject:
    """Return whose incidents are reported."""
    run = live.opened.run
    return Subject(config.job_name, live.run_id, live.attempt + 1, "" if run is None else str(run.path))


def _with_leaders(brief: Brief, leader: Brief) -> Brief:
    """Return that of a job with what is known of its leader only."""
    if brief.attempts == leader.attempts:
        brief = brief._replace(history=with_causes(brief.history, leader.history))
    return brief._replace(recompilations=leader.recompilations, recompiled=leader.recompiled)


def _standing_in(live: LiveAccount) -> tuple[Brief, JobBrief] | None:
    """Return the same of the account of the job if this process stands in for the leader."""
    job = None if live.ranks is None else live.ranks.brief(published=True)
    return None if job is None else (job.brief, job)


def _finished(job: object) -> bool:
    return isinstance(job, ReadableSpan) and job.end_time is not None and job.status.is_ok

"""The recorder: builds all parts of the recording of one job, and shuts them down in the order of construction."""

from __future__ import annotations

import atexit
import math
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Span

from otel_goodput import semconv
from otel_goodput._accounting import Totals
from otel_goodput._journal.account import PATIENCE_S, behind
from otel_goodput._journal.records import OWN_TRACES
from otel_goodput._journal.usage import Paces
from otel_goodput._live import LiveAccount, call_in_children
from otel_goodput._live.live_job import JobFigures
from otel_goodput._metrics.instruments import Durations
from otel_goodput._metrics.productivity import Inputs, Productivity
from otel_goodput._recording import ids, plain
from otel_goodput._recording.decorators import forgiving, not_callable
from otel_goodput._recording.emitter import SpanEmitter, processor_of
from otel_goodput._recording.finished import UnexportedSpan, unexported_spans
from otel_goodput._recording.phases import Phases
from otel_goodput._recording.tracer import PhaseTracer
from otel_goodput._resources import process
from otel_goodput._resources.process import DetectedResource
from otel_goodput._runtime import deadline, host
from otel_goodput._runtime.deputy import Deputy
from otel_goodput._runtime.guard import containing, report_once, started, strict
from otel_goodput._runtime.observers import Observers
from otel_goodput._runtime.pipelines import Pipelines, SwitchedSpanProcessor, check_providers, exporter_names
from otel_goodput._settings import config as configuration
from otel_goodput._settings.config import Config
from otel_goodput._settings.options import OWN, Options, parse_windows, taking_options
from otel_goodput._text.redact import redacting_logger, without_credentials
from otel_goodput._timeline.run_state import live
from otel_goodput.errors import ConfigurationError, GoodputError
from otel_goodput.reports.ranks import live_waits, notes_on, with_leaders
from otel_goodput.reports.report import OneProcess, Report, about
from otel_goodput.semconv import SCOPE_NAME
from otel_goodput.version import __version__

if TYPE_CHECKING:
    from typing_extensions import Unpack

logger = redacting_logger("otel_goodput")

C = TypeVar("C", bound=Callable[[], object])

SETTLED_S: Final = 10.0  # for the ledger to catch up once the job has ended
JOURNAL_S: Final = 1.0  # part of the grace period reserved for closing the journal
LOCK_S: Final = 0.1  # for releasing the lock, even if no time is left
PASSING_SHARE: Final = 0.25  # of the grace period, at most, for spans that wait to be passed to span processors
TEARDOWN_S: Final = 1.0  # part of the grace period left to the interpreter at exit; at most a tenth on an idle machine
MOST_CROWDED: Final = 3.0  # limit of the factor on TEARDOWN_S on a busy machine: exporters need time too
UNEXPORTED_AT_ONCE: Final = 256  # spans of earlier attempts handed to the exporters at every tick of the keeper


@taking_options
class Recorder(Phases):
    """Records one job: its phases, its account and its end.

    ``configure()`` creates one as the default that the module-level functions act on. For several jobs in one process,
    create one for each.

    Args:
        job_name: name of the job; by default ``OTEL_SERVICE_NAME``, else the script's name.
        {options}

    Attributes:
        run_id: the id of the run, which may differ from the requested one (``RUN~PID``).
        attempt: number of the attempt, from 1.
        tracer_provider, meter_provider: the providers that export spans and metrics.
        resource: of spans and metrics.
        closed: whether :meth:`shutdown` has been called.

    Raises:
        ConfigurationError: an option is wrong.
        TypeError: an option is unknown.
    """

    def __init__(self, job_name: str | None = None, **options: Unpack[Options]) -> None:
        super().__init__(self._find_tracer, self.warn_if_forked)
        self._in_memory = host.current.in_memory
        self._job_name, self._options = job_name, host.current.options(self, options)
        self._tracer: PhaseTracer | None = None
        self._settled: PhaseTracer | None = None  # the tracer, once the first phase has begun
        self._settling = threading.RLock()
        self._callbacks: list[Callable[[], object]] = []  # these and the windows, for when the recording restarts
        self._windows: list[int] = []
        self._closing = threading.RLock()  # held during the shutdown
        self._begun = threading.Lock()  # acquired by the first shutdown, and never released
        self.closed = False
        self._behind = 0  # ns that the figures lacked which were read last
        self._job_ended: Span | None = None  # at the last look, and the job after which everything was exported
        self._job_exported: Span | None = None
        self._exiting = False
        self._ended_by: BaseException | None = None  # the program, if that is known
        self._forked = False
        self._rebuilt = False
        self._generator = ids.PrivateIdGenerator()
        self._switch = SwitchedSpanProcessor()
        self._durations: Durations | None = None
        self._build(configuration.read(job_name, **self._options))
        if not self._in_memory:
            # 5 more: last figures, journal, its upload, its lock, the ranks.
            deadline.reserve(len(self._pipelines.closers()) + 5)
        deadline.at_exit(self._exit)
        call_in_children(self._silence)

    def _build(self, config: Config) -> None:
        """Open the journal and the exporters, and start recording as the process that `config` says this is."""
        self.config: Config = config
        tracer_provider, meter_provider = config.tracer_provider, config.meter_provider
        # Before anything is opened, so that what is wrong leaves nothing behind.
        names = exporter_names(config)
        check_providers(tracer_provider, meter_provider)
        flags = OWN_TRACES if config.step_traces == OWN else 0
        self._live = live = LiveAccount(config, flags, in_memory=self._in_memory, begun=self._rebuilt)
        self._opened = opened = live.opened
        self.run_id, self.attempt, self._ranks = live.run_id, live.attempt, live.ranks
        self._account = account = live.account
        which = config.job_name, self.run_id, self.attempt, config.process_index, config.process_count
        detect, traced = not self._in_memory, tracer_provider is None
        resource = process.describe(*which, config.resource_attributes, role=config.role, detect=detect, traced=traced)
        if self._rebuilt:  # providers that were built before refer to the resource
            self.resource.become(resource)
            resource = self.resource
        self.resource: DetectedResource = resource
        live.facts.describe(resource, lambda: resource.wait(0))
        live.facts.add(config.hyperparameters or {})
        self._productivity = Productivity(config, opened.run if config.leads else None)
        self._stopping = deadline.ShutdownSignal()
        self._pipelines = pipelines = Pipelines(names, config, live, self._stopping)
        shared = tracer_provider is not None
        if tracer_provider is None:
            tracer_provider = (
                self.tracer_provider
                if self._rebuilt
                else pipelines.trace_provider(resource, self._generator, lambda *of: self._line.admission.takes(*of))
            )
            emitter = SpanEmitter(pipelines.processors, resource, background=True)
        else:
            # The user's own processors take our fast spans too; not in the background, which may not have exported when
            # the provider is shut down.
            everyone = processor_of(tracer_provider.get_tracer(SCOPE_NAME, __version__), tracer_provider)
            theirs = getattr(tracer_provider, "resource", resource)
            emitter = SpanEmitter([everyone] if everyone else [], theirs)
        self._tracer = tracer = PhaseTracer(
            config,
            account,
            live.past,
            (self.run_id, self.attempt),
            emitter,
            tracer_provider.get_tracer(SCOPE_NAME, __version__),
            partial(pipelines.tracer, emitter.resource),
            self._generator,
            self._successor,
        )
        self._line, hooks = tracer, tracer.hooks
        self._switch.pass_on_to([tracer.processor, *pipelines.processors], None if shared else emitter)
        if not self._rebuilt:
            tracer_provider.add_span_processor(self._switch)
        self.tracer_provider: TracerProvider = tracer_provider
        if not self._rebuilt:
            self.meter_provider = meter_provider or pipelines.meter_provider(resource)
        elif meter_provider is None and not pipelines.join(self.meter_provider):
            self.meter_provider, self._durations = pipelines.meter_provider(resource, again=True), None
        self._join()
        self._keeper = live.keep(self._work, tracer.sum_up)
        self._observers = Observers(
            config, tracer, self._productivity, self._figures, live, pipelines.hand_over, self.flush, self.shutdown
        )
        self._observers.start(config)
        live.facts.watch(lambda: hooks.waits, hooks.compile_cache.to_json)
        if config.leads:  # last, because a reader may collect all metrics immediately
            if self._durations is None:
                self._durations = live.measure(
                    self.meter_provider,
                    lambda: self._figures()[0] if self.config.leads else None,
                    lambda: self._line.overhead,
                    self._dropped,
                    lambda: self._line.hooks.queue_depth(),
                    process=(lambda: self._line.hooks.compile_cache.figures(), lambda: self._line.hooks.waits),
                    ranks=lambda: None if self._ranks is None else self._ranks.waits(),
                )
            if meter_provider is not None or pipelines.readers or config.metric_readers:
                live.hear(self._durations)
        elif self._ranks is not None:
            published = partial(self._figures, published=True), live.incidents.all
            self._ranks.listen(Deputy(config, self._ranks, pipelines, resource, self.meter_provider, *published))
        self._keeper.start()
        if not self._in_memory:
            emitter.start()
        if opened.mirror is not None and not opened.early:
            hears = config.leads and self._paces is not None
            opened.mirror.start(opened.journal, config.process_index if hears else None, live.journal_of_job)
        self._rebuilt = True

    def _join(self) -> None:
        """Take what the other processes and attempts of the run have left for this one."""
        config, opened = self.config, self._opened
        self._paces: Paces | None = None
        self._unexported: list[UnexportedSpan] = []
        if opened.run is None:
            return
        index, count = config.process_index, config.process_count
        if count > 1:
            self._paces = Paces(opened.run, self.attempt, index, count, config.leads)
        if self._pipelines.batchers:
            resource = self.resource.merge(self._line.emitter.resource)  # that of a user's provider has their name
            place = opened.run, self._live.index, self.run_id, index
            self._unexported = unexported_spans(*place, resource, self.attempt)
            if opened.before is not None:
                opened.before.recall(without_credentials(str(config.directory)))

    # --- who this process is ------------------------------------------------------------------------------------------

    def _settle(self) -> PhaseTracer | None:
        """Return the tracer for the first phase, of the process that this is known to be by now.

        Since ``configure()``, a launcher may have set variables, or a distributed runtime may have been initialized.
        Nothing is recorded yet, so the recording restarts.
        """
        if self.closed:
            return None
        with self._settling:
            if self._settled is None and self._tracer is not None:
                with containing("who this process is"):
                    agreement = self._opened.agreement
                    if self._seat_elsewhere() or self._opened.early or (agreement is not None and agreement.other):
                        self._rebuild()
                self._settled = self._tracer
        return self._settled

    def _rebuild(self) -> None:
        """Restart the recording, before the first phase."""
        config = configuration.read(self._job_name, **self._options)
        observers, inputs = self._observers, self._productivity.inputs
        tracer, self._tracer = self._tracer, None
        observers.close(0.0)
        if tracer is not None:
            tracer.close()
        self._pipelines.abandon()
        self._live.withdraw()
        self._build(config)
        self._productivity.learn(inputs)
        self._account.add_windows(self._windows)
        for callback in self._callbacks:
            self._observers.notices.on_preemption(callback)
        text = "this is process %d of %d, which was not known when configure() was called: it records run %r"
        logger.info(text, config.process_index, config.process_count, self.run_id)

    def _seat_elsewhere(self) -> configuration.Seat | None:
        """Return the place of this process if it is known by now to be another one than is recorded.

        Variables that are gone do not count: some programs remove them once they have read them.
        """
        seat, config = configuration.seat(self.config), self.config
        same = (seat.rank, seat.size) == (config.process_index, config.process_count)
        return seat if seat.ranked and not same and seat.size >= config.process_count else None

    def _warn_once(self, kind: str, text: str) -> None:
        if self._account.notes.add(kind, text):
            logger.warning("%s", text)

    def warn_if_forked(self) -> None:
        """In a forked child that trains, warn once that nothing is recorded, and how to change that."""
        if self._forked:
            report_once(
                "forked",
                "this process was forked from one that called configure(): it records nothing. If it trains, call "
                "configure(%r, process_index=…, process_count=…) in the function that it runs, and not before the fork",
                self.config.job_name,
            )

    def _find_tracer(self) -> PhaseTracer | None:
        """The tracer that records phases; None after the shutdown."""
        return self._settled or self._settle()

    tracer = property(_find_tracer)

    @property
    def path(self) -> Path | None:
        """The local folder of the run; None if its journal is in memory only."""
        return None if self._opened.run is None else self._opened.run.path

    # --- running ------------------------------------------------------------------------------------------------------

    def _successor(self) -> PhaseTracer | None:
        """Return what the next call of a function that a phase decorates is recorded with."""
        return self._tracer

    def _work(self) -> None:
        if (tracer := self._tracer) is not None:
            tracer.tick()
            if self._settled is not None and (seat := self._seat_elsewhere()):
                self._warn_once(
                    "place",
                    f"this is process {seat.rank} of {seat.size}, which became known after the first phase had begun; "
                    f"it is recorded as process {self.config.process_index} of {self.config.process_count}. Initialize "
                    f"the distributed runtime before the job begins, or pass process_index={seat.rank}, "
                    f"process_count={seat.size} to configure()",
                )
        # The run that the leader has chosen for this launch, if that is open.
        if text := self._live.ask_leader(begun=self._settled is not None or self.closed):
            self._warn_once("launch", text)
        if self._live.run_id != self.run_id:
            self._opened, self.run_id, self.attempt = self._live.opened, self._live.run_id, self._live.attempt
            self.resource.change({semconv.RUN_ID: self.run_id, semconv.ATTEMPT: self.attempt})
            self._join()
            self._account.add_windows(self._windows)
        if not self._live.provisional:
            self._export_unexported(UNEXPORTED_AT_ONCE)
            if self._paces is not None:
                self._paces.exchange(self._account)
            if self._ranks is not None and self._settled is not None:
                self._ranks.start(self._opened.run, self.attempt)
        self._productivity.keep()
        if tracer is not None and not self._in_memory:
            self._export_after(tracer.traces.job_span)

    def _export_unexported(self, most: int) -> None:
        """Export up to `most` spans that earlier attempts did not export; the exporters' queues hold only so many."""
        some, self._unexported = self._unexported[:most], self._unexported[most:]
        self._pipelines.hand_over(some)

    def _dropped(self) -> dict[str, int]:
        lost = self._pipelines.dropped()
        if waited := self._line.emitter.dropped:
            lost["traces"] += waited
        lost["journal"] = self._account.journal.dropped + self._account.ledger.late
        lost["observations"] = self._observers.device_clock.lost
        return lost

    @forgiving
    def totals(self) -> Totals:
        """Return the account as of now, in integers of ns.

        If a loop of very short steps is ahead of the ledger, this waits up to 1 s for the ledger, and up to 10 s once
        the job has ended. If that was not enough, ``behind`` says by how much the answer is behind.
        """
        return self._figures(SETTLED_S)[0]

    def _figures(self, settled: float = PATIENCE_S, *, published: bool = False) -> tuple[Totals, JobFigures | None]:
        """Return the account, with the rest if it is of all ranks; after the job, wait `settled` s for the ledger."""
        tracer = self._tracer
        if tracer is not None:
            self._observers.device_clock.settle()
            tracer.hooks.settle()
        trains = tracer is not None and (job := tracer.traces.job_span) is not None and job.is_recording()
        patience = math.inf if self._in_memory else PATIENCE_S if trains else settled  # in memory, nobody trains
        totals = self._account.totals(patience=patience)
        if self.closed:
            self._behind = totals.behind
        figures = None if self._ranks is None else self._ranks.figures(published=published)
        if figures is not None:
            totals = with_leaders(figures.totals, totals, live(figures.totals))
        totals = self._productivity.complete(totals, self._account.notes)
        return totals if self._paces is None else self._paces.complete(totals), figures

    @forgiving
    def add_windows(self, *windows: str) -> None:
        """Keep rolling windows of these lengths too, such as ``"10m"``, in the account and in the metrics.

        Adding a far shorter window restarts all windows.

        Args:
            windows: lengths, each at least a second. One that is not valid is logged; with
                ``OTEL_GOODPUT_STRICT=true`` it raises ConfigurationError.
        """
        try:
            spans = parse_windows(",".join(str(plain.text(window)) for window in windows))
        except (ValueError, OverflowError) as error:
            if strict():
                raise ConfigurationError(f"add_windows(): {error}") from error
            report_once("add_windows", 'add_windows(): %s; no window is added. Write add_windows("10m")', error)
            return
        self._windows += spans
        self._account.add_windows(spans)
        if self._ranks is not None:
            self._ranks.add_windows(spans)

    @forgiving
    def report(self) -> Report:
        """Return the account as of now, as text (``str()``), JSON (``to_json()``) or a page (``html(path)``)."""
        totals, figures = self._figures(SETTLED_S)
        notes = self._account.notes.all()
        if totals.behind:
            notes = (*notes, behind(totals))
        about_run = about(self.run_id, self.config.job_name)
        ranks, alone, config = None if figures is None else live_waits(*figures[1:]), None, self.config
        if ranks is None and self._ranks is not None:
            alone = OneProcess(config.process_index, config.process_count, self._ranks.why)
        facts, notes = self._live.facts.all_attempts(), (*notes, *notes_on(ranks))
        wrong = self._live.incidents.of_run(totals.history)
        report = Report(totals, about_run, notes, facts=facts, ranks=ranks, process=alone, page=self._page)
        return replace(report, incidents=wrong, usage=self._live.used(), loaders=self._live.loader.of_run())

    def _page(self, report: Report) -> str:
        """Return the page of `report`. Raises GoodputError if there is no journal to read."""
        from otel_goodput._viewer import page
        from otel_goodput.reports.run import RecordedRun

        if self._opened.run is None:
            raise GoodputError("this report has no page: its journal is in memory only")
        return page.of_run(RecordedRun(self._opened.run), report=report)

    @forgiving
    def on_preemption(self, callback: C) -> C:
        """Call `callback` (no arguments) when the platform announces the job's end: a preemption, maintenance, SIGTERM.

        It runs in its own thread while training continues, and should return within the grace period. Also usable as
        a decorator: returns `callback`.

        Args:
            callback: what to call.
        """
        if not callable(callback):  # type checkers report it
            return not_callable(callback, self.on_preemption)  # type: ignore[unreachable]
        self._callbacks.append(callback)
        return self._observers.notices.on_preemption(callback)

    @forgiving
    def checkpoint_logger(self) -> Any:
        """Return a logger for Orbax's ``CheckpointManager(logger=…)``, for use without the automatic hook."""
        from otel_goodput._integrations import orbax

        return orbax.checkpoint_logger(self._find_tracer, lambda: self.config.leads)

    def count_flops(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> int | None:
        """Count the model's floating-point operations in one call of `function`, for the program goodput (MFU).

        Traces the function with jax, without running it. Returns None if there is nothing to count. The peak is that of
        the devices, unless ``peak_flops=`` was given.

        Args:
            function: one step.
            args, kwargs: what it is called with.
        """
        with containing("count_flops"):
            from otel_goodput._integrations.flops import count_flops

            if counted := count_flops(function, *args, **kwargs):
                self._productivity.learn(Inputs(flops_per_step=float(counted)))
                return counted
        return None

    @forgiving
    def flush(self, timeout: float | None = None) -> bool:
        """Export everything recorded so far; returns False if not everything was exported in time.

        Waits for the network, so do not call it in the training loop. After the shutdown and in a forked child, returns
        False immediately.

        Args:
            timeout: in seconds; by default the grace period.
        """
        return self._export(plain.seconds(timeout, "flush", self.config.grace_period), self._pipelines.flushers())

    def _export(self, seconds: float, flushers: list[tuple[str, deadline.Closer]]) -> bool:
        if self.closed:
            return False
        until = time.monotonic() + seconds
        written = deadline.within(seconds / 2, "flush", self._keeper.tick, self._share_pace)
        passed = self._line.emitter.catch_up((until - time.monotonic()) / 2)
        return not deadline.close_all(flushers, until - time.monotonic()) and written and passed

    def _export_after(self, job: Span | None) -> None:
        """Export once after the job, if it was over at the look before this one too: one that exits exports anyway."""
        if job is None or job.is_recording() or job is self._job_exported:
            return
        if job is not self._job_ended:
            self._job_ended = job
            return
        self._job_exported = job
        thread = threading.Thread(target=self._export_job, name="otel-goodput-job-end", daemon=True)
        started(thread, "the job's last data is exported when the program ends")

    def _export_job(self) -> None:
        with containing("export at the end of a job"):
            if flushers := self._pipelines.flushers(requested=False):
                self._stopping.at_job_end = True
                try:
                    self._export(self.config.grace_period, flushers)
                finally:
                    self._stopping.at_job_end = False

    def _share_pace(self) -> None:
        if self._paces is not None and not self._live.provisional:
            self._paces.exchange(self._account, at_once=True)

    def _exit(self) -> None:
        self._exiting = True
        self.shutdown()

    @forgiving
    def shutdown(self, timeout: float | None = None) -> None:
        """Stop recording: end open phases and mark them as interrupted, export, and write the journal.

        Called automatically at exit. Afterwards phases are no-ops. If another thread is shutting down, this waits for
        that, until its own deadline.

        Args:
            timeout: one deadline for all of it, in seconds; by default the grace period.
        """
        seconds = plain.seconds(timeout, "shutdown", self.config.grace_period)
        # Reentrant: a signal handler may call this on the thread that is in the middle of it, and must not wait.
        if not self._closing.acquire(timeout=min(max(seconds, 0.0), threading.TIMEOUT_MAX)):
            return
        try:
            if self._begun.acquire(blocking=False):
                self.closed = True
                deadline.closing.add(threading.get_ident())
                self._shut_down(seconds)
        finally:
            deadline.closing.discard(threading.get_ident())
            self._closing.release()

    def _shut_down(self, seconds: float) -> None:
        atexit.unregister(self._exit)
        crowding = min(deadline.crowding(), MOST_CROWDED)  # all takes longer if other processes use the same cores
        if self._exiting:
            seconds -= min(TEARDOWN_S, seconds / 10) * crowding  # ending the interpreter takes time, too
        until = time.monotonic() + seconds
        for_journal = min(JOURNAL_S * crowding, seconds / 4)
        self._stopping.begin(seconds - for_journal)
        tracer, self._tracer, self._settled = self._tracer, None, None
        with containing("shutdown"):
            if tracer is not None:
                tracer.end_job(self._ended_by or getattr(sys, "last_value", None) if self._exiting else None)
            self._observers.close(seconds / 2)
            if tracer is not None:
                tracer.processor.end_open()
                tracer.tick(final=True)
                tracer.emitter.catch_up(seconds * PASSING_SHARE)
                tracer.close()
            self._export_unexported(len(self._unexported))
        # The journal last: exported spans are noted there, the next attempt exports the others. It takes little time.
        since = time.monotonic()
        if self._ranks is not None:
            left = max(0.0, until - since - for_journal) / 4
            deadline.within(left, "the last updates of the ranks", partial(self._live.finish_ranks, left))
        closers = self._pipelines.closers(self._settle_figures)
        unfinished = deadline.close_all(closers, until - time.monotonic() - for_journal)
        if self._opened.early:  # no phase has begun
            self._live.withdraw()
        elif not self._live.close(until - time.monotonic()):
            unfinished.append("journal")
        if self._ranks is not None:
            last = ("the job's own records", self._ranks.close)
            unfinished += deadline.close_all([last], until - time.monotonic())
        if unfinished:
            logger.warning("%s did not finish within %.1f s", ", ".join(unfinished), seconds)
        self._pipelines.warn_of_unsent(self._keeper.left, since, seconds, self._behind)
        if (mirror := self._opened.mirror) is not None and not self._opened.early:
            mirror.stop()
            upload = ("journal upload", lambda _: mirror.send(self._account.journal, self._live.journal_of_job()))
            if deadline.close_all([upload], until - time.monotonic()):
                logger.warning("the last upload of the journal did not finish in time; the data is in the local spool")
        if self._opened.lock is not None:
            deadline.within(max(until - time.monotonic(), LOCK_S), "lock", self._opened.release)

    def _settle_figures(self, milliseconds: int) -> None:
        """Bring the account up to date within `milliseconds`, before the last metrics are read."""
        seconds = milliseconds / 1000
        self._account.refresh(seconds)
        deadline.within(min(seconds, JOURNAL_S), "shutdown", self._share_pace, self._productivity.keep)
        if self._paces is not None:
            self._paces.settle()

    def _silence(self) -> None:
        """In a forked child, stop recording: it must not write its parent's journal or export its parent's figures."""
        tracer, self._tracer, self._settled = self._tracer, None, None
        self._forked = not self.closed and self._line.latest.step < 0  # else its parent trains, and it is a helper
        self.closed = True
        self._closing = threading.RLock()
        self._begun.acquire(blocking=False)
        self._live.orphan()
        if self._ranks is not None:
            self._ranks.orphan()
        self._line.emitter.drop()
        if tracer is not None:
            tracer.close()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

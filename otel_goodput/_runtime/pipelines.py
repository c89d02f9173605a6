"""Builds what connects a recorder with its exporters: batching processors, periodic readers and providers."""

from __future__ import annotations

import os
import shlex
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from opentelemetry import metrics as metrics_api
from opentelemetry.context import Context
from opentelemetry.sdk.environment_variables import OTEL_BSP_MAX_QUEUE_SIZE, OTEL_METRICS_EXEMPLAR_FILTER
from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter, Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import (
    InMemoryMetricReader,
    MetricReader,
    MetricsData,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace import Span as SdkSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import Sampler
from opentelemetry.trace import Tracer
from opentelemetry.util.types import AttributeValue

from otel_goodput._accounting import Totals
from otel_goodput._live import LiveAccount
from otel_goodput._metrics.instruments import register_account
from otel_goodput._recording.delegating import AcknowledgingExporter
from otel_goodput._recording.emitter import SpanEmitter
from otel_goodput._recording.finished import UnexportedSpan
from otel_goodput._recording.sampling import PhaseSampler
from otel_goodput._runtime.deadline import Closer, ShutdownSignal
from otel_goodput._runtime.guard import containing, report_once, started
from otel_goodput._settings.config import Config
from otel_goodput._settings.options import Settings
from otel_goodput._text.durations import NS
from otel_goodput._text.redact import redact_loggers, redacting_logger, without_credentials
from otel_goodput.errors import ConfigurationError
from otel_goodput.exporters.registry import dropped_items, numbers, open_exporter, resolve
from otel_goodput.exporters.spec import ExporterContext, Exporters, ExporterUnavailable
from otel_goodput.exporters.wrappers import SafeMetricExporter, SafeSpanExporter
from otel_goodput.semconv import DROPPED, SCOPE_NAME
from otel_goodput.version import __version__

logger = redacting_logger("otel_goodput")

T = TypeVar("T")


def exporter_names(config: Config) -> tuple[str, ...]:
    """Return the names of the configured exporters.

    Raises ConfigurationError if an argument of ``configure()`` names an unknown one; for a variable, that is logged.
    """
    directory, variable = Path(config.directory), Settings.exporters.variable
    try:
        return resolve(config.exporters, os.environ, directory=directory)
    except ConfigurationError as error:
        value, source = config.settings[variable]
        if source == "configure()":
            raise
        logger.warning("%s=%r is ignored, 'auto' is used: %s", variable, value, error)
        return resolve(("auto",), os.environ, directory=directory)


def check_providers(tracer_provider: object, meter_provider: object) -> None:
    """Raise ConfigurationError if a provider of the user's lacks what is needed, as a proxy does before one is set."""
    for option, provider, needed in (
        ("tracer_provider", tracer_provider, ("get_tracer", "add_span_processor")),
        ("meter_provider", meter_provider, ("get_meter",)),
    ):
        missing = [name for name in needed if not callable(getattr(provider, name, None))]
        if provider is not None and missing:
            raise ConfigurationError(
                f"configure(): {option} must be a provider of the OpenTelemetry SDK, or one that wraps it; "
                f"{type(provider).__name__} has no {missing[0]}(). If you got it from OpenTelemetry's "
                f"get_{option}(), set the global provider first"
            )


def _open_exporters(names: Iterable[str], context: ExporterContext, *, spans: bool, metrics: bool) -> list[Exporters]:
    """Open the exporters through which this process exports these signals; log why one cannot be opened."""
    exporters: list[Exporters] = []
    for name, number in numbers(names).items() if spans or metrics else ():
        try:
            opened = open_exporter(name, context)
        except ExporterUnavailable as error:
            logger.warning("%s", error)
            continue
        span_exporter = opened.span_exporter if spans else None
        metric_exporter = opened.metric_exporter if metrics else None
        exporters.append(opened._replace(number=number, span_exporter=span_exporter, metric_exporter=metric_exporter))
    if exporters:
        redact_loggers("opentelemetry")  # they log what a receiver answers as it is, with terminal escapes
    return exporters


def _readers(exporters: Iterable[Exporters]) -> list[MetricReader]:
    readers = list[MetricReader]()
    for opened in exporters:
        if opened.metric_exporter is not None:
            with _losing(f"exporter {opened.name}: metrics are not exported"):
                make = partial(PeriodicExportingMetricReader, opened.metric_exporter, opened.interval_ms)
                usual = partial(make.func, opened.metric_exporter, opened.interval_ms or 60_000, 30_000)
                readers.append(_unless_wrong("an OTEL_METRIC_EXPORT_* variable", make, usual))
    return readers


class Pipelines:
    """The exporters of one recorder, with their processors and readers.

    The user's `processors` and `readers` are flushed and closed together with those of this package: `batchers` for the
    exporters that take spans, and `readers` for those that take metrics.
    """

    def __init__(self, names: Iterable[str], config: Config, live: LiveAccount, stopping: ShutdownSignal) -> None:
        self._live, self._directory, self._names = live, config.directory, tuple(names)
        run = live.opened.run
        self._context = ExporterContext(
            job_name=config.job_name,
            run_id=live.run_id,
            attempt=live.attempt,
            process_index=config.process_index,
            directory=None if run is None else run.path,
            grace_period_s=config.grace_period,
            stopping=stopping,
        )
        spans, metrics = config.exports_spans(), config.leads
        self._exporters = _open_exporters(self._names, self._context, spans=spans, metrics=metrics)
        live.facts.projects = {one.name: one.project if one.span_exporter else str for one in self._exporters}
        self._given_processors, self._given_readers = tuple(config.span_processors), tuple(config.metric_readers)
        self.batchers: list[Batcher] = []
        for opened in self._exporters:
            if opened.span_exporter is not None:
                with _losing(f"exporter {opened.name}: spans are not exported"):
                    kept = live.account, opened.number, live.incidents.deliver
                    exporter = AcknowledgingExporter(opened.span_exporter, *kept)
                    make = partial(Batcher, opened.number, exporter)
                    usual = partial(make, 2048, 5_000, 512, 30_000)
                    self.batchers.append(_unless_wrong("an OTEL_BSP_* variable", make, usual))
        self.readers: list[MetricReader] = []
        self._extra: list[MetricReader] = []  # of :meth:`further_provider`
        self.processors: list[SpanProcessor] = [*self.batchers, *self._given_processors]

    def trace_provider(
        self, resource: Resource, generator: IdGenerator, takes: Callable[[Mapping[str, AttributeValue], int], bool]
    ) -> TracerProvider:
        sampler, limits = PhaseSampler(takes), _span_limits()
        return TracerProvider(sampler, resource, id_generator=generator, shutdown_on_exit=False, span_limits=limits)

    def tracer(self, resource: Resource, sampler: Sampler, processors: Sequence[SpanProcessor]) -> Tracer:
        """Return a tracer of a provider that has these processors and no exporters of its own."""
        provider = TracerProvider(sampler, resource, shutdown_on_exit=False, span_limits=_span_limits())
        for processor in processors:
            provider.add_span_processor(processor)
        return provider.get_tracer(SCOPE_NAME, __version__)

    def meter_provider(self, resource: Resource, *, again: bool = False) -> MeterProvider:
        """Create a provider with a reader for each exporter that takes metrics.

        The user's readers stay with the first one; with `again`, there was one before.
        """
        self.readers += _readers(self._exporters)
        return self._meter_provider(resource, [*self.readers, *(() if again else self._given_readers)])

    def further_provider(self, resource: Resource) -> MeterProvider:
        """Create a provider that exports metrics through exporters of its own, until it is :meth:`removed <remove>`."""
        readers = _readers(_open_exporters(self._names, self._context, spans=False, metrics=True))
        self._extra += readers
        return self._meter_provider(resource, readers)

    def remove(self, provider: MeterProvider) -> None:
        """Shut down a further provider in the background, after a last export."""
        self._extra.clear()

        def close() -> None:
            with containing("metrics of a deputy"):
                provider.shutdown()

        started(threading.Thread(target=close, name="goodput-deputy", daemon=True), "its last metrics are lost")

    def _meter_provider(self, resource: Resource, readers: Sequence[MetricReader]) -> MeterProvider:
        views = []
        if not os.environ.get("OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION"):
            views.append(View(instrument_type=Histogram, aggregation=ExponentialBucketHistogramAggregation()))
        # Metrics are observed once per interval and belong to no span; an exemplar would name an arbitrary open one.
        make = partial(MeterProvider, readers, resource=resource, shutdown_on_exit=False, views=views)
        without = partial(make, exemplar_filter=AlwaysOffExemplarFilter())
        return _unless_wrong(
            OTEL_METRICS_EXEMPLAR_FILTER, make if os.environ.get(OTEL_METRICS_EXEMPLAR_FILTER) else without, without
        )

    def join(self, provider: metrics_api.MeterProvider) -> bool:
        """Add a reader for each exporter that takes metrics to `provider`; returns whether its version can do that."""
        add = getattr(provider, "add_metric_reader", None)
        if add is None:
            return False
        self.readers += _readers(self._exporters)
        for reader in self.readers:
            add(reader)
        return True

    def abandon(self) -> None:
        """Export nothing more, and close all but the user's processors and readers in the background."""
        for opened in self._exporters:
            for exporter in (opened.span_exporter, opened.metric_exporter):
                if isinstance(exporter, (SafeSpanExporter, SafeMetricExporter)):
                    exporter.mute()

        ours: list[SpanProcessor | MetricReader] = [*self.batchers, *self.readers]

        def close() -> None:
            for each in ours:
                each.shutdown()

        started(threading.Thread(target=close, name="goodput-abandoned", daemon=True), "exporters are not closed")

    def hand_over(self, unexported: Iterable[UnexportedSpan]) -> None:
        """Export spans of earlier attempts through the exporters that have not exported them yet."""
        for span, exported_by in unexported:
            for batcher in self.batchers:
                if batcher.number not in exported_by:
                    batcher.on_end(span)

    def dropped(self) -> Counter[str]:
        """Return how many items were lost by each exporter and by full queues, by the signal."""
        lost = Counter[str]()
        for opened in self._exporters:
            lost.update(dropped_items(opened))
        if crowded := sum(batcher.crowded_out for batcher in self.batchers):
            lost["traces"] += crowded
        return lost

    def warn_of_unsent(self, unexported: tuple[int, bool], since: float, seconds: float, behind: int) -> None:
        """At the end, log what has not reached the exporters' services.

        `unexported` are the spans in the journal that have not been exported, and whether their number is exact. The
        last figures were read after `since`, monotonic s, and lack the latest `behind` ns. The shutdown took at most
        so many `seconds`.
        """
        left, exact = unexported if self.batchers else (0, True)
        if left:
            run, place = self._live.run_id, without_credentials(str(self._directory))
            logger.warning(
                "%s%d spans have not reached every exporter. They are in the journal: the next attempt of run %r "
                "exports them, or `otel-goodput recover %s --run %s`",
                *("" if exact else "about ", left, run, shlex.quote(place), shlex.quote(run)),
            )
        read = [(opened.name, opened.metric_exporter) for opened in self._exporters if self.readers]
        late = [name for name, each in read if isinstance(each, SafeMetricExporter) and not each.current(since)]
        if late:
            logger.warning(
                "the last metrics of this attempt have not reached %s within %.1f s; `otel-goodput report` has them",
                ", ".join(late),
                seconds,
            )
        elif behind:
            logger.warning(
                "the last metrics of this attempt lack its last %.1f s, which could not be processed in time; "
                "`otel-goodput report` has them",
                behind / NS,
            )

    def flushers(self, *, requested: bool = True) -> list[tuple[str, Closer]]:
        """Return what exports everything so far, to be run in parallel.

        Unless the user has `requested` it, a reader that only they read from is left alone: it may hold deltas.
        """
        return [
            (name, each.force_flush)
            for name, each in self._parts()
            if requested or isinstance(each, (SpanProcessor, PeriodicExportingMetricReader))
        ]

    def closers(self, figures: Closer = lambda _: None) -> list[tuple[str, Closer]]:
        """Return the closers of all processors and readers, to be run in parallel.

        `figures` brings the account up to date and is one of them. Only the readers wait for it, for at most a third of
        the time.
        """
        ready = threading.Event()

        def prepare(milliseconds: int) -> None:
            try:
                figures(milliseconds // 3)
            finally:
                ready.set()

        def close(each: SpanProcessor | MetricReader, milliseconds: int) -> None:
            if isinstance(each, SpanProcessor):
                each.shutdown()
                return
            begun = time.monotonic()
            ready.wait(milliseconds / 3000)
            each.shutdown(max(0.0, milliseconds - (time.monotonic() - begun) * 1000))

        # First, because closers run one after the other if there are no threads.
        return [("figures", prepare), *((name, partial(close, each)) for name, each in self._parts())]

    def _parts(self) -> list[tuple[str, SpanProcessor | MetricReader]]:
        kinds: dict[str, Sequence[SpanProcessor | MetricReader]] = {
            "spans": self.batchers,
            "processor": self._given_processors,
            "metrics": [*self.readers, *self._extra],
            "reader": self._given_readers,
        }
        return [(f"{kind} {at}", each) for kind, those in kinds.items() for at, each in enumerate(those)]


class SwitchedSpanProcessor(SpanProcessor):
    """Passes spans on to processors that can be replaced, since a provider cannot give up those that it has.

    With an emitter, spans that have ended reach all processors but the first through it, in one order with those that
    it emits: what an exporter has acknowledged stands for all that ended before, so nothing may overtake what waits.
    """

    def __init__(self) -> None:
        self.pass_on_to(())

    def pass_on_to(self, processors: Sequence[SpanProcessor], emitter: SpanEmitter | None = None) -> None:
        self._current, self._emitter = tuple(processors), emitter
        self._ends = self._current if emitter is None else (self._current[0], emitter)

    def on_start(self, span: SdkSpan, parent_context: Context | None = None) -> None:
        for each in self._current:
            with containing("span processor"):
                each.on_start(span, parent_context)

    def _on_ending(self, span: SdkSpan) -> None:
        for each in self._current:
            with containing("span processor"):
                each._on_ending(span)

    def on_end(self, span: ReadableSpan) -> None:
        for each in self._ends:
            with containing("span processor"):
                each.on_end(span)

    def shutdown(self) -> None:
        for each in self._current:
            each.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        until = time.monotonic() + timeout_millis / 1000
        passed = self._emitter is None or self._emitter.catch_up(timeout_millis / 1000)
        done = [each.force_flush(max(0, int((until - time.monotonic()) * 1000))) for each in self._current]
        return all(done) and passed


def last_values(totals: Totals, resource: Resource) -> MetricsData | None:
    """Return the metrics of an account that no process continues; None if there are none.

    Counters and histograms of the process are not among them: only the process knew them.
    """
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
    register_account(provider.get_meter(SCOPE_NAME, __version__), lambda: totals)
    data = reader.get_metrics_data()
    provider.shutdown()
    return data


class Batcher(BatchSpanProcessor):
    """The SDK's processor, which also counts the spans that its full queue drops, `crowded_out`.

    These are the spans that were added, less those handed to the exporter (its `number`) and those still queued.
    """

    def __init__(self, number: int, exporter: AcknowledgingExporter, *options: Any) -> None:
        self.number = number
        self._given: dict[int, int] = {}  # by thread, so that counting needs no lock
        self._left = 0
        self.crowded_out = 0
        self._most = int(options[0] if options else os.environ.get(OTEL_BSP_MAX_QUEUE_SIZE) or 2048)
        exporter.on_exporting(self._leave)
        super().__init__(exporter, *options)

    def on_end(self, span: ReadableSpan) -> None:
        super().on_end(span)
        if span.context is not None and span.context.trace_flags.sampled:
            thread = threading.get_ident()
            self._given[thread] = self._given.get(thread, 0) + 1

    def force_flush(self, timeout_millis: int | None = None) -> bool:
        given = self._added()
        done = super().force_flush(timeout_millis)
        if done:
            self._lose(given - self._left)
        return done

    def _leave(self, count: int) -> None:
        self._left += count
        given = self._added()  # read before the queue, so that no span added meanwhile counts as lost
        queue = getattr(getattr(self, "_batch_processor", None), "_queue", None)  # not each SDK shows it
        self._lose(given - self._left - (self._most if queue is None else len(queue)))

    def _added(self) -> int:
        return sum(list(self._given.values()))

    def _lose(self, count: int) -> None:
        self.crowded_out = max(self.crowded_out, count)
        if self.crowded_out:
            text = (
                "spans are dropped because they end faster than they can be exported (counted in %s). Enlarge the "
                "queue (OTEL_BSP_MAX_QUEUE_SIZE) or export fewer (OTEL_GOODPUT_STEP_SAMPLING, fewer phases of your own)"
            )
            report_once("span queue", text, DROPPED.name)


@contextmanager
def _losing(lost: str) -> Iterator[None]:
    """Log what is lost because code of OpenTelemetry raises: there are no more threads, or its variables are wrong."""
    try:
        yield
    except Exception as error:
        report_once(lost, "%s: %s: %s", lost, type(error).__name__, error)


def _unless_wrong(variables: str, build: Callable[[], T], otherwise: Callable[[], T]) -> T:
    """Return what `build` makes; if one of OpenTelemetry's `variables` is wrong, what `otherwise` makes."""
    try:
        return build()
    except ValueError as error:
        report_once(f"environment {variables}", "%s is wrong, the default is used: %s", variables, error)
        return otherwise()


def _span_limits() -> SpanLimits:
    most = 128  # the specification's default
    unset = SpanLimits.UNSET
    usual = partial(SpanLimits, most, most, most, most, most, most, unset, unset)
    return _unless_wrong("an OTEL_*_LIMIT variable", SpanLimits, usual)

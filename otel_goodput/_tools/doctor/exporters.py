"""Checks the exporters: where each would send what, and whether it would arrive."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricsData
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from otel_goodput._runtime.deadline import SHARE_OF_GRACE
from otel_goodput._settings.config import Config
from otel_goodput._tools.doctor.findings import Finding, LogCapture, ok, problem, warning
from otel_goodput._tools.doctor.plaintext import check_endpoint
from otel_goodput._tools.waiting import begin, result
from otel_goodput.errors import ConfigurationError
from otel_goodput.exporters import registry, spec
from otel_goodput.exporters.otlp_variables import Endpoint, connect


class ExporterChecks:
    """Checks the exporters that a job would open.

    `exports` collects the signals that would be exported, and `active` the names of the exporters that get any. The
    run's folder `directory` is not created; each connection and each export may take `timeout_s`.
    """

    def __init__(self, config: Config, directory: Path, timeout_s: float, logs: LogCapture) -> None:
        self._config = config
        self._directory = directory
        self._timeout_s = timeout_s
        self._logs = logs
        self.exports: list[dict[str, str]] = []
        self.active: list[str] = []
        try:
            self.names = registry.resolve(config.exporters, os.environ, directory=directory)
        except ConfigurationError:  # reported by the check of the settings; a job falls back to this too
            self.names = registry.resolve((registry.AUTO,), os.environ, directory=directory)

    def check(self, name: str) -> Iterator[Finding]:
        """Open the exporter and test what can be tested without leaving data behind."""
        about = f"exporter {name}"
        context = spec.ExporterContext(
            job_name=self._config.job_name,
            run_id=self._config.run_id,
            process_index=self._config.process_index,
            directory=self._directory,
            # One export may take SHARE_OF_GRACE of the grace period; make that `timeout_s`.
            grace_period_s=self._timeout_s / SHARE_OF_GRACE,
        )
        opened = None
        try:
            opened = registry.open_exporter(name, context)
        except spec.ExporterUnavailable as error:
            what, do = f"cannot be opened: {error.reason}", error.hint or "use another exporter"
            yield problem(about, what, do, f"{about} cannot be opened")
        try:
            yield from self._opened(name, about, context, opened)
        finally:
            if opened is not None:
                registry.shut_down(opened, self._timeout_s)

    def _opened(
        self, name: str, about: str, context: spec.ExporterContext, opened: spec.Exporters | None
    ) -> Iterator[Finding]:
        """Test an exporter that was opened; None if it could not be."""
        logged = "; ".join(self._logs.take())
        if logged and opened is not None:
            yield warning(about, logged)
        destinations: list[spec.Destination] = []
        endpoints: Sequence[Endpoint] = ()
        with suppress(Exception):  # as of another package, whose exporter may fail to describe itself
            destinations = list(registry.spec(name).describe(context))
        with suppress(Exception):
            endpoints = registry.spec(name).endpoints(os.environ)
        wanted = {spec.TRACES: self._config.exports_spans(), spec.METRICS: self._config.leads}
        exports = [
            {"exporter": name, "signal": one.signal, "where": one.place}
            for one in destinations
            if wanted.get(one.signal, self._config.leads)
        ]
        self.exports += exports
        if exports or not destinations:  # nothing is known of what a third-party exporter does not describe
            self.active.append(name)
        if endpoints:
            yield from self._endpoints(about, endpoints, opened)
        elif opened is not None:
            by_place: dict[str, list[str]] = {}
            for one in destinations:
                by_place.setdefault(one.place, []).append(one.signal)
            where = "; ".join(f"{' and '.join(signals)} to {place}" for place, signals in by_place.items())
            where = where or "opened; its destination is unknown"
            if registry.spec(name).local and self._config.remote:
                what = f"{where}, on this machine only: these files are not copied to {self._config.directory}"
                yield warning(about, what, "collect them there, or use another exporter")
            else:
                yield ok(about, where)

    def idle(self) -> Iterator[Finding]:
        """Yield what is not exported, such as by exporters that `auto` would select but whose packages are missing."""
        if not self.names:
            yield ok("exporters", "none is configured; the journal records everything that `otel-goodput report` needs")
        for name in registry.names() if registry.AUTO in self._config.exporters else ():
            reason = registry.reason(name, spec.Situation(os.environ, self._directory, None, self.names))
            if reason and name not in self.names and (missing := registry.missing(name, os.environ)):
                be = "is" if len(missing) == 1 else "are"
                what = f"{reason}, but {' and '.join(missing)} {be} not installed: nothing goes there"
                brief = f"packages of exporter {name} are missing"
                yield problem(f"exporter {name}", what, registry.spec(name).hint, brief)
        if not self._config.exports_spans():
            whose = "leading process" if self._config.processes == "leader" else f"process {self._config.processes}"
            yield ok("exporters", f"the {whose} exports the spans, as configured")
        if not self._config.leads:
            yield ok("exporters", "the leading process exports the metrics of the job")

    def _endpoints(self, about: str, endpoints: Sequence[Endpoint], opened: spec.Exporters | None) -> Iterator[Finding]:
        """Connect to the OTLP endpoints, and send empty exports over the real protocol."""
        yield from dict.fromkeys(finding for one in endpoints for finding in check_endpoint(about, one, os.environ))
        exporters = {} if opened is None else {spec.TRACES: opened.span_exporter, spec.METRICS: opened.metric_exporter}
        calls = [begin(partial(self._failure, one, exporters.get(one.signal))) for one in endpoints]
        # The DNS lookup may take additional time, besides the connection and the export.
        until = time.monotonic() + 2 * self._timeout_s + 1
        outcomes: dict[tuple[str, str, str], list[Endpoint]] = {}
        for one, call in zip(endpoints, calls, strict=True):
            try:
                failure = result(call, until - time.monotonic())
            except TimeoutError:
                failure = f"no answer within {self._timeout_s:g} s"
            except Exception as error:  # such as of a host name that cannot be encoded
                failure = f"{type(error).__name__}: {error}"
            advice = one.advice(failure) if failure else ""
            # What exporters report names the place and may end with the advice, which the finding has already. It names
            # the signal too; without it, both signals can share one finding.
            failure = failure.removeprefix(f"{one.signal} to {one}: ").removesuffix(f"; {advice}")
            outcomes.setdefault((failure.replace(f"{one.signal} ", ""), advice, one.wire), []).append(one)
        for (failure, advice, _), same in outcomes.items():
            where = " and ".join(f"{one.signal} to {one}" for one in same)
            if same[0].url == same[-1].url:
                where = f"{' and '.join(one.signal for one in same)} to {same[0]}"
            if failure:
                signals = " and ".join(dict.fromkeys(one.signal for one in same))
                yield problem(about, f"{where}: {failure}", advice, f"{about} cannot send {signals}")
            elif opened is not None:
                yield ok(about, f"{where}: works (it accepted an empty export)")
            else:
                yield ok(about, f"{where}: reachable (the port accepts connections)")

    def _failure(self, one: Endpoint, exporter: SpanExporter | MetricExporter | None) -> str:
        """Connect to an endpoint and send an empty export; returns what went wrong, empty if nothing did."""
        try:
            address = one.address()
        except ValueError as error:
            return f"invalid endpoint: {error}"
        failure = connect(address, self._timeout_s) if address is not None else ""
        if failure or exporter is None:
            return failure
        if isinstance(exporter, SpanExporter):
            accepted = exporter.export(()) is SpanExportResult.SUCCESS
        else:
            accepted = exporter.export(MetricsData(resource_metrics=())) is MetricExportResult.SUCCESS
        return "" if accepted else "; ".join(self._logs.take()) or "it refuses an empty export"

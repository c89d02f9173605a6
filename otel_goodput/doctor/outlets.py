"""What would be exported where, and whether it would arrive."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricsData
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from otel_goodput.config import Config
from otel_goodput.deadline import Closer, close_all
from otel_goodput.doctor.findings import OK, PROBLEM, WARNING, Export, Finding
from otel_goodput.doctor.google import SIGNALS as GOOGLE
from otel_goodput.doctor.overheard import Overheard
from otel_goodput.doctor.plaintext import check_endpoint
from otel_goodput.errors import ConfigurationError
from otel_goodput.exporters import AUTO, EXTRAS, Outlet, OutletUnavailable, Surroundings, open_outlet, resolve
from otel_goodput.exporters.endpoints import Endpoint, connect, endpoint
from otel_goodput.exporters.gcp.connection import PLAINTEXT, PROJECT_SOURCES, Connection
from otel_goodput.exporters.otlp import SHARE_OF_GRACE, SIGNALS, variables

Exporter = SpanExporter | MetricExporter
# The one for both is what people look for first.
_ENDPOINTS: Final = dict.fromkeys(name for signal in SIGNALS for name in reversed(variables(signal, "ENDPOINT")))


class Outlets:
    """The outlets that a job would open.

    Args:
        config: in force.
        directory: the run's folder, which is not made.
        timeout_s: seconds that each connection and each export may take.
        said: hears what exporters log.
    """

    def __init__(self, config: Config, directory: Path, timeout_s: float, said: Overheard) -> None:
        self._config = config
        self._directory = directory
        self._timeout_s = timeout_s
        self._said = said
        self.exports: list[Export] = []

    def names(self) -> tuple[str, ...]:
        """Names of the outlets, as the job resolves them."""
        try:
            return resolve(self._config.exporters, os.environ, directory=self._directory)
        except ConfigurationError:  # told among the settings; the job falls back to this too
            return resolve((AUTO,), os.environ, directory=self._directory)

    def check(self, name: str) -> Iterator[Finding]:
        """Open the outlet and try what can be tried without leaving anything behind."""
        about = f"outlet {name}"
        surroundings = Surroundings(
            job_name=self._config.job_name,
            run_id=self._config.run_id,
            process_index=self._config.process_index,
            directory=self._directory,
            # The share of it that one export may take is then just the time there is.
            grace_period_s=self._timeout_s / SHARE_OF_GRACE,
        )
        outlet = None
        try:
            outlet = open_outlet(name, surroundings)
        except OutletUnavailable as error:
            yield Finding(PROBLEM, about, f"cannot be opened: {error.reason}", error.hint or "take another outlet")
        heard = "; ".join(self._said.take())
        if heard and outlet is not None:
            yield Finding(WARNING, about, heard)
        if name == "otlp":
            yield from self._otlp(about, outlet)
        elif name in GOOGLE:
            where = self._google(name)
            if outlet is not None:
                yield Finding(OK, about, where)
        elif name == "file" and outlet is not None:
            yield self._file(about)
        elif outlet is not None:
            self._note(name, "metrics", "stderr")
            yield Finding(OK, about, "lines about the run on stderr")

    def idle(self, names: tuple[str, ...]) -> Iterator[Finding]:
        """What is not exported although it seems to be wanted."""
        if not names:
            yield Finding(OK, "outlets", "nothing is exported; `otel-goodput report` reads the journal")
        asked = [name for name in _ENDPOINTS if os.environ.get(name, "").strip()]
        if AUTO in self._config.exporters and asked and "otlp" not in names:
            yield Finding(
                PROBLEM,
                "outlet otlp",
                f"{asked[0]} is set, but what sends OTLP is not installed: nothing goes there",
                f"pip install 'otel-goodput[{EXTRAS['otlp']}]'",
            )
        if not self._config.exports_spans():
            yield Finding(OK, "outlets", f"spans of this process are not exported ({self._config.processes})")
        if not self._config.leads:
            yield Finding(OK, "outlets", "metrics come from the leading process only")

    def _note(self, name: str, signal: str, where: str) -> None:
        wanted = self._config.exports_spans() if signal == "traces" else self._config.leads
        if wanted:
            self.exports.append(Export(name, signal, where))

    def _file(self, about: str) -> Finding:
        for signal in SIGNALS:
            self._note("file", signal, str(self._directory / f"{signal}-*.jsonl"))
        where = f"OTLP JSON lines in {self._directory}"
        if self._config.remote:
            return Finding(
                WARNING,
                about,
                f"{where}, on this machine only: files of this outlet are not copied to {self._config.directory}",
                "collect them there, or use another outlet",
            )
        return Finding(OK, about, where)

    def _google(self, name: str) -> str:
        """Where it goes, by the variables alone."""
        connection = Connection(os.environ)
        scheme = PLAINTEXT if connection.plaintext else ""
        named = next((text for source in PROJECT_SOURCES if (text := os.environ.get(source, "").strip())), "")
        by_place: dict[str, list[str]] = {}
        for signal, service in GOOGLE[name].items():
            place = f"{service.name} ({scheme}{connection.target(service)}){f', project {named}' if named else ''}"
            self._note(name, signal, place)
            by_place.setdefault(place, []).append(signal)
        return "; ".join(f"{' and '.join(signals)} to {place}" for place, signals in by_place.items())

    def _otlp(self, about: str, outlet: Outlet | None) -> Iterator[Finding]:
        """Connect, and export nothing at all over the real protocol."""
        failures: dict[Endpoint, str] = {}
        endpoints = [endpoint(os.environ, signal) for signal in SIGNALS]
        for one in endpoints:
            self._note("otlp", one.signal, str(one))
        yield from dict.fromkeys(finding for one in endpoints for finding in check_endpoint(about, one, os.environ))
        exporters = (None, None) if outlet is None else (outlet.span_exporter, outlet.metric_exporter)

        def attempt(one: Endpoint, exporter: Exporter | None) -> None:
            try:
                address = one.address()
            except ValueError as error:
                failures[one] = f"this is no endpoint: {error}"
                return
            failure = connect(address, self._timeout_s) if address is not None else ""
            if not failure and exporter is not None and not export_nothing(exporter):
                failure = "; ".join(self._said.take()) or "it refuses an empty export"
            failures[one] = failure

        pairs = list(zip(endpoints, exporters, strict=True))
        tries = [(one.signal, _later(partial(attempt, one, exporter))) for one, exporter in pairs]
        # A name server may take its time beside the connection and the export.
        close_all(tries, 2 * self._timeout_s + 1)
        outcomes: dict[tuple[str, str, str], list[Endpoint]] = {}
        for one in endpoints:
            failure = failures.get(one, f"no answer within {self._timeout_s:g} s")
            # What an exporter says names the signal; once without it is enough for both.
            plain = failure.replace(f"{one.signal} ", "")
            outcomes.setdefault((plain, one.advice(failure) if failure else "", one.wire), []).append(one)
        for (failure, advice, _), same in outcomes.items():
            where = " and ".join(f"{one.signal} to {one}" for one in same)
            if same[0].url == same[-1].url:
                where = f"{' and '.join(one.signal for one in same)} to {same[0]}"
            if failure:
                yield Finding(PROBLEM, about, f"{where}: {failure}", advice)
            elif outlet is not None:
                yield Finding(OK, about, f"{where}: accepted an empty export")
            else:
                yield Finding(OK, about, f"{where}: something listens there")
        closers = [(one.signal, _later(exporter.shutdown)) for one, exporter in pairs if exporter is not None]
        close_all(closers, self._timeout_s)


def export_nothing(exporter: Exporter) -> bool:
    """Whether a request without spans or metrics is taken."""
    if isinstance(exporter, SpanExporter):
        return exporter.export(()) is SpanExportResult.SUCCESS
    return exporter.export(MetricsData(resource_metrics=())) is MetricExportResult.SUCCESS


def _later(action: Callable[[], object]) -> Closer:
    return lambda _: action()

"""The `otlp` exporter: OpenTelemetry's own exporters over gRPC or HTTP, configured by the standard variables.

Added are the choice between gRPC and HTTP, a look at the answers, a timeout that fits the grace period, a buffer for
spans while no receiver listens, a wait at the end for one that does not listen yet, and last values with times that
Cloud Monitoring accepts, in case it is behind the endpoint.
"""

from __future__ import annotations

import io
import logging
import math
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import entry_points
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.sdk.metrics.export import MetricExportResult
from opentelemetry.sdk.trace.export import SpanExportResult

from otel_goodput._runtime.answers import TooLong, bound, whole
from otel_goodput._runtime.deadline import LAST_WORD_S, ShutdownSignal
from otel_goodput._runtime.guard import quietly, report_once
from otel_goodput.exporters import otlp_variables, spec
from otel_goodput.exporters.fitting import EXPONENTIAL
from otel_goodput.exporters.otlp_answers import NotAccepted, Rejections, accepted, causes, read
from otel_goodput.exporters.otlp_variables import EXPORTER_MODULES, HTTP, Endpoint
from otel_goodput.exporters.wrappers import BufferingSpanExporter, SpacedExporter

if TYPE_CHECKING:
    import requests
    from requests.adapters import BaseAdapter


# --- over HTTP: what OTLP calls a success -----------------------------------------------------------------------------

# OpenTelemetry's exporters count every status below 400 as a success, do not read the answer, and let its body be of
# any length. So the answers are judged here, in the transport that these exporters are given. What is no success is
# reported once, with what to do, instead of at each export.

# OpenTelemetry's variable for sessions that sign what they send, of a signal or of both; they are entry points.
_PROVIDER_VARIABLE: Final = "OTEL_PYTHON_EXPORTER_OTLP_HTTP_{}CREDENTIAL_PROVIDER"
_PROVIDERS: Final = "opentelemetry_otlp_credential_provider"
_REPORTED: Final = "reported_by_otel_goodput"  # an attribute of errors
_LOGGERS: Final = tuple(f"{EXPORTER_MODULES[HTTP]}.{name}" for name in ("trace_exporter", "metric_exporter"))


def _failure(what: str, reported: bool) -> Exception:
    """Return an error that OpenTelemetry's exporters take for a failed export, and do not retry at once."""
    from requests.exceptions import RequestException

    error = RequestException(what)
    setattr(error, _REPORTED, reported)
    return error


def _unreported(record: logging.LogRecord) -> bool:
    """Whether OpenTelemetry may log this: not an answer that we have reported, again at each export."""
    arguments = record.args if isinstance(record.args, tuple) else ()
    return not any(getattr(one, _REPORTED, False) for one in arguments)


@dataclass(frozen=True, eq=False, repr=False)  # an endpoint may hold a password
class _Checked:
    """Passes requests on to `adapter`, and judges the answers of the receiver at `place`."""

    adapter: BaseAdapter
    place: Endpoint
    rejections: Rejections

    def send(self, request: requests.PreparedRequest, *args: Any, **settings: Any) -> requests.Response:
        request.headers["Accept-Encoding"] = "identity"  # an answer has some ten bytes
        try:
            # A session passes `stream` by name.
            response = self.adapter.send(request, *args, **{**settings, "stream": True})
            body = _body(response)
            if response.status_code < 400:
                self.rejections.note(read(self.place.signal, response.status_code, response.headers, body))
        except Exception as error:
            what = next((str(one) for one in causes(error) if isinstance(one, (NotAccepted, TooLong))), None)
            if what is None:
                raise
            where = f"{self.place.signal} to {self.place}"
            report_once(f"answer {where}", "%s: %s; %s", where, what, self.place.advice(what))
            raise _failure(what, reported=True) from error
        response.raw = io.BytesIO(body)  # what reads it further finds only this much
        return response

    def close(self) -> None:
        self.adapter.close()


def _body(response: requests.Response) -> bytes:
    """Return the body of an answer, as it was sent. That of a failure is not needed: empty if it cannot be read.

    Raises RequestException if it cannot be read. What was sent has arrived, so it is not sent again at once.
    """
    try:
        return whole(partial(response.raw.read, decode_content=False))
    except Exception as error:
        response.close()
        if response.status_code >= 400:
            return b""
        raise _failure(f"its answer cannot be read: {error}", reported=False) from error


def session(environ: Mapping[str, str], place: Endpoint, rejections: Rejections) -> requests.Session:
    """Return the session that OpenTelemetry would use, with checks; `rejections` counts what the receiver rejects.

    Raises ExporterUnavailable if OpenTelemetry's variable for credentials names a provider that is not installed.
    """
    import requests

    common, own = (environ.get(_PROVIDER_VARIABLE.format(of), "") for of in ("", f"{place.signal.upper()}_"))
    made = _provided(common or own, requests.Session) if common or own else requests.Session()
    bound(made)
    for prefix, adapter in list(made.adapters.items()):
        made.mount(prefix, _Checked(adapter, place, rejections))  # type: ignore[arg-type]  # it has what a session uses
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_unreported)  # adding the same filter again has no effect
    return made


def _provided(name: str, kind: type[requests.Session]) -> requests.Session:
    """Return the session that an installed package provides under `name`. OpenTelemetry does not pass it on."""
    provider = next(iter(entry_points(group=_PROVIDERS, name=name)), None)
    made = None if provider is None else provider.load()()
    if isinstance(made, kind):
        return made
    why = "is not installed" if provider is None else "does not make a requests.Session"
    raise spec.ExporterUnavailable("otlp", f"the credential provider {name!r} {why}")


# --- a receiver that does not listen yet, such as a collector that is slow to start -----------------------------------

YOUNG_S: Final = 60.0  # a collector that was not reached for so long is not about to start
PAUSE_S: Final = 0.1
CONNECT_S: Final = 1.0

Address = tuple[str, int]
NO_ADDRESS: Final = ("", 0)  # nothing can be known about the receiver, so nothing waits for it


class Listener:
    """The receiver at an address, which may not listen yet.

    Exports wait for it only while the process stops; before that, a later export can succeed. They wait only if it is
    likely to appear: it was reached before, or the process is younger than `young_s`. And they wait only while it
    refuses connections; for a receiver that accepts them and does not answer there is the exporter's own timeout.
    """

    def __init__(self, address: Address, stopping: ShutdownSignal, young_s: float = YOUNG_S) -> None:
        self._address = address
        self._stopping = stopping
        self._young_until = time.monotonic() + young_s
        self._reached = False
        self._young: bool | None = None  # whether the process was young when it began to stop; None: not yet

    def deliver(self, send: Callable[[], bool]) -> bool:
        """Call `send` until it returns True or it is no use to wait any longer. Return whether it did."""
        while True:
            awaited = self._awaited()
            if awaited and not self._appears():
                return False
            if send():
                self._reached = True
                return True
            # Try again if the process began to stop during `send`, or if the receiver has gone again: it may come back.
            if not self._awaited() or (awaited and not self._refuses()):
                return False

    def _awaited(self) -> bool:
        if self._address == NO_ADDRESS or not self._stopping.begun:
            return False
        if self._young is None:
            self._young = time.monotonic() < self._young_until
        return self._reached or self._young

    def _appears(self) -> bool:
        """Wait until the address accepts connections. Return False if it refused them until time ran out."""
        began = time.monotonic()
        while self._refuses():
            if self._stopping.left(math.inf) <= LAST_WORD_S + PAUSE_S:
                where, waited = "{}:{}".format(*self._address), time.monotonic() - began
                text = "nothing listens at %s; shutdown waited %.1f s for a listener"
                report_once(f"listener {where}", text, where, waited)
                return False
            self._stopping.wait(PAUSE_S)
        return True

    def _refuses(self) -> bool:
        try:
            socket.create_connection(self._address, timeout=max(self._stopping.left(CONNECT_S), 0.01)).close()
        except OSError as error:
            return isinstance(error, ConnectionRefusedError)
        return False


@dataclass(frozen=True, eq=False, repr=False)  # an endpoint may hold a password
class _Receiver:
    """OpenTelemetry's exporter of a signal, which waits for its receiver at the end. All else is the exporter's.

    `failed` is what it returns if an export failed.
    """

    exporter: Any
    failed: object
    listener: Listener
    rejections: Rejections

    def __getattr__(self, name: str) -> Any:
        return getattr(self.exporter, name)

    @property
    def refused(self) -> int:
        return self.rejections.refused

    def export(self, items: Any, **settings: Any) -> Any:
        result = self.failed

        def send() -> bool:
            nonlocal result
            result = self.exporter.export(items, **settings)
            return result is not self.failed

        self.listener.deliver(send)
        return result


_HISTOGRAM_VARIABLE: Final = "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION"
_STOCK: Final = {spec.TRACES: "trace_exporter:OTLPSpanExporter", spec.METRICS: "metric_exporter:OTLPMetricExporter"}


def open_otlp(context: spec.ExporterContext) -> spec.Exporters:
    """Open OpenTelemetry's exporters for both signals. Raises ImportError if the extra `otlp` is not installed.

    Raises ExporterUnavailable if a header cannot be sent, so that every export would fail, and as :func:`session`.
    """
    environ = context.environ
    given = [otlp_variables.headers(environ, place.signal, place.wire) for place in endpoints(environ)]
    for problem in dict.fromkeys(text for each in given for text in each.unsendable):
        raise spec.ExporterUnavailable("otlp", problem, "see OTEL_EXPORTER_OTLP_HEADERS")
    for problem in dict.fromkeys(text for each in given for text in each.malformed):
        report_once(problem, "%s; it is left out", problem)
    listeners: dict[Address, Listener] = {}
    opened: list[Any] = []
    for place, failed in zip(endpoints(environ), (SpanExportResult.FAILURE, MetricExportResult.FAILURE), strict=True):
        rejections, address = Rejections(place), NO_ADDRESS
        with suppress(ValueError):  # the exporter fails, and doctor has the reason
            address = place.address() or NO_ADDRESS
        listener = listeners.setdefault(address, Listener(address, context.stopping))
        opened.append(_Receiver(_stock(place, context, rejections), failed, listener, rejections))
    spans, metrics = opened
    return spec.Exporters(
        "otlp", BufferingSpanExporter(spans, context.stopping), SpacedExporter(metrics, context.stopping)
    )


def _stock(place: Endpoint, context: spec.ExporterContext, rejections: Rejections) -> Any:
    """Return OpenTelemetry's exporter of a signal; `rejections` is given the answers of its receiver."""
    environ, signal = context.environ, place.signal
    module, _, name = _STOCK[signal].partition(":")
    make = getattr(import_module(f"{EXPORTER_MODULES[place.wire]}.{module}"), name)
    settings: dict[str, Any] = {"timeout": otlp_variables.timeout(environ, signal, context.grace_period_s)}
    if signal == spec.METRICS and not environ.get(_HISTOGRAM_VARIABLE):
        settings["preferred_aggregation"] = EXPONENTIAL
    if place.wire == HTTP:
        settings["session"] = session(environ, place, rejections)
    with quietly(otlp_variables.PARSER):  # its messages contain the values of headers
        exporter = make(**settings)
    stub, client = getattr(exporter, "_stub", None), getattr(exporter, "_client", None)
    if callable(stub) and client is not None:  # over gRPC; without these attributes nothing is counted
        exporter._stub = lambda channel: _judged(stub(channel), rejections)  # when it connects again
        exporter._client = _judged(client, rejections)
    return exporter


def _judged(client: Any, rejections: Rejections) -> Any:
    """Return a gRPC client of OTLP's service whose answers are noted: a success may have rejected some items."""

    def export(*args: Any, **settings: Any) -> Any:
        answer = client.Export(*args, **settings)
        rejections.note(accepted(answer))
        return answer

    return SimpleNamespace(Export=export)


def packages(environ: Mapping[str, str]) -> list[str]:
    return list(dict.fromkeys(EXPORTER_MODULES[place.wire] for place in endpoints(environ)))


def describe(context: spec.ExporterContext) -> list[spec.Destination]:
    return [spec.Destination(each.signal, str(each)) for each in endpoints(context.environ)]


def endpoints(environ: Mapping[str, str]) -> list[Endpoint]:
    return [otlp_variables.endpoint(environ, signal) for signal in spec.SIGNALS]


def auto(situation: spec.Situation) -> str:
    # Prefer the common variable, which people look for first.
    names = (name for signal in spec.SIGNALS for name in reversed(otlp_variables.variables(signal, "ENDPOINT")))
    return next((f"{name} is set" for name in names if situation.environ.get(name)), "")


OTLP: Final = spec.ExporterSpec(
    "otlp",
    "OpenTelemetry's own exporters, gRPC or HTTP, with the standard variables",
    open_otlp,
    describe,
    extra="otlp",
    packages=packages,
    auto=auto,
    number=36,
    endpoints=endpoints,
)

"""Checks each of Google's services: connects, and sends real but empty requests, which change nothing."""

from __future__ import annotations

import http.client
import os
import pkgutil
import re
import shlex
import socket
import ssl
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from email.utils import parsedate_to_datetime
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from otel_goodput import semconv
from otel_goodput._runtime.answers import BoundedResponse
from otel_goodput._settings.envvars import OTEL_GOODPUT_GCP_ENDPOINT
from otel_goodput._tools.doctor.findings import PROBLEM, WARNING, Finding, ok
from otel_goodput.errors import GoodputError
from otel_goodput.exporters import otlp_answers, registry
from otel_goodput.exporters.google import GoogleExporterSpec
from otel_goodput.exporters.google.connection import MONITORING, TELEMETRY, TRACE, Connection, Service, load
from otel_goodput.exporters.google.delivery import Failure, advice_on, failure_of, short
from otel_goodput.exporters.google.monitoring import NOWHERE
from otel_goodput.exporters.google.otlp import stub
from otel_goodput.exporters.registry import importable

ROOTS: Final = "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"
_BUNDLED: Final = ("grpc", "_cython/_credentials/roots.pem")
_PROXIES: Final = ("grpc", "https", "http")  # gRPC reads the variables NAME_proxy in this order

_TUNNEL: Final = "Tunnel connection failed: "  # http.client's message when a proxy refuses

_ADDRESS: Final = f"set {OTEL_GOODPUT_GCP_ENDPOINT.name} to host:port or http://host:port"
_NAMES: Final = "check the DNS resolver of this machine and the spelling of the name"
_FIREWALL: Final = (
    "check that firewall and routes allow the connection (without an external address: Private Google Access)"
)
_PROXY: Final = "check https_proxy, and list in no_proxy the hosts to reach without it"
_AUTHORITY: Final = f"if a proxy inspects TLS traffic, put its CA certificate into {ROOTS}"
_PLAINTEXT: Final = f"write http:// in {OTEL_GOODPUT_GCP_ENDPOINT.name} if that is an emulator"


class Unreachable(GoodputError):
    """A server cannot be reached; `do` says what may help."""

    def __init__(self, why: str, do: str) -> None:
        super().__init__(why)
        self.do = do


def reach(target: str, *, encrypted: bool, timeout_s: float) -> tuple[str, float | None]:
    """Connect to a server as gRPC would: through the proxy, if there is one, and with gRPC's trusted certificates.

    `target` is ``host:port``; with `encrypted`, TLS is used, and the server's clock is read too. Each stage may take
    `timeout_s`, except for DNS, which has no time limit. Returns the time of each stage, and the seconds that our clock
    is ahead (None: unknown).

    Raises:
        Unreachable: the server cannot be reached.
    """
    host, port = _address(target)
    proxy = _proxy(host)
    peer = (host, port) if proxy is None else (proxy.hostname or "", proxy.port or 80)
    connection = http.client.HTTPConnection(*peer, timeout=timeout_s)
    connection.response_class = BoundedResponse
    where, do, stage = f"{peer[0]}:{peer[1]}", _FIREWALL, "TCP"
    if proxy is not None:
        stage, where, do = f"proxy {where}", f"the proxy {where}", _PROXY
        authorization = {}
        if proxy.username is not None:
            pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
            authorization["Proxy-Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
        connection.set_tunnel(host, port, authorization)
    took: list[str] = []
    ahead_s = None
    try:
        with _timed(took, "DNS"):
            socket.getaddrinfo(*peer, type=socket.SOCK_STREAM)
        with _timed(took, stage):
            connection.connect()
        if encrypted:
            where, do = f"{host}:{port}", _FIREWALL
            context = _context()
            with _timed(took, "TLS"):
                connection.sock = context.wrap_socket(connection.sock, server_hostname=host)
            ahead_s = clock_lead(connection, "/", host)
    except socket.gaierror as error:
        raise Unreachable(f"the name of {where} cannot be resolved ({error.strerror})", _NAMES) from None
    except ConnectionRefusedError:
        raise Unreachable(f"nothing listens at {where}", do) from None
    except TimeoutError:
        raise Unreachable(f"{where} does not answer within {timeout_s:g} s", do) from None
    except ssl.SSLCertVerificationError as error:
        raise Unreachable(f"the certificate of {where} is not trusted: {error.verify_message}", _AUTHORITY) from None
    except ssl.SSLError as error:
        raise Unreachable(f"{where} does not speak TLS ({error.reason or error})", _PLAINTEXT) from None
    except http.client.HTTPException as error:
        raise Unreachable(f"{where} does not answer with HTTP ({type(error).__name__})", do) from None
    except OSError as error:
        why = f"cannot be reached ({error.strerror or error})"
        if str(error).startswith(_TUNNEL):
            why = f"refuses to connect to it ({str(error).removeprefix(_TUNNEL)})"
        raise Unreachable(f"{where} {why}", do) from None
    finally:
        connection.close()
    return ", ".join(took), ahead_s


@contextmanager
def _timed(took: list[str], name: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    took.append(f"{name} {(time.monotonic() - began) * 1000:.0f} ms")


def clock_lead(
    connection: http.client.HTTPConnection, path: str, host: str, headers: Mapping[str, str] | None = None
) -> float | None:
    """Return the seconds that this machine's clock is ahead of an HTTP server's; None if it does not send its time."""
    try:
        began = time.time()
        connection.request("GET", path, headers={"Host": host, **(headers or {})})
        there = parsedate_to_datetime(connection.getresponse().headers["Date"]).timestamp()
    except (OSError, http.client.HTTPException, TypeError, ValueError, OverflowError):
        return None
    # The header holds whole seconds, truncated, and was written while the request was under way.
    return (began + time.time()) / 2 - (there + 0.5)


def _address(target: str) -> tuple[str, int]:
    with suppress(ValueError):  # such as UnicodeError for an invalid host name
        parts = urlsplit(f"//{target}")
        if parts.hostname and parts.netloc == target and parts.hostname.encode("idna"):
            return parts.hostname, parts.port or 443
    raise Unreachable(f"{target!r} is not an address", _ADDRESS)


def _proxy(host: str) -> SplitResult | None:
    """Return the URL of the proxy that gRPC would use for `host`, if any. Raises Unreachable if that URL is wrong."""
    proxies = getproxies()
    url = next((proxies[name] for name in _PROXIES if name in proxies), "")
    if not url or proxy_bypass(host):
        return None
    parts = urlsplit(url if "://" in url else f"http://{url}")
    with suppress(ValueError):
        if parts.hostname and parts.port != 0:
            return parts
    raise Unreachable("the URL of the proxy has no valid host and port", _PROXY)


def _context() -> ssl.SSLContext:
    """Return a context that trusts gRPC's certificate authorities, which are not the system's. Raises Unreachable."""
    given = os.environ.get(ROOTS) or None
    bundled = None if given or not importable(_BUNDLED[0]) else pkgutil.get_data(*_BUNDLED)
    try:
        return ssl.create_default_context(cafile=given, cadata=bundled and bundled.decode("ascii"))
    except OSError as error:
        why = f"the certificates of {ROOTS} cannot be read: {error.strerror or error}"
        raise Unreachable(why, f"correct {ROOTS} or unset it") from None


# The exporters to Google Cloud, by name; first those that `auto` may choose.
GOOGLE: Final = {
    spec.name: spec
    for spec in sorted(map(registry.spec, registry.OURS), key=lambda spec: not spec.automatic)
    if isinstance(spec, GoogleExporterSpec)
}

Send = Callable[[Connection, float], object]
"""Sends an empty request, given the seconds that the answer may take."""

_COLLECTORS: Final = "opentelemetry.proto.collector"


class Probe(NamedTuple):
    """One empty request: the name of its method, the package that it needs, and the function that sends it."""

    method: str
    package: str
    send: Send


def _written(service: Service, package: str, method: str, call: str) -> tuple[Probe]:
    """Return the probe that writes nothing to the project by a method, which the client's `call` sends."""

    def send(connection: Connection, seconds: float) -> object:
        request = getattr(load(f"{package}.types"), f"{method}Request")(name=f"projects/{connection.project}")
        return getattr(connection.client(service), call)(request=request, timeout=seconds, retry=None)

    return (Probe(method, package, send),)


def _export(signal: str, request_name: str, group: str) -> Send:
    """Return a function that exports a resource without spans or metrics; the resource names the project."""

    def send(connection: Connection, seconds: float) -> object:
        messages = load(f"{_COLLECTORS}.{signal}.v1.{signal}_service_pb2")
        request: Any = getattr(messages, request_name)()
        attributes = getattr(request, group).add().resource.attributes
        for key, value in (
            (semconv.GCP_PROJECT_ID, connection.project),
            (semconv.LOCATION, NOWHERE),
            (semconv.SERVICE_NAME, __package__),
            (semconv.SERVICE_INSTANCE_ID, "doctor"),
        ):
            attributes.add(key=key).value.string_value = value
        return stub(signal, connection).Export(request, timeout=seconds)

    return send


PROBES: Final[dict[Service, tuple[Probe, ...]]] = {
    TRACE: _written(TRACE, "google.cloud.trace_v2", "BatchWriteSpans", "batch_write_spans"),
    MONITORING: _written(MONITORING, "google.cloud.monitoring_v3", "CreateTimeSeries", "create_time_series"),
    TELEMETRY: (
        Probe("traces", _COLLECTORS, _export("trace", "ExportTraceServiceRequest", "resource_spans")),
        Probe("metrics", _COLLECTORS, _export("metrics", "ExportMetricsServiceRequest", "resource_metrics")),
    ),
}

# The meaning of a failure, by its cause (`Failure.cause`) or code.
_MEANINGS: Final = {
    "api": "its API is disabled",
    "credentials": "the credentials are invalid",
    "proxy": "something other than the service answers",
    "quota project": "there is no usable quota project",
    "scopes": "the machine's access scopes do not allow writing",
    "PERMISSION_DENIED": "the role or the project is missing",
    "UNAUTHENTICATED": "the credentials are not accepted",
    "NOT_FOUND": "there is no such project",
    "UNIMPLEMENTED": "the address belongs to another service",
    "DEADLINE_EXCEEDED": "there is no answer in time",
    "UNAVAILABLE": "there is no connection, or nothing answers",
    "RESOURCE_EXHAUSTED": "the quota is used up",
}
# A service may reject a request because it is empty. It does so only after it has granted access.
_LET_IN: Final = frozenset({"INVALID_ARGUMENT", "OUT_OF_RANGE"})
_ABOUT_THE_PROJECT: Final = re.compile(r"\bname\b.*\binvalid|name must|invalid project|project\S* (was )?not", re.I)
_PASSING: Final = (otlp_answers.LATER | otlp_answers.UNSURE) - otlp_answers.NO_ANSWER
_AGAIN: Final = "this may be temporary: try again"
_BEYOND: Final = (
    "check what is behind that address: a proxy, an emulator (OTEL_GOODPUT_GCP_ENDPOINT), or an outage at Google"
)


# Findings about a service, and the seconds that this machine's clock is ahead of the service's (None: unknown).
Checked: TypeAlias = tuple[list[Finding], float | None]


class ServiceChecks(NamedTuple):
    """Checks services with the job's credentials and project."""

    connection: Connection
    timeout_s: float  # for each stage of a connection and for each answer
    needed: frozenset[Service]  # that the job would use; failures of other services are no problem
    owner: str  # e-mail address of the credentials' owner; empty if unknown
    project: str  # to write to; empty if unknown
    blocked: str  # why no requests are sent; empty if they are

    @property
    def longest_s(self) -> float:
        """Seconds after which callers should stop waiting for :meth:`check`."""
        # DNS, TCP, TLS, the server's time, and two requests, one of them sent twice, each take `timeout_s` at most.
        return 7 * self.timeout_s + 1

    def check(self, service: Service) -> Checked:
        """Connect to a service and send it empty requests. Each step has a time limit, except for the DNS lookup."""
        target = self.connection.target(service)
        try:
            stages, ahead_s = reach(target, encrypted=not self.connection.plaintext, timeout_s=self.timeout_s)
        except Unreachable as error:
            return [self.judged(service, PROBLEM, str(error), error.do)], None
        where = f"{target} is reached ({stages})"
        if self.blocked:
            return [ok(service.name, f"{where}; no request was sent: {self.blocked}")], ahead_s
        took: list[str] = []
        failures: dict[str, tuple[list[str], Failure]] = {}
        for probe in PROBES[service]:
            began = time.monotonic()
            failure = self._failure(probe)
            if failure is not None and failure.code == "UNAUTHENTICATED":
                self.connection.renew()  # as the exporters do: a token may have been revoked before its expiry
                failure = self._failure(probe)
            if failure is None:
                took.append(f"{probe.method} in {(time.monotonic() - began) * 1000:.0f} ms")
            else:
                methods, _ = failures.setdefault(failure.text, ([], failure))
                methods.append(probe.method)
        findings = [self._failed(service, where, ", ".join(methods), why) for methods, why in failures.values()]
        if not failures:
            findings = [ok(service.name, f"{where} and accepts {', '.join(took)} (empty)")]
        return findings, ahead_s

    def _failure(self, probe: Probe) -> Failure | None:
        try:
            probe.send(self.connection, self.timeout_s)
        except Exception as error:
            return failure_of(error)
        return None

    def _failed(self, service: Service, where: str, method: str, failure: Failure) -> Finding:
        answer, cause = f"{failure.code}: {short(failure.text)}", failure.cause
        if cause in _LET_IN and _ABOUT_THE_PROJECT.search(failure.text):
            cause = "NOT_FOUND"
        if cause in _LET_IN:
            return ok(service.name, f"{where} and grants access; it answers an empty {method} with {answer}")
        meaning, passing = _MEANINGS.get(cause, "it refuses"), cause in _PASSING
        if cause == "PERMISSION_DENIED":
            kind = "user" if self.owner and not self.owner.endswith(".gserviceaccount.com") else "serviceAccount"
            do = (
                f"if {self.project!r} is the right project, grant the role: `gcloud projects add-iam-policy-binding "
                f"{shlex.quote(self.project)} --member={kind}:{self.owner or 'EMAIL'} --role={service.role}`"
            )
        else:
            do = advice_on(cause, service, self.connection.target(service), self.project)
            do = do or (_AGAIN if passing else _BEYOND)
        what = f"{where}, but {meaning}: {method}: {answer}"
        return self.judged(service, WARNING if passing else PROBLEM, what, do, f"{service.name}: {meaning}")

    def judged(self, service: Service, level: str, what: str, do: str, brief: str = "") -> Finding:
        """Return a finding about a service; its level is OK if the job does not need the service."""
        if service in self.needed:
            return Finding(level, service.name, what, do, brief or f"{service.name} cannot be reached")
        return ok(service.name, f"no active exporter needs it; {what}", do)

"""The project, the credentials and the channels for Google's services, determined on first use, in an export thread."""

from __future__ import annotations

import importlib
import os
import re
import sys
import threading
import time
import warnings
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any, Final, NamedTuple

from otel_goodput._disruption.metadata import metadata_host
from otel_goodput._runtime.answers import bound
from otel_goodput._runtime.guard import quietly
from otel_goodput._settings.envvars import OTEL_GOODPUT_GCP_ENDPOINT, OTEL_GOODPUT_GCP_PROJECT
from otel_goodput.errors import GoodputError
from otel_goodput.version import __version__

_LONG_AGO: Final = datetime(1970, 1, 1)  # without a zone, like the times of Google's library
SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"
PLAINTEXT: Final = "http://"

# Variables that name the project: ours, then those that Google's own libraries read.
PROJECT_SOURCES: Final = (OTEL_GOODPUT_GCP_PROJECT.name, "GOOGLE_CLOUD_PROJECT", "GCLOUD_PROJECT", "GCP_PROJECT")

# By default gRPC waits up to two minutes before it reconnects, so that even a shorter outage would cost data.
_OPTIONS: Final = (
    ("grpc.max_send_message_length", -1),  # that of an answer stays bounded, by 4 MiB
    # For long error messages: beyond 8 KiB gRPC replaces them by an error of its own, which is unreadable.
    ("grpc.max_metadata_size", 1 << 20),
    ("grpc.absolute_max_metadata_size", 1 << 20),
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.primary_user_agent", f"otel-goodput/{__version__}"),
)

# Credentials that were not found are looked for again after this time, because each search may take seconds.
LOOK_AGAIN_S: Final = 20.0
REFRESH_S: Final = 30.0  # for a new token, in a call without a timeout
# Google's library logs here, at each search, what we report once.
_LOGGERS: Final = ("google.auth._default", "google.auth.compute_engine._metadata")

_DEPRECATED: Final = rf"opentelemetry\.exporter\.cloud_|{re.escape(__name__.rpartition('.')[0])}"

# Whether gRPC has fork support; it reads this variable when it is imported.
_FORKS: Final = "GRPC_ENABLE_FORK_SUPPORT"

_loading = threading.Lock()


def on_google_cloud(environ: Mapping[str, str]) -> bool:
    """Return whether this process runs there, or a variable of ours names a project or endpoint. No network is used."""
    ours = (*PROJECT_SOURCES[:1], OTEL_GOODPUT_GCP_ENDPOINT.name)
    return any(environ.get(name, "").strip() for name in ours) or metadata_host(environ) is not None


def load(module: str) -> Any:
    """Import a module of Google's, gRPC's or OpenTelemetry's on its first use. Raises ImportError if it is missing.

    One thread at a time: two that import parts of the same package may see each other's half-imported modules.
    """
    with _loading:
        # gRPC's fork support crashes one in a hundred children that are forked during a call. It can be left out:
        # nothing else in this process uses gRPC yet, and forked children do not use our channels.
        if "grpc" not in sys.modules and _FORKS not in os.environ:
            os.environ[_FORKS] = "0"
            try:
                with suppress(ImportError):  # reported by the code that needs it
                    importlib.import_module("grpc")
            finally:
                os.environ.pop(_FORKS, None)
        return importlib.import_module(module)


class Service(NamedTuple):
    """One of Google's services: its name for people, its ``host:port``, and the role that may write to it."""

    name: str
    host: str
    role: str

    @property
    def api(self) -> str:
        """The API's name as ``gcloud services enable`` takes it."""
        return self.host.partition(":")[0]


TRACE: Final = Service("Cloud Trace", "cloudtrace.googleapis.com:443", "roles/cloudtrace.agent")
MONITORING: Final = Service("Cloud Monitoring", "monitoring.googleapis.com:443", "roles/monitoring.metricWriter")
TELEMETRY: Final = Service("Telemetry API", "telemetry.googleapis.com:443", "roles/telemetry.writer")
_CLIENTS: Final = {
    TRACE: ("google.cloud.trace_v2", "TraceServiceClient", "trace_service", "TraceServiceGrpcTransport"),
    MONITORING: ("google.cloud.monitoring_v3", "MetricServiceClient", "metric_service", "MetricServiceGrpcTransport"),
}


class NoProject(GoodputError):
    """It is not known which project to write to."""


class Connection:
    """Credentials, project and channels for Google's services. `environ` may name the project, and another endpoint.

    `failing`: names of the services that do not take what is sent, which has been reported. `given`: the project
    according to the variables alone; it may be empty.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.given = next((text for name in PROJECT_SOURCES if (text := environ.get(name, "").strip())), "")
        self._endpoint = environ.get(OTEL_GOODPUT_GCP_ENDPOINT.name, "").strip().rstrip("/")
        self._lock, self._renewing = threading.Lock(), threading.Lock()
        self._default: tuple[Any, str] | None = None
        self._missed: tuple[float, Exception] | None = None  # when the search for credentials failed, and why
        self._http: Any = None  # what tokens are requested with
        self._channels: dict[str, Any] = {}
        self._clients: dict[Service, Any] = {}
        self.failing: set[str] = set()

    @property
    def plaintext(self) -> bool:
        """Whether the endpoint is an emulator: no encryption, no credentials."""
        return self._endpoint.startswith(PLAINTEXT)

    def target(self, service: Service) -> str:
        return self._endpoint.partition("://")[2] or self._endpoint or service.host

    def place(self, service: Service) -> str:
        """Return where a service is, for people; credentials are not asked for the project."""
        project = f", project {self.given}" if self.given else ""
        return f"{service.name} ({PLAINTEXT if self.plaintext else ''}{self.target(service)}){project}"

    def credentials(self) -> Any:
        """Return Application Default Credentials; None for an emulator. Raises GoogleAuthError if there are none."""
        return None if self.plaintext else self._find()[0]

    @property
    def project(self) -> str:
        """The project to write to. Raises NoProject if nothing names one, GoogleAuthError without credentials."""
        project = self.given or ("" if self.plaintext else self._find()[1])
        if not project:
            raise NoProject("no Google Cloud project is known")
        return project

    def known_project(self) -> str:
        """Return the project if it is known already; empty for an emulator, which has no real project."""
        known = self.given or ("" if self._default is None else self._default[1])
        return "" if self.plaintext else known

    def _find(self) -> tuple[Any, str]:
        with self._lock:
            if self._default is None:
                if self._missed is not None and time.monotonic() < self._missed[0] + LOOK_AGAIN_S:
                    raise self._missed[1].with_traceback(None)

                auth = load("google.auth")
                # Not during the call below: importing it sets warning filters, which that call resets when it returns.
                request = self.token_request(proxies=False)  # for the metadata server
                try:
                    with quietly(*_LOGGERS):
                        credentials, project = auth.default(scopes=[SCOPE], request=request)
                except auth.exceptions.GoogleAuthError as error:
                    self._missed = time.monotonic(), error
                    raise
                self._default = credentials, project or ""
            return self._default

    @staticmethod
    def token_request(*, proxies: bool = True) -> Any:
        """Return what Google's library sends HTTP requests with; answers are read within bounds."""
        requests = load("google.auth.transport.requests")
        session = load("requests").Session()
        session.trust_env = proxies
        bound(session)
        return requests.Request(session)

    def authorize(self, seconds: float) -> None:
        """Get a new token if the present one is not valid, within about `seconds`. Raises GoogleAuthError.

        gRPC would do that too, but at each failure it logs a traceback with the token server's whole answer.
        """
        credentials = self.credentials()
        if credentials is None or credentials.valid:
            return
        with self._renewing:
            self._http = self._http or self.token_request()
            if not credentials.valid:
                credentials.refresh(partial(self._http, timeout=seconds))

    def channel(self, service: Service) -> Any:
        """Return the ``grpc.Channel`` to a service, the same one every time. Raises GoogleAuthError."""
        credentials, target = self.credentials(), self.target(service)
        with self._lock:
            if target not in self._channels:
                grpc = load("grpc")
                if credentials is None:
                    channel = grpc.insecure_channel(target, _OPTIONS)
                else:
                    channel = grpc.secure_channel(target, grpc.ssl_channel_credentials(), _OPTIONS)
                # Forked children send nothing. With fork support gRPC would close the channel in a child, and wait
                # forever for a lock that a call held at the fork.
                with suppress(ImportError, AttributeError):  # this is not gRPC's public interface
                    load("grpc._cython.cygrpc").fork_unregister_channel(channel)
                if credentials is not None:
                    channel = grpc.intercept_channel(channel, self._signer(grpc))
                self._channels[target] = channel
            return self._channels[target]

    def _signer(self, grpc: Any) -> Any:
        """Return an interceptor that adds the token to each call.

        gRPC's own call credentials start a thread for each call, which fails at exit from Python 3.12 on.
        """

        class Signer(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]  # grpc is imported on first use
            def intercept_unary_unary(_, continuation: Any, details: Any, request: Any) -> Any:
                self.authorize(REFRESH_S if details.timeout is None else details.timeout)
                headers: dict[str, str] = {}
                self.credentials().apply(headers)
                signed = [*(details.metadata or ()), *headers.items()]
                return continuation(details._replace(metadata=signed), request)  # gRPC's details are a named tuple

        return Signer()

    def client(self, service: Service) -> Any:
        """Return Google's client for Cloud Trace or Cloud Monitoring, the same every time. Raises GoogleAuthError."""
        if service not in self._clients:
            package, name, module, transport = _CLIENTS[service]
            transports = load(f"{package}.services.{module}.transports")
            transport = getattr(transports, transport)(channel=self.channel(service))
            self._clients[service] = getattr(load(package), name)(transport=transport)
        return self._clients[service]

    def renew(self) -> None:
        """Have the next request get a new token, because the present one was rejected."""
        if self._default is not None:
            # The token stays: a request of another thread may be about to use it, and would fail without one.
            self._default[0].expiry = _LONG_AGO


def stock_exporter(module: str, name: str, project: str, client: object, **settings: object) -> Any:
    """Return one of Google's own exporters, which translates for us, and is given our `client` to send with."""
    hide_deprecations()
    return getattr(load(module), name)(project_id=project, client=client, **settings)


def hide_deprecations() -> None:
    """Ignore, until others reset the filters, that Google's exporters are deprecated: errors would cost data."""
    warnings.filterwarnings("ignore", category=DeprecationWarning, module=_DEPRECATED)

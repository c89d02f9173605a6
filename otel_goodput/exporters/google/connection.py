"""Who we are and where Google's services are: project, credentials, channels.

Found out on the first use, in an export thread: looking for credentials may take seconds, and so does importing
Google's libraries.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from functools import cached_property, partial
from typing import Any, Final, NamedTuple

from otel_goodput.disruption.metadata import metadata_host
from otel_goodput.envvars import OTEL_GOODPUT_GCP_ENDPOINT, OTEL_GOODPUT_GCP_PROJECT
from otel_goodput.errors import GoodputError
from otel_goodput.version import __version__

_LONG_AGO: Final = datetime(1970, 1, 1)  # without a zone, as Google's library has its times
SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"
PLAINTEXT: Final = "http://"

# Where a project is named: ours, then the variables that Google's own libraries read.
PROJECT_SOURCES: Final = (OTEL_GOODPUT_GCP_PROJECT.name, "GOOGLE_CLOUD_PROJECT", "GCLOUD_PROJECT", "GCP_PROJECT")

# gRPC waits up to two minutes before it tries a lost connection again; an outage shorter than that would cost data.
_OPTIONS: Final = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # A refusal of many words: beyond 8 KiB gRPC gives an error of its own for it, which nobody can read.
    ("grpc.max_metadata_size", 1 << 20),
    ("grpc.absolute_max_metadata_size", 1 << 20),
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.primary_user_agent", f"otel-goodput/{__version__}"),
)

# Credentials that were not found: looking for them may take seconds each time, so it is not done for every request.
LOOK_AGAIN_S: Final = 20.0
# Where Google's library tells, at each look, what is told once by us.
_LOGGERS: Final = ("google.auth._default", "google.auth.compute_engine._metadata")

# Whether gRPC does something about forks. It reads this when it is imported.
_FORKS: Final = "GRPC_ENABLE_FORK_SUPPORT"

_loading = threading.Lock()


def on_google_cloud(environ: Mapping[str, str]) -> bool:
    """Whether this process is there, or was told a project to write to; nobody is asked over the network."""
    told = (*PROJECT_SOURCES[:1], OTEL_GOODPUT_GCP_ENDPOINT.name)
    return any(environ.get(name, "").strip() for name in told) or metadata_host(environ) is not None


def load(module: str) -> Any:
    """A module of Google's, gRPC's or OpenTelemetry's, imported on its first use; ImportError where there is none.

    One at a time: of two threads that import parts of one package, each may see what the other has half done.
    """
    with _loading:
        if "grpc" not in sys.modules and _FORKS not in os.environ:
            _load_grpc()
        return importlib.import_module(module)


def _load_grpc() -> None:
    """Without its support of forks: of the children that are forked amid a call, that makes one in a hundred crash.

    Nobody in this process uses gRPC yet, and a child does nothing with ours.
    """
    os.environ[_FORKS] = "0"
    try:
        with suppress(ImportError):  # whoever needs it will be told
            importlib.import_module("grpc")
    finally:
        os.environ.pop(_FORKS, None)


class Service(NamedTuple):
    """One of Google's services: its name for people, address, API, and the role that may write to it."""

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


class NoProject(GoodputError):
    """Nobody says which project to write to."""

    def __init__(self) -> None:
        super().__init__("no Google Cloud project is known")


class Connection:
    """Credentials, project and channels for Google's services.

    Args:
        environ: says the project and another address than Google's.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._given = next((text for name in PROJECT_SOURCES if (text := environ.get(name, "").strip())), "")
        self._endpoint = environ.get(OTEL_GOODPUT_GCP_ENDPOINT.name, "").strip().rstrip("/")
        self._lock, self._renewing = threading.Lock(), threading.Lock()
        self._found: tuple[Any, str] | None = None
        self._missed: tuple[float, Exception] | None = None  # when credentials were looked for in vain, and why
        self._channels: dict[str, Any] = {}

    @property
    def plaintext(self) -> bool:
        """Whether an emulator is spoken to: neither encryption nor credentials."""
        return self._endpoint.startswith(PLAINTEXT)

    def target(self, service: Service) -> str:
        """``host:port`` of a service."""
        return self._endpoint.partition("://")[2] or self._endpoint or service.host

    def credentials(self) -> Any:
        """Application Default Credentials; None for an emulator.

        Raises:
            google.auth.exceptions.GoogleAuthError: there are none.
        """
        return None if self.plaintext else self._find()[0]

    @property
    def project(self) -> str:
        """The project to write to.

        Raises:
            NoProject: nobody names one.
            google.auth.exceptions.GoogleAuthError: there are no credentials that could.
        """
        found = self._given or ("" if self.plaintext else self._find()[1])
        if not found:
            raise NoProject
        return found

    def _find(self) -> tuple[Any, str]:
        with self._lock:
            if self._found is None:
                if self._missed is not None and time.monotonic() < self._missed[0] + LOOK_AGAIN_S:
                    raise self._missed[1].with_traceback(None)
                auth = load("google.auth")
                with suppress(ImportError):  # whoever needs it will be told
                    # Its import sets what is not to be warned of. The call below, should another thread import it
                    # meanwhile, would set that back, and a warning of no interest would stand on the user's screen.
                    load("google.auth.transport.requests")
                try:
                    with quietly(*_LOGGERS):
                        credentials, project = auth.default(scopes=[SCOPE])
                except auth.exceptions.GoogleAuthError as error:
                    self._missed = time.monotonic(), error
                    raise
                self._found = credentials, project or ""
            return self._found

    @cached_property
    def _http(self) -> Any:
        return load("google.auth.transport.requests").Request()

    def authorize(self, seconds: float) -> None:
        """Get a token, where the one that there is is not good; within about so many seconds.

        gRPC would get it, too, but each time that fails it logs a traceback with the token server's whole answer.

        Raises:
            google.auth.exceptions.GoogleAuthError: there is none to be had.
        """
        credentials = self.credentials()
        if credentials is None or credentials.valid:
            return
        with self._renewing:
            if not credentials.valid:
                credentials.refresh(partial(self._http, timeout=seconds))

    def channel(self, service: Service) -> Any:
        """A ``grpc.Channel`` to a service, the same one every time.

        Raises:
            google.auth.exceptions.GoogleAuthError: there are no credentials.
        """
        credentials = self.credentials()
        with self._lock:
            target = self.target(service)
            if target not in self._channels:
                self._channels[target] = self._open(target, credentials)
            return self._channels[target]

    def _open(self, target: str, credentials: Any) -> Any:
        grpc = load("grpc")
        if credentials is None:
            return _left_alone(grpc.insecure_channel(target, _OPTIONS))
        transport = load("google.auth.transport.grpc")
        plugin = transport.AuthMetadataPlugin(credentials, self._http)
        secured = grpc.composite_channel_credentials(
            grpc.ssl_channel_credentials(), grpc.metadata_call_credentials(plugin)
        )
        return _left_alone(grpc.secure_channel(target, secured, _OPTIONS))

    def renew(self) -> None:
        """A token was not accepted: get another one for the next request."""
        if self._found is not None:
            # Without a token another thread's request, which is about to take it, would fail.
            self._found[0].expiry = _LONG_AGO


def _left_alone(channel: Any) -> Any:
    """A channel that gRPC does not clear up in forked children, where nothing is sent.

    Where its support of forks is asked for it would do that, and wait for ever for the lock that a call had.
    """
    with suppress(ImportError, AttributeError):  # no part of gRPC's interface
        load("grpc._cython.cygrpc").fork_unregister_channel(channel)
    return channel


@contextmanager
def quietly(*loggers: str) -> Iterator[None]:
    """Nothing of what this thread does is told in these loggers."""
    thread = threading.get_ident()

    def others(record: logging.LogRecord) -> bool:
        return record.thread != thread

    with ExitStack() as exits:
        for logger in map(logging.getLogger, loggers):
            logger.addFilter(others)
            exits.callback(logger.removeFilter, others)
        yield

"""OTLP's standard variables, read as OpenTelemetry's exporters for Python do.

Headers are checked before an exporter is opened: OpenTelemetry drops items that it cannot parse and logs them with
their values; gRPC fails every export if it cannot send one. Such items are reported here, by variable and position
only: any part of a malformed item may be the secret.
"""

from __future__ import annotations

import math
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, NamedTuple
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass

from opentelemetry.util.re import parse_env_headers

from otel_goodput._runtime.deadline import SHARE_OF_GRACE
from otel_goodput._runtime.guard import report_once

GRPC: Final = "grpc"
HTTP: Final = "http/protobuf"
EXPORTER_MODULES: Final[dict[str, str]] = {
    GRPC: "opentelemetry.exporter.otlp.proto.grpc",
    HTTP: "opentelemetry.exporter.otlp.proto.http",
}

DEFAULT_TIMEOUT_S: Final = 10.0
MIN_TIMEOUT_S: Final = 0.1


def variables(signal: str, name: str) -> tuple[str, str]:
    """Return the standard variables of `name` (such as ``ENDPOINT``): the signal's own one, and the common one."""
    return f"OTEL_EXPORTER_OTLP_{signal.upper()}_{name}", f"OTEL_EXPORTER_OTLP_{name}"


def protocol(environ: Mapping[str, str], signal: str) -> str:
    """Return `grpc` or `http/protobuf` for `signal` (`traces` or `metrics`). Other values are logged and ignored."""
    for variable in variables(signal, "PROTOCOL"):
        value = environ.get(variable, "").strip().lower()
        if value in EXPORTER_MODULES:
            return value
        if value:
            known = ", ".join(EXPORTER_MODULES)
            report_once(f"{variable}={value}", "%s=%s is not supported (%s), ignored", variable, value, known)
    return GRPC


def timeout(environ: Mapping[str, str], signal: str, grace_period_s: float) -> float:
    """Return the timeout of an export in seconds: as configured, but no longer than fits into the grace period twice.

    The variables are read as seconds, as Python's exporters do. The specification says milliseconds; a value in
    milliseconds is cut to what the grace period allows.
    """
    seconds = DEFAULT_TIMEOUT_S
    for variable in variables(signal, "TIMEOUT"):
        try:
            value = float(environ.get(variable, ""))
        except ValueError:
            continue
        if math.isfinite(value) and value > 0:
            seconds = value
            break
    return max(min(seconds, grace_period_s * SHARE_OF_GRACE), MIN_TIMEOUT_S)


# An item that OpenTelemetry parses as a header.
_HEADER: Final = re.compile(r"""[!#-'*+.0-9A-Z^-z|~-]+[ \t]*=[ \t]*[ !#-+\--:<-\[\]-~]*""")
# Valid names and values: of gRPC's text metadata, and of HTTP fields.
_SENDABLE: Final = {
    GRPC: (re.compile(r"(?!grpc-)(?!.*-bin$)[0-9a-z_.-]+"), re.compile(r"[ -~]*")),
    HTTP: (re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"), re.compile(r"[\t -~\xa0-\xff]*")),
}
PARSER: Final = "opentelemetry.util.re"  # the logger of OpenTelemetry's parser of headers


class Headers(NamedTuple):
    """The headers of a signal by name, in lower case, and messages about those that cannot be sent.

    OpenTelemetry drops what is `malformed`; the protocol cannot carry what is `unsendable`.
    """

    values: dict[str, str]
    malformed: tuple[str, ...]
    unsendable: tuple[str, ...]


def headers(environ: Mapping[str, str], signal: str, wire: str) -> Headers:
    """Return the headers of `signal` (`traces` or `metrics`) from its own standard variable, else the common one."""
    variable, text = next(
        ((name, value) for name in variables(signal, "HEADERS") if (value := environ.get(name, "").strip())), ("", "")
    )
    sendable: dict[str, str] = {}
    malformed, unsendable = [], []
    names, values = _SENDABLE[wire]
    for place, item in enumerate(map(str.strip, text.split(",")), 1):
        if not item:
            continue
        if not _HEADER.fullmatch(item):
            instead = ", not NAME: VALUE" if ":" in item.partition("=")[0] else ""
            malformed.append(f"item {place} of {variable} is not a header: write NAME=VALUE{instead}")
            continue
        parsed = parse_env_headers(item, liberal=True)
        if any(names.fullmatch(name) and values.fullmatch(value) for name, value in parsed.items()):
            sendable |= parsed
        else:
            why = "it contains characters that are not allowed"
            unsendable.append(f"item {place} of {variable} cannot be sent over {wire}: {why}")
    return Headers(sendable, tuple(malformed), tuple(unsendable))


_DEFAULTS: Final = {GRPC: "http://localhost:4317", HTTP: "http://localhost:4318"}
_USUAL: Final = {4317: GRPC, 4318: HTTP}
# What helps where an error message has one of these words.
_ADVICE: Final = {
    "UNIMPLEMENTED": "point OTEL_EXPORTER_OTLP_{SIGNAL}_ENDPOINT at a receiver that takes {signal}",
    "UNAUTHENTICATED|PERMISSION_DENIED|401|403": "set the credentials that it requires (OTEL_EXPORTER_OTLP_HEADERS)",
    "a redirect to": "set OTEL_EXPORTER_OTLP_ENDPOINT to the address that it redirects to: redirects are not followed",
    "HTML page|not OTLP": "something other than an OTLP receiver answers there: check the address, and http_proxy and "
    "no_proxy",
    "404": "OTEL_EXPORTER_OTLP_ENDPOINT is the base URL, to which /v1/{signal} is added",
}


class Endpoint(NamedTuple):
    """The endpoint of a signal: its protocol (`wire`) and its URL as configured."""

    signal: str
    wire: str
    url: str

    def __str__(self) -> str:
        return f"{self.url} ({self.wire})"

    @property
    def _parts(self) -> SplitResult:
        # gRPC also accepts "host:4317"; without the // added here, "host" would be parsed as the scheme.
        return urlsplit(self.url if "://" in self.url else f"//{self.url}")

    def address(self) -> tuple[str, int] | None:
        """Return host and port to connect to; None for gRPC targets like ``unix:`` and ``dns:``, and behind a proxy.

        Raises ValueError if it is not a URL, or has no host; over HTTP also if it has no scheme.
        """
        parts = self._parts
        if parts.scheme not in ("", "http", "https") or not parts.netloc or self.url.startswith("unix:"):
            if self.wire == GRPC:
                return None
            raise ValueError("it needs http:// or https://")
        if not parts.hostname:
            raise ValueError("it has no host")
        if self.wire == HTTP and not parts.scheme:
            raise ValueError("it needs http:// or https://")
        proxies = getproxies()
        used = ("grpc", "https", "http") if self.wire == GRPC else (parts.scheme, "all")
        if any(name in proxies for name in used) and not proxy_bypass(parts.hostname):
            return None
        return parts.hostname, parts.port or (80 if self.wire == HTTP and parts.scheme == "http" else 443)

    def advice(self, failure: str) -> str:
        """Return what may help against `failure`, the exporter's error message."""
        for signs, advice in _ADVICE.items():
            if re.search(rf"\b({signs})\b", failure):
                return advice.format(signal=self.signal, SIGNAL=self.signal.upper())
        usual = self.wire
        with suppress(ValueError):  # it has no port that is a number
            usual = _USUAL.get(self._parts.port or 0, self.wire)
        if usual != self.wire:
            return f"this port usually takes {usual}: set OTEL_EXPORTER_OTLP_PROTOCOL={usual}"
        if self.wire == GRPC and "://" not in self.url:
            return "without http:// the connection is encrypted: write http:// if the receiver does not use TLS"
        return f"check that an OTLP receiver listens there, for {self.wire}"


def endpoint(environ: Mapping[str, str], signal: str) -> Endpoint:
    """Return the endpoint of `signal` (``traces`` or ``metrics``) according to the standard variables."""
    wire = protocol(environ, signal)
    own, common = (environ.get(variable, "").strip() for variable in variables(signal, "ENDPOINT"))
    common = common or _DEFAULTS[wire]
    # Over HTTP the common variable has a base URL, and a signal's own variable the whole URL.
    added = f"{common.rstrip('/')}/v1/{signal}" if wire == HTTP else common
    return Endpoint(signal, wire, own or added)


def connect(address: tuple[str, int], timeout_s: float) -> str:
    """Open a connection and close it. Return what went wrong as text, empty if nothing did."""
    host, port = address
    try:
        socket.create_connection(address, timeout=timeout_s).close()
    except socket.gaierror as error:
        return f"the name {host} cannot be resolved ({error.strerror})"
    except ConnectionRefusedError:
        return f"nothing listens at {host}:{port}"
    except TimeoutError:
        return f"{host}:{port} does not answer within {timeout_s:g} s"
    except OSError as error:
        return f"{host}:{port} cannot be reached ({error.strerror or error})"
    return ""

"""Read OTLP's standard variables as OpenTelemetry's exporters for Python do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from otel_goodput.deadline import SHARE_OF_GRACE
from otel_goodput.guard import report_once

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

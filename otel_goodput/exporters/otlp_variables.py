"""OTLP's standard variables, as OpenTelemetry's exporters for Python read them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from otel_goodput.guard import report_once

GRPC: Final = "grpc"
HTTP: Final = "http/protobuf"
EXPORTER_MODULES: Final[dict[str, str]] = {
    GRPC: "opentelemetry.exporter.otlp.proto.grpc",
    HTTP: "opentelemetry.exporter.otlp.proto.http",
}

DEFAULT_TIMEOUT_S: Final = 10.0

# At the stop one export may be under way already and the last one follows it. Both must end inside the grace period.
SHARE_OF_GRACE: Final = 0.4
MIN_TIMEOUT_S: Final = 0.1


def variables(signal: str, name: str) -> tuple[str, str]:
    """The standard variables that say `name` for `traces` or `metrics`: the signal's own, and the one for all."""
    return f"OTEL_EXPORTER_OTLP_{signal.upper()}_{name}", f"OTEL_EXPORTER_OTLP_{name}"


def protocol(environ: Mapping[str, str], signal: str) -> str:
    """`grpc` or `http/protobuf` for `traces` or `metrics`. A value that is neither warns and counts as not set."""
    for variable in variables(signal, "PROTOCOL"):
        value = environ.get(variable, "").strip().lower()
        if value in EXPORTER_MODULES:
            return value
        if value:
            known = ", ".join(EXPORTER_MODULES)
            report_once(f"{variable}={value}", "%s=%s is not supported (%s), ignored", variable, value, known)
    return GRPC


def timeout(environ: Mapping[str, str], signal: str, grace_period_s: float) -> float:
    """Seconds that one export may take: the configured ones, but never more than fits twice into the grace period.

    The variables are read in seconds, as Python's exporters do (the specification says milliseconds; a value meant so
    is cut to what the grace period allows).
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

"""Environment variables that are not settings of a recorder: one constant each, with type, default and description.

Those of settings are in ``options.py``. OpenTelemetry's own variables (``OTEL_*``) are honored where they apply, and
never renamed.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class EnvVar(NamedTuple):
    """One variable: its name, a description of its type, its default as text, and what it does."""

    name: str
    type: str
    default: str
    brief: str


PREFIX: Final = "OTEL_GOODPUT_"

OTEL_GOODPUT_GCP_PROJECT: Final = EnvVar(
    "OTEL_GOODPUT_GCP_PROJECT", "string", "", "Google Cloud project to write to; by default the credentials' project"
)
OTEL_GOODPUT_TENSORBOARD_DIR: Final = EnvVar(
    "OTEL_GOODPUT_TENSORBOARD_DIR", "path or URL", "", "where the tensorboard exporter writes; empty: the run's folder"
)
OTEL_GOODPUT_GCP_ENDPOINT: Final = EnvVar(
    "OTEL_GOODPUT_GCP_ENDPOINT",
    "host:port or http://host:port",
    "",
    "address used for all of Google's services; http:// is unencrypted and without credentials, for emulators",
)
OTEL_GOODPUT_EXIT_CODE: Final = EnvVar(
    "OTEL_GOODPUT_EXIT_CODE", "int", "", "exit status of the previous attempt, set by the launcher's script"
)
OTEL_GOODPUT_RUN_NAME: Final = EnvVar(
    "OTEL_GOODPUT_RUN_NAME",
    "string",
    "",
    "name of the job: with it, Lightning's trainers, and programs under `opentelemetry-instrument`, are recorded "
    "without a line in the program",
)
OTEL_GOODPUT_STRICT: Final = EnvVar(
    "OTEL_GOODPUT_STRICT", "bool", "false", "re-raise this package's own errors (for tests)"
)

OTHERS: Final[tuple[EnvVar, ...]] = tuple(each for each in tuple(globals().values()) if isinstance(each, EnvVar))

# Standard variables that change the behavior of this package, read by OpenTelemetry's SDK or by this package.
STANDARD: Final[tuple[EnvVar, ...]] = (
    EnvVar("OTEL_SDK_DISABLED", "bool", "false", "true: every call of this package is a no-op"),
    EnvVar("OTEL_SERVICE_NAME", "string", "", "the job's name if configure() gets none"),
    EnvVar("OTEL_RESOURCE_ATTRIBUTES", "key=value list", "", "further resource attributes"),
    EnvVar("OTEL_METRIC_EXPORT_INTERVAL", "ms", "60000", "how often metrics are exported"),
    EnvVar("OTEL_BSP_SCHEDULE_DELAY", "ms", "5000", "how often spans are exported"),
    EnvVar("OTEL_EXPORTER_OTLP_ENDPOINT", "URL", "", "where the otlp exporter sends traces and metrics"),
    EnvVar("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc | http/protobuf", "grpc", "how the otlp exporter sends"),
    EnvVar("OTEL_EXPORTER_OTLP_HEADERS", "key=value list", "", "headers of the otlp exporter (never printed)"),
)

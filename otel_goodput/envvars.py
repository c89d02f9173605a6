"""The environment variables of this package: one constant for each, with type, default and description.

OpenTelemetry's own variables (``OTEL_*``) are honored where they apply and never renamed.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class EnvVar(NamedTuple):
    """One variable: its name, a description of its type, its default as text, and what it does."""

    name: str
    type: str
    default: str
    brief: str

    @property
    def choices(self) -> list[str]:
        """The values that its type lists."""
        return self.type.split(" | ")


# What watches a job beside its phases: libraries, and what announces or describes the end.
INTEGRATIONS: Final = ("jax", "torch", "orbax", "signals", "maintenance", "kubernetes")

OTEL_GOODPUT_RUN_ID: Final = EnvVar(
    "OTEL_GOODPUT_RUN_ID",
    "string",
    "",
    "id of the run across restarts; by default the JobSet's name, else the job's name",
)
OTEL_GOODPUT_DIR: Final = EnvVar(
    "OTEL_GOODPUT_DIR",
    "path or URL",
    "",
    "local directory or fsspec URL of the journal; empty: ./goodput",
)
OTEL_GOODPUT_EXPORTERS: Final = EnvVar(
    "OTEL_GOODPUT_EXPORTERS",
    "list",
    "auto",
    "names of exporters, separated by commas; or none; or auto, which depends on the environment",
)
OTEL_GOODPUT_PROCESSES: Final = EnvVar(
    "OTEL_GOODPUT_PROCESSES", "leader | all | list", "all", "which processes export their spans"
)
OTEL_GOODPUT_PROCESS_INDEX: Final = EnvVar(
    "OTEL_GOODPUT_PROCESS_INDEX", "int", "", "index of this process, from 0; by default the launcher's value"
)
OTEL_GOODPUT_PROCESS_COUNT: Final = EnvVar(
    "OTEL_GOODPUT_PROCESS_COUNT", "int", "", "number of processes; by default the launcher's value"
)
OTEL_GOODPUT_STEP_SAMPLING: Final = EnvVar(
    "OTEL_GOODPUT_STEP_SAMPLING",
    "int",
    "100",
    "after the first 100 steps, export one step in this many (1: every step)",
)
OTEL_GOODPUT_STEP_TRACES: Final = EnvVar(
    "OTEL_GOODPUT_STEP_TRACES",
    "shared | own",
    "shared",
    "`own` puts each step and its load into a separate trace, linked to the job span",
)
OTEL_GOODPUT_TRACE_SPANS: Final = EnvVar(
    "OTEL_GOODPUT_TRACE_SPANS",
    "int",
    "5000",
    "maximum number of this package's spans in one trace, over all processes; further spans go to another trace (0: "
    "no limit)",
)
OTEL_GOODPUT_WINDOWS: Final = EnvVar(
    "OTEL_GOODPUT_WINDOWS", "list of durations", "1h,24h", "rolling windows, such as 10m,1h,24h"
)
OTEL_GOODPUT_GCP_PROJECT: Final = EnvVar(
    "OTEL_GOODPUT_GCP_PROJECT", "string", "", "Google Cloud project to write to; by default the credentials' project"
)
OTEL_GOODPUT_TENSORBOARD_DIR: Final = EnvVar(
    "OTEL_GOODPUT_TENSORBOARD_DIR",
    "path or URL",
    "",
    "where the tensorboard exporter writes; empty: the run's folder",
)
OTEL_GOODPUT_GCP_ENDPOINT: Final = EnvVar(
    "OTEL_GOODPUT_GCP_ENDPOINT",
    "host:port or http://host:port",
    "",
    "address used for all of Google's services; http:// is unencrypted and without credentials, for emulators",
)
OTEL_GOODPUT_INTEGRATIONS: Final = EnvVar(
    "OTEL_GOODPUT_INTEGRATIONS", "list", "auto", f"some of {', '.join(INTEGRATIONS)}; or none"
)
OTEL_GOODPUT_DEVICE_CLOCK: Final = EnvVar(
    "OTEL_GOODPUT_DEVICE_CLOCK",
    "auto | observe | host",
    "auto",
    "how the end of a step on the device is detected: `auto` uses marks, `observe` only `goodput.observe()`; `host` "
    "asserts that steps wait for their results",
)
OTEL_GOODPUT_STALLED_AFTER: Final = EnvVar(
    "OTEL_GOODPUT_STALLED_AFTER",
    "duration",
    "",
    "how long a step may take before the rest of its time is `stalled`, such as 5m; empty: 10 times the usual step, "
    "and at least 10 s more",
)
OTEL_GOODPUT_GRACE_PERIOD: Final = EnvVar(
    "OTEL_GOODPUT_GRACE_PERIOD",
    "seconds",
    "10",
    "time limit for shutdown: one deadline for traces, metrics and journal",
)
OTEL_GOODPUT_USAGE_INTERVAL: Final = EnvVar(
    "OTEL_GOODPUT_USAGE_INTERVAL",
    "duration",
    "",
    "how often CPU and memory are sampled for the page, such as 10s; empty: never",
)
OTEL_GOODPUT_SUBMITTED_AT: Final = EnvVar(
    "OTEL_GOODPUT_SUBMITTED_AT", "unix seconds or RFC 3339", "", "when the job was submitted, for scheduling goodput"
)
OTEL_GOODPUT_EXIT_CODE: Final = EnvVar(
    "OTEL_GOODPUT_EXIT_CODE", "int", "", "exit status of the previous attempt, set by the launcher's script"
)
OTEL_GOODPUT_STRICT: Final = EnvVar(
    "OTEL_GOODPUT_STRICT", "bool", "false", "re-raise this package's own errors (for tests)"
)

ENVVARS: Final[tuple[EnvVar, ...]] = tuple(each for each in tuple(globals().values()) if isinstance(each, EnvVar))

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

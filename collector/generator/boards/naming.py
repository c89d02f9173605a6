"""What the names of ``semconv`` become in Prometheus and in Cloud Monitoring."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from otel_goodput._metrics.workload_series import LOCATION
from otel_goodput.semconv import COUNTER, GAUGE, HISTOGRAM, UP_DOWN, Metric

CLOUD_PREFIX: Final = "workload.googleapis.com/"
CLOUD_RESOURCE: Final = "generic_task"

# The labels of `generic_task` that tell one run from another: the job's name and the run's id.
CLOUD_JOB: Final = "job"
CLOUD_RUN: Final = "namespace"
# Its others: an attempt may run elsewhere than the one before it.
CLOUD_PLACE: Final = (LOCATION, "task_id")

# Where the Telemetry API stores what comes by OTLP. It keeps the names of metrics and attributes as they are.
TARGET_PREFIX: Final = "prometheus.googleapis.com/"
TARGET_RESOURCE: Final = "prometheus_target"
TARGET_SUFFIXES: Final[Mapping[str, str]] = {
    GAUGE: "gauge",
    UP_DOWN: "gauge",
    COUNTER: "counter",
    HISTOGRAM: "histogram",
}

# service.name and service.instance.id; the latter is RUN/ATTEMPT/PROCESS@HOST.
PROMETHEUS_JOB: Final = "job"
PROMETHEUS_INSTANCE: Final = "instance"
RUN_OF_INSTANCE: Final = "(.*)/[0-9]+/[0-9]+@.*"

_UNITS: Final[Mapping[str, str]] = {
    "d": "days",
    "h": "hours",
    "min": "minutes",
    "s": "seconds",
    "ms": "milliseconds",
    "us": "microseconds",
    "ns": "nanoseconds",
    "By": "bytes",
    "W": "watts",
    "1": "",
    "%": "percent",
}
_PER: Final[Mapping[str, str]] = {"s": "second", "m": "minute", "h": "hour", "d": "day"}


def prometheus_name(name: str, kind: str, unit: str) -> str:
    """The name of a metric after OpenTelemetry's translation ``UnderscoreEscapingWithSuffixes``.

    It is the default of the collector's ``prometheus`` exporter and of Prometheus' own OTLP endpoint. A suffix that is
    among the name's words already is not doubled: that of the type moves to the end, that of the unit stays.
    """
    words = [word for word in re.split(r"[^a-zA-Z0-9:]", name) if word]
    main, _, per = unit.partition("/")
    for word in (_unit(main, _UNITS), f"per_{_unit(per, _PER)}" if _unit(per, _PER) else ""):
        if word and word not in words:
            words.append(word)
    suffix = "total" if kind == COUNTER else "ratio" if (kind, unit) == (GAUGE, "1") else ""
    if suffix:
        words = [word for word in words if word != suffix] + [suffix]
    joined = "_".join(words)
    return f"_{joined}" if joined[:1].isdigit() else joined


def _unit(unit: str, words: Mapping[str, str]) -> str:
    """Units in braces are annotations, which say nothing of the figure."""
    return "" if "{" in unit or "}" in unit else words.get(unit, unit)


def prometheus_metric(metric: Metric) -> str:
    return prometheus_name(metric.name, metric.kind, metric.unit)


def label(key: str) -> str:
    """An attribute key as a label: the same in Prometheus and in Cloud Monitoring."""
    return re.sub(r"[^a-zA-Z0-9]+", "_", key)


def cloud_metric(metric: Metric) -> str:
    return f"{CLOUD_PREFIX}{metric.name}"


def target_metric(metric: Metric) -> str:
    """The type that a metric has in Cloud Monitoring if it came by OTLP. PromQL there takes the bare name."""
    return f"{TARGET_PREFIX}{metric.name}/{TARGET_SUFFIXES[metric.kind]}"

"""Spans and series such as Google's clients send, around a fixed time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.api.metric_pb2 import Metric, MetricDescriptor
from google.api.monitored_resource_pb2 import MonitoredResource
from google.cloud.monitoring_v3 import TimeSeries
from google.cloud.trace_v2 import Span
from google.protobuf.timestamp_pb2 import Timestamp

PROJECT = "projects/test-project"
SECOND = 10**9
NOW = 1_790_000_000 * SECOND
TRACE = "0af7651916cd43dd8448eb211c80319c"
LABELS = {
    "generic_task": {"location": "us-central1-a", "namespace": "", "job": "j", "task_id": "0"},
    "gce_instance": {"zone": "us-central1-a", "instance_id": "1"},
    "global": {"project_id": "test-project"},
    "prometheus_target": {"location": "global", "cluster": "", "namespace": "", "job": "j", "instance": "0"},
    "compute.googleapis.com/Workload": {"location": "us-central1", "workload_id": "w", "replica_id": "0"},
}


def at(offset: float) -> Timestamp:
    """A time so many seconds from NOW."""
    timestamp = Timestamp()
    timestamp.FromNanoseconds(NOW + round(offset * SECOND))
    return timestamp


def span(number: int = 1, **fields: Any) -> Span:
    identity = f"{number:016x}"
    whole: dict[str, Any] = {
        "name": f"{PROJECT}/traces/{TRACE}/spans/{identity}",
        "span_id": identity,
        "display_name": {"value": "step"},
        "start_time": at(-2),
        "end_time": at(-1),
    }
    return Span(whole | fields)


def resource(kind: str, **labels: str) -> MonitoredResource:
    return MonitoredResource(type=kind, labels=LABELS[kind] | labels)


def series(
    value: Any = 1.0,
    end: float = 0,
    start: float | None = None,
    *,
    metric: str = "custom.googleapis.com/m",
    of: MonitoredResource | None = None,
    kind: str = "",
    value_type: str = "",
    points: int = 1,
    **labels: str,
) -> TimeSeries:
    """One series with one point; with a start it is CUMULATIVE, where `kind` says nothing else."""
    kind = kind or ("GAUGE" if start is None else "CUMULATIVE")
    fields = {bool: "bool_value", int: "int64_value", float: "double_value", str: "string_value"}
    typed = {fields.get(type(value), "distribution_value"): value} if value is not None else {}
    interval = {"end_time": at(end)} | ({} if start is None else {"start_time": at(start)})
    return TimeSeries(
        metric=Metric(type=metric, labels=labels),
        resource=resource("global") if of is None else of,
        metric_kind=MetricDescriptor.MetricKind.Value(kind),
        value_type=MetricDescriptor.ValueType.Value(value_type) if value_type else 0,
        points=[{"interval": interval, "value": typed}] * points,
    )


def distribution(counts: Sequence[int], bounds: Sequence[float], count: int | None = None) -> dict[str, Any]:
    return {
        "count": sum(counts) if count is None else count,
        "mean": 1.0,
        "bucket_counts": counts,
        "bucket_options": {"explicit_buckets": {"bounds": bounds}},
    }

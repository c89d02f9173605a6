"""What Cloud Monitoring knows from the beginning: resources and their labels, users' domains, Google's own series."""

from __future__ import annotations

import re

from google.api.label_pb2 import LabelDescriptor
from google.api.metric_pb2 import MetricDescriptor

WORKLOAD = "compute.googleapis.com/Workload"
PROMETHEUS = "prometheus_target"

# Labels that a resource of the type must have; `project_id` may be there too.
RESOURCES: dict[str, frozenset[str]] = {
    "generic_task": frozenset({"location", "namespace", "job", "task_id"}),
    "generic_node": frozenset({"location", "namespace", "node_id"}),
    "gce_instance": frozenset({"zone", "instance_id"}),
    "k8s_container": frozenset({"location", "cluster_name", "namespace_name", "pod_name", "container_name"}),
    "k8s_pod": frozenset({"location", "cluster_name", "namespace_name", "pod_name"}),
    "k8s_node": frozenset({"location", "cluster_name", "node_name"}),
    "k8s_cluster": frozenset({"location", "cluster_name"}),
    "global": frozenset(),
    PROMETHEUS: frozenset({"location", "cluster", "namespace", "job", "instance"}),
    WORKLOAD: frozenset({"location", "workload_id", "replica_id"}),
}
LOCATION_LABELS = ("location", "zone")
LOCATION = re.compile(r"global|[a-z]+-[a-z]+\d+(-[a-z]+\d*[a-z]?)?")

_USERS = frozenset(RESOURCES) - {PROMETHEUS, WORKLOAD}
# Domains of metrics that users write, and the resources they may be written for.
DOMAINS: dict[str, frozenset[str]] = {
    "custom.googleapis.com": _USERS,
    "workload.googleapis.com": _USERS,
    "external.googleapis.com": _USERS,
    "prometheus.googleapis.com": frozenset({PROMETHEUS}),
}

_COMMON = ("accelerator_type", "cluster_name")
_WINDOW = (*_COMMON, "window_type")
_ROLLING = (*_COMMON, "rolling_window_size")
_SLICES = (*_WINDOW, "rolling_window_size")
_GOOGLES: dict[str, tuple[str, tuple[str, ...]]] = {
    "goodput_time": ("DOUBLE", (*_COMMON, "goodput_source")),
    "badput_time": ("DOUBLE", (*_COMMON, "badput_source")),
    "total_elapsed_time": ("DOUBLE", _WINDOW),
    "disruptions": ("INT64", _WINDOW),
    "max_productive_steps": ("INT64", _COMMON),
    "step_time_deviation": ("DOUBLE", _COMMON),
    "performance": ("DOUBLE", ()),
    "interval_goodput": ("DOUBLE", (*_ROLLING, "goodput_source")),
    "interval_badput": ("DOUBLE", (*_ROLLING, "badput_source")),
    "stepping_slice_efficiency": ("DOUBLE", _SLICES),
    "available_slice_efficiency": ("DOUBLE", _SLICES),
}


def googles() -> dict[str, MetricDescriptor]:
    """Descriptors of the series that Google itself defines."""
    descriptors = {}
    for name, (value_type, labels) in _GOOGLES.items():
        metric = f"compute.googleapis.com/workload/{name}"
        descriptors[metric] = MetricDescriptor(
            type=metric,
            metric_kind=MetricDescriptor.MetricKind.GAUGE,
            value_type=MetricDescriptor.ValueType.Value(value_type),
            labels=[LabelDescriptor(key=key) for key in labels],
            monitored_resource_types=[WORKLOAD],
        )
    return descriptors


def domain(metric_type: str) -> str:
    return metric_type.partition("/")[0]

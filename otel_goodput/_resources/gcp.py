"""Look up a Google Cloud machine at its metadata server: one request, at most one second, and only named keys.

OpenTelemetry's own detector of Google Cloud reads the same keys, but it asks a fixed address and waits up to 7 s.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from otel_goodput import semconv
from otel_goodput._disruption.metadata import METADATA_HOST, NotGoogles, ask, metadata_host
from otel_goodput._resources import accelerators
from otel_goodput._resources.accelerators import Value, mapping, text
from otel_goodput._text.redact import printable, redacting_logger
from otel_goodput.errors import GoodputError

logger = redacting_logger(__name__)

TIMEOUT_S: Final = 1.0
LONGEST: Final = 1 << 22  # bytes of an answer; project and machine have 512 KB of attributes each, scripts among them
ALL: Final = "?recursive=true"


class Unknown(GoodputError):
    """Nothing is known of the machine. The message has the reason and, if there is one, the remedy."""


class Machine(NamedTuple):
    """What is known of a machine; an unknown text is empty."""

    project: str
    zone: str
    id: str
    name: str  # with GKE's Workload Identity, it is taken from the host name
    type: str  # such as ``a3-highgpu-8g``; not known with Workload Identity
    cluster: str  # of GKE
    cluster_location: str  # a zone or a region
    slice: Mapping[str, Value]  # attributes of its TPU slice

    @property
    def region(self) -> str:
        return self.zone.rpartition("-")[0]


def look_up(host: str | None = None, timeout_s: float = TIMEOUT_S) -> Machine:
    """Ask the metadata server at `host`, by default this machine's, about it, waiting `timeout_s` seconds at most.

    Raises Unknown if this is not a Google Cloud machine, or its server gives no useful answer in time.
    """
    host = host or metadata_host()
    if host is None:
        raise Unknown(f"this is not a Google Cloud machine (set {METADATA_HOST} to use another metadata server)")
    who = f"the metadata server {printable(host)}"
    try:
        answer = ask(host, ALL, timeout_s, LONGEST)
    except TimeoutError:
        raise Unknown(f"{who} did not answer within {timeout_s:g} s") from None
    except (OSError, UnicodeError) as error:
        raise Unknown(f"{who} cannot be reached: {error}") from None
    except NotGoogles as lie:
        raise Unknown(f"{who} is not Google's: {lie}") from None
    if answer.status != 200:
        raise Unknown(f"{who} answered with an error (status {answer.status})")
    try:
        metadata = json.loads(answer.body)
    except (ValueError, RecursionError):
        metadata = None
    if not isinstance(metadata, dict):
        raise Unknown(f"{who} is not Google's: its answer is not a JSON object")
    machine = _machine(metadata)
    if not machine.project and not machine.id:
        raise Unknown(f"{who} knows neither the project nor the instance")
    return machine


def attributes(machine: Machine, *, in_cluster: bool) -> dict[str, Value]:
    """Return resource attributes, named and valued as by OpenTelemetry's own detector.

    The accelerator count is that of this host's chips. On GKE, zone and region are the cluster's, as Cloud Monitoring
    expects: a regional cluster has no zone. `in_cluster`: in a pod, the host's name is the pod's, not the machine's.
    """
    on_gke = in_cluster and bool(machine.cluster)
    zone, region = machine.zone, machine.region
    if on_gke and machine.cluster_location:
        zonal = machine.cluster_location.count("-") == 2
        zone = machine.cluster_location if zonal else ""
        region = machine.cluster_location.rpartition("-")[0] if zonal else machine.cluster_location
    values: dict[str, Value] = {
        semconv.CLOUD_PROVIDER: semconv.GoogleCloud.PROVIDER,
        semconv.CLOUD_PLATFORM: (
            semconv.GoogleCloud.KUBERNETES_ENGINE if on_gke else semconv.GoogleCloud.COMPUTE_ENGINE
        ),
        semconv.CLOUD_ACCOUNT_ID: machine.project,
        semconv.GCP_PROJECT_ID: machine.project,
        semconv.CLOUD_AVAILABILITY_ZONE: zone,
        semconv.CLOUD_REGION: region,
        semconv.HOST_ID: machine.id,
        semconv.HOST_TYPE: machine.type,
        semconv.HOST_NAME: "" if on_gke else machine.name,
        semconv.K8S_CLUSTER_NAME: machine.cluster if on_gke else "",
        semconv.K8S_NODE_NAME: machine.name if on_gke else "",
        **accelerators.of_machine(machine.type),
        **machine.slice,
    }
    return {key: value for key, value in values.items() if value != ""}


def detect(host: str, *, in_cluster: bool) -> dict[str, Value]:
    """Return :func:`attributes` of the machine that `host` describes; empty if nothing is known."""
    try:
        return attributes(look_up(host), in_cluster=in_cluster)
    except Unknown as why:
        logger.debug("no Google Cloud attributes in the resource: %s", why)
        return {}


def _machine(metadata: Mapping[str, Any]) -> Machine:
    project, instance = mapping(metadata.get("project")), mapping(metadata.get("instance"))
    more = mapping(instance.get("attributes"))
    return Machine(
        project=text(project.get("projectId")) or "",
        zone=_last(instance.get("zone")),
        id=text(instance.get("id")) or "",
        name=text(instance.get("name")) or (text(instance.get("hostname")) or "").partition(".")[0],
        type=_last(instance.get("machineType")),
        cluster=text(more.get("cluster-name")) or "",
        cluster_location=text(more.get("cluster-location")) or "",
        slice=accelerators.of_slice_attributes(more),
    )


def _last(given: object) -> str:
    """Return the last part of a path such as ``projects/1234/zones/us-central1-a``."""
    return (text(given) or "").rpartition("/")[2]

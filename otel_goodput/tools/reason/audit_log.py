"""Audit log entries of Google Cloud, as ``gcloud logging read --format=json`` prints them.

What methods mean is told by "Troubleshoot VM shutdowns and reboots" and "Host events" of Compute Engine's documentation
(cloud.google.com/compute/docs/troubleshooting/troubleshooting-reboots), by "View maintenance notifications" of Cloud
TPU's (cloud.google.com/tpu/docs/view-maintenance-notifications), and the form of an entry by LogEntry and AuditLog
(cloud.google.com/logging/docs/reference/v2/rest/v2/LogEntry). A system event has a ``status`` with a message even if
all is well; a call that failed has one with a ``code``.

``tpu.nodes.terminate`` is not documented. Operators report it for lost nodes of any cause, with the cause in
``metadata.terminateReason``, so it tells only what stands there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from otel_goodput.semconv import (
    CLOUD_ACCOUNT_ID,
    CLOUD_AVAILABILITY_ZONE,
    HOST_ID,
    HOST_NAME,
    K8S_NODE_NAME,
    SLICE_NAME,
    Reason,
)
from otel_goodput.tools.reason.entries import NOTHING, Entry, Tells, mapping, moment, text

# By the end of the method's name; versions and services stand in front of it.
SYSTEM_EVENTS: Final[Mapping[str, Tells]] = {
    "compute.instances.preempted": Tells(Reason.PREEMPTION, 95),
    "compute.instances.terminateOnHostMaintenance": Tells(Reason.MAINTENANCE, 90),
    "compute.instances.hostError": Tells(Reason.CRASH, 90),
    # The machine moves and goes on, if it can: a job that dies at that moment is likely to have died of it.
    "compute.instances.migrateOnHostMaintenance": Tells(Reason.MAINTENANCE, 60, prompt=True),
    # Something in the machine shut it down: the job was told by a signal, and nobody says why.
    "compute.instances.guestTerminate": Tells(Reason.SIGNAL, 30, prompt=True),
    # These follow from the others, or announce what may come much later.
    "compute.instances.automaticRestart": NOTHING,
    "compute.instances.upcomingMaintenance": NOTHING,
    "compute.instances.repair.recreateInstance": NOTHING,
}
# What somebody asked for. It is no failure, so it counts as a restart; what Google Kubernetes Engine does to its nodes
# is an upgrade or the end of an unused node.
_ASKED: Final = re.compile(
    r"(?:(?:v1|beta|alpha)\.)?compute\.instances\.(?:stop|delete|reset|suspend)"
    r"|(?:(?:v1|beta|alpha)\.)?compute\.instanceGroupManagers\.(?:delete|deleteInstances|recreateInstances)"
    r"|(?:google\.cloud\.tpu\.v\w+\.Tpu|tpu)\.(?:DeleteNode|StopNode|ResetQueuedResource|DeleteQueuedResource)"
    r"|tpu\.nodes\.(?:delete|stop)"
)
_BY_PERSON: Final = Tells(Reason.RESTART, 50, prompt=True)
_BY_SERVICE: Final = Tells(Reason.MAINTENANCE, 40, prompt=True)
_SERVICE: Final = re.compile(r".+@container-engine-robot\.iam\.gserviceaccount\.com")
_MAINTENANCE: Final = re.compile(r"google\.cloud\.tpu\.v\w+\.Tpu\.PerformMaintenance(?:QueuedResource)?")
_TPU_LOST: Final = "tpu.nodes.terminate"
_CAUSES: Final = (("preempt", Tells(Reason.PREEMPTION, 85)), ("maintenance", Tells(Reason.MAINTENANCE, 85)))
_RESOURCE: Final = re.compile(
    r"(?:projects/(?P<project>[^/]+)/)?(?:zones|locations)/(?P<zone>[^/]+)/(?P<kind>instances|nodes)/(?P<name>[^/]+)"
)


def looks_like(item: Mapping[str, Any]) -> bool:
    """Whether this is an entry of a log of Google Cloud: an audit log's, or of another one that was read with it."""
    return "protoPayload" in item or ("logName" in item and "timestamp" in item)


def parse(item: Mapping[str, Any]) -> Entry | None:
    """Return what a log entry tells; None if it is not one of an audit log, or has no time."""
    payload = mapping(item.get("protoPayload"))
    method, at = text(payload.get("methodName")), moment(item.get("timestamp"))
    if not method or at is None:
        return None
    principal = text(mapping(payload.get("authenticationInfo")).get("principalEmail"))
    who = principal or text(item.get("insertId")) or "nobody named"
    tells = NOTHING if mapping(payload.get("status")).get("code") else _tells(method, principal, payload)
    return Entry((at,), tells, f"cloud audit log: {method}, {who}", _names(item, payload))


def _tells(method: str, principal: str, payload: Mapping[str, Any]) -> Tells:
    if method in SYSTEM_EVENTS:
        return SYSTEM_EVENTS[method]
    if _ASKED.fullmatch(method):
        return _BY_SERVICE if _SERVICE.fullmatch(principal) else _BY_PERSON
    if _MAINTENANCE.fullmatch(method):
        return _BY_SERVICE
    if method == _TPU_LOST:
        cause = text(mapping(payload.get("metadata")).get("terminateReason")).lower()
        return next((tells for word, tells in _CAUSES if word in cause), NOTHING)
    return NOTHING


def _names(item: Mapping[str, Any], payload: Mapping[str, Any]) -> dict[str, str]:
    labels = mapping(mapping(item.get("resource")).get("labels"))
    match = _RESOURCE.search(text(payload.get("resourceName")))
    named = match.groupdict() if match is not None else {}
    of_instance = named.get("kind") == "instances"
    found = {
        CLOUD_ACCOUNT_ID: text(labels.get("project_id")) or named.get("project"),
        CLOUD_AVAILABILITY_ZONE: named.get("zone") or text(labels.get("zone")),
        HOST_ID: text(labels.get("instance_id")) if of_instance or not named else "",
        HOST_NAME: named.get("name") if of_instance else "",
        K8S_NODE_NAME: named.get("name") if of_instance else "",  # a node of GKE is called as its machine
        SLICE_NAME: named.get("name") if named.get("kind") == "nodes" else "",
    }
    return {key: value for key, value in found.items() if value}

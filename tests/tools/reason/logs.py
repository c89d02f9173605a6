"""Entries of logs as they are documented, and as public examples have them, at the times of a run's outages."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from otel_goodput._accounting.disruption import Disruption
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._tools.reason.command import disrupted
from otel_goodput.reports.run import RecordedRun

NS = 1_000_000_000


def losses(folder: Path) -> dict[int, Disruption]:
    """The disruptions of a run, by the attempt that began with them."""
    return dict(disrupted(RecordedRun(RunDirectory(folder))).losses)


def middle(loss: Disruption) -> int:
    """A moment of an outage, ns."""
    return (loss.died + loss.time) // 2


def written(at: int) -> str:
    """A time as both logs write it."""
    moment = datetime.fromtimestamp(at // NS, tz=timezone.utc)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{at % NS // 1000:06d}Z"


def audit(method: str, at: int, instance: str = "vm-1", number: str = "184448819", **more: Any) -> dict[str, Any]:
    """An entry of Google's audit log, as ``gcloud logging read --format=json`` prints it; `more` is of its payload."""
    return {
        "insertId": "qnwer3e38dfz",
        "logName": "projects/p/logs/cloudaudit.googleapis.com%2Fsystem_event",
        "operation": {"first": True, "id": "systemevent-1", "last": True, "producer": method},
        "protoPayload": {
            "@type": "type.googleapis.com/google.cloud.audit.AuditLog",
            "authenticationInfo": {"principalEmail": "system@google.com"},
            "methodName": method,
            "request": {"@type": f"type.googleapis.com/{method}"},
            "resourceName": f"projects/p/zones/europe-west1-c/instances/{instance}",
            "serviceName": "compute.googleapis.com",
            "status": {"message": "It has happened."},
            **more,
        },
        "receiveTimestamp": written(at + 2 * NS),
        "resource": {
            "labels": {"instance_id": number, "project_id": "p", "zone": "europe-west1-c"},
            "type": "gce_instance",
        },
        "severity": "INFO",
        "timestamp": written(at),
    }


def event(reason: str, at: int, kind: str = "Pod", name: str = "train-0", **more: Any) -> dict[str, Any]:
    """An event of ``v1``, as ``kubectl get events -A -o json`` prints it."""
    about = {"apiVersion": "v1", "kind": kind, "name": name, "uid": f"uid-of-{name}"}
    if kind == "Pod":
        about["namespace"] = "team"
    return {
        "apiVersion": "v1",
        "count": 1,
        "eventTime": None,
        "firstTimestamp": written(at),
        "involvedObject": about,
        "kind": "Event",
        "lastTimestamp": written(at),
        "message": "It has happened.",
        "metadata": {"name": f"{name}.17d0", "namespace": "team"},
        "reason": reason,
        "reportingComponent": "",
        "source": {"component": "default-scheduler"},
        "type": "Warning",
        **more,
    }


def new_event(reason: str, at: int, kind: str = "Pod", name: str = "train-0", **more: Any) -> dict[str, Any]:
    """An event of ``events.k8s.io/v1``."""
    about = {"apiVersion": "v1", "kind": kind, "name": name, "namespace": "team"}
    return {
        "action": "Preempting",
        "apiVersion": "events.k8s.io/v1",
        "deprecatedFirstTimestamp": None,
        "deprecatedLastTimestamp": None,
        "eventTime": written(at),
        "kind": "Event",
        "metadata": {"name": f"{name}.17d0", "namespace": "team"},
        "note": "Preempted by pod 0f2d on node n-1",
        "reason": reason,
        "regarding": about,
        "reportingController": "default-scheduler",
        "type": "Normal",
        **more,
    }


def listed(*events: dict[str, Any]) -> str:
    """What kubectl prints."""
    return json.dumps({"apiVersion": "v1", "items": list(events), "kind": "List", "metadata": {"resourceVersion": ""}})

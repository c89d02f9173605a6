"""Reads disruptions from logs: Kubernetes' events, and Google Cloud's audit log."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from otel_goodput._text.durations import parse_moment
from otel_goodput.errors import GoodputError
from otel_goodput.semconv import (
    CLOUD_ACCOUNT_ID,
    CLOUD_AVAILABILITY_ZONE,
    HOST_ID,
    HOST_NAME,
    K8S_NAMESPACE_NAME,
    K8S_NODE_NAME,
    K8S_POD_NAME,
    K8S_POD_UID,
    SLICE_NAME,
    Reason,
)

MOST: Final = 256 * 2**20  # bytes of a file
_KEY: Final = 200  # characters of one text of an entry


class Tells(NamedTuple):
    """What a kind of entry tells of the reason, and how surely: of several entries the highest `strength` counts.

    `reason` is None for what follows from a disruption, or comes with any of them, and does not tell why. With `prompt`
    it tells why only if it comes when the job ends: a machine may be stopped for lying idle after a crash.
    """

    reason: str | None
    strength: int = 0
    prompt: bool = False


NOTHING: Final = Tells(None)


class Entry(NamedTuple):
    """One entry of a log.

    Attributes:
        times: when it happened, ns since the epoch; an event that was seen again and again has its first and last time.
        tells: what it says of the reason.
        by: what a report says of where the reason is from.
        names: of what it happened to, by name of the resource attribute.
    """

    times: tuple[int, ...]
    tells: Tells
    by: str
    names: Mapping[str, str]


def mapping(found: Any) -> Mapping[str, Any]:
    """Return `found` if it is a JSON object, else an empty one."""
    return found if isinstance(found, dict) else {}


def text(found: Any) -> str:
    """Return `found` if it is a text, cut to a length that a person reads, else an empty one."""
    return found[:_KEY] if isinstance(found, str) else ""


def moment(found: Any) -> int | None:
    """Return an RFC 3339 time in ns since the epoch; None if `found` is none."""
    if not isinstance(found, str) or "T" not in found.upper():
        return None
    try:
        return parse_moment(found)
    except (ValueError, OverflowError):
        return None


_POD: Final = "Pod"
_NODE: Final = "Node"
EVENTS: Final[Mapping[tuple[str, str], Tells]] = {
    ("Preempted", _POD): Tells(Reason.PREEMPTION, 80),  # by a pod of a higher priority
    ("Preempting", _POD): Tells(Reason.PREEMPTION, 80),
    ("SpotInterrupted", _NODE): Tells(Reason.PREEMPTION, 80),
    ("SpotInterruption", _NODE): Tells(Reason.PREEMPTION, 80),
    ("PreemptScheduled", _NODE): Tells(Reason.PREEMPTION, 80),
    ("TerminateScheduled", _NODE): Tells(Reason.MAINTENANCE, 75),
    ("RebootScheduled", _NODE): Tells(Reason.MAINTENANCE, 75),
    ("RedeployScheduled", _NODE): Tells(Reason.MAINTENANCE, 75),
    ("FreezeScheduled", _NODE): Tells(Reason.MAINTENANCE, 75),
    ("OOMKilling", _NODE): Tells(Reason.CRASH, 70),
    ("SystemOOM", _NODE): Tells(Reason.CRASH, 70),
    ("Evicted", _POD): Tells(Reason.CRASH, 65),  # the node ran out of memory or disk
    # The node is being shut down, and the kubelet does not know why. The pods are told by a signal.
    ("Shutdown", _NODE): Tells(Reason.SIGNAL, 35),
    ("NodeShutdown", _NODE): Tells(Reason.SIGNAL, 35),
    ("NodeShutdown", _POD): Tells(Reason.SIGNAL, 35),
    ("TerminationByKubelet", _POD): Tells(Reason.SIGNAL, 35),
    ("Rebooted", _NODE): Tells(Reason.CRASH, 25),
    ("NodeNotReady", _NODE): Tells(Reason.CRASH, 20),
    ("NodeNotReady", _POD): Tells(Reason.CRASH, 20),
    ("TaintManagerEviction", _POD): Tells(Reason.CRASH, 20),  # of a node that is not ready, or not reached
    # They come with any end of a pod or a node: Killing, BackOff, Failed, FailedScheduling, DeletingNode, RemovingNode.
}
_CANCELLED: Final = ("cancelling deletion", "shutdown cancellation")  # the same reason tells that it did not happen
_TIMES: Final = ("eventTime", "firstTimestamp", "lastTimestamp", "deprecatedFirstTimestamp", "deprecatedLastTimestamp")


def _is_event(item: Mapping[str, Any]) -> bool:
    """Whether this is an event of Kubernetes."""
    about = "involvedObject" in item or "regarding" in item
    return about and "reason" in item and item.get("kind", "Event") == "Event"


def _event(item: Mapping[str, Any]) -> Entry | None:
    """Return what an event tells; None if it has no reason or no time."""
    about = mapping(item.get("involvedObject")) or mapping(item.get("regarding"))
    reason, kind, name = text(item.get("reason")), text(about.get("kind")), text(about.get("name"))
    told = [item.get(key) for key in _TIMES] + [mapping(item.get("series")).get("lastObservedTime")]
    times = sorted({at for at in map(moment, told) if at is not None})
    if not reason or not times:
        return None
    message = (text(item.get("message")) or text(item.get("note"))).lower()
    tells = EVENTS.get((reason, kind), NOTHING)
    if any(word in message for word in _CANCELLED):
        tells = NOTHING
    space = text(about.get("namespace"))
    whole = "/".join(filter(None, (kind, space, name)))
    return Entry(
        tuple(times), tells, f"kubernetes event: {reason} {whole}", _event_names(kind, name, space, about, item)
    )


def _event_names(kind: str, name: str, space: str, about: Mapping[str, Any], item: Mapping[str, Any]) -> dict[str, str]:
    if kind == _NODE:
        return {key: name for key in (K8S_NODE_NAME, HOST_NAME) if name}
    if kind == _POD:
        found = {K8S_POD_NAME: name, K8S_NAMESPACE_NAME: space, K8S_POD_UID: text(about.get("uid"))}
        return {key: value for key, value in found.items() if value}
    return {}


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


def _is_logged(item: Mapping[str, Any]) -> bool:
    """Whether this is an entry of a log of Google Cloud: an audit log's, or of another one that was read with it."""
    return "protoPayload" in item or ("logName" in item and "timestamp" in item)


def _logged(item: Mapping[str, Any]) -> Entry | None:
    """Return what a log entry tells; None if it is not one of an audit log, or has no time."""
    payload = mapping(item.get("protoPayload"))
    method, at = text(payload.get("methodName")), moment(item.get("timestamp"))
    if not method or at is None:
        return None
    principal = text(mapping(payload.get("authenticationInfo")).get("principalEmail"))
    who = principal or text(item.get("insertId")) or "nobody named"
    tells = NOTHING if mapping(payload.get("status")).get("code") else _tells(method, principal, payload)
    return Entry((at,), tells, f"cloud audit log: {method}, {who}", _machine_names(item, payload))


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


def _machine_names(item: Mapping[str, Any], payload: Mapping[str, Any]) -> dict[str, str]:
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


class Entries(NamedTuple):
    """The entries of a file.

    Attributes:
        kind: what the file is, for people.
        found: entries that tell something, and those that do not tell why.
        left_out: how many items are no such entry, or have no valid time.
    """

    kind: str
    found: list[Entry]
    left_out: int


def read(data: bytes, name: str) -> Entries:
    """Read a file: its content says which log it is of. `name` is for messages.

    Raises:
        GoodputError: it is neither of the two.
    """
    items = list(_items(data, name))
    for kind, looks_like, parse in (
        ("Google Cloud audit log", _is_logged, _logged),
        ("Kubernetes events", _is_event, _event),
    ):
        if any(map(looks_like, items)):
            parsed = [parse(item) if looks_like(item) else None for item in items]
            found = [one for one in parsed if one is not None]
            return Entries(kind, found, len(items) - len(found))
    if not items:
        raise GoodputError(f"{name} holds no entries")
    raise GoodputError(
        f"{name} has the wrong format: expected the JSON of `gcloud logging read --format=json`, with audit log "
        "entries, or of `kubectl get events -A -o json`"
    )


def _items(data: bytes, name: str) -> Iterator[Mapping[str, Any]]:
    """Yield the JSON objects in a file: those of an array or of a List, one alone, or one a line."""
    try:
        documents = [json.loads(data)]
    except (ValueError, RecursionError):
        try:
            documents = [json.loads(line) for line in data.split(b"\n") if line.strip()]
        except (ValueError, RecursionError) as error:
            raise GoodputError(f"{name} is not JSON") from error
        if not documents:
            raise GoodputError(f"{name} is empty") from None
    for document in documents:
        if isinstance(document, list):
            rows = document
        elif isinstance(document, dict) and isinstance(document.get("items"), list):
            rows = document["items"]
        else:
            rows = [document]
        yield from (row for row in rows if isinstance(row, dict))

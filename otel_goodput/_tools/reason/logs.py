"""Reads logs (Kubernetes' events, Google Cloud's audit log), and finds the disruptions that their entries explain.

**Time.** An entry matches a disruption from a margin before the last sign of life until the next job start. The margin
is needed because a job lives on after a notice for as long as it is given (30 s of a Spot VM, 30 s of a pod by
default), and because clocks differ. An entry inside an outage matches that one, even if it is in the margin of another;
within two margins, it matches the earlier outage. An order (stopping or deleting a machine) matches only within the
margin around the last sign of life: a machine whose job has crashed is often stopped long before the next attempt.

**Names.** If the journal has what an attempt ran on, an entry about another machine, node or pod does not match. One
process of a job is enough: what ends one of them ends all. If some process left no names, the entry may be about that
one, so it matches, but by time only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple

from otel_goodput._accounting.disruption import Disruption
from otel_goodput._journal.rundir import MOST, ListedRun
from otel_goodput._text.durations import parse_moment
from otel_goodput.errors import GoodputError
from otel_goodput.reports.run import RecordedRun
from otel_goodput.semconv import (
    CLOUD_ACCOUNT_ID,
    CLOUD_AVAILABILITY_ZONE,
    HOST_ID,
    HOST_NAME,
    K8S_NAMESPACE_NAME,
    K8S_NODE_NAME,
    K8S_POD_NAME,
    K8S_POD_UID,
    PROCESS_COUNT,
    SLICE_NAME,
    Reason,
)

LONGEST: Final = 256 * 2**20  # bytes of a file
_KEY: Final = 200  # characters of one text of an entry


class Evidence(NamedTuple):
    """The reason that a kind of entry gives, and how surely: of several entries the highest `strength` counts.

    `reason` is None for an entry that follows from any disruption and does not say why. A `prompt` entry gives the
    reason only if it comes when the job ends: a machine may be stopped because it lies idle after a crash.
    """

    reason: str | None
    strength: int = 0
    prompt: bool = False


NOTHING: Final = Evidence(None)


class Entry(NamedTuple):
    """One entry of a log.

    Attributes:
        times: when it happened, ns since the epoch; an event that was seen again and again has its first and last time.
        evidence: the reason that it gives.
        by: the source of the reason, as a report shows it.
        names: of the affected machine, node or pod, by resource attribute.
    """

    times: tuple[int, ...]
    evidence: Evidence
    by: str
    names: Mapping[str, str]


def mapping(value: Any) -> Mapping[str, Any]:
    """Return `value` if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def text(value: Any) -> str:
    """Return `value` if it is a string, cut to a readable length, else an empty one."""
    return value[:_KEY] if isinstance(value, str) else ""


def moment(value: Any) -> int | None:
    """Return an RFC 3339 time in ns since the epoch; None if `value` is not one."""
    if not isinstance(value, str) or "T" not in value.upper():
        return None
    try:
        return parse_moment(value)
    except (ValueError, OverflowError):
        return None


_POD: Final = "Pod"
_NODE: Final = "Node"
EVENTS: Final[Mapping[tuple[str, str], Evidence]] = {
    ("Preempted", _POD): Evidence(Reason.PREEMPTION, 80),  # by a pod of a higher priority
    ("Preempting", _POD): Evidence(Reason.PREEMPTION, 80),
    ("SpotInterrupted", _NODE): Evidence(Reason.PREEMPTION, 80),
    ("SpotInterruption", _NODE): Evidence(Reason.PREEMPTION, 80),
    ("PreemptScheduled", _NODE): Evidence(Reason.PREEMPTION, 80),
    ("TerminateScheduled", _NODE): Evidence(Reason.MAINTENANCE, 75),
    ("RebootScheduled", _NODE): Evidence(Reason.MAINTENANCE, 75),
    ("RedeployScheduled", _NODE): Evidence(Reason.MAINTENANCE, 75),
    ("FreezeScheduled", _NODE): Evidence(Reason.MAINTENANCE, 75),
    ("OOMKilling", _NODE): Evidence(Reason.CRASH, 70),
    ("SystemOOM", _NODE): Evidence(Reason.CRASH, 70),
    ("Evicted", _POD): Evidence(Reason.CRASH, 65),  # the node ran out of memory or disk
    # The node is being shut down, and the kubelet does not know why. The pods get a signal.
    ("Shutdown", _NODE): Evidence(Reason.SIGNAL, 35),
    ("NodeShutdown", _NODE): Evidence(Reason.SIGNAL, 35),
    ("NodeShutdown", _POD): Evidence(Reason.SIGNAL, 35),
    ("TerminationByKubelet", _POD): Evidence(Reason.SIGNAL, 35),
    ("Rebooted", _NODE): Evidence(Reason.CRASH, 25),
    ("NodeNotReady", _NODE): Evidence(Reason.CRASH, 20),
    ("NodeNotReady", _POD): Evidence(Reason.CRASH, 20),
    ("TaintManagerEviction", _POD): Evidence(Reason.CRASH, 20),  # of a node that is not ready, or not reached
    # They come with any end of a pod or a node: Killing, BackOff, Failed, FailedScheduling, DeletingNode, RemovingNode.
}
_CANCELLED: Final = ("cancelling deletion", "shutdown cancellation")  # with the same reason, but it did not happen
_TIMES: Final = ("eventTime", "firstTimestamp", "lastTimestamp", "deprecatedFirstTimestamp", "deprecatedLastTimestamp")


def _is_event(item: Mapping[str, Any]) -> bool:
    """Whether this is an event of Kubernetes."""
    about = "involvedObject" in item or "regarding" in item
    return about and "reason" in item and item.get("kind", "Event") == "Event"


def _event(item: Mapping[str, Any]) -> Entry | None:
    """Return the entry of an event; None if it has no reason or no time."""
    about = mapping(item.get("involvedObject")) or mapping(item.get("regarding"))
    reason, kind, name = text(item.get("reason")), text(about.get("kind")), text(about.get("name"))
    stamps = [item.get(key) for key in _TIMES] + [mapping(item.get("series")).get("lastObservedTime")]
    times = sorted({at for at in map(moment, stamps) if at is not None})
    if not reason or not times:
        return None
    message = (text(item.get("message")) or text(item.get("note"))).lower()
    evidence = EVENTS.get((reason, kind), NOTHING)
    if any(word in message for word in _CANCELLED):
        evidence = NOTHING
    space = text(about.get("namespace"))
    whole = "/".join(filter(None, (kind, space, name)))
    return Entry(
        tuple(times), evidence, f"kubernetes event: {reason} {whole}", _event_names(kind, name, space, about, item)
    )


def _event_names(kind: str, name: str, space: str, about: Mapping[str, Any], item: Mapping[str, Any]) -> dict[str, str]:
    if kind == _NODE:
        return {key: name for key in (K8S_NODE_NAME, HOST_NAME) if name}
    if kind == _POD:
        names = {K8S_POD_NAME: name, K8S_NAMESPACE_NAME: space, K8S_POD_UID: text(about.get("uid"))}
        return {key: value for key, value in names.items() if value}
    return {}


# By the end of the method's name; versions and services stand in front of it.
SYSTEM_EVENTS: Final[Mapping[str, Evidence]] = {
    "compute.instances.preempted": Evidence(Reason.PREEMPTION, 95),
    "compute.instances.terminateOnHostMaintenance": Evidence(Reason.MAINTENANCE, 90),
    "compute.instances.hostError": Evidence(Reason.CRASH, 90),
    # The machine moves and goes on, if it can: a job that dies at that moment is likely to have died of it.
    "compute.instances.migrateOnHostMaintenance": Evidence(Reason.MAINTENANCE, 60, prompt=True),
    # Something in the machine shut it down: the job got a signal, and nothing says why.
    "compute.instances.guestTerminate": Evidence(Reason.SIGNAL, 30, prompt=True),
    # These follow from the others, or announce what may come much later.
    "compute.instances.automaticRestart": NOTHING,
    "compute.instances.upcomingMaintenance": NOTHING,
    "compute.instances.repair.recreateInstance": NOTHING,
}
# What somebody ordered. It is not a failure, so it counts as a restart; what Google Kubernetes Engine does to its nodes
# is an upgrade, or the removal of an unused node.
_ORDERED: Final = re.compile(
    r"(?:(?:v1|beta|alpha)\.)?compute\.instances\.(?:stop|delete|reset|suspend)"
    r"|(?:(?:v1|beta|alpha)\.)?compute\.instanceGroupManagers\.(?:delete|deleteInstances|recreateInstances)"
    r"|(?:google\.cloud\.tpu\.v\w+\.Tpu|tpu)\.(?:DeleteNode|StopNode|ResetQueuedResource|DeleteQueuedResource)"
    r"|tpu\.nodes\.(?:delete|stop)"
)
_BY_PERSON: Final = Evidence(Reason.RESTART, 50, prompt=True)
_BY_SERVICE: Final = Evidence(Reason.MAINTENANCE, 40, prompt=True)
_SERVICE: Final = re.compile(r".+@container-engine-robot\.iam\.gserviceaccount\.com")
_MAINTENANCE: Final = re.compile(r"google\.cloud\.tpu\.v\w+\.Tpu\.PerformMaintenance(?:QueuedResource)?")
_TPU_LOST: Final = "tpu.nodes.terminate"
_CAUSES: Final = (("preempt", Evidence(Reason.PREEMPTION, 85)), ("maintenance", Evidence(Reason.MAINTENANCE, 85)))
_RESOURCE: Final = re.compile(
    r"(?:projects/(?P<project>[^/]+)/)?(?:zones|locations)/(?P<zone>[^/]+)/(?P<kind>instances|nodes)/(?P<name>[^/]+)"
)


def _is_logged(item: Mapping[str, Any]) -> bool:
    """Whether this is an entry of a log of Google Cloud: an audit log's, or of another one that was read with it."""
    return "protoPayload" in item or ("logName" in item and "timestamp" in item)


def _logged(item: Mapping[str, Any]) -> Entry | None:
    """Return the entry of a log; None if it is not one of an audit log, or has no time."""
    payload = mapping(item.get("protoPayload"))
    method, at = text(payload.get("methodName")), moment(item.get("timestamp"))
    if not method or at is None:
        return None
    principal = text(mapping(payload.get("authenticationInfo")).get("principalEmail"))
    who = principal or text(item.get("insertId")) or "nobody named"
    evidence = NOTHING if mapping(payload.get("status")).get("code") else _evidence(method, principal, payload)
    return Entry((at,), evidence, f"cloud audit log: {method}, {who}", _machine_names(item, payload))


def _evidence(method: str, principal: str, payload: Mapping[str, Any]) -> Evidence:
    if method in SYSTEM_EVENTS:
        return SYSTEM_EVENTS[method]
    if _ORDERED.fullmatch(method):
        return _BY_SERVICE if _SERVICE.fullmatch(principal) else _BY_PERSON
    if _MAINTENANCE.fullmatch(method):
        return _BY_SERVICE
    if method == _TPU_LOST:
        cause = text(mapping(payload.get("metadata")).get("terminateReason")).lower()
        return next((evidence for word, evidence in _CAUSES if word in cause), NOTHING)
    return NOTHING


def _machine_names(item: Mapping[str, Any], payload: Mapping[str, Any]) -> dict[str, str]:
    labels = mapping(mapping(item.get("resource")).get("labels"))
    match = _RESOURCE.search(text(payload.get("resourceName")))
    named = match.groupdict() if match is not None else {}
    of_instance = named.get("kind") == "instances"
    names = {
        CLOUD_ACCOUNT_ID: text(labels.get("project_id")) or named.get("project"),
        CLOUD_AVAILABILITY_ZONE: named.get("zone") or text(labels.get("zone")),
        HOST_ID: text(labels.get("instance_id")) if of_instance or not named else "",
        HOST_NAME: named.get("name") if of_instance else "",
        K8S_NODE_NAME: named.get("name") if of_instance else "",  # a node of GKE has the name of its machine
        SLICE_NAME: named.get("name") if named.get("kind") == "nodes" else "",
    }
    return {key: value for key, value in names.items() if value}


class Entries(NamedTuple):
    """The entries of a file.

    Attributes:
        kind: the kind of log, as shown to people.
        entries: those with a reason, and those without.
        left_out: number of items that are not such an entry, or have no valid time.
    """

    kind: str
    entries: list[Entry]
    left_out: int


def read(data: bytes, name: str) -> Entries:
    """Parse a file; the kind of log follows from its content. `name` is for messages.

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
            entries = [one for one in parsed if one is not None]
            return Entries(kind, entries, len(items) - len(entries))
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


Names = Mapping[str, Any]  # attributes of the resource of one process

# Names that are never given again, not even to a replacement: they decide alone.
_UNIQUE: Final = (K8S_POD_UID, HOST_ID)
_NAMED: Final = (K8S_POD_NAME, K8S_NODE_NAME, SLICE_NAME, HOST_NAME)
_AROUND: Final = (CLOUD_ACCOUNT_ID, CLOUD_AVAILABILITY_ZONE, K8S_NAMESPACE_NAME)  # within which the others are unique


class Likeness(IntEnum):
    """Whether an entry is about what an attempt ran on."""

    OTHER = 0
    UNKNOWN = 1
    SAME = 2


class Outage(NamedTuple):
    """The time between two attempts.

    Attributes:
        attempt: number of the one that began after it, from 1.
        died, began: the last sign of life and the next job start, ns since the epoch.
        names: of each process of the attempt that died and left names.
        complete: whether all its processes left names.
    """

    attempt: int
    died: int
    began: int
    names: tuple[Names, ...]
    complete: bool


class Match(NamedTuple):
    """An entry that explains a disruption; `by_name`: it names what the attempt ran on."""

    outage: Outage
    entry: Entry
    at: int
    by_name: bool


def outages(run: RecordedRun, losses: Iterable[Disruption]) -> list[Outage]:
    """Return the outages of a run; `losses` are the disruptions that attempts began with, in their order."""
    between = []
    earlier = 1  # the latest attempt that is known to have run before
    for loss in losses:
        if loss.attempt is None or loss.died < 0 or loss.time <= 0:
            continue
        names, complete = _names(run, range(earlier, loss.attempt))
        between.append(Outage(loss.attempt, min(loss.died, loss.time), loss.time, names, complete))
        earlier = loss.attempt
    return between


def _names(run: RecordedRun, attempts: Sequence[int]) -> tuple[tuple[Names, ...], bool]:
    """Return what the processes of these attempts (from 1) ran on, and whether all of them left that."""
    names: list[Names] = []
    processes: set[int] = set()
    folder = run.folder
    there = folder.there if isinstance(folder, ListedRun) else set(folder.processes())
    count = 1
    for attempt in attempts:
        for process in sorted(there | {0}):
            facts = run.facts(attempt - 1, process)
            if facts is None:
                continue
            resource = facts.resource
            size = resource.get(PROCESS_COUNT)
            if isinstance(size, int):
                count = max(count, min(size, MOST))
            names.append(resource)
            processes.add(process)
    return tuple(names), len(processes) >= count


def likeness(entry: Names, process: Names) -> Likeness:
    """Compare the names in an entry with those of one process."""
    if any(key in entry and key in process and entry[key] != str(process[key]) for key in _AROUND):
        return Likeness.OTHER
    for key in _UNIQUE:
        if key in entry and key in process:
            return Likeness.SAME if entry[key] == str(process[key]) else Likeness.OTHER
    for key in _NAMED:
        if key not in entry or key not in process:
            continue
        if _short(key, entry[key]) == _short(key, str(process[key])):
            return Likeness.SAME
        # A process in a container calls its container its host: only where the machine is known that is its name.
        if key != HOST_NAME or HOST_ID in process:
            return Likeness.OTHER
    return Likeness.UNKNOWN


def _short(key: str, name: str) -> str:
    return name.partition(".")[0] if key == HOST_NAME else name


def matches(entries: Iterable[Entry], among: Sequence[Outage], margin: int) -> list[Match]:
    """Return which disruptions the entries explain, each entry for every time it has; `margin` is in ns."""
    explained: list[Match] = []
    for entry in entries:
        by_attempt: dict[int, Match] = {}
        for at in entry.times:
            inside = [one for one in among if one.died <= at <= one.began]
            near = inside[-1:] or [one for one in among if one.died - margin <= at < one.died]
            for outage in near[:1]:
                if entry.evidence.prompt and at > outage.died + margin:
                    continue
                alike = {likeness(entry.names, process) for process in outage.names}
                if alike != {Likeness.OTHER} or not outage.complete:
                    by_attempt[outage.attempt] = Match(outage, entry, at, Likeness.SAME in alike)
        explained += by_attempt.values()
    return explained


def best(matches: Iterable[Match]) -> dict[int, Match]:
    """Return the best entry for each attempt: by name before by time, then the strongest, then the first."""
    chosen: dict[int, Match] = {}
    for one in matches:
        if one.entry.evidence.reason is None:
            continue
        held = chosen.get(one.outage.attempt)
        if held is None or _weight(one) > _weight(held):
            chosen[one.outage.attempt] = one
    return chosen


def _weight(one: Match) -> tuple[bool, int, int]:
    return one.by_name, one.entry.evidence.strength, -one.at

"""Reads logs (Kubernetes' events, Google Cloud's audit log), and finds the disruptions that their entries explain.

An entry matches by time (a job lives on after a notice for as long as it is given, and clocks differ) and by the names
of what an attempt ran on; the rules are in docs/reasons.md. If some process left no names, an entry may be about that
one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from otel_goodput import semconv
from otel_goodput._accounting.disruption import Disruption
from otel_goodput._journal.rundir import MOST, ListedRun
from otel_goodput._text.durations import parse_moment
from otel_goodput.errors import GoodputError
from otel_goodput.reports.run import RecordedRun
from otel_goodput.semconv import Reason

LONGEST: Final = 256 * 2**20  # bytes of a file
_KEY: Final = 200  # characters of one text of an entry


class Evidence(NamedTuple):
    """The reason that a kind of entry gives, and how surely."""

    reason: str | None  # None: the entry follows from any disruption and does not say why
    strength: int = 0  # of several entries the highest counts
    prompt: bool = False  # counts only when the job ends: a machine may be stopped because it lies idle after a crash


NOTHING: Final = Evidence(None)


class Entry(NamedTuple):
    """One entry of a log."""

    times: tuple[int, ...]  # ns since the epoch; the first and last of an event that was seen again and again
    evidence: Evidence
    by: str  # the source of the reason, as a report shows it
    names: Mapping[str, str]  # of the affected machine, node or pod, by resource attribute


def mapping(value: Any) -> Mapping[str, Any]:
    """Return `value` if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def text(value: Any) -> str:
    """Return `value` if it is a string, cut to a readable length, else an empty one."""
    return value[:_KEY] if isinstance(value, str) else ""


def moment(value: Any) -> int | None:
    """Return an RFC 3339 time in ns since the epoch; None if `value` is not one."""
    try:
        return parse_moment(value) if isinstance(value, str) and "T" in value.upper() else None
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
_ABOUT: Final = ("kind", "name", "namespace")
_TIMES: Final = ("eventTime", "firstTimestamp", "lastTimestamp", "deprecatedFirstTimestamp", "deprecatedLastTimestamp")


def _is_event(item: Mapping[str, Any]) -> bool:
    about = "involvedObject" in item or "regarding" in item
    return about and "reason" in item and item.get("kind", "Event") == "Event"


def _event(item: Mapping[str, Any]) -> Entry | None:
    """Return the entry of an event of Kubernetes; None if it has no reason or no time."""
    about = mapping(item.get("involvedObject")) or mapping(item.get("regarding"))
    reason, kind, name, space = (text(each) for each in (item.get("reason"), *map(about.get, _ABOUT)))
    stamps = [item.get(key) for key in _TIMES] + [mapping(item.get("series")).get("lastObservedTime")]
    times = sorted({at for at in map(moment, stamps) if at is not None})
    if not reason or not times:
        return None
    message = (text(item.get("message")) or text(item.get("note"))).lower()
    cancelled = any(word in message for word in _CANCELLED)
    evidence = NOTHING if cancelled else EVENTS.get((reason, kind), NOTHING)
    names = {}
    if kind == _NODE:
        names = {semconv.K8S_NODE_NAME: name, semconv.HOST_NAME: name}
    elif kind == _POD:
        names = {
            semconv.K8S_POD_NAME: name,
            semconv.K8S_NAMESPACE_NAME: space,
            semconv.K8S_POD_UID: text(about.get("uid")),
        }
    whole = "/".join(filter(None, (kind, space, name)))
    return Entry(tuple(times), evidence, f"kubernetes event: {reason} {whole}", _known(names))


def _known(names: Mapping[str, str | None]) -> dict[str, str]:
    return {key: value for key, value in names.items() if value}


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
    machine = named.get("name") if of_instance else ""
    return _known(
        {
            semconv.CLOUD_ACCOUNT_ID: text(labels.get("project_id")) or named.get("project"),
            semconv.CLOUD_AVAILABILITY_ZONE: named.get("zone") or text(labels.get("zone")),
            semconv.HOST_ID: text(labels.get("instance_id")) if of_instance or not named else "",
            semconv.HOST_NAME: machine,
            semconv.K8S_NODE_NAME: machine,  # a node of GKE has the name of its machine
            semconv.SLICE_NAME: named.get("name") if named.get("kind") == "nodes" else "",
        }
    )


class Entries(NamedTuple):
    """The entries of a file, with and without a reason; the kind of log; how many items are none, or have no time."""

    kind: str
    entries: list[Entry]
    left_out: int


def read(data: bytes, name: str) -> Entries:
    """Parse a file; the kind of log follows from its content. Raises GoodputError if it is neither of the two."""
    items = list(_items(data, name))
    for kind, looks_like, parse in (
        ("Google Cloud audit log", _is_logged, _logged),
        ("Kubernetes events", _is_event, _event),
    ):
        if any(map(looks_like, items)):
            parsed = (parse(item) for item in items if looks_like(item))
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
_UNIQUE: Final = (semconv.K8S_POD_UID, semconv.HOST_ID)
_NAMED: Final = (semconv.K8S_POD_NAME, semconv.K8S_NODE_NAME, semconv.SLICE_NAME, semconv.HOST_NAME)
# Within these the others are unique.
_AROUND: Final = (semconv.CLOUD_ACCOUNT_ID, semconv.CLOUD_AVAILABILITY_ZONE, semconv.K8S_NAMESPACE_NAME)


class Outage(NamedTuple):
    """The time between two attempts."""

    attempt: int  # number of the one that began after it, from 1
    died: int  # the last sign of life, ns since the epoch
    began: int  # the next job start
    names: tuple[Names, ...]  # of each process of the attempt that died and left names
    complete: bool  # whether all its processes left names


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
        if loss.attempt is not None and loss.died >= 0 and loss.time > 0:
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
            if facts := run.facts(attempt - 1, process):
                size = facts.resource.get(semconv.PROCESS_COUNT)
                if isinstance(size, int):
                    count = max(count, min(size, MOST))
                names.append(facts.resource)
                processes.add(process)
    return tuple(names), len(processes) >= count


def _alike(entry: Names, process: Names) -> bool | None:
    """Return whether an entry names what a process ran on; None if the names do not show it."""
    if any(key in entry and key in process and entry[key] != str(process[key]) for key in _AROUND):
        return False
    for key in _UNIQUE:
        if key in entry and key in process:
            return bool(entry[key] == str(process[key]))
    for key in _NAMED:
        if key not in entry or key not in process:
            continue
        if _short(key, entry[key]) == _short(key, str(process[key])):
            return True
        # A process in a container calls its container its host: only where the machine is known that is its name.
        if key != semconv.HOST_NAME or semconv.HOST_ID in process:
            return False
    return None


def _short(key: str, name: str) -> str:
    return name.partition(".")[0] if key == semconv.HOST_NAME else name


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
                alike = {_alike(entry.names, process) for process in outage.names}
                if alike != {False} or not outage.complete:
                    by_attempt[outage.attempt] = Match(outage, entry, at, True in alike)
        explained += by_attempt.values()
    return explained


def best(matches: Iterable[Match]) -> dict[int, Match]:
    """Return the best entry for each attempt: by name before by time, then the strongest, then the first."""
    chosen: dict[int, Match] = {}
    for one in sorted(matches, key=lambda one: (one.by_name, one.entry.evidence.strength, -one.at), reverse=True):
        chosen.setdefault(one.outage.attempt, one)
    return chosen

"""Events of Kubernetes, as ``kubectl get events -A -o json`` prints them: of ``v1`` and of ``events.k8s.io/v1``.

Their reasons are no API. Those below are in the source of Kubernetes: the kubelet (``pkg/kubelet/events/event.go``),
the scheduler's preemption (``pkg/scheduler/framework/preemption``), the node lifecycle and taint eviction controllers
(``pkg/controller/nodelifecycle``, ``pkg/controller/tainteviction``) and the cloud node lifecycle controller; in that of
node-problem-detector (``OOMKilling``, and ``…Scheduled`` on Azure), Karpenter and the AWS node termination handler.

An event lives for an hour in most clusters, so it has to be read soon.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from otel_goodput.semconv import HOST_NAME, K8S_NAMESPACE_NAME, K8S_NODE_NAME, K8S_POD_NAME, K8S_POD_UID, Reason
from otel_goodput.tools.reason.entries import NOTHING, Entry, Tells, mapping, moment, text

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


def looks_like(item: Mapping[str, Any]) -> bool:
    """Whether this is an event of Kubernetes."""
    about = "involvedObject" in item or "regarding" in item
    return about and "reason" in item and item.get("kind", "Event") == "Event"


def parse(item: Mapping[str, Any]) -> Entry | None:
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
    return Entry(tuple(times), tells, f"kubernetes event: {reason} {whole}", _names(kind, name, space, about, item))


def _names(kind: str, name: str, space: str, about: Mapping[str, Any], item: Mapping[str, Any]) -> dict[str, str]:
    if kind == _NODE:
        return {key: name for key in (K8S_NODE_NAME, HOST_NAME) if name}
    if kind == _POD:
        found = {K8S_POD_NAME: name, K8S_NAMESPACE_NAME: space, K8S_POD_UID: text(about.get("uid"))}
        return {key: value for key, value in found.items() if value}
    return {}

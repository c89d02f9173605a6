"""Ask Kubernetes what this attempt waited for before its program ran: a node, an image, its container, the program.

The pod's status shows when the pod was created and scheduled and its container started; events of the pod show when an
image was pulled. A service account may usually read neither: then nothing is found and nothing is logged.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from otel_goodput._resources.submission import POD, TIMEOUT_S, Cluster, fetch, path_of
from otel_goodput._text.durations import parse_moment
from otel_goodput.semconv import SchedulingStage

# When to ask, in seconds since the first question: the node reports the start of a container some seconds late.
QUESTIONS_S: Final = (0.0, 2.0, 10.0)
_EVENTS: Final = "/api/v1/namespaces/{namespace}/events?fieldSelector={selector}&limit=200"
_DEFAULT: Final = "kubectl.kubernetes.io/default-container"  # annotation of a pod with several containers

Waits = dict[str, int]  # ns by stage, of those that are known


class Starts(NamedTuple):
    """The status of a pod; moments in ns since the epoch, None if unknown.

    Attributes:
        uid: of the pod; empty if unknown.
        container: name of this program's container; empty if unknown.
        made, scheduled: when the pod was created, and when it was given a node.
        started: when the container was started.
        ended: when the container ended that this one replaces, in the same pod; None for the first one of a pod.
        restarts: how often the container was started again.
    """

    uid: str
    container: str
    made: int | None
    scheduled: int | None
    started: int | None
    ended: int | None
    restarts: int


def look_up(
    cluster: Cluster,
    began: int,
    wait: Callable[[float], object] = time.sleep,
    timeout_s: float = TIMEOUT_S,
    before: int | None = None,
) -> Waits:
    """Return how long this attempt waited in each stage, as far as the cluster knows.

    It asks up to three times within some 10 s, until the container is known to have started; after a refusal it does
    not ask again. It is for a thread of its own.

    Args:
        cluster: whom to ask.
        began: when the program called ``configure()``, ns since the epoch.
        wait: sleeps for a number of seconds.
        timeout_s: for all answers each time, s.
        before: when the attempt before called ``configure()``, ns since the epoch; None if there was none. If this
            container ran by then, its program was started again within it, and has waited for nothing.
    """
    waits: Waits = {}
    waited_s = 0.0
    for moment in QUESTIONS_S:
        wait(moment - waited_s)
        waited_s = moment
        until = time.monotonic() + timeout_s
        try:
            pod = fetch(cluster, path_of(POD, cluster, cluster.pod), until)
        except OSError:  # it may be busy with all that were started at once
            continue
        if not pod:
            break
        starts = read_pod(pod, os.environ.get("CONTAINER_NAME", "").strip())
        known = starts.started is not None
        if starts.started is not None and before is not None and starts.started <= before:
            return {}
        pulled = _pull(cluster, starts, until) if known and not starts.restarts else None
        waits = waited(starts, pulled, began)
        if known:
            break
    return waits


def read_pod(pod: Mapping[str, Any], container: str = "") -> Starts:
    """Read the status of a pod; `container` is the name of this program's container, empty if it is not known."""
    metadata, status = _mapping(pod.get("metadata")), _mapping(pod.get("status"))
    statuses = {str(one.get("name")): one for one in _mappings(status.get("containerStatuses"))}
    if not container:
        container = str(_mapping(metadata.get("annotations")).get(_DEFAULT, ""))
        if container not in statuses:
            container = next(iter(statuses)) if len(statuses) == 1 else ""
    mine = statuses.get(container, {})
    scheduled = (
        _moment(one.get("lastTransitionTime"))
        for one in _mappings(status.get("conditions"))
        if one.get("type") == "PodScheduled" and one.get("status") == "True"
    )
    restarts = mine.get("restartCount")
    uid = metadata.get("uid")
    return Starts(
        uid if isinstance(uid, str) else "",
        container if mine else "",
        _moment(metadata.get("creationTimestamp")),
        next(scheduled, None),
        _moment(_mapping(_mapping(mine.get("state")).get("running")).get("startedAt")),
        _moment(_mapping(_mapping(mine.get("lastState")).get("terminated")).get("finishedAt")),
        restarts if isinstance(restarts, int) and restarts > 0 else 0,
    )


def read_pull(events: Mapping[str, Any], container: str) -> tuple[int, int] | None:
    """Return from when to when the image of `container` was first pulled, ns; None if unknown."""
    of_container = [
        (str(one.get("reason")), moment)
        for one in _mappings(events.get("items"))
        if _mapping(one.get("involvedObject")).get("fieldPath") == f"spec.containers{{{container}}}"
        and (moment := _moment(one.get("eventTime")) or _moment(one.get("firstTimestamp"))) is not None
    ]
    pulling = min((moment for reason, moment in of_container if reason == "Pulling"), default=None)
    if pulling is None:  # the node had the image already
        return None
    pulled = min((moment for reason, moment in of_container if reason == "Pulled" and moment >= pulling), default=None)
    return None if pulled is None else (pulling, pulled)


def waited(starts: Starts, pulled: tuple[int, int] | None, began: int) -> Waits:
    """Return the time in each stage, ns. No moment is in two stages; Kubernetes' times are in whole seconds.

    A container that was started again in its pod has not waited for a node again, but since the end of the one before.

    Args:
        starts: the status of the pod.
        pulled: from when to when the image was pulled; None if not known.
        began: when the program called ``configure()``, ns since the epoch.
    """
    spans = dict(_spans(starts, pulled, began))
    pull = spans.get(SchedulingStage.IMAGE_PULL)
    waits = {stage: end - begin for stage, (begin, end) in spans.items() if end >= begin}
    if pull is not None and SchedulingStage.CONTAINER_START in waits:
        waits[SchedulingStage.CONTAINER_START] -= waits[SchedulingStage.IMAGE_PULL]
    return waits


def _spans(starts: Starts, pulled: tuple[int, int] | None, began: int) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the stages with begin and end, ns, in their order; the pull is within the start of the container."""
    first = not starts.restarts
    if first and starts.made is not None and starts.scheduled is not None:
        yield SchedulingStage.QUEUED, (starts.made, starts.scheduled)
    waiting = starts.scheduled if first else starts.ended
    if starts.started is None:
        return
    if waiting is not None:
        if first and pulled is not None:
            begin, end = max(pulled[0], waiting), min(pulled[1], starts.started)
            if begin <= end:
                yield SchedulingStage.IMAGE_PULL, (begin, end)
        yield SchedulingStage.CONTAINER_START, (waiting, starts.started)
    yield SchedulingStage.PROGRAM_START, (starts.started, began)


def _pull(cluster: Cluster, starts: Starts, until: float) -> tuple[int, int] | None:
    """Ask when the image was pulled; None if unknown."""
    if not starts.uid or not starts.container:
        return None
    selector = quote(f"involvedObject.kind=Pod,involvedObject.uid={starts.uid}", safe="")
    place = _EVENTS.format(namespace=quote(cluster.namespace, safe=""), selector=selector)
    try:
        return read_pull(fetch(cluster, place, until), starts.container)
    except OSError:
        return None


def _moment(value: object) -> int | None:
    if not isinstance(value, str):
        return None
    try:
        return parse_moment(value)
    except (ValueError, OverflowError):
        return None


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _mappings(value: object) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, list):
        yield from (one for one in value if isinstance(one, dict))

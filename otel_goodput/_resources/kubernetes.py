"""What Kubernetes says: of this pod, when its job was submitted, and what this attempt waited for before it ran.

The pod's attributes come from its environment and its mounted service account, without any request. Kubernetes sets
almost no variables; manifests pass on the rest through the downward API, usually in variables with the names here.

For the submission, from which scheduling goodput counts, these are asked until one answers: the JobSet named by
``JOBSET_NAME`` or a label of the pod, the Job named by another label, the pod itself. A pod and a Job may be created
anew for each attempt, a JobSet outlives them; so this time is credible only if it is before the first start of the run.
What the attempt waited for (a node, an image, its container, the program) is in the pod's status and events. Outside
of a pod nothing is asked. Where the service account may read none of it, which is usual, nothing is logged.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from otel_goodput import semconv
from otel_goodput._disruption.metadata import connect, exchange, metadata_host
from otel_goodput._resources.accelerators import Fact, Value, index, mapping, read, text
from otel_goodput._runtime import files
from otel_goodput._runtime.guard import containing, started
from otel_goodput._text.durations import parse_moment
from otel_goodput._text.redact import redacting_logger
from otel_goodput.semconv import SchedulingStage

CLUSTER: Final = "KUBERNETES_SERVICE_HOST"  # set in every container of every pod
HOSTNAME: Final = "HOSTNAME"
ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")

FACTS: Final = (
    Fact(semconv.K8S_NAMESPACE_NAME, ("POD_NAMESPACE", "K8S_NAMESPACE_NAME", "NAMESPACE")),
    Fact(semconv.K8S_NODE_NAME, ("NODE_NAME", "K8S_NODE_NAME")),
    Fact(semconv.K8S_POD_NAME, ("POD_NAME", "K8S_POD_NAME")),
    Fact(semconv.K8S_POD_UID, ("POD_UID", "K8S_POD_UID")),
    Fact(semconv.K8S_CONTAINER_NAME, ("CONTAINER_NAME", "K8S_CONTAINER_NAME")),
    Fact(semconv.K8S_JOB_NAME, ("K8S_JOB_NAME",)),  # not JOB_NAME, which may be anybody's
    Fact(semconv.K8S_JOB_COMPLETION_INDEX, ("JOB_COMPLETION_INDEX",), index),
    Fact(semconv.K8S_JOBSET_NAME, ("JOBSET_NAME",)),
    Fact(semconv.K8S_JOBSET_REPLICATED_JOB_NAME, ("REPLICATED_JOB_NAME",)),
    Fact(semconv.K8S_JOBSET_JOB_INDEX, ("JOB_INDEX",), index),
    Fact(semconv.K8S_JOBSET_JOB_GLOBAL_INDEX, ("JOB_GLOBAL_INDEX",), index),
    Fact(semconv.K8S_JOBSET_RESTART_ATTEMPT, ("JOBSET_RESTART_ATTEMPT", "RESTART_ATTEMPT"), index),
)
# The parts of the names that a JobSet gives to its jobs.
_NAME_PARTS: Final = (semconv.K8S_JOBSET_NAME, semconv.K8S_JOBSET_REPLICATED_JOB_NAME, semconv.K8S_JOBSET_JOB_INDEX)


def in_cluster(environ: Mapping[str, str]) -> bool:
    return bool(environ.get(CLUSTER, "").strip())


def attributes(environ: Mapping[str, str], account: Path = ACCOUNT) -> dict[str, Value]:
    """Return the attributes of this pod, whose service account is mounted at `account`.

    Empty outside of one, where the variables mean other things.
    """
    if not in_cluster(environ):
        return {}
    known = read(FACTS, environ)
    if semconv.K8S_NAMESPACE_NAME not in known:
        with suppress(OSError, ValueError):
            if namespace := text(files.read_named(account / "namespace").decode()):
                known[semconv.K8S_NAMESPACE_NAME] = namespace
    pod = text(environ.get(HOSTNAME))
    # A pod's host name is its name, except in an indexed Job, where its name is longer, and on the network of its node.
    if pod is not None and semconv.K8S_JOB_COMPLETION_INDEX not in known and pod != known.get(semconv.K8S_NODE_NAME):
        known.setdefault(semconv.K8S_POD_NAME, pod)
    if all(key in known for key in _NAME_PARTS):
        known.setdefault(semconv.K8S_JOB_NAME, "-".join(str(known[key]) for key in _NAME_PARTS))
    return known


def goes_with(environ: Mapping[str, str]) -> str:
    """What the local disk probably goes with: this pod, this VM of Google's; empty if with nothing. No network is used.

    A volume that is mounted stays, but nobody mounts one where a program happens to be started.
    """
    if environ.get(CLUSTER):
        return "this pod"
    return "" if metadata_host(environ) is None else "this VM"


logger = redacting_logger(__name__)

TIMEOUT_S: Final = 1.0  # s, for all requests together
_LONGEST: Final = 1 << 22  # bytes of an answer at most; an object has at most 1.5 MB
_METADATA: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
POD: Final = "/api/v1/namespaces/{namespace}/pods/{name}"
_JOBSET: Final = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/{namespace}/jobsets/{name}"
_JOB: Final = "/apis/batch/v1/namespaces/{namespace}/jobs/{name}"
# Owners of a pod: kind, label of the pod with the owner's name, path. The first that can be read counts.
_OWNERS: Final = (
    ("JobSet", "jobset.sigs.k8s.io/jobset-name", _JOBSET),
    ("Job", "batch.kubernetes.io/job-name", _JOB),
    ("Job", "job-name", _JOB),
)


class Submission(NamedTuple):
    """When a job was submitted (ns since the epoch), and which kind of object says so: JobSet, Job or Pod."""

    moment: int
    source: str


@dataclass(frozen=True)
class Cluster:
    """Where to ask, and for what; an unknown name is empty."""

    host: str
    port: int
    namespace: str
    pod: str
    jobset: str
    token: str = field(repr=False)
    authority: Path | None  # file with the certificates to trust; None for plain HTTP


def this_cluster(environ: Mapping[str, str] | None = None, account: Path | None = None) -> Cluster | None:
    """Return the cluster that this process runs in; None outside of one, or if no service account is mounted.

    `account` is the directory with the service account's ``token``, ``ca.crt`` and ``namespace``.
    """
    environ, account = os.environ if environ is None else environ, account or ACCOUNT
    host = environ.get(CLUSTER, "").strip()
    port = (environ.get("KUBERNETES_SERVICE_PORT_HTTPS") or environ.get("KUBERNETES_SERVICE_PORT") or "443").strip()
    if not host or not port.isdecimal():
        return None
    try:
        token = files.read_named(account / "token").decode("ascii").strip()
        namespace = environ.get("POD_NAMESPACE") or files.read_named(account / "namespace").decode().strip()
    except (OSError, ValueError):
        return None
    authority = account / "ca.crt"
    # The token goes into a header: other characters than printable ASCII could add lines to it.
    if not namespace or not token or not token.isprintable() or not authority.is_file():
        return None
    pod = environ.get("POD_NAME") or environ.get(HOSTNAME) or socket.gethostname()
    return Cluster(host, int(port), namespace, pod, environ.get("JOBSET_NAME", "").strip(), token, authority)


def submission_of(cluster: Cluster, timeout_s: float = TIMEOUT_S) -> Submission | None:
    """Return when the job was submitted, waiting `timeout_s` seconds at most; None if the cluster does not say so."""
    for kind, metadata in _submitted(cluster, monotonic() + timeout_s):
        if (created := _moment(metadata.get("creationTimestamp"))) is not None:
            return Submission(created, kind)
    return None


def _submitted(cluster: Cluster, until: float) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield kind and metadata of the objects that may say when the job was submitted, the best first."""
    if cluster.jobset:
        yield "JobSet", _metadata(cluster, _JOBSET, cluster.jobset, until)
    pod = _metadata(cluster, POD, cluster.pod, until)
    labels = mapping(pod.get("labels"))
    for kind, label, path in _OWNERS:
        name = labels.get(label)
        if isinstance(name, str) and name and (kind, name) != ("JobSet", cluster.jobset):
            yield kind, _metadata(cluster, path, name, until)
    yield "Pod", pod


def seek(
    on_submission: Callable[[Submission], None] | None,
    locate: Callable[[], Cluster | None] = this_cluster,
    timeout_s: float = TIMEOUT_S,
    *,
    then: Callable[[Cluster], None] = lambda _: None,
) -> threading.Thread | None:
    """In the background, call `on_submission`, if given, with the submission time, and `then` with the cluster.

    Return the thread, so that the caller can wait for it; None outside of Kubernetes, and if there can be no thread.
    """
    if locate is this_cluster and not os.environ.get(CLUSTER):
        return None

    def work() -> None:
        cluster: Cluster | None = None
        with containing("submission time"):
            cluster = locate()
            if cluster is not None and on_submission is not None and (submission := submission_of(cluster, timeout_s)):
                logger.debug("submitted at %d ns, as the %s says", *submission)
                on_submission(submission)
        if cluster is not None:
            with containing("scheduling"):
                then(cluster)

    thread = threading.Thread(target=work, name="otel-goodput-submission", daemon=True)
    return thread if started(thread, "the job's submission time is not looked up") else None


def _metadata(cluster: Cluster, path: str, name: str, until: float) -> Mapping[str, Any]:
    """Return the metadata of an object; empty if it cannot be read."""
    try:
        return mapping(fetch(cluster, path_of(path, cluster, name), until, _METADATA).get("metadata"))
    except OSError:
        return {}


def path_of(path: str, cluster: Cluster, name: str) -> str:
    return path.format(namespace=quote(cluster.namespace, safe=""), name=quote(name, safe=""))


def fetch(cluster: Cluster, path: str, until: float, accept: str = "application/json") -> Mapping[str, Any]:
    """Return the object at `path`, before the monotonic clock says `until` (s); empty if it may not or cannot be read.

    Raises OSError if there is no answer in time.
    """
    host = f"[{cluster.host}]" if ":" in cluster.host else cluster.host
    message = (
        f"GET {path} HTTP/1.0\r\nHost: {host}:{cluster.port}\r\nAccept: {accept}\r\n"
        f"Authorization: Bearer {cluster.token}\r\nUser-Agent: otel-goodput\r\n\r\n"
    )
    with connect(cluster.host, cluster.port, until) as plain, _secured(plain, cluster) as connection:
        try:
            status, _, body = exchange(connection, message.encode("ascii"), until, _LONGEST)
            answer = json.loads(body) if status == 200 else {}
        except (ValueError, RecursionError):
            return {}
    return mapping(answer)


def _secured(plain: socket.socket, cluster: Cluster) -> socket.socket:
    if cluster.authority is None:
        return plain
    import ssl

    # Not ssl.create_default_context(): from Python 3.13 on it refuses the certificates of many clusters as not strict.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cluster.authority)
    return context.wrap_socket(plain, server_hostname=cluster.host)


# When to ask, in seconds since the first question: the node reports the start of a container some seconds late.
QUESTIONS_S: Final = (0.0, 2.0, 10.0)
_EVENTS: Final = "/api/v1/namespaces/{namespace}/events?fieldSelector={selector}&limit=200"
_DEFAULT: Final = "kubectl.kubernetes.io/default-container"  # annotation of a pod with several containers

Waits = dict[str, int]  # ns by stage, of those that are known


class Starts(NamedTuple):
    """The status of a pod; moments in ns since the epoch, None if unknown; an unknown text is empty."""

    uid: str
    container: str  # of this program
    made: int | None
    scheduled: int | None  # given a node
    started: int | None
    ended: int | None  # when the container ended that this one replaces, in the same pod; None for the first one
    restarts: int  # how often the container was started again


def waits_of(
    cluster: Cluster,
    began: int,
    wait: Callable[[float], object] = time.sleep,
    timeout_s: float = TIMEOUT_S,
    before: int | None = None,
) -> Waits:
    """Return how long this attempt waited in each stage, as far as the cluster knows.

    It asks up to three times within some 10 s, with `timeout_s` for all answers, until the container is known to have
    started; after a refusal it does not ask again. It is for a thread of its own. The program called ``configure()``
    when it `began`, ns since the epoch, and that of the attempt before, if there was one, at `before`: if this
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
        if starts.started is None:
            waits = waited(starts, None, began)
            continue
        if before is not None and starts.started <= before:
            return {}
        return waited(starts, None if starts.restarts else _pull(cluster, starts, until), began)
    return waits


def read_pod(pod: Mapping[str, Any], container: str = "") -> Starts:
    """Read the status of a pod; `container` is the name of this program's container, empty if it is not known."""
    metadata, status = mapping(pod.get("metadata")), mapping(pod.get("status"))
    statuses = {str(one.get("name")): one for one in _mappings(status.get("containerStatuses"))}
    if not container:
        container = str(mapping(metadata.get("annotations")).get(_DEFAULT, ""))
        if container not in statuses:
            container = next(iter(statuses)) if len(statuses) == 1 else ""
    mine = statuses.get(container, {})
    conditions = _mappings(status.get("conditions"))
    scheduled = (one for one in conditions if one.get("type") == "PodScheduled" and one.get("status") == "True")
    restarts, uid = mine.get("restartCount"), metadata.get("uid")
    return Starts(
        uid if isinstance(uid, str) else "",
        container if mine else "",
        _moment(metadata.get("creationTimestamp")),
        _moment(next(scheduled, {}).get("lastTransitionTime")),
        _moment(mapping(mapping(mine.get("state")).get("running")).get("startedAt")),
        _moment(mapping(mapping(mine.get("lastState")).get("terminated")).get("finishedAt")),
        restarts if isinstance(restarts, int) and restarts > 0 else 0,
    )


def read_pull(events: Mapping[str, Any], container: str) -> tuple[int, int] | None:
    """Return from when to when the image of `container` was first pulled, ns; None if unknown."""
    of_container = [
        (str(one.get("reason")), moment)
        for one in _mappings(events.get("items"))
        if mapping(one.get("involvedObject")).get("fieldPath") == f"spec.containers{{{container}}}"
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
    The image was `pulled` from one moment to another, and the program called ``configure()`` when it `began`.
    """
    waits: Waits = {}

    def spend(stage: str, begin: int | None, end: int | None) -> None:
        if begin is not None and end is not None and begin <= end:
            waits[stage] = end - begin

    first, started_at = not starts.restarts, starts.started
    waiting = starts.scheduled if first else starts.ended
    if first:
        spend(SchedulingStage.QUEUED, starts.made, starts.scheduled)
        if pulled is not None and waiting is not None and started_at is not None:
            spend(SchedulingStage.IMAGE_PULL, max(pulled[0], waiting), min(pulled[1], started_at))
    spend(SchedulingStage.CONTAINER_START, waiting, started_at)
    if SchedulingStage.CONTAINER_START in waits:  # the pull is within it
        waits[SchedulingStage.CONTAINER_START] -= waits.get(SchedulingStage.IMAGE_PULL, 0)
    spend(SchedulingStage.PROGRAM_START, started_at, began)
    return waits


def _pull(cluster: Cluster, starts: Starts, until: float) -> tuple[int, int] | None:
    if not starts.uid or not starts.container:
        return None
    selector = quote(f"involvedObject.kind=Pod,involvedObject.uid={starts.uid}", safe="")
    place = _EVENTS.format(namespace=quote(cluster.namespace, safe=""), selector=selector)
    try:
        return read_pull(fetch(cluster, place, until), starts.container)
    except OSError:
        return None


def _moment(value: object) -> int | None:
    with suppress(ValueError, OverflowError):
        return parse_moment(value) if isinstance(value, str) else None
    return None


def _mappings(value: object) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, list):
        yield from (one for one in value if isinstance(one, dict))

"""Ask Kubernetes when the job was submitted, which is where scheduling goodput begins to count.

These are asked until one answers: the JobSet named by ``JOBSET_NAME`` or a label of the pod, the Job named by another
label, the pod itself. A pod and a Job may be created anew for each attempt, a JobSet outlives them; so this time
is credible only if it is before the first start of the run. Outside of a pod nothing is asked. In a pod whose service
account may read none of them, which is usual, nothing is found and nothing is logged.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from otel_goodput._disruption.metadata import connect, exchange
from otel_goodput._runtime import files
from otel_goodput._runtime.guard import contain, report_once
from otel_goodput._text.durations import parse_moment
from otel_goodput._text.redact import redacting_logger

logger = redacting_logger(__name__)

TIMEOUT_S: Final = 1.0  # s, for all requests together
ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
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
    """Where to ask, and for what.

    Attributes:
        host, port: of the API server.
        namespace, pod, jobset: names for this pod; an unknown one is empty.
        token: of the service account.
        authority: file with the certificates to trust; None for plain HTTP.
    """

    host: str
    port: int
    namespace: str
    pod: str
    jobset: str
    token: str = field(repr=False)
    authority: Path | None


def this_cluster(environ: Mapping[str, str] | None = None, account: Path | None = None) -> Cluster | None:
    """Return the cluster that this process runs in; None outside of one, or if no service account is mounted.

    Args:
        environ: by default that of the process.
        account: directory with the service account's ``token``, ``ca.crt`` and ``namespace``; by default where
            Kubernetes mounts it.
    """
    environ = os.environ if environ is None else environ
    account = ACCOUNT if account is None else account
    host = environ.get("KUBERNETES_SERVICE_HOST", "").strip()
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
    pod = environ.get("POD_NAME") or environ.get("HOSTNAME") or socket.gethostname()
    return Cluster(host, int(port), namespace, pod, environ.get("JOBSET_NAME", "").strip(), token, authority)


def look_up(cluster: Cluster, timeout_s: float = TIMEOUT_S) -> Submission | None:
    """Return when the job was submitted, waiting `timeout_s` seconds at most; None if the cluster does not say so."""
    until = monotonic() + timeout_s
    if cluster.jobset:
        submission = _submission("JobSet", _metadata(cluster, _JOBSET, cluster.jobset, until))
        if submission is not None:
            return submission
    pod = _metadata(cluster, POD, cluster.pod, until)
    labels = pod.get("labels")
    if not isinstance(labels, dict):
        labels = {}
    for kind, label, path in _OWNERS:
        name = labels.get(label)
        if isinstance(name, str) and name and (kind, name) != ("JobSet", cluster.jobset):
            submission = _submission(kind, _metadata(cluster, path, name, until))
            if submission is not None:
                return submission
    return _submission("Pod", pod)


def seek(
    on_submission: Callable[[Submission], None] | None,
    locate: Callable[[], Cluster | None] = this_cluster,
    timeout_s: float = TIMEOUT_S,
    *,
    then: Callable[[Cluster], None] | None = None,
) -> threading.Thread | None:
    """Look up the submission time in the background; call `on_submission` with it there, if there is one.

    If `on_submission` is None, it is not looked up. Afterwards `then` is called there with the cluster, if any.

    Return the thread, so that the caller can wait for it; None outside of Kubernetes, and if there can be no thread.
    """
    if locate is this_cluster and not os.environ.get("KUBERNETES_SERVICE_HOST"):
        return None

    def ask(cluster: Cluster) -> None:
        submission = None if on_submission is None else look_up(cluster, timeout_s)
        if on_submission is not None and submission is not None:
            logger.debug("submitted at %d ns, as the %s says", *submission)
            on_submission(submission)

    def work() -> None:
        cluster: Cluster | None = None
        try:
            cluster = locate()
            if cluster is not None:
                ask(cluster)
        except Exception as error:
            contain("submission time", error)
        try:
            if cluster is not None and then is not None:
                then(cluster)
        except Exception as error:
            contain("scheduling", error)

    thread = threading.Thread(target=work, name="otel-goodput-submission", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        report_once("submission time", "the job's submission time is not looked up: %s", error)
        return None
    return thread


def _submission(kind: str, metadata: Mapping[str, Any]) -> Submission | None:
    created = metadata.get("creationTimestamp")
    if not isinstance(created, str):
        return None
    try:
        return Submission(parse_moment(created), kind)
    except (ValueError, OverflowError):
        return None


def _metadata(cluster: Cluster, path: str, name: str, until: float) -> dict[str, Any]:
    """Return the metadata of an object; empty if it cannot be read."""
    try:
        metadata = fetch(cluster, path_of(path, cluster, name), until, _METADATA).get("metadata")
    except OSError:
        return {}
    return metadata if isinstance(metadata, dict) else {}


def path_of(path: str, cluster: Cluster, name: str) -> str:
    """Return `path` for the object `name` of the cluster's namespace."""
    return path.format(namespace=quote(cluster.namespace, safe=""), name=quote(name, safe=""))


def fetch(cluster: Cluster, path: str, until: float, accept: str = "application/json") -> dict[str, Any]:
    """Return the object at `path`, before the monotonic clock says `until` (s); empty if it may not or cannot be read.

    Raises:
        OSError: there is no answer in time.
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
    return answer if isinstance(answer, dict) else {}


def _secured(plain: socket.socket, cluster: Cluster) -> socket.socket:
    if cluster.authority is None:
        return plain
    import ssl

    # Not ssl.create_default_context(): from Python 3.13 on it refuses the certificates of many clusters as not strict.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cluster.authority)
    return context.wrap_socket(plain, server_hostname=cluster.host)

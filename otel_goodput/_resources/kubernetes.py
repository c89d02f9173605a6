"""What is known of this pod from its environment and its mounted service account, without any request.

Kubernetes sets almost no variables in a container. Manifests pass on the rest through the downward API, usually in
variables with the names here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from otel_goodput import semconv
from otel_goodput._disruption.metadata import metadata_host
from otel_goodput._resources.facts import Fact, Value, index, read, text
from otel_goodput._resources.submission import ACCOUNT
from otel_goodput._runtime import files

CLUSTER: Final = "KUBERNETES_SERVICE_HOST"  # set in every container of every pod
HOSTNAME: Final = "HOSTNAME"

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
_JOB: Final = (semconv.K8S_JOBSET_NAME, semconv.K8S_JOBSET_REPLICATED_JOB_NAME, semconv.K8S_JOBSET_JOB_INDEX)


def in_cluster(environ: Mapping[str, str]) -> bool:
    """Return whether this process runs in a pod."""
    return bool(environ.get(CLUSTER, "").strip())


def attributes(environ: Mapping[str, str], account: Path = ACCOUNT) -> dict[str, Value]:
    """Return the attributes of this pod; empty outside of one, where the variables mean other things.

    Args:
        environ: environment of the process.
        account: directory of the mounted service account, with the file ``namespace``.
    """
    if not in_cluster(environ):
        return {}
    known = read(FACTS, environ)
    namespace = None if semconv.K8S_NAMESPACE_NAME in known else _namespace(account)
    if namespace is not None:
        known[semconv.K8S_NAMESPACE_NAME] = namespace
    pod = text(environ.get(HOSTNAME))
    # A pod's host name is its name, except in an indexed Job, where its name is longer, and on the network of its node.
    if pod is not None and semconv.K8S_JOB_COMPLETION_INDEX not in known and pod != known.get(semconv.K8S_NODE_NAME):
        known.setdefault(semconv.K8S_POD_NAME, pod)
    if all(key in known for key in _JOB):
        known.setdefault(semconv.K8S_JOB_NAME, "-".join(str(known[key]) for key in _JOB))
    return known


def _namespace(account: Path) -> str | None:
    try:
        return text(files.read_named(account / "namespace").decode())
    except (OSError, ValueError):
        return None


def goes_with(environ: Mapping[str, str]) -> str:
    """What the local disk probably goes with: this pod, this VM of Google's; empty if with nothing. No network is used.

    A volume that is mounted stays, but nobody mounts one where a program happens to be started.
    """
    if environ.get(CLUSTER):
        return "this pod"
    return "" if metadata_host(environ) is None else "this VM"

"""What a pod knows of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from otel_goodput._resources import kubernetes

CLUSTER = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
DOWNWARD = {
    "POD_NAMESPACE": "ml",
    "POD_NAME": "llama-workers-1-3-x7k2p",
    "POD_UID": "0f1e2d3c",
    "CONTAINER_NAME": "trainer",
    "NODE_NAME": "gke-a3-1",
}
DESCRIBED = {
    "k8s.namespace.name": "ml",
    "k8s.pod.name": "llama-workers-1-3-x7k2p",
    "k8s.pod.uid": "0f1e2d3c",
    "k8s.container.name": "trainer",
    "k8s.node.name": "gke-a3-1",
}
JOBSET = {
    "HOSTNAME": "llama-workers-1-3",
    "JOBSET_NAME": "llama",
    "REPLICATED_JOB_NAME": "workers",
    "JOB_INDEX": "1",
    "JOB_GLOBAL_INDEX": "5",
    "JOB_COMPLETION_INDEX": "3",
    "RESTART_ATTEMPT": "0",
}
JOBSET_DESCRIBED = {
    "k8s.job.name": "llama-workers-1",
    "k8s.job.completion_index": 3,
    "k8s.jobset.name": "llama",
    "k8s.jobset.replicated_job.name": "workers",
    "k8s.jobset.job.index": 1,
    "k8s.jobset.job.global_index": 5,
    "k8s.jobset.restart_attempt": 0,
}


def attributes_of(account: Path, **variables: str) -> dict[str, Any]:
    return kubernetes.attributes({**CLUSTER, **variables}, account)


@pytest.fixture
def account(tmp_path: Path) -> Path:
    (tmp_path / "namespace").write_text("of-the-account\n")
    return tmp_path


def test_outside_of_a_cluster_the_names_mean_other_things(account: Path) -> None:
    assert kubernetes.attributes({**DOWNWARD, **JOBSET}, account) == {}
    assert kubernetes.attributes({**DOWNWARD, "KUBERNETES_SERVICE_HOST": " "}, account) == {}


def test_the_downward_api(account: Path) -> None:
    assert attributes_of(account, **DOWNWARD) == DESCRIBED


def test_other_names_of_the_same(account: Path) -> None:
    other = ("K8S_NAMESPACE_NAME", "K8S_POD_NAME", "K8S_POD_UID", "K8S_CONTAINER_NAME", "K8S_NODE_NAME")
    assert attributes_of(account, **dict(zip(other, DOWNWARD.values(), strict=True))) == DESCRIBED
    assert attributes_of(account, NAMESPACE="ml", POD_NAMESPACE=" ")["k8s.namespace.name"] == "ml"


def test_a_jobset(account: Path) -> None:
    assert attributes_of(account, **DOWNWARD, **JOBSET) == {**DESCRIBED, **JOBSET_DESCRIBED}
    assert attributes_of(account, **DOWNWARD, **JOBSET, K8S_JOB_NAME="other")["k8s.job.name"] == "other"


def test_without_a_manifests_help(account: Path, tmp_path: Path) -> None:
    assert attributes_of(account, HOSTNAME="llama-0") == {
        "k8s.namespace.name": "of-the-account",
        "k8s.pod.name": "llama-0",
    }
    assert attributes_of(tmp_path / "none") == {}


@pytest.mark.parametrize("kind", ["of an indexed job", "of the node"])
def test_a_host_name_that_is_not_the_pods(account: Path, kind: str) -> None:
    """The pod of an indexed Job is called llama-workers-1-3-x7k2p, and with hostNetwork the host is the node."""
    variables = {"of an indexed job": {"JOB_COMPLETION_INDEX": "3"}, "of the node": {"NODE_NAME": "llama-workers-1-3"}}
    assert "k8s.pod.name" not in attributes_of(account, HOSTNAME="llama-workers-1-3", **variables[kind])


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe", b"a\nb", b"n" * 1000])
def test_a_namespace_that_is_none(account: Path, content: bytes) -> None:
    (account / "namespace").write_bytes(content)
    assert attributes_of(account) == {}


@pytest.mark.parametrize("text", ["", " ", "-1", "1.0", "one", "١", "9" * 15, "9" * 5000, "0x1"])
def test_a_number_that_is_none(account: Path, text: str) -> None:
    assert attributes_of(account, JOB_INDEX=text) == {"k8s.namespace.name": "of-the-account"}

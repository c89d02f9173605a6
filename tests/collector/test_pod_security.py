"""Which Pod Security level each pod of the manifests keeps."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from .places import BUILT, KUBERNETES, gateway, jobs, kustomize, of_kind, pod
from .pod_security import BASELINE, CONTROLS, RESTRICTED, containers, violated

# A queue on the node's disk, which root has to hand over to the collector: the price of a queue that outlives
# its pods without a claim. The rest of the restricted level asks the trainer not to be root.
ON_THE_NODE_S_DISK = {
    BASELINE: {"HostPath Volumes"},
    RESTRICTED: {
        *("HostPath Volumes", "Volume Types", "Running as Non-root", "Running as Non-root user", "Capabilities"),
    },
}
KEPT: dict[str, dict[str, set[str]]] = {
    "job": {},
    "overlays/example": {},
    "jobset-restricted": {},
    "gateway": {},
    "jobset": ON_THE_NODE_S_DISK,
    "overlays/fleet": ON_THE_NODE_S_DISK,
}


def of(name: str) -> dict[str, Any]:
    return gateway() if name == "gateway" else pod(name)


def test_every_pod_is_judged() -> None:
    assert {*KEPT} == {*BUILT, "gateway"}


@pytest.mark.parametrize("level", [BASELINE, RESTRICTED])
@pytest.mark.parametrize("name", KEPT)
def test_the_level_that_a_pod_keeps(name: str, level: str) -> None:
    assert violated(of(name), level) == KEPT[name].get(level, set())


def test_a_copied_fleet_keeps_the_level_with_a_component(tmp_path: Path) -> None:
    fleet = shutil.copytree(KUBERNETES / "overlays" / "fleet", tmp_path / "fleet")
    shutil.copytree(KUBERNETES / "restricted", tmp_path / "restricted")
    with (fleet / "kustomization.yaml").open("a", encoding="utf-8") as settings:
        settings.write("\ncomponents: [../restricted]\n")
    done = kustomize(fleet)
    assert (done.returncode, done.stderr) == (0, "")
    (jobset,) = (each for each in yaml.safe_load_all(done.stdout) if each and each["kind"] == "JobSet")
    (job,) = jobs(jobset)
    one = job["spec"]["template"]["spec"]
    assert violated(one, RESTRICTED) == set()
    check, sidecar = one["initContainers"]
    assert (check["name"], sidecar["name"]) == ("queues", "collector")
    assert "/etc/otelcol/fleet-sidecar.yaml" in sidecar["args"][0]


def put(where: dict[str, Any], path: str, value: Any) -> None:
    *parts, last = path.split(".")
    for part in parts:
        where = where.setdefault(part, {})
    where[last] = value


BAD_PODS = {
    "hostNetwork": True,
    "hostPID": True,
    "hostIPC": True,
    "securityContext.runAsUser": 0,
    "securityContext.runAsNonRoot": False,
    "securityContext.seccompProfile": {"type": "Unconfined"},
    "securityContext.seLinuxOptions": {"type": "spc_t"},
    "securityContext.appArmorProfile": {"type": "Unconfined"},
    "securityContext.windowsOptions": {"hostProcess": True},
    "securityContext.sysctls": [{"name": "kernel.msgmax", "value": "1"}],
    "volumes": [{"name": "disk", "hostPath": {"path": "/"}}],
}
BAD_CONTAINERS = {
    "securityContext.privileged": True,
    "securityContext.allowPrivilegeEscalation": True,
    "securityContext.capabilities": {"drop": ["ALL"], "add": ["SYS_ADMIN"]},
    "securityContext.runAsUser": 0,
    "securityContext.runAsNonRoot": None,
    "securityContext.seccompProfile": None,
    "securityContext.procMount": "Unmasked",
    "securityContext.seLinuxOptions": {"user": "system_u", "role": "r"},
    "securityContext": {},
    "ports": [{"containerPort": 1, "hostPort": 1}],
    "livenessProbe.httpGet.host": "10.0.0.1",
    "lifecycle.preStop": {"tcpSocket": {"host": "10.0.0.1"}},
}


@pytest.mark.parametrize("path", BAD_PODS)
def test_a_pod_that_asks_for_more_is_found(path: str) -> None:
    spoilt = copy.deepcopy(pod("job"))
    put(spoilt, path, BAD_PODS[path])
    assert violated(spoilt, RESTRICTED)


@pytest.mark.parametrize("path", BAD_CONTAINERS)
def test_a_container_that_asks_for_more_is_found(path: str) -> None:
    for number, _ in enumerate(containers(pod("job"))):
        spoilt = copy.deepcopy(pod("job"))
        put([*containers(spoilt)][number], path, BAD_CONTAINERS[path])
        assert violated(spoilt, RESTRICTED)


def test_each_control_finds_something() -> None:
    """None of the table's rows is empty."""
    controls: set[str] = set()
    for bad, of_container in ((BAD_PODS, False), (BAD_CONTAINERS, True)):
        for path, value in bad.items():
            spoilt = copy.deepcopy(pod("job"))
            put(next(iter(containers(spoilt))) if of_container else spoilt, path, value)
            controls |= violated(spoilt, RESTRICTED)
    assert controls == {each.name for each in CONTROLS}


@pytest.mark.parametrize("name", BUILT)
def test_the_trainer_alone_has_a_token(name: str) -> None:
    one = pod(name)
    assert one["automountServiceAccountToken"] is False
    projected = {
        volume["name"]
        for volume in one["volumes"]
        if any("serviceAccountToken" in source for source in volume.get("projected", {}).get("sources", []))
    }
    holders = {
        each["name"]
        for each in containers(one)
        if projected & {mount["name"] for mount in each.get("volumeMounts", [])}
    }
    assert holders == {"trainer"}
    for deployment in of_kind(name, "Deployment"):
        assert deployment["spec"]["template"]["spec"]["automountServiceAccountToken"] is False


@pytest.mark.parametrize("name", BUILT)
def test_the_token_lies_where_the_submission_time_is_requested_with_it(name: str) -> None:
    from otel_goodput._resources.kubernetes import ACCOUNT

    (volume,) = (each for each in pod(name)["volumes"] if "projected" in each)
    (mount,) = (each for each in pod(name)["containers"][0]["volumeMounts"] if each["name"] == volume["name"])
    assert mount == {"name": volume["name"], "mountPath": str(ACCOUNT), "readOnly": True}
    token, authority, namespace = volume["projected"]["sources"]
    assert token["serviceAccountToken"]["path"] == "token"
    assert authority["configMap"] == {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}
    (item,) = namespace["downwardAPI"]["items"]
    assert item == {"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}

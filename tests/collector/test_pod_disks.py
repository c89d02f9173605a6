"""The disks of the collectors in pods: whose they are, what is moved aside on them, and what is kept there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from .places import (
    BUILT,
    collector,
    collectors,
    committed,
    environment,
    jobs,
    made,
    of_kind,
    pod,
    refused,
    size,
)
from .pod_security import RESTRICTED, violated

OLDEST = "1.30"
KEPT = 6 * 100 * 10**6  # what spool.yaml keeps at most, in bytes


@pytest.mark.parametrize(("name", "disk"), [("job", "persistentVolumeClaim"), ("jobset", "hostPath")])
def test_the_queue_outlives_the_pod(name: str, disk: str) -> None:
    container = collector(name)
    (volume,) = (each for each in pod(name)["volumes"] if each["name"] == "queue")
    assert {*volume} == {"name", disk}
    (mount,) = (each for each in container["volumeMounts"] if each["name"] == "queue")
    assert environment(container)["OTELCOL_GOODPUT_STATE"] == mount["mountPath"]
    assert not mount.get("readOnly")


def test_pods_on_one_node_do_not_share_a_queue() -> None:
    before, check, sidecar = pod("jobset")["initContainers"]
    (owned,) = before["volumeMounts"]
    for other in (check, sidecar):
        (used,) = (each for each in other["volumeMounts"] if each["name"] == "queue")
        assert owned == used
    fields = {*re.findall(r"\$\((\w+)\)", owned["subPathExpr"])}
    assert fields == {"POD_NAMESPACE", "K8S_JOB_NAME", "JOB_COMPLETION_INDEX"}
    assert all(fields <= {*environment(each)} for each in (before, check, sidecar))
    user = f"{sidecar['securityContext']['runAsUser']}:{sidecar['securityContext']['runAsGroup']}"
    assert before["command"] == ["chown", user, owned["mountPath"]]


@pytest.mark.parametrize("name", [*BUILT, "gateway"])
def test_a_broken_queue_is_moved_aside_whenever_the_collector_starts(name: str) -> None:
    """By another container, which neither the pod's start nor its end waits for."""
    one, sidecar = collectors()[name]
    (check,) = (each for each in one["initContainers"] if each["name"] == "queues")
    assert check["restartPolicy"] == "Always"
    assert not {*check} & {"startupProbe", "readinessProbe", "livenessProbe", "lifecycle", "ports"}
    shell, script, seconds = check["command"]
    assert (shell, int(seconds) < 10) == ("sh", True)  # the least that a container that has died waits
    (mount,) = (each for each in check["volumeMounts"] if each["name"] == "config")
    (volume,) = (each for each in one["volumes"] if each["name"] == "config")
    (scripts,) = (
        each["data"]
        for each in of_kind("overlays/fleet" if name == "gateway" else name, "ConfigMap")
        if each["metadata"]["name"] == volume["configMap"]["name"]
    )
    assert Path(script).parent == Path(mount["mountPath"])
    assert scripts[Path(script).name] == committed(Path(script).name)
    for what in ("securityContext", "volumeMounts"):
        assert check[what] == sidecar[what], "whose files they are, and where"
    assert environment(check)["OTELCOL_GOODPUT_STATE"] == environment(sidecar)["OTELCOL_GOODPUT_STATE"]
    assert re.search(r":\d+\.\d+\.\d+$", check["image"])


@pytest.mark.parametrize("name", ["job", "jobset", "overlays/fleet", "jobset-restricted"])
def test_what_is_refused_can_be_kept(name: str, tmp_path: Path) -> None:
    restricted = name == "jobset-restricted"
    base, more = ("jobset", ", ../../restricted") if restricted else (name, "")
    there = made(tmp_path, kept=f"resources: [../../{base}]\ncomponents: [../../spool{more}]\n")
    (spooled,) = (job["spec"]["template"]["spec"] for manifest in there for job in jobs(manifest))
    assert [each["kind"] for each in there if refused(each, OLDEST)] == []
    (sidecar,) = (each for each in spooled["initContainers"] if each["name"] == "collector")
    plain = collector(name)
    over = "--config=/etc/otelcol/spool.yaml"
    assert sidecar["args"] == [*plain["args"], over]
    (added,) = (each for each in sidecar["env"] if each not in plain["env"])
    assert added["name"] == "OTELCOL_GOODPUT_SPOOL"
    (disk,) = (each["mountPath"] for each in sidecar["volumeMounts"] if each["name"] == "queue")
    assert Path(added["value"]).parent == Path(disk)
    assert violated(spooled, RESTRICTED) == violated(pod(name), RESTRICTED)
    (data,) = (each["data"] for each in there if each["kind"] == "ConfigMap" and "spool.yaml" in each["data"])
    rotation = yaml.safe_load(data["spool.yaml"])["exporters"]["file/spool"]["rotation"]
    assert rotation["max_megabytes"] * (1 + rotation["max_backups"]) * 10**6 == KEPT


def test_a_job_of_the_same_claim_sends_what_was_kept(tmp_path: Path) -> None:
    there = made(tmp_path, sending="resources: [../example]\ncomponents: [../../send]\n")
    assert [each["kind"] for each in there if refused(each, OLDEST)] == []
    (job,) = (each for each in there if each["kind"] == "Job")
    (training,) = of_kind("overlays/example", "Job")
    assert job["metadata"]["name"] != training["metadata"]["name"]
    one, before = job["spec"]["template"]["spec"], training["spec"]["template"]["spec"]
    assert (one["initContainers"], one["volumes"]) == (before["initContainers"], before["volumes"])
    (sender,), (trainer_,) = one["containers"], before["containers"]
    (sidecar,) = (each for each in one["initContainers"] if each["name"] == "collector")
    program, command, spool, *options = sender["command"]
    assert (program, command) == ("otel-goodput", "send")
    assert spool == environment(sidecar)["OTELCOL_GOODPUT_SPOOL"]
    assert options == ["--endpoint", environment(trainer_)["OTEL_EXPORTER_OTLP_ENDPOINT"]]
    assert {"name": "queue", "mountPath": str(Path(spool).parent)} in sender["volumeMounts"]
    assert not {*sender["resources"]["limits"]} - {"cpu", "memory"}
    assert sender["securityContext"]["runAsUser"] == sidecar["securityContext"]["runAsUser"]
    assert violated(one, RESTRICTED) == set()


def test_full_queues_and_the_other_files_do_not_get_the_pod_evicted() -> None:
    (queue,) = (each for each in pod("jobset-restricted")["volumes"] if each["name"] == "queue")
    assert size(queue["emptyDir"]["sizeLimit"]) > 2_000_000_000 + KEPT

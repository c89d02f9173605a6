"""What kustomize makes of the manifests: Kubernetes' schemas hold it, and the pods keep what the texts promise."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from otel_goodput._resources import kubernetes
from otel_goodput._settings import envvars, options
from otel_goodput._settings.options import Settings

from .places import (
    BUILT,
    built,
    collector,
    collectors,
    committed,
    environment,
    gateway,
    jobs,
    made,
    of_kind,
    pod,
    refused,
    size,
    text_of,
    trainer,
)
from .written import COLLECTOR

OLDEST = "1.30"  # the first with sidecars and `sleep` switched on
INTERVAL_S = 10  # between two exports of metrics by the collector
PACE_S = 5  # between two points of a series in Cloud Monitoring
SPOOLED = ("overlays/example",)

JOBSET = {  # of jobset.x-k8s.io/v1alpha2, as its API reference has it: what we use
    "": {"replicatedJobs", "network", "failurePolicy"},
    "network": {"enableDNSHostnames", "publishNotReadyAddresses"},
    "failurePolicy": {"maxRestarts", "rules"},
    "replicatedJobs": {"name", "replicas", "template"},
}
ANNOTATIONS = {
    *("jobset-name", "replicatedjob-name", "replicatedjob-replicas"),
    *("job-index", "job-global-index", "restart-attempt"),
}


def unknown(manifest: dict[str, Any]) -> set[str]:
    """What a JobSet has that its API reference does not know."""
    spec = manifest["spec"]
    unknown_fields = {*spec} - JOBSET[""]
    for key in JOBSET.keys() - {""}:
        for each in spec[key] if isinstance(spec[key], list) else [spec[key]]:
            unknown_fields |= {*each} - JOBSET[key]
    return unknown_fields


@pytest.mark.parametrize("version", [OLDEST, "1.37"])
@pytest.mark.parametrize("name", BUILT)
def test_kubernetes_schemas_hold_all_of_it(name: str, version: str) -> None:
    manifests = built(name)
    assert {each["kind"] for each in manifests} >= {"ServiceAccount", "Role", "RoleBinding", "ConfigMap"}
    assert {each["metadata"]["name"]: refused(each, version) for each in manifests if refused(each, version)} == {}


@pytest.mark.parametrize(
    ("name", "kind", "old", "new"),
    [("job", "Job", "restartPolicy", "restartPolizy"), ("jobset", "JobSet", "subPathExpr", "subPathExp"),
     ("job", "PersistentVolumeClaim", "accessModes", "accessMode"), ("jobset", "JobSet", "preStop", "preStopp"),
     ("overlays/fleet", "Deployment", "emptyDir", "emptyDisk"), ("job", "Role", "apiGroups", "apiGroup")],
)  # fmt: skip
def test_what_the_schemas_do_not_know_is_found(name: str, kind: str, old: str, new: str) -> None:
    text = yaml.safe_dump(of_kind(name, kind)[0])
    assert old in text
    assert refused(yaml.safe_load(text.replace(old, new)), OLDEST) != ""


@pytest.mark.parametrize("name", ["jobset", "overlays/fleet", "jobset-restricted"])
def test_the_jobset_is_as_documented(name: str) -> None:
    (jobset,) = of_kind(name, "JobSet")
    assert jobset["apiVersion"] == "jobset.x-k8s.io/v1alpha2"
    assert unknown(jobset) == set()
    spoilt = copy.deepcopy(jobset)
    spoilt["spec"]["network"]["enableDnsHostnames"] = True
    assert unknown(spoilt) == {"enableDnsHostnames"}
    (job,) = jobs(jobset)
    assert job["spec"]["completionMode"] == "Indexed"
    assert job["spec"]["completions"] == job["spec"]["parallelism"] > 1
    assert job["spec"]["backoffLimit"] == 0


@pytest.mark.parametrize("name", BUILT)
def test_every_object_that_is_named_is_there(name: str) -> None:
    there = {(each["kind"], each["metadata"]["name"]) for each in built(name)}
    pods = [pod(name)] + ([gateway()] if name == "overlays/fleet" else [])
    for one in pods:
        named = {("ServiceAccount", one["serviceAccountName"])}
        for volume in one["volumes"]:
            named |= {("ConfigMap", volume["configMap"]["name"])} if "configMap" in volume else set()
            claim = volume.get("persistentVolumeClaim", {}).get("claimName")
            named |= {("PersistentVolumeClaim", claim)} if claim else set()
        for container in [*one.get("initContainers", []), *one["containers"]]:
            named |= {("ConfigMap", each["configMapRef"]["name"]) for each in container.get("envFrom", [])}
            mounted = {each["name"] for each in container.get("volumeMounts", [])}
            assert mounted <= {each["name"] for each in one["volumes"]}
        assert named <= there, named - there


@pytest.mark.parametrize("name", [*BUILT, "gateway"])
def test_the_requested_configurations_exist(name: str) -> None:
    one, container = collectors()[name]
    files = [Path(each.removeprefix("--config=")) for each in container["args"] if each.startswith("--config=/")]
    (volume,) = (each for each in one["volumes"] if each["name"] == "config")
    (mount,) = (each for each in container["volumeMounts"] if each["name"] == "config")
    (config_map,) = (
        each
        for each in built("overlays/fleet" if name == "gateway" else name)
        if each["kind"] == "ConfigMap" and each["metadata"]["name"] == volume["configMap"]["name"]
    )
    assert {str(file.parent) for file in files} == {mount["mountPath"]}
    texts = [config_map["data"][file.name] for file in files]
    assert texts == [committed(file.name) for file in files]
    over = ["google-auth.yaml", *([] if name == "gateway" else ["classic-metrics.yaml"])]
    assert [file.name for file in files[1:]] == over + (["spool.yaml"] if name in SPOOLED else [])
    (settings,) = (each["data"] for each in of_kind("job", "ConfigMap") if "OTEL_GOODPUT_DIR" in each["data"])
    needed = {*re.findall(r"\$\{env:(\w+)\}", "".join(texts))}
    assert needed and needed <= {*environment(container), *settings}, "variables without a default"


def test_every_configuration_for_google_cloud_can_be_mounted() -> None:
    there = {file for each in of_kind("overlays/fleet", "ConfigMap") for file in each["data"]}
    configs = {path.name for path in (COLLECTOR / "configs").glob("*.yaml")}
    assert configs - there == {"local.yaml"}


@pytest.mark.parametrize("name", BUILT)
def test_the_collector_does_not_keep_the_job_from_completing_nor_from_starting(name: str) -> None:
    sidecar = collector(name)
    assert sidecar["restartPolicy"] == "Always"
    assert "startupProbe" not in sidecar
    assert pod(name)["restartPolicy"] == "Never"
    assert pod(name)["initContainers"][-1] == sidecar


@pytest.mark.parametrize("name", BUILT)
def test_the_trainer_gets_the_variables_that_our_detection_reads(name: str) -> None:
    variables = environment(trainer(name))
    cluster = {kubernetes.CLUSTER: "10.0.0.1"}
    indices = {"JOB_COMPLETION_INDEX": "3"}  # Kubernetes' own doing
    given = (
        {key: "1" for key, value in variables.items() if value.startswith(("metadata.", "spec."))} | indices | cluster
    )
    attributes = kubernetes.attributes({**given, "CONTAINER_NAME": variables["CONTAINER_NAME"]}, Path("/nowhere"))
    of_jobset = {fact.key for fact in kubernetes.FACTS if "jobset" in fact.key}
    expected = {fact.key for fact in kubernetes.FACTS} - (set() if of_kind(name, "JobSet") else of_jobset)
    assert {*attributes} == expected
    prefix = "metadata.annotations['jobset.sigs.k8s.io/"
    annotations = {value.removeprefix(prefix).rstrip("']") for value in variables.values() if value.startswith(prefix)}
    assert annotations == (ANNOTATIONS if of_kind(name, "JobSet") else set())
    assert variables["POD_UID"] == "metadata.uid"
    assert variables["NODE_NAME"] == "spec.nodeName"
    assert variables["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://localhost:4317"
    assert variables["OTEL_GOODPUT_EXPORTERS"] == "otlp,workload"
    known = {each.name for each in (*options.ENVVARS, *envvars.STANDARD)}
    assert {key for key in variables if key.startswith("OTEL_")} <= known


@pytest.mark.parametrize("name", BUILT)
def test_the_account_may_read_when_it_was_submitted_and_no_more(name: str) -> None:
    (role,), (binding,) = of_kind(name, "Role"), of_kind(name, "RoleBinding")
    rules = {(*each["apiGroups"], *each["resources"], *each["verbs"]) for each in role["rules"]}
    assert rules == {("jobset.x-k8s.io", "jobsets", "get"), ("batch", "jobs", "get"), ("", "pods", "get")}
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert [each["name"] for each in binding["subjects"]] == [pod(name)["serviceAccountName"]]
    for account in of_kind(name, "ServiceAccount"):
        assert account["metadata"]["annotations"]["iam.gke.io/gcp-service-account"].startswith("goodput@")


@pytest.mark.parametrize("name", [*BUILT, "gateway"])
def test_the_last_values_have_time_to_leave(name: str) -> None:
    one, container = collectors()[name]
    sleep = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert sleep > INTERVAL_S + PACE_S
    trainers_own = float(Settings.grace_period.usual)
    assert one["terminationGracePeriodSeconds"] >= sleep + trainers_own + 30


@pytest.mark.parametrize("name", [*BUILT, "gateway"])
def test_the_collector_is_bounded_watched_and_confined(name: str) -> None:
    _, container = collectors()[name]
    limit = size(container["resources"]["limits"]["memory"])
    assert 0.79 * limit < size(environment(container)["GOMEMLIMIT"]) <= 0.8 * limit
    assert {*container["resources"]["limits"]} == {*container["resources"]["requests"]} == {"cpu", "memory"}
    (port,) = (each["containerPort"] for each in container["ports"] if each["name"] == "health")
    assert f"--config=yaml:extensions::health_check::endpoint: 0.0.0.0:{port}" in container["args"]
    for probe in ("readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/", "port": "health"}
    context = container["securityContext"]
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert (context["runAsNonRoot"], context["readOnlyRootFilesystem"]) == (True, True)
    assert context["runAsUser"] > 0
    assert context["allowPrivilegeEscalation"] is False
    assert re.search(r":\d+\.\d+\.\d+$", container["image"])


@pytest.mark.parametrize("name", BUILT)
def test_disruptions_spend_no_retries(name: str) -> None:
    """Evictions, preemptions and drains; everything else counts."""
    (manifest,) = (each for each in built(name) if each["kind"] in ("Job", "JobSet"))
    ((rule,),) = (job["spec"]["podFailurePolicy"]["rules"] for job in jobs(manifest))
    assert rule["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    if manifest["kind"] == "Job":
        assert rule["action"] == "Ignore" and manifest["spec"]["backoffLimit"] > 0
        return
    # All hosts begin anew: the Job fails for a reason by which the JobSet knows not to count it.
    assert rule["action"] == "FailJob"
    policy = manifest["spec"]["failurePolicy"]
    assert policy["maxRestarts"] > 0
    assert policy["rules"] == [
        {"action": "RestartJobSetAndIgnoreMaxRestarts", "onJobFailureReasons": ["PodFailurePolicy"]}
    ]


def test_each_slice_has_its_own_machines() -> None:
    (jobset,) = of_kind("overlays/fleet", "JobSet")
    by = jobset["metadata"]["annotations"]["alpha.jobset.sigs.k8s.io/exclusive-topology"]
    assert by == "cloud.google.com/gke-nodepool"


def test_the_restricted_jobset_is_the_jobset_without_the_node_s_disk() -> None:
    """And without root; else they are the same."""
    one, other = copy.deepcopy(pod("jobset")), copy.deepcopy(pod("jobset-restricted"))
    (queue,) = (each for each in other["volumes"] if each["name"] == "queue")
    assert {*queue} == {"name", "emptyDir"}
    assert other.pop("securityContext")["fsGroup"] == collector("jobset-restricted")["securityContext"]["runAsGroup"]
    assert "owner" in {each["name"] for each in one["initContainers"]}
    for each in (one, other):
        each["initContainers"] = [one for one in each["initContainers"] if one["name"] != "owner"]
        each["volumes"] = [one for one in each["volumes"] if one["name"] != "queue"]
        for mount in (mount for one in each["initContainers"] for mount in one["volumeMounts"]):
            mount.pop("subPathExpr", None)
        for key in ("runAsUser", "runAsGroup", "runAsNonRoot"):
            each["containers"][0]["securityContext"].pop(key, None)
    assert one == other


def test_job_and_jobset_have_the_same_collector() -> None:
    different = {"env", "volumeMounts"}
    one, other = ({key: each for key, each in collector(name).items() if key not in different} for name in BUILT[:2])
    assert one == other


def test_the_sidecars_find_the_gateway() -> None:
    (service,) = of_kind("overlays/fleet", "Service")
    (deployment,) = of_kind("overlays/fleet", "Deployment")
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"].items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    (port,) = service["spec"]["ports"]
    ports = {each["name"]: each["containerPort"] for each in gateway()["containers"][0]["ports"]}
    assert ports[port["targetPort"]] == port["port"] == 4317
    assert "/etc/otelcol/fleet-sidecar.yaml" in collector("overlays/fleet")["args"][0]
    text = (COLLECTOR / "configs" / "fleet-sidecar.yaml").read_text(encoding="utf-8")
    assert service["metadata"]["name"] in text + str(collector("overlays/fleet")["env"])


@pytest.mark.parametrize("name", ["overlays/example", "overlays/fleet"])
def test_an_overlay_leaves_nothing_to_fill_in(name: str) -> None:
    assert [each for each in ("PROJECT.iam", "=PROJECT", ": PROJECT", "BUCKET") if each in text_of(name)] == []
    assert [each for each in (": PROJECT", "BUCKET") if each in text_of("job")] != []
    assert {each["metadata"]["namespace"] for each in built(name)} == {"training"}
    assert re.fullmatch(r".+-docker\.pkg\.dev/.+:[\w.-]+", trainer(name)["image"])


@pytest.mark.parametrize("way", ["mtls", "token"])
def test_a_gateway_can_ask_who_sends(way: str, tmp_path: Path) -> None:
    there = made(tmp_path, asking=f"resources: [../fleet]\ncomponents: [../../gateway/{way}]\n")
    assert [each["kind"] for each in there if refused(each, OLDEST) and each["kind"] != "JobSet"] == []
    (behind,) = (each["spec"]["template"]["spec"] for each in there if each["kind"] == "Deployment")
    (job,) = (each for manifest in there for each in jobs(manifest))
    sidecar_spec = job["spec"]["template"]["spec"]
    data = {each["metadata"]["name"]: each["data"] for each in there if each["kind"] == "ConfigMap"}
    (gateway_container,) = behind["containers"]
    (asks,) = (each for each in sidecar_spec["initContainers"] if each["name"] == "collector")
    for pod_spec, container, config in (
        (behind, gateway_container, f"gateway-{way}.yaml"),
        (sidecar_spec, asks, f"fleet-{way}.yaml"),
    ):
        assert f"--config=/etc/otelcol/{config}" in container["args"]
        volumes = {each["name"]: each for each in pod_spec["volumes"]}
        assert config in data[volumes["config"]["configMap"]["name"]]
        folders = {each["mountPath"]: each for each in container["volumeMounts"]}
        text = data[volumes["config"]["configMap"]["name"]][config]
        used = {Path(path).parts[2] for path in re.findall(r":-(/etc/[\w-]+)", text)}
        assert used and all(folders[f"/etc/{name}"]["readOnly"] for name in used)
        secrets = [volumes[folders[f"/etc/{name}"]["name"]]["secret"] for name in used]
        assert {each["defaultMode"] for each in secrets} == {0o444}  # whoever the collector runs as


def test_a_prefix_reaches_the_gateway_s_name_wherever_it_stands(tmp_path: Path) -> None:
    there = made(tmp_path, second="namePrefix: second-\nresources: [../fleet]\n")
    (service,) = (each for each in there if each["kind"] == "Service")
    (jobset,) = (each for each in there if each["kind"] == "JobSet")
    one = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    variables = {each["name"]: each.get("value") for each in one["initContainers"][2]["env"]}
    assert variables["OTELCOL_GOODPUT_GATEWAY"] == service["metadata"]["name"] == "second-otelcol-gateway"
    (policy,) = (each for each in there if each["kind"] == "NetworkPolicy")
    (gateway,) = (each for each in there if each["kind"] == "Deployment")
    labels = gateway["spec"]["template"]["metadata"]["labels"].items()
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels
    assert service["spec"]["selector"].items() <= labels and len(service["spec"]["selector"]) == 2

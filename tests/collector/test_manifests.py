"""``otel-goodput collector k8s``: equal to what kustomize builds of the same sources, and valid for Kubernetes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from otelcol.flat import merged, without_credentials
from tools.commands import goodput, succeeded

from .places import jobs, made, refused

SUFFIX = re.compile(r"\b(goodput|otelcol-sidecar|otelcol-gateway)-[bcdfghkmt2456789]{10}\b")
GIVEN = ("--project", "my-project", "--image", "registry.example/train:1", "--dir", "gs://bucket/goodput")
STANDS = {  # what kustomize builds the same of: resources, components, the kind that trains and where its pod is
    "job": ("job", [], "Job", "/spec/template"),
    "jobset": ("jobset", [], "JobSet", "/spec/replicatedJobs/0/template/spec/template"),
    "fleet": ("jobset", ["gateway"], "JobSet", "/spec/replicatedJobs/0/template/spec/template"),
}
OVERLAY = """\
namespace: training
{prefix}
resources: [../../{resource}]
components: [{components}]
images: [{{name: trainer, newName: registry.example/train, newTag: "1"}}]
configMapGenerator:
  - name: goodput
    behavior: merge
    literals: [GOOGLE_CLOUD_PROJECT=my-project, OTEL_GOODPUT_DIR=gs://bucket/goodput]
patches:
  - target: {{kind: ServiceAccount}}
    patch: |-
      - op: replace
        path: /metadata/annotations/iam.gke.io~1gcp-service-account
        value: goodput@my-project.iam.gserviceaccount.com
{patch}
"""
NAMED = """\
  - target: {{kind: {kind}}}
    patch: |-
      - op: replace
        path: {pod}/metadata/labels/app.kubernetes.io~1name
        value: llama3
"""


def manifests(kind: str, *options: str) -> list[dict[str, Any]]:
    given = GIVEN[:2] if kind == "gateway" else GIVEN
    return list(yaml.safe_load_all(succeeded(goodput("collector", "k8s", kind, *given, *options))))


def by_name(documents: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    by_key = {(each["kind"], each["metadata"]["name"]): each for each in documents}
    assert len(by_key) == len(documents)
    return by_key


def containers(document: dict[str, Any]) -> list[dict[str, Any]]:
    pods = [job["spec"]["template"]["spec"] for job in jobs(document)]
    pods += [document["spec"]["template"]["spec"]] if document["kind"] == "Deployment" else []
    return [each for pod in pods for each in [*pod["initContainers"], *pod["containers"]]]


def settled(documents: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    """The documents with the collectors' configuration taken out, and variables in any order."""
    for document in documents:
        for container in containers(document):
            container["env"] = sorted(container.get("env", []), key=lambda each: each["name"])
            if container["name"] == "collector":
                container["args"] = "taken out"
        if document["kind"] == "ConfigMap" and "move-broken-queues.sh" in document["data"]:
            document["data"] = {"move-broken-queues.sh": document["data"]["move-broken-queues.sh"]}
    return by_name(documents)


def configurations(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """Each collector's whole configuration, by the kind of what it runs in, from the files and pieces in its `args`."""
    by_kind = {}
    maps = {each["metadata"]["name"]: each["data"] for each in documents if each["kind"] == "ConfigMap"}
    for document in documents:
        pods = [job["spec"]["template"]["spec"] for job in jobs(document)]
        pods += [document["spec"]["template"]["spec"]] if document["kind"] == "Deployment" else []
        for pod in pods:
            (args,) = (each["args"] for each in containers(document) if each["name"] == "collector")
            (name,) = (each["configMap"]["name"] for each in pod["volumes"] if each["name"] == "config")
            by_kind[document["kind"]] = laid(args, maps[name])
    return by_kind


def laid(args: list[str], data: dict[str, str]) -> Any:
    config: dict[str, Any] = {}
    for arg in args:
        value = arg.removeprefix("--config=")
        if not value.startswith("yaml:"):
            over(config, yaml.safe_load(data[Path(value).name]))
            continue
        place, _, scalar = value.removeprefix("yaml:").partition(": ")
        piece: Any = yaml.safe_load(scalar)
        for key in reversed(place.split("::")):
            piece = {key: piece}
        over(config, piece)
    return config


def over(below: dict[str, Any], above: dict[str, Any]) -> None:
    for key, value in above.items():
        if isinstance(below.get(key), dict) and isinstance(value, dict):
            over(below[key], value)
        else:
            below[key] = value


@pytest.mark.parametrize("spool", [False, True], ids=["", "spool"])
@pytest.mark.parametrize("name", [None, "llama3"])
@pytest.mark.parametrize("kind", STANDS)
def test_it_is_what_kustomize_builds(kind: str, name: str | None, spool: bool, tmp_path: Path) -> None:
    resource, components, trains, pod = STANDS[kind]
    components = [f"../../{each}" for each in [*components, *(["spool"] if spool else [])]]
    overlay = OVERLAY.format(
        resource=resource,
        components=", ".join(components),
        prefix="namePrefix: llama3-" if name else "",
        patch=NAMED.format(kind=trains, pod=pod) if name else "",
    )
    built = list(yaml.safe_load_all(SUFFIX.sub(r"\1", yaml.safe_dump_all(made(tmp_path, mine=overlay)))))
    ours = manifests(kind, *(["--name", name] if name else []), *(["--spool"] if spool else []))
    assert configurations(ours) == configurations(built)
    text = yaml.safe_dump_all(ours)
    if name:  # so that two fleets in a namespace do not find each other's gateway
        text = text.replace("app.kubernetes.io/name: llama3-otelcol-gateway", "app.kubernetes.io/name: otelcol-gateway")
    wanted = settled(built)
    if kind != "fleet":  # the base has the gateway's ConfigMap too, which nothing there asks for
        wanted = {key: each for key, each in wanted.items() if not key[1].endswith("otelcol-gateway")}
    assert settled(list(yaml.safe_load_all(text))) == wanted


@pytest.mark.parametrize("version", ["1.30", "1.37"])
@pytest.mark.parametrize("kind", [*STANDS, "gateway"])
def test_kubernetes_schemas_hold_it(kind: str, version: str) -> None:
    extra = [] if kind == "gateway" else ["--accelerators", "google.com/tpu=4", "--spool"]
    extra += ["--hosts", "8", "--slices", "2"] if kind in ("jobset", "fleet") else []
    documents = manifests(kind, "--name", "llama3", "--create-namespace", *extra)
    assert {each["metadata"]["name"]: refused(each, version) for each in documents if refused(each, version)} == {}
    assert documents[0] == {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "training"}}
    assert {each["metadata"]["namespace"] for each in documents[1:]} == {"training"}
    by_name(documents)


def test_what_is_given_is_where_it_belongs() -> None:
    listed = manifests(
        "fleet", "--name", "llama3", "--namespace", "ml", "--hosts", "8", "--slices", "2",
        "--accelerators", "google.com/tpu=4", "--account", "me@other.iam.gserviceaccount.com",
    )  # fmt: skip
    documents = by_name(listed)
    (replicated,) = documents["JobSet", "llama3-trainer"]["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    assert (replicated["replicas"], job["parallelism"], job["completions"]) == (2, 8, 8)
    (trainer,) = job["template"]["spec"]["containers"]
    assert trainer["image"] == "registry.example/train:1"
    assert trainer["resources"]["limits"] == {"memory": "16Gi", "google.com/tpu": "4"}
    assert {each["name"]: each.get("value") for each in trainer["env"]}["JOB_COMPLETIONS"] == "8"
    assert job["template"]["metadata"]["labels"] == {"app.kubernetes.io/name": "llama3"}
    for kind, name in documents:
        if kind == "ServiceAccount":
            annotations = documents[kind, name]["metadata"]["annotations"]
            assert annotations == {"iam.gke.io/gcp-service-account": "me@other.iam.gserviceaccount.com"}
    (subject,) = documents["RoleBinding", "llama3-submission-reader"]["subjects"]
    assert subject == {"kind": "ServiceAccount", "name": "llama3-trainer", "namespace": "ml"}
    service = documents["Service", "llama3-otelcol-gateway"]["spec"]["selector"]
    gateway = documents["Deployment", "llama3-otelcol-gateway"]["spec"]["template"]["metadata"]["labels"]
    assert service == gateway == {"app.kubernetes.io/name": "llama3-otelcol-gateway"}


def test_the_configuration_is_that_of_the_files() -> None:
    (config,) = configurations(manifests("job")).values()
    wanted = merged("gcp-sidecar.yaml", "google-auth.yaml", "classic-metrics.yaml")
    wanted["extensions"]["health_check"]["endpoint"] = "0.0.0.0:13133"
    assert config == wanted
    assert "googleclientauth" not in without_credentials(config)["extensions"]

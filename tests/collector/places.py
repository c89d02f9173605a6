"""How each place starts the collector, as its files say."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from programs import located

from .written import COLLECTOR

KUBERNETES, COMPOSE, SYSTEMD = (COLLECTOR / each for each in ("kubernetes", "compose", "systemd"))
BUILT = ("job", "jobset", "overlays/example", "overlays/fleet", "jobset-restricted")
UNIT = SYSTEMD / "otelcol-goodput.service"
UNITS = {"Mi": 1 << 20, "Gi": 1 << 30, "MiB": 1 << 20}


def kustomize(directory: Path) -> subprocess.CompletedProcess[str]:
    executable = located("kustomize")
    command = [executable, "build"] if executable else [shutil.which("kubectl") or "", "kustomize"]
    if not command[0]:
        pytest.skip("neither kustomize nor kubectl is here; go install sigs.k8s.io/kustomize/kustomize/v5@v5.7.1")
    return subprocess.run([*command, str(directory)], capture_output=True, text=True, timeout=60, check=False)


@functools.cache
def text_of(name: str) -> str:
    done = kustomize(KUBERNETES / name)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@functools.cache
def built(name: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(text_of(name)) if each]


def of_kind(name: str, kind: str) -> list[dict[str, Any]]:
    return [each for each in built(name) if each["kind"] == kind]


def jobs(manifest: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A JobSet's Jobs, or the Job itself."""
    if manifest["kind"] == "Job":
        yield manifest
    elif manifest["kind"] == "JobSet":
        for each in manifest["spec"]["replicatedJobs"]:
            yield {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": each["name"]}, **each["template"]}


def pod(name: str) -> dict[str, Any]:
    """The pod in which the training runs."""
    (single,) = (job for manifest in built(name) for job in jobs(manifest))
    return single["spec"]["template"]["spec"]


def collector(name: str) -> dict[str, Any]:
    (container,) = (each for each in pod(name)["initContainers"] if each["name"] == "collector")
    return container


def trainer(name: str) -> dict[str, Any]:
    (container,) = pod(name)["containers"]
    return container


def gateway() -> dict[str, Any]:
    (deployment,) = of_kind("overlays/fleet", "Deployment")
    return deployment["spec"]["template"]["spec"]


def collectors() -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Each pod with a collector, and the collector in it."""
    sidecars = {name: (pod(name), collector(name)) for name in BUILT}
    return {**sidecars, "gateway": (gateway(), gateway()["containers"][0])}


def size(text: str) -> int:
    digits, unit = re.fullmatch(r"(\d+)(\w+)", text).groups()  # type: ignore[union-attr]
    return int(digits) * UNITS[unit]


def refused(manifest: dict[str, Any], version: str) -> str:
    """Why Kubernetes' schema does not hold the manifest; empty where it does."""
    validate = pytest.importorskip("kubernetes_validate", reason="Kubernetes' schemas are not here")
    for each in [*jobs(manifest)] if manifest["kind"] == "JobSet" else [manifest]:
        try:
            validate.validate(each, version, strict=True)
        except validate.ValidationError as error:
            return str(error.message)
    return ""


def committed(name: str) -> str:
    """A configuration, or what is laid over one."""
    (path,) = (COLLECTOR / "configs").rglob(name)
    return path.read_text(encoding="utf-8")


def made(directory: Path, **files: str) -> list[dict[str, Any]]:
    """What overlays make of a copy of the tree, each of which is called as its directory; the last one's."""
    for folder in ("configs", "kubernetes"):
        shutil.copytree(COLLECTOR / folder, directory / "collector" / folder)
    for name, text in files.items():
        overlay = directory / "collector" / "kubernetes" / "overlays" / name
        overlay.mkdir()
        (overlay / "kustomization.yaml").write_text(text)
    done = kustomize(overlay)
    assert (done.returncode, done.stderr) == (0, "")
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def environment(container: dict[str, Any]) -> dict[str, str]:
    """Values, or the paths of the downward API."""
    return {
        each["name"]: each["value"] if "value" in each else each["valueFrom"]["fieldRef"]["fieldPath"]
        for each in container["env"]
    }


def services() -> dict[str, Any]:
    """Those of Compose."""
    return yaml.safe_load((COMPOSE / "compose.yaml").read_text(encoding="utf-8"))["services"]


def mounts(service: str) -> dict[str, Path]:
    """Where in the container which of our files is."""
    volumes = [volume.split(":") for volume in services()[service]["volumes"]]
    return {target: (COMPOSE / source).resolve() for source, target, *_ in volumes if source.startswith(".")}


def settings(text: str) -> dict[str, list[str]]:
    """Each key's values in systemd's files, continued lines joined."""
    values: dict[str, list[str]] = {}
    for line in text.replace("\\\n", "").splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            values.setdefault(key, []).append(value)
    return values

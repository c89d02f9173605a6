"""A JobSet of several slices is one run: real processes, with the environment that the manifests give its pods."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from crash.exported import read_spans

from otel_goodput._settings import config

from .places import COLLECTOR, environment, jobs, kustomize, of_kind

PROGRAM = """
import json, sys
import otel_goodput as goodput
recorder = goodput.configure()
print("ready", flush=True)
sys.stdin.readline()
with goodput.job():
    for number in range(3):
        with goodput.step(number):
            pass
goodput.shutdown()
config = recorder.config
print(json.dumps([recorder.run_id, config.process_index, config.process_count, config.leads]))
"""
SLICES, HOSTS = 2, 2
SCALED = f"""
- op: replace
  path: /spec/replicatedJobs/0/replicas
  value: {SLICES}
- op: replace
  path: /spec/replicatedJobs/0/template/spec/completions
  value: {HOSTS}
"""


def trainers(jobset: dict[str, Any]) -> Iterator[dict[str, str]]:
    """What Kubernetes and JobSet put into the environment of each pod's trainer."""
    name, at = jobset["metadata"]["name"], 0
    for kind, job in zip(jobset["spec"]["replicatedJobs"], jobs(jobset), strict=True):
        template = job["spec"]["template"]
        for each in range(kind["replicas"]):
            of_jobset = {
                "jobset-name": name, "replicatedjob-name": kind["name"], "job-index": each, "job-global-index": at,
                "replicatedjob-replicas": kind["replicas"], "restart-attempt": 0,
            }  # fmt: skip
            annotations = {f"jobset.sigs.k8s.io/{key}": str(value) for key, value in of_jobset.items()}
            labels = {**template["metadata"]["labels"], "batch.kubernetes.io/job-name": f"{name}-{kind['name']}-{each}"}
            at += 1
            for pod in range(job["spec"]["completions"]):
                known = {f"metadata.annotations['{key}']": value for key, value in annotations.items()}
                known |= {f"metadata.labels['{key}']": value for key, value in labels.items()}
                (container,) = template["spec"]["containers"]
                environ = {
                    key: known.get(value, f"of-{each}-{pod}") if re.match(r"metadata\.|spec\.", value) else value
                    for key, value in environment(container).items()
                }
                yield {**environ, "JOB_COMPLETION_INDEX": str(pod), "KUBERNETES_SERVICE_HOST": "127.0.0.1"}


@pytest.fixture
def scaled(tmp_path: Path) -> dict[str, Any]:
    """The JobSet of a copied overlay, which asks for other numbers of slices and of hosts."""
    for folder in ("configs", "kubernetes"):
        shutil.copytree(COLLECTOR / folder, tmp_path / "collector" / folder)
    overlay = tmp_path / "collector" / "kubernetes" / "overlays" / "fleet"
    written = yaml.safe_load((overlay / "kustomization.yaml").read_text(encoding="utf-8"))
    written["patches"].append({"target": {"kind": "JobSet"}, "patch": SCALED})
    (overlay / "kustomization.yaml").write_text(yaml.safe_dump(written), encoding="utf-8")
    done = kustomize(overlay)
    assert (done.returncode, done.stderr) == (0, "")
    (jobset,) = (each for each in yaml.safe_load_all(done.stdout) if each and each["kind"] == "JobSet")
    return jobset


def test_all_slices_are_one_run_with_one_leader(scaled: dict[str, Any], tmp_path: Path) -> None:
    runs = tmp_path / "goodput"
    # A folder that all see, as a bucket's would be, and no service of Google's.
    here = {**os.environ, "OTEL_GOODPUT_DIR": str(runs)}
    processes: list[subprocess.Popen[str]] = []
    try:
        processes.extend(
            subprocess.Popen(
                [sys.executable, "-c", PROGRAM], env={**environ, **here, "OTEL_GOODPUT_EXPORTERS": "file"},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
            )
            for environ in trainers(scaled)
        )  # fmt: skip
        for process in processes:  # all live at the same time
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        ends = [process.communicate("\n", timeout=120) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait(30)
    assert [process.returncode for process in processes] == [0] * SLICES * HOSTS, ends
    assert [errors for _, errors in ends if "WARNING" in errors or "Traceback" in errors] == []
    answers = [json.loads(out) for out, _ in ends]
    assert answers == [["trainer", index, SLICES * HOSTS, index == 0] for index in range(SLICES * HOSTS)]
    assert [run.name for run in runs.iterdir()] == ["trainer"]
    spans = read_spans(runs / "trainer")
    assert len({span.trace for span in spans}) == 1
    assert [span.resource["goodput.process.index"] for span in spans if not span.parent] == [0]
    assert sum(span.name == "step" for span in spans) == 3 * SLICES * HOSTS


@pytest.mark.parametrize("name", ["jobset", "overlays/fleet"])
def test_each_pod_has_a_place_of_its_own(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Also where a manifest asks for several slices and nothing else is changed."""
    (jobset,) = of_kind(name, "JobSet")
    kinds = jobset["spec"]["replicatedJobs"]
    several = {**jobset, "spec": {**jobset["spec"], "replicatedJobs": [{**kind, "replicas": 3} for kind in kinds]}}
    for each in (jobset, several):
        places = [config.read(environ=environ) for environ in trainers(each)]
        assert [(place.process_index, place.process_count) for place in places] == [
            (index, len(places)) for index in range(len(places))
        ]
        assert {place.run_id for place in places} == {jobset["metadata"]["name"]}
    assert not caplog.records


def test_a_copied_overlay_tells_its_own_numbers(scaled: dict[str, Any]) -> None:
    """The number of pods a Job has stands in three places of the manifest, and is written once."""
    (job,) = jobs(scaled)
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == HOSTS
    assert {environ["JOB_COMPLETIONS"] for environ in trainers(scaled)} == {str(HOSTS)}
    assert len([*trainers(scaled)]) == SLICES * HOSTS

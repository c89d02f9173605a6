"""The resource of a process, and of a recorder, with a real server that stands in for Google's."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from disruption.metadata_server import MetadataServer
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from waits import until

import otel_goodput
from otel_goodput._recording.ids import attempt_trace_id
from otel_goodput._resources import accelerators, kubernetes
from otel_goodput._resources.process import DetectedResource, describe

from . import machines
from .machines import SECRET, SLOW, serve
from .test_gcp import H100S, ON_GCE, ON_GKE, PLACE, SLICE
from .test_kubernetes import CLUSTER, DESCRIBED, DOWNWARD, JOBSET, JOBSET_DESCRIBED

IDENTITY = {
    "service.name": "llama",
    "goodput.run.id": "llama-7",
    "goodput.attempt": 2,
    "goodput.trace.id": f"{attempt_trace_id('llama-7', 2):032x}",
    "goodput.process.index": 1,
    "goodput.process.count": 4,
    "process.pid": os.getpid(),
}


@pytest.fixture(autouse=True)
def _nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever machine the tests run on."""
    facts = (*kubernetes.FACTS, *accelerators.VARIABLES)
    for name in {kubernetes.HOSTNAME, *(name for fact in facts for name in fact.names)}:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(accelerators, "DRIVER", tmp_path / "gpus")


@pytest.fixture
def on_google(server: MetadataServer, monkeypatch: pytest.MonkeyPatch) -> MetadataServer:
    monkeypatch.setenv("GCE_METADATA_HOST", server.host)
    serve(server, machines.GPU_VM)
    return server


def described(more: dict[str, Any] | None = None, **options: Any) -> DetectedResource:
    return describe("llama", "llama-7", 2, 1, 4, more, **options)


def known(more: dict[str, Any] | None = None) -> dict[str, Any]:
    """What is known in the end, but for what OpenTelemetry adds and for an id of ours."""
    resource = described(more)
    assert resource.wait(10)
    attributes = dict(resource.attributes)
    assert attributes.pop("service.instance.id")
    return {key: value for key, value in attributes.items() if not key.startswith("telemetry.")}


def test_a_machine_of_google_cloud(on_google: MetadataServer) -> None:
    assert known() == {**IDENTITY, **ON_GCE, **H100S, "host.name": "trainer-1"}


def test_a_jobset_on_gke(on_google: MetadataServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment knows the node better, and the host is the pod."""
    serve(on_google, machines.GKE)
    for name, value in {**CLUSTER, **DOWNWARD, **JOBSET, "RESTART_ATTEMPT": "5"}.items():
        monkeypatch.setenv(name, value)
    launcher = {"goodput.launcher.name": "jobset", "goodput.launcher.restarts": 5, "k8s.jobset.restart_attempt": 5}
    elsewhere = {**ON_GKE, **PLACE, **H100S, **DESCRIBED, **JOBSET_DESCRIBED}
    assert known() == {**IDENTITY, **elsewhere, **launcher, "host.name": socket.gethostname()}


def test_the_environment_knows_a_tpu_better(on_google: MetadataServer, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(on_google, machines.TPU_VM)
    monkeypatch.setenv("TPU_CHIPS_PER_HOST_BOUNDS", "1,1,1")
    monkeypatch.setenv("MEGASCALE_SLICE_ID", "0")
    machine = {**ON_GCE, "host.name": "t1v-n-0f1e2d3c-w-17", "host.type": "ct5lp-hightpu-8t"}
    assert known() == {**IDENTITY, **machine, **SLICE, "goodput.slice.index": 0, "goodput.accelerator.count": 1}


def test_nvidias_driver_knows_its_gpus_better(on_google: MetadataServer) -> None:
    gpu = accelerators.DRIVER / "0000:01:00.0"
    gpu.mkdir(parents=True)
    (gpu / "information").write_text("Model: \t\t NVIDIA H200\n")
    attributes = known()
    assert (attributes["goodput.accelerator.type"], attributes["goodput.accelerator.count"]) == ("H200 SXM", 1)
    assert attributes["host.type"] == "a3-highgpu-8g"


def test_who_wins(on_google: MetadataServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's attributes over everything, the identity over the environment, the environment over what is found."""
    monkeypatch.setenv(
        "OTEL_RESOURCE_ATTRIBUTES",
        "cloud.region=theirs,host.name=theirs,k8s.pod.name=theirs,goodput.run.id=no,cloud.account.id=no,team=ours",
    )
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("POD_NAME", "no")
    more = {"cloud.account.id": "mine", "goodput.accelerator.count": 4, "process.pid": 1}
    attributes = known(more)
    given = {"cloud.region": "theirs", "host.name": "theirs", "k8s.pod.name": "theirs", "team": "ours"}
    assert attributes == {**IDENTITY, **ON_GCE, **H100S, **given, **more}


def test_off_google_cloud(server: MetadataServer, caplog: pytest.LogCaptureFixture) -> None:
    before = set(threading.enumerate())
    assert known() == {**IDENTITY, "host.name": socket.gethostname()}
    assert set(threading.enumerate()) <= before
    assert server.requests == [] and caplog.records == []


def test_nobody_is_asked_who_need_not_be(on_google: MetadataServer) -> None:
    resource = described(detect=False)
    assert resource.wait(0) and "cloud.provider" not in resource.attributes
    assert on_google.requests == []


def test_a_server_that_knows_nothing_is_no_trouble(on_google: MetadataServer, caplog: pytest.LogCaptureFixture) -> None:
    on_google.misbehave = machines.says(f"<html>{SECRET}</html>", flavor=None)
    assert known() == {**IDENTITY, "host.name": socket.gethostname()}
    (entry,) = [record for record in caplog.records if record.name.startswith("otel_goodput")]
    assert entry.levelno == logging.DEBUG and "no Metadata-Flavor" in entry.getMessage()


# --- a recorder -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["hang", "drip"])
def test_nobody_waits_for_a_server(
    on_google: MetadataServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The quickest of some, with a server that does not answer and without any."""

    def seconds(name: str) -> float:
        begin = time.perf_counter()
        recorder = otel_goodput.Recorder(name, directory=tmp_path, exporters="none", integrations="none")
        took = time.perf_counter() - begin
        recorder.shutdown(10)
        return took

    on_google.misbehave = SLOW[kind]
    hanging = min(seconds(f"hanging-{number}") for number in range(5))
    until(lambda: len(on_google.requests) == 5)  # the last question is on its way
    monkeypatch.delenv("GCE_METADATA_HOST")
    absent = min(seconds(f"absent-{number}") for number in range(5))
    assert len(on_google.requests) == 5
    assert hanging < absent + 0.1


def test_a_thread_that_waits_does_not_outlast_its_second(on_google: MetadataServer) -> None:
    on_google.misbehave = SLOW["drip"]
    begin = time.monotonic()
    resource = described()
    assert time.monotonic() - begin < 0.5
    assert not resource.wait(0.01)
    assert resource.wait(10)
    assert 0.9 < time.monotonic() - begin < 3
    assert resource.attributes["host.name"] == socket.gethostname()


def test_what_a_recorder_writes_has_it_and_no_secret(on_google: MetadataServer, tmp_path: Path) -> None:
    serve(on_google, machines.TPU_VM)
    reader = InMemoryMetricReader()
    recorder = otel_goodput.Recorder(
        "llama", directory=tmp_path, exporters="file,console", integrations="none", metric_readers=[reader]
    )
    assert isinstance(recorder.resource, DetectedResource) and recorder.resource.wait(10)
    with recorder.job():
        for number in range(3):
            with recorder.step(number):
                pass
    data = reader.get_metrics_data()
    recorder.shutdown(10)
    assert data is not None and SECRET not in data.to_json() and "ct5lp-hightpu-8t" in data.to_json()
    written = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert not [path for path, content in written.items() if SECRET.encode() in content]
    (traces,) = [content for path, content in written.items() if path.name.startswith("traces")]
    resources = [each["resource"] for line in traces.splitlines() for each in json.loads(line)["resourceSpans"]]
    assert resources
    for resource in resources:
        assert {"key": "goodput.slice.worker", "value": {"intValue": "17"}} in resource["attributes"]

"""What a real server that stands in for Google's says of its machine."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from typing import Any

import pytest
import warm
from disruption.metadata_server import MetadataServer

from otel_goodput._disruption.metadata import metadata_host
from otel_goodput._resources import gcp
from otel_goodput._resources.gcp import Unknown, attributes, look_up

from . import machines
from .machines import ALL, HEAD, SECRET, Document, changed, flood, says, sends, serve

GOOGLE = {
    "cloud.provider": "gcp",
    "cloud.account.id": "my-project",
    "gcp.project_id": "my-project",
    "host.id": "7914593016235790281",
}
PLACE = {"cloud.availability_zone": "us-central1-a", "cloud.region": "us-central1"}
ON_GCE = {**GOOGLE, **PLACE, "cloud.platform": "gcp_compute_engine"}
ON_GKE = {
    **GOOGLE,
    "cloud.platform": "gcp_kubernetes_engine",
    "k8s.cluster.name": "pretraining",
    "k8s.node.name": "gke-pretraining-a3-7f3b9d21-x2qk",
}
H100S = {"host.type": "a3-highgpu-8g", "goodput.accelerator.type": "H100 SXM", "goodput.accelerator.count": 8}
SLICE = {
    "goodput.slice.name": "llama-slice-1",
    "goodput.slice.type": "v5litepod-256",
    "goodput.slice.topology": "16x16",
    "goodput.slice.worker": 17,
    "goodput.slice.index": 1,
    "goodput.slice.count": 2,
    "goodput.accelerator.type": "TPU v5e",
    "goodput.accelerator.count": 8,
}


def detected(server: MetadataServer, document: Document, *, in_cluster: bool = False) -> dict[str, Any]:
    serve(server, document)
    machine = look_up(server.host, 10)
    assert SECRET not in repr(machine)
    return attributes(machine, in_cluster=in_cluster)


# --- machines ---------------------------------------------------------------------------------------------------------


def test_a_machine_with_gpus(server: MetadataServer) -> None:
    assert detected(server, machines.GPU_VM) == {**ON_GCE, **H100S, "host.name": "trainer-1"}
    assert [(request.path, request.query) for request in server.requests] == [(ALL, {"recursive": "true"})]


def test_a_tpu(server: MetadataServer) -> None:
    machine = {**ON_GCE, "host.name": "t1v-n-0f1e2d3c-w-17", "host.type": "ct5lp-hightpu-8t"}
    assert detected(server, machines.TPU_VM) == {**machine, **SLICE}


def test_a_tpu_of_which_only_the_type_is_known(server: MetadataServer) -> None:
    document = changed(machines.GPU_VM, attributes={"accelerator-type": "v6e-8"}, without="machineType")
    attributes = detected(server, document)
    assert (attributes["goodput.slice.type"], attributes["goodput.accelerator.type"]) == ("v6e-8", "TPU v6e")
    assert "goodput.accelerator.count" not in attributes and "goodput.slice.worker" not in attributes


def test_attributes_that_only_look_like_a_tpus(server: MetadataServer) -> None:
    document = changed(machines.GPU_VM, attributes={"instance-id": "mine", "agent-worker-number": "3"})
    assert not [key for key in detected(server, document) if key.startswith("goodput.slice")]


def test_a_pod(server: MetadataServer) -> None:
    """In a zonal cluster; the host's name is the pod's."""
    assert detected(server, machines.GKE, in_cluster=True) == {**ON_GKE, **PLACE, **H100S}


def test_a_pod_in_a_regional_cluster(server: MetadataServer) -> None:
    attributes = detected(server, machines.GKE_REGIONAL, in_cluster=True)
    assert attributes == {**ON_GKE, **H100S, "cloud.region": "us-central1"}


def test_a_pod_with_workload_identity(server: MetadataServer) -> None:
    assert detected(server, machines.GKE_IDENTITY, in_cluster=True) == {**ON_GKE, **PLACE}


def test_a_node_outside_of_a_pod(server: MetadataServer) -> None:
    attributes = detected(server, machines.GKE)
    assert attributes == {**ON_GCE, **H100S, "host.name": "gke-pretraining-a3-7f3b9d21-x2qk"}


def test_a_cluster_that_is_not_googles(server: MetadataServer) -> None:
    assert detected(server, machines.GPU_VM, in_cluster=True) == {**ON_GCE, **H100S, "host.name": "trainer-1"}


@pytest.mark.parametrize("odd", [None, True, 1.5, [], {}, "", " ", "a\nb", "\x1b[2J", "x" * 10_000])
def test_a_value_that_makes_no_sense_is_left_out(server: MetadataServer, odd: Any) -> None:
    document = changed(machines.GPU_VM, machineType=odd, zone=odd, name=odd, hostname=odd)
    assert detected(server, document) == {**GOOGLE, "cloud.platform": "gcp_compute_engine"}


@pytest.mark.parametrize("odd", [None, "text", [1], {"tpu-env": 5, "accelerator-type": []}])
def test_attributes_that_make_no_sense(server: MetadataServer, odd: Any) -> None:
    document = machines.changed(machines.GPU_VM)
    document["instance"]["attributes"] = odd
    assert detected(server, document, in_cluster=True) == {**ON_GCE, **H100S, "host.name": "trainer-1"}


@pytest.mark.parametrize("name", ["GPU_VM", "TPU_VM", "GKE", "GKE_REGIONAL"])
def test_opentelemetrys_detector_says_the_same(server: MetadataServer, name: str) -> None:
    """It asks a fixed address, which a proxy may answer for. Of the machine's type it leaves the whole path."""
    document, in_cluster = getattr(machines, name), name.startswith("GKE")
    ours = detected(server, document, in_cluster=in_cluster)
    script = (
        "import json\n"
        "from opentelemetry.resourcedetector.gcp_resource_detector import GoogleCloudResourceDetector\n"
        "print(json.dumps(dict(GoogleCloudResourceDetector().detect().attributes)))"
    )
    proxied = {"http_proxy": f"http://{server.host}", "no_proxy": "", "NO_PROXY": ""}
    cluster = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"} if in_cluster else {}
    done = warm.run(
        [sys.executable, "-c", script],
        env={**os.environ, **proxied, **cluster}, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    theirs = json.loads(done.stdout)
    assert len(theirs) >= 6
    if "host.type" in theirs:
        theirs["host.type"] = theirs["host.type"].rpartition("/")[2]
    assert {key: ours.get(key) for key in theirs} == theirs


# --- no answer, and why -----------------------------------------------------------------------------------------------


def why(host: str | None, timeout_s: float = 5) -> str:
    with pytest.raises(Unknown) as refused:
        look_up(host, timeout_s)
    assert SECRET not in str(refused.value)
    return str(refused.value)


FAULTS = {
    "a proxy's page": (says("<html><body>Sign in</body></html>", flavor=None), "no Metadata-Flavor: Google in its"),
    "another's answer": (says(json.dumps(machines.GPU_VM), flavor="Amazon"), "no Metadata-Flavor: Google in its"),
    "not found": (says(f"not found {SECRET}", 404), "status 404"),
    "forbidden": (says(SECRET, 403), "status 403"),
    "out of order": (says("oops", 503), "status 503"),
    "a page": (says("<html></html>"), "not a JSON object"),
    "half of it": (says(json.dumps(machines.GPU_VM)[:-9]), "not a JSON object"),
    "nothing": (says(""), "not a JSON object"),
    "too deep": (says("[" * 100_000), "not a JSON object"),
    "a list": (says(json.dumps(["instance", SECRET])), "not a JSON object"),
    "not a number": (says("NaN"), "not a JSON object"),
    "empty": (says("{}"), "neither the project nor the instance"),
    "of other types": (says('{"instance": 5, "project": ["projectId"]}'), "neither the project nor the instance"),
    "not utf-8": (sends(HEAD + b'\r\n{"instance": "\xff\xfe"}'), "neither the project nor the instance"),
    "no http": (sends(b"SSH-2.0-OpenSSH_9.6\r\n"), "the answer is not HTTP"),
    "a broken head": (sends(b"HTTP/1.1 2x0 OK\r\n\r\n"), "the answer is not HTTP"),
    "cut off": (sends(HEAD + b'Content-Length: 100\r\n\r\n{"instance":'), "before the answer was complete"),
    "a lie of its length": (sends(HEAD + b"Content-Length: 99999999999999\r\n\r\n{}"), "more than 4194304 bytes"),
    "a lie of a piece": (
        sends(HEAD + b"Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFF\r\n{}"),
        "before the answer was complete",
    ),
    "no answer": (sends(b""), "before the answer was complete"),
    "too much": (flood, f"more than {gcp.LONGEST} bytes"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_an_answer_that_is_none(server: MetadataServer, name: str) -> None:
    server.misbehave, reason = FAULTS[name]
    assert reason in why(server.host)
    assert gcp.detect(server.host, in_cluster=False) == {}


@pytest.mark.parametrize(("kind", "limit"), [("hang", 0.3), ("drip", 0.3), ("stall", 0.8)])
def test_an_answer_that_does_not_come(server: MetadataServer, kind: str, limit: float) -> None:
    """One limit over all, for reads that each are quick too."""
    server.misbehave = machines.SLOW[kind]
    begin = time.monotonic()
    assert f"did not answer within {limit} s" in why(server.host, limit)
    assert limit - 0.05 < time.monotonic() - begin < limit + 0.5


def test_a_large_answer_is_read(server: MetadataServer) -> None:
    """Two scripts of the longest kind, which nobody keeps."""
    document = changed(machines.GPU_VM, attributes={"startup-script": SCRIPT_OF_HALF_A_MEGABYTE})
    document["project"]["attributes"]["script"] = SCRIPT_OF_HALF_A_MEGABYTE
    assert detected(server, document)["host.name"] == "trainer-1"


SCRIPT_OF_HALF_A_MEGABYTE = f'echo "{SECRET}"\n' * (512 * 1024 // 15)


def test_nobody_listens(port: int) -> None:
    assert "cannot be reached: " in why(f"127.0.0.1:{port}")


def test_somebody_listens_who_never_accepts() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=1) as deaf:
        begin = time.monotonic()
        assert "did not answer" in why(f"127.0.0.1:{deaf.getsockname()[1]}", 0.2)
        assert time.monotonic() - begin < 1.5


@pytest.mark.parametrize("host", ["not an address", "host:99999", "http://host", "höst", "a\r\nb"])
def test_an_address_that_is_none(host: str) -> None:
    reason = why(host)
    assert "its address is not valid" in reason and reason.isprintable()


@pytest.mark.parametrize("host", ["a..b", "a" * 80])
def test_a_name_that_cannot_be_looked_up(host: str) -> None:
    assert "cannot be reached" in why(host)


def test_off_google_cloud(server: MetadataServer, monkeypatch: pytest.MonkeyPatch) -> None:
    if metadata_host() is None:  # who runs the tests there knows better
        assert "not a Google Cloud machine" in why(None)
    monkeypatch.setenv("GCE_METADATA_HOST", server.host)
    serve(server, machines.GPU_VM)
    assert look_up(timeout_s=10).name == "trainer-1"

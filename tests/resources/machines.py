"""What the metadata server says on machines of several kinds, secrets included, as real ones have them."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

from disruption.metadata_server import MetadataServer, answer
from http_server import Answer, Request, dripping, flooding, hang

ALL = "/computeMetadata/v1/"
SECRET = "hunter2"
SCRIPT = f'#!/bin/sh\nexport PASSWORD="{SECRET}"\n'

Document = dict[str, Any]

GPU_VM: Document = {
    "instance": {
        "attributes": {"ssh-keys": f"me:{SECRET}", "startup-script": SCRIPT, "enable-oslogin": "TRUE"},
        "hostname": "trainer-1.us-central1-a.c.my-project.internal",
        "id": 7914593016235790281,
        "machineType": "projects/123456789012/machineTypes/a3-highgpu-8g",
        "name": "trainer-1",
        "serviceAccounts": {"default": {"email": f"{SECRET}@my-project.iam.gserviceaccount.com", "scopes": []}},
        "tags": [SECRET],
        "zone": "projects/123456789012/zones/us-central1-a",
    },
    "oslogin": {"authenticate": {"sessions": {}}},
    "project": {
        "attributes": {"ssh-keys": SECRET, "cluster-name": "of-the-project"},
        "numericProjectId": 123456789012,
        "projectId": "my-project",
    },
}

TPU_ENV = f"""ACCELERATOR_TYPE: 'v5litepod-256'
CHIPS_PER_HOST_BOUNDS: '2,4,1'
CONSUMER_PROJECT_ID: 'my-project'
HOST_BOUNDS: '8,4,1'
MEGASCALE_COORDINATOR_ADDRESS: '10.0.0.2:8080'
MEGASCALE_NUM_SLICES: '2'
MEGASCALE_SLICE_ID: '1'
NODE_ID: 'llama-slice-1'
SOMETHING: '{SECRET}'
TOPOLOGY: '16x16'
WORKER_ID: '17'
a line without anything
"""


def changed(document: Document, *, without: str = "", attributes: Document | None = None, **instance: Any) -> Document:
    """A copy with other keys of the instance, with further attributes of it, or `without` keys."""
    copied = copy.deepcopy(document)
    copied["instance"] |= instance
    copied["instance"]["attributes"] |= attributes or {}
    for key in without.split():
        del copied["instance"][key]
    return copied


TPU_VM = changed(
    GPU_VM,
    attributes={
        "accelerator-type": "v5litepod-256",
        "agent-worker-number": "17",
        "instance-id": "llama-slice-1",
        "tpu-env": TPU_ENV,
        "worker-network-endpoints": SECRET,
    },
    machineType="projects/123456789012/machineTypes/ct5lp-hightpu-8t",
    name="t1v-n-0f1e2d3c-w-17",
)
_CLUSTER = {"cluster-name": "pretraining", "cluster-location": "us-central1-a", "cluster-uid": "0f", "kube-env": SCRIPT}
GKE = changed(GPU_VM, attributes=_CLUSTER, name="gke-pretraining-a3-7f3b9d21-x2qk")
GKE_REGIONAL = changed(GKE, attributes={"cluster-location": "us-central1"})
# Workload Identity has no name, and tells neither the type of the machine nor most of its attributes.
GKE_IDENTITY = changed(
    GKE, without="machineType name tags", hostname="gke-pretraining-a3-7f3b9d21-x2qk.c.my-project.internal"
)


def serve(server: MetadataServer, document: Document | str) -> None:
    """Let `server` say it."""
    server.set(ALL + "instance/", "attributes/")
    server.set(ALL, document if isinstance(document, str) else json.dumps(document))


# --- misbehaviour -----------------------------------------------------------------------------------------------------

HEAD = b"HTTP/1.1 200 OK\r\nMetadata-Flavor: Google\r\n"


def says(body: str, status: int = 200, flavor: str | None = "Google") -> Answer:
    return lambda _: answer(body, status=status, flavor=flavor)


def sends(raw: bytes) -> Answer:
    return lambda _: [raw]


def stall(request: Request) -> Iterator[bytes]:
    """A beginning, when most of the time is up, and nothing more."""
    request.over.wait(0.6)
    yield HEAD
    request.over.wait(30)


flood = flooding(HEAD + b"\r\n")
SLOW: dict[str, Answer] = {
    "hang": hang,
    "drip": dripping(HEAD + b"Content-Length: 1000000\r\n\r\n{", b" "),
    "stall": stall,
}

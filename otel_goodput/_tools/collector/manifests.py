"""Kubernetes manifests in one file: the job or the gateway, its accounts and its collector's configuration."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from otel_goodput._tools.collector.targets import Choices, configuration, source

ACCOUNT: Final = "goodput@PROJECT.iam.gserviceaccount.com"
_SPOOL: Final = "/var/lib/otelcol/spool"
_ARGUMENTS: Final = re.compile(r"^( *)args:\n(?:\1  .*\n)+", re.MULTILINE)
_FIRST_VARIABLE: Final = re.compile(r"^( *)- name: GOMEMLIMIT\n", re.MULTILINE)
_PREFIXED: Final = "submission-reader|goodput|otelcol-sidecar|otelcol-queue|otelcol-gateway"
_NAMED: Final = re.compile(rf"((?:name|claimName|serviceAccountName|value): )({_PREFIXED})(?=[\s,}}]|$)", re.MULTILINE)
_TRAINER: Final = re.compile(r"^(  name: |    name: | *serviceAccountName: )trainer$", re.MULTILINE)
_HEALTH: Final = 'health_check: {endpoint: "localhost:13133"}'
_HEALTH_FROM_OUTSIDE: Final = 'health_check: {endpoint: "0.0.0.0:13133"} # the kubelet asks from outside the pod'
_STEPS: Final = """\
  OTEL_GOODPUT_STEP_TRACES: own # a step is one trace over all hosts,
  OTEL_GOODPUT_STEP_SAMPLING: "1" # and the gateway samples
"""


class Kind(NamedTuple):
    """What a manifest consists of.

    Attributes:
        parts: files of ``sources/kubernetes``, in this order.
        configs: the name of each ConfigMap, and the target whose configuration is in it.
        brief: for ``--help``.
    """

    parts: tuple[str, ...]
    configs: dict[str, str]
    brief: str

    @property
    def trains(self) -> bool:
        """Whether a job is in it, so that it needs an image and a directory for its journal."""
        return "access.yaml" in self.parts

    @property
    def hosts(self) -> bool:
        """Whether the job runs on several hosts."""
        return "jobset.yaml" in self.parts


KINDS: Final[dict[str, Kind]] = {
    "job": Kind(
        ("access.yaml", "queue.yaml", "job.yaml"),
        {"otelcol-sidecar": "classic"},
        "a Job of one pod, with the collector as native sidecar and a disk for its queue",
    ),
    "jobset": Kind(
        ("access.yaml", "jobset.yaml"),
        {"otelcol-sidecar": "classic"},
        "a JobSet on several hosts, with a collector in each pod",
    ),
    "fleet": Kind(
        ("access.yaml", "jobset.yaml", "gateway.yaml"),
        {"otelcol-sidecar": "fleet", "otelcol-gateway": "gateway"},
        "the same with a gateway, which samples the steps of all hosts",
    ),
    "gateway": Kind(("gateway.yaml",), {"otelcol-gateway": "gateway"}, "the gateway alone"),
}


class Values(NamedTuple):
    """What is put into a manifest.

    Attributes:
        project: Google Cloud's project.
        namespace: where all of it is created; `create_namespace`: together with the namespace.
        image: the trainer's container image.
        dir: OTEL_GOODPUT_DIR, for the journal.
        name: the job's name in telemetry, and the beginning of each object's name; None for those of the sources.
        account: the Google service account.
        accelerators: a resource and its number, as in ``nvidia.com/gpu=8``.
        hosts, slices: pods of a slice, and slices.
    """

    project: str
    namespace: str = "training"
    create_namespace: bool = False
    image: str | None = None
    dir: str | None = None
    name: str | None = None
    account: str | None = None
    accelerators: str | None = None
    hosts: int | None = None
    slices: int | None = None
    spool: bool = False


def manifest(kind: str, values: Values) -> str:
    """Return the manifest as one text of several documents. Raises OSError: the installation is not whole."""
    made = KINDS[kind]
    documents = [f"apiVersion: v1\nkind: Namespace\nmetadata:\n  name: {values.namespace}\n"] * values.create_namespace
    documents.append(_settings(values, steps=kind == "fleet"))
    documents += [_config_map(name, place, values) for name, place in made.configs.items()]
    documents += [_adapted(source("kubernetes", part), kind, values) for part in made.parts]
    return "---\n".join(_placed(document, values) for document in documents)


def _settings(values: Values, *, steps: bool) -> str:
    directory = f"  OTEL_GOODPUT_DIR: {values.dir}\n" if values.dir else ""
    return (
        "# The environment of the trainer and of the collectors.\n"
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: goodput\ndata:\n"
        f"  GOOGLE_CLOUD_PROJECT: {values.project}\n{directory}{_STEPS if steps else ''}"
    )


def _config_map(name: str, place: str, values: Values) -> str:
    spool = "" if values.spool and place != "gateway" else None
    listen = "0.0.0.0:4317" if place == "gateway" else None
    data = {
        "config.yaml": configuration(place, Choices(spool=spool, listen=listen)).replace(_HEALTH, _HEALTH_FROM_OUTSIDE),
        "move-broken-queues.sh": source("configs", "move-broken-queues.sh"),
    }
    text = f"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {name}\ndata:\n"
    for key, content in data.items():
        lines = (f"    {line}" if line else "" for line in content.splitlines())
        text += f"  {key}: |\n" + "\n".join(lines) + "\n"
    return text


def _adapted(text: str, kind: str, values: Values) -> str:
    """A file of the sources with what was chosen, and with the one configuration in place of several."""
    text = _ARGUMENTS.sub(r"\1args: [--config=/etc/otelcol/config.yaml]\n", text)
    if "kind: Deployment" not in text:
        variables = {"OTELCOL_GOODPUT_SPOOL": _SPOOL} if values.spool else {}
        variables |= {"OTELCOL_GOODPUT_GATEWAY": "otelcol-gateway"} if kind == "fleet" else {}
        added = "".join(rf"\1- name: {name}\n\1  value: {value}\n" for name, value in variables.items())
        text = _FIRST_VARIABLE.sub(rf"{added}\g<0>", text)
    text = text.replace(ACCOUNT, values.account or ACCOUNT.replace("PROJECT", values.project))
    if values.image:
        text = text.replace("image: trainer\n", f"image: {values.image}\n")
    if values.accelerators:
        resource, _, number = values.accelerators.partition("=")
        text = text.replace("limits: {memory: 16Gi}", f'limits: {{memory: 16Gi, {resource}: "{number}"}}')
    if values.hosts:
        text = re.sub(r"((?:parallelism|completions): )4\b", rf"\g<1>{values.hosts}", text)
        text = text.replace('value: "4"', f'value: "{values.hosts}"')
    if values.slices:
        text = text.replace("replicas: 1 # slices", f"replicas: {values.slices} # slices")
    return text


def _placed(text: str, values: Values) -> str:
    """The document, or documents, in the namespace and under the names that were chosen."""
    if "kind: Namespace\n" in text:
        return text
    text = re.sub(r"^metadata:\n", f"metadata:\n  namespace: {values.namespace}\n", text, flags=re.MULTILINE)
    text = text.replace(
        "  - kind: ServiceAccount\n    name: trainer\n",
        f"  - kind: ServiceAccount\n    name: trainer\n    namespace: {values.namespace}\n",
    )
    if values.name:
        text = _NAMED.sub(rf"\g<1>{values.name}-\g<2>", text)
        text = _TRAINER.sub(rf"\g<1>{values.name}-trainer", text)
        text = text.replace("kubernetes.io/name: trainer", f"kubernetes.io/name: {values.name}")
    return text

"""``otel-goodput collector``: the collector's configuration, its systemd unit or a Kubernetes manifest, in one file."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Callable, Set
from typing import Any, Final, NamedTuple

from otel_goodput._runtime import files
from otel_goodput._tools.arguments import named_as

PROJECT: Final = "${env:GOOGLE_CLOUD_PROJECT}"
QUEUE: Final = "/var/lib/otelcol-goodput"
SPOOL: Final = f"{QUEUE}/spool"


class Target(NamedTuple):
    """Where a collector runs."""

    brief: str  # for the head of the file, and for ``--help``
    roles: tuple[str, ...]  # what the account needs on Google Cloud
    options: frozenset[str]  # those of `Choices` that can be given here
    notes: tuple[str, ...]  # what to set in the jobs, or in the other collectors; one sentence a line


_JOBS: Final = "Jobs need OTEL_GOODPUT_EXPORTERS=otlp and OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4317."
_FLEET: Final = "They also need OTEL_GOODPUT_STEP_TRACES=own and OTEL_GOODPUT_STEP_SAMPLING=1: the gateway samples."
TARGETS: Final[dict[str, Target]] = {
    "local": Target(
        "On one machine, without a cloud: to the log, to a file, and to Prometheus.", (), frozenset(), (_JOBS,)
    ),
    "sidecar": Target(
        "Next to a job on Google Cloud: spans and metrics go to the Telemetry API.",
        ("roles/telemetry.writer",),
        frozenset({"project", "queue_dir", "spool"}),
        (_JOBS,),
    ),
    "classic": Target(
        "As sidecar, but metrics have the names used by our dashboards and alerts for Cloud Monitoring.",
        ("roles/telemetry.writer", "roles/monitoring.metricWriter"),
        frozenset({"project", "queue_dir", "spool"}),
        (_JOBS,),
    ),
    "fleet": Target(
        "Next to each process of a job on many hosts: metrics as with classic, spans to the gateway.",
        ("roles/telemetry.writer", "roles/monitoring.metricWriter"),
        frozenset({"project", "queue_dir", "spool", "gateway", "tls"}),
        (_JOBS, _FLEET),
    ),
    "gateway": Target(
        "One per fleet: keeps the steps that are slow, failed or compiling on any host, and 1 % of the others.",
        ("roles/telemetry.writer",),
        frozenset({"project", "queue_dir", "listen", "tls"}),
        ("The collectors beside the jobs have the configuration fleet, with --gateway naming this host.",),
    ),
}


class Choices(NamedTuple):
    """What can be chosen; None or an empty string leaves the default."""

    project: str | None = None  # Google Cloud's, in place of the variable GOOGLE_CLOUD_PROJECT
    queue_dir: str | None = None  # for the queue on disk, in place of the variable OTELCOL_GOODPUT_STATE
    spool: str | None = None  # for all that jobs send, kept in files too; the default directory if it is empty
    gateway: str | None = None  # where a fleet's collectors find the gateway, ``host`` or ``host:port``
    listen: str | None = None  # where the gateway listens for OTLP, ``host:port``
    tls: str | None = None  # what the gateway requires of its clients: ``mtls`` or ``token``


def source(*path: str) -> str:
    """Return the text of a file under ``sources``. Raises OSError: the installation is not whole."""
    return files.resource("otel_goodput._tools.collector", "sources", *path)


def configuration(name: str, chosen: Choices) -> str:
    """Return the configuration for a target as one text, without a head."""
    parts = (name, chosen.tls, None if chosen.spool is None else "spool")
    text = source("configs", f"{'-'.join(filter(None, parts))}.yaml")
    queue, spool = (chosen.queue_dir or "").rstrip("/"), (chosen.spool or "").rstrip("/")
    if queue and chosen.spool is not None:
        spool = spool or f"{queue}/spool"
    host, _, port = (chosen.gateway or "").partition(":")
    for default, given in (
        ('endpoint: "localhost:4317"', chosen.listen and f'endpoint: "{chosen.listen}"'),
        (PROJECT, chosen.project),
        (f"${{env:OTELCOL_GOODPUT_STATE:-{QUEUE}}}", queue),
        (f"${{env:OTELCOL_GOODPUT_SPOOL:-{SPOOL}}}", spool),
        # Quoted: the collector wants strings here, even if they are numbers.
        ("${env:OTELCOL_GOODPUT_GATEWAY:-otelcol-gateway}", host and f'"{host}"'),
        ("${env:OTELCOL_GOODPUT_GATEWAY_PORT:-4317}", port and f'"{port}"'),
    ):
        if given:
            text = text.replace(default, given)
    return text


def head(name: str, command: str, chosen: Choices) -> str:
    """Return the comment at the head of a configuration: what it is, how it is run, what it needs."""
    target = TARGETS[name]
    lines = [target.brief, f"Written by: {command}", "", "Try it, then run it:"]
    lines += [f"  otelcol-contrib {each}--config=config.yaml" for each in ("validate ", "")]
    lines += ["", *target.notes]
    if target.roles:
        lines.append(f"The account needs {' and '.join(target.roles)}.")
        if not chosen.project:
            lines.append("The environment variable GOOGLE_CLOUD_PROJECT names the project.")
        lines.append(f"Requests wait on disk in {chosen.queue_dir or QUEUE}, through outages and restarts.")
    return "".join(f"# {line}".rstrip() + "\n" for line in lines)


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
    """What a manifest consists of."""

    parts: tuple[str, ...]  # files of ``sources/kubernetes``, in this order
    configs: dict[str, str]  # the name of each ConfigMap, and the target whose configuration is in it
    brief: str  # for ``--help``


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


def manifest(values: argparse.Namespace) -> str:
    """Return the manifest with the values of the arguments, as one text of several documents."""
    made = KINDS[values.kind]
    documents = [f"apiVersion: v1\nkind: Namespace\nmetadata:\n  name: {values.namespace}\n"] * values.create_namespace
    documents.append(
        "# The environment of the trainer and of the collectors.\n"
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: goodput\ndata:\n"
        f"  GOOGLE_CLOUD_PROJECT: {values.project}\n"
        + (f"  OTEL_GOODPUT_DIR: {values.dir}\n" if values.dir else "")
        + (_STEPS if values.kind == "fleet" else "")
    )
    documents += [_config_map(name, place, spool=values.spool) for name, place in made.configs.items()]
    documents += [_adapted(source("kubernetes", part), values) for part in made.parts]
    return "---\n".join(_placed(document, values) for document in documents)


def _config_map(name: str, place: str, *, spool: bool) -> str:
    gateway = place == "gateway"
    chosen = Choices(spool="" if spool and not gateway else None, listen="0.0.0.0:4317" if gateway else None)
    text = f"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {name}\ndata:\n"
    for key, content in (
        ("config.yaml", configuration(place, chosen).replace(_HEALTH, _HEALTH_FROM_OUTSIDE)),
        ("move-broken-queues.sh", source("configs", "move-broken-queues.sh")),
    ):
        lines = (f"    {line}" if line else "" for line in content.splitlines())
        text += f"  {key}: |\n" + "\n".join(lines) + "\n"
    return text


def _adapted(text: str, values: argparse.Namespace) -> str:
    """A file of the sources with what was chosen, and with the one configuration in place of several."""
    text = _ARGUMENTS.sub(r"\1args: [--config=/etc/otelcol/config.yaml]\n", text)
    if "kind: Deployment" not in text:
        variables = {"OTELCOL_GOODPUT_SPOOL": _SPOOL} if values.spool else {}
        variables |= {"OTELCOL_GOODPUT_GATEWAY": "otelcol-gateway"} if values.kind == "fleet" else {}
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


def _placed(text: str, values: argparse.Namespace) -> str:
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


# --- arguments --------------------------------------------------------------------------------------------------------

_CONFIG = """\
examples:
  otel-goodput collector config local > config.yaml
  otel-goodput collector config classic --project my-project --spool --output config.yaml
  otel-goodput collector config fleet --project my-project --gateway gateway.internal > config.yaml
  otel-goodput collector config gateway --project my-project --listen 0.0.0.0:4317 > config.yaml
"""
_SYSTEMD = """\
examples:
  otel-goodput collector systemd classic --project my-project --spool > install.sh
  otel-goodput collector systemd gateway --project my-project --listen 0.0.0.0:4317 > install.sh
  sudo sh install.sh
"""
_K8S = """\
examples:
  otel-goodput collector k8s job --project my-project --image IMAGE --dir gs://my-bucket/goodput > manifest.yaml
  otel-goodput collector k8s fleet --project my-project --image IMAGE --dir gs://my-bucket/goodput \\
    --name llama3 --hosts 4 --slices 2 --accelerators google.com/tpu=4 > manifest.yaml
  kubectl apply --dry-run=server -f manifest.yaml
"""


def add_collector_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the commands ``config``, ``systemd`` and ``k8s`` to `parser`."""
    parsers = parser.add_subparsers(dest="written", required=True, metavar="WHAT")

    def subcommand(name: str, purpose: str, title: str, rows: Any, examples: str) -> argparse.ArgumentParser:
        return parsers.add_parser(
            name,
            help=purpose,
            description="\n".join([title, "", *(f"  {each:<9}{row.brief}" for each, row in rows.items())]),
            epilog=examples,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    config = subcommand(
        "config",
        "a configuration of the collector, in one file",
        "The collector's configuration for a place, in one file:",
        TARGETS,
        _CONFIG,
    )
    systemd = subcommand(
        "systemd",
        "a script that installs the collector as a systemd unit on a VM",
        "A script that installs the collector as a systemd unit, for a place:",
        TARGETS,
        _SYSTEMD,
    )
    k8s = subcommand(
        "k8s",
        "a Kubernetes manifest with the collector and its configuration, in one file",
        "A Kubernetes manifest with the collector and its configuration, in one file:",
        KINDS,
        _K8S,
    )
    for each in (config, systemd):
        _add_choices(each)
    config.add_argument("--queue-dir", type=folder, metavar="DIR", help="where requests wait on disk")
    words = f"also keep what jobs send in files, the newest 600 MB (default: QUEUE_DIR/spool, else {SPOOL})"
    config.add_argument("--spool", nargs="?", const="", type=folder, metavar="DIR", help=words)
    words = f"also keep what jobs send in {SPOOL}, the newest 600 MB"
    systemd.add_argument("--spool", action="store_const", const="", help=words)
    systemd.set_defaults(queue_dir=None)  # the unit has a directory of its own
    _add_values(k8s)
    for each, write in ((config, _configured), (systemd, _configured), (k8s, _k8s)):
        each.add_argument("--output", metavar="FILE", help="write here, readable only by you (default: print it)")
        each.set_defaults(parser=each, write=write)


def _add_choices(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("place", choices=tuple(TARGETS), metavar="PLACE", help=", ".join(TARGETS))
    words = "Google Cloud project (default: GOOGLE_CLOUD_PROJECT as it runs)"
    parser.add_argument("--project", type=project, metavar="ID", help=words)
    parser.add_argument("--gateway", type=address, metavar="HOST[:PORT]", help="fleet: where the gateway is")
    parser.add_argument("--listen", type=endpoint, metavar="HOST:PORT", help="gateway: default localhost:4317")
    words = "fleet, gateway: TLS, with a client certificate or a bearer token"
    parser.add_argument("--tls", choices=("mtls", "token"), help=words)


def _add_values(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", choices=tuple(KINDS), metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--project", type=project, required=True, metavar="ID", help="Google Cloud project")
    parser.add_argument("--image", type=image, metavar="IMAGE", help="the trainer's container image")
    parser.add_argument("--dir", type=url, metavar="URL", help="OTEL_GOODPUT_DIR, next to the checkpoints: gs://...")
    parser.add_argument("--namespace", type=label, default="training", metavar="NAME", help="default: training")
    parser.add_argument("--create-namespace", action="store_true", help="include the Namespace in the manifest")
    words = "the job's name in telemetry; objects are called NAME-..."
    parser.add_argument("--name", type=short, metavar="NAME", help=words)
    parser.add_argument("--account", type=email, metavar="EMAIL", help=f"Google service account (default: {ACCOUNT})")
    parser.add_argument("--accelerators", type=amount, metavar="KIND=N", help="of each pod, such as nvidia.com/gpu=8")
    parser.add_argument("--hosts", type=count, metavar="N", help="jobset, fleet: pods of a slice (default 4)")
    parser.add_argument("--slices", type=count, metavar="N", help="jobset, fleet: default 1")
    parser.add_argument("--spool", action="store_true", help="also keep what the job sends in files next to the queue")


def _matching(name: str, pattern: str) -> Callable[[str], str]:
    """Return a type for argparse: a text that matches `pattern`, which errors call `name`."""

    def parse(text: str) -> str:
        if re.fullmatch(pattern, text) is None:
            raise ValueError(text)
        return text

    return named_as(name, parse)


_HOST = r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?"
_PORT = r"(6553[0-5]|655[0-2]\d|65[0-4]\d\d|6[0-4]\d{3}|[1-5]\d{4}|[1-9]\d{0,3})"
# YAML takes some words for something else than names.
_LABEL = r"(?!(?:y|n|yes|no|on|off|true|false|null)$)[a-z]([a-z0-9-]{0,%d}[a-z0-9])?"
project = _matching("project id", r"([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]")
folder = _matching("absolute path of letters, digits and . _ - /", r"/[A-Za-z0-9._/-]*[A-Za-z0-9._-]/?|")
address = _matching("HOST[:PORT]", rf"{_HOST}(:{_PORT})?")
endpoint = _matching("HOST:PORT", rf"({_HOST}|\[[0-9A-Fa-f:.]+\]):{_PORT}")
image = _matching("container image", r"[A-Za-z0-9][A-Za-z0-9._/:@-]*[A-Za-z0-9]")
url = _matching("path or URL", r"(?=.*/)[A-Za-z0-9/][A-Za-z0-9._/:@+=~-]*")
label = _matching("name of at most 63 lower-case letters, digits and -", _LABEL % 61)
# A JobSet's pods have names of at most 63 letters, of which it and JobSet add up to 31.
short = _matching("name of at most 32 lower-case letters, digits and -", _LABEL % 30)
email = _matching("service account's email", r"[A-Za-z0-9._-]+@[A-Za-z0-9.-]+")
count = _matching("positive number", r"[1-9][0-9]*")
amount = _matching("KIND=NUMBER", r"[a-z0-9.-]+/[A-Za-z0-9._-]+=[1-9][0-9]*")


# --- what is written --------------------------------------------------------------------------------------------------


def installer(name: str, command: str, chosen: Choices) -> str:
    """Return the script for a target; `command` wrote it."""
    target = TARGETS[name]
    notes = list(target.notes)
    if target.roles:
        notes.append(f"The VM's service account needs {' and '.join(target.roles)}.")
    script = source("systemd", "install.sh.in")
    for slot, text in (
        ("@BRIEF@", target.brief),
        ("@COMMAND@", command),
        ("@NOTES@", "\n# ".join(notes)),
        ("@CONFIG@", configuration(name, chosen)),
        ("@MOVE@", source("configs", "move-broken-queues.sh")),
        ("@UNIT@", source("systemd", "otelcol-goodput.service")),
    ):
        script = script.replace(slot, text)
    return script


def run_collector(options: argparse.Namespace) -> int:
    """Print or write the file, and return 0."""
    text = options.write(options)
    if options.output in (None, "-"):
        sys.stdout.write(text)
    else:
        files.write_for_owner(files.named(options.output), text.encode())
    return 0


def _configured(options: argparse.Namespace) -> str:
    """Return the configuration for a place, or the script that installs it."""
    given = {name: getattr(options, name) for name in Choices._fields}
    chosen, place = Choices(**given), options.place
    _refuse_others(options, place, given, TARGETS[place].options)
    words = ["otel-goodput", "collector", options.written, place]
    for name, value in given.items():
        if value is not None:
            words += [_flag(name), *([value] if value else [])]
    command = shlex.join(words)
    if options.written == "systemd":
        return installer(place, command, chosen)
    return head(place, command, chosen) + configuration(place, chosen)


def _k8s(options: argparse.Namespace) -> str:
    parts = KINDS[options.kind].parts
    hosts, trainer, others = ("hosts", "slices"), ("image", "dir"), ("accelerators", "spool")
    given = {name: getattr(options, name) or None for name in (*hosts, *trainer, *others)}
    trains = "access.yaml" in parts  # a job is in it, so that it needs an image and a directory for its journal
    allowed = {*(hosts if "jobset.yaml" in parts else ()), *((*trainer, *others) if trains else ())}
    _refuse_others(options, options.kind, given, allowed)
    missing = [_flag(name) for name in trainer if trains and given[name] is None]
    if missing:
        options.parser.error(f"{options.kind} needs {' and '.join(missing)}")
    return manifest(options)


def _refuse_others(options: argparse.Namespace, target: str, given: dict[str, object], allowed: Set[str]) -> None:
    """Refuse the options that mean nothing for this target, rather than ignore them silently."""
    wrong = [_flag(name) for name, value in given.items() if value is not None and name not in allowed]
    if wrong:
        options.parser.error(f"{target} has no {' and no '.join(wrong)}")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"

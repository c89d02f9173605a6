"""The arguments of ``otel-goodput collector``."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import Any

from otel_goodput._tools.arguments import named_as
from otel_goodput._tools.collector.manifests import ACCOUNT, KINDS
from otel_goodput._tools.collector.places import PLACES, SPOOL

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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the commands ``config``, ``systemd`` and ``k8s`` to `parser`."""
    written = parser.add_subparsers(dest="written", required=True, metavar="WHAT")
    config = written.add_parser(
        "config",
        help="a configuration of the collector, in one file",
        description=_table("The collector's configuration for a place, in one file:", PLACES),
        epilog=_CONFIG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_choices(config)
    config.add_argument("--queue-dir", type=folder, metavar="DIR", help="where requests wait on disk")
    config.add_argument(
        "--spool", nargs="?", const="", type=folder, metavar="DIR",
        help=f"also keep what jobs send in files, the newest 600 MB (default: QUEUE_DIR/spool, else {SPOOL})",
    )  # fmt: skip
    systemd = written.add_parser(
        "systemd",
        help="a script that installs the collector as a systemd unit on a VM",
        description=_table("A script that installs the collector as a systemd unit, for a place:", PLACES),
        epilog=_SYSTEMD,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_choices(systemd)
    systemd.add_argument(
        "--spool", action="store_const", const="", help=f"also keep what jobs send in {SPOOL}, the newest 600 MB"
    )
    systemd.set_defaults(queue_dir=None)  # the unit has a directory of its own
    k8s = written.add_parser(
        "k8s",
        help="a Kubernetes manifest with the collector and its configuration, in one file",
        description=_table("A Kubernetes manifest with the collector and its configuration, in one file:", KINDS),
        epilog=_K8S,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    k8s.add_argument("kind", choices=tuple(KINDS), metavar="KIND", help=", ".join(KINDS))
    _add_values(k8s)
    for each in (config, systemd, k8s):
        each.add_argument("--output", metavar="FILE", help="write here, readable only by you (default: print it)")
        each.set_defaults(parser=each)


def _table(title: str, rows: Any) -> str:
    return "\n".join([title, "", *(f"  {name:<9}{row.brief}" for name, row in rows.items())])


def _add_choices(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("place", choices=tuple(PLACES), metavar="PLACE", help=", ".join(PLACES))
    parser.add_argument(
        "--project", type=project, metavar="ID", help="Google Cloud project (default: GOOGLE_CLOUD_PROJECT as it runs)"
    )
    parser.add_argument("--gateway", type=address, metavar="HOST[:PORT]", help="fleet: where the gateway is")
    parser.add_argument("--listen", type=endpoint, metavar="HOST:PORT", help="gateway: default localhost:4317")
    parser.add_argument(
        "--tls", choices=("mtls", "token"), help="fleet, gateway: TLS, with a client certificate or a bearer token"
    )


def _add_values(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--project", type=project, required=True, metavar="ID", help="Google Cloud project")
    parser.add_argument("--image", type=image, metavar="IMAGE", help="the trainer's container image")
    parser.add_argument("--dir", type=url, metavar="URL", help="OTEL_GOODPUT_DIR, next to the checkpoints: gs://...")
    parser.add_argument("--namespace", type=label, default="training", metavar="NAME", help="default: training")
    parser.add_argument("--create-namespace", action="store_true", help="include the Namespace in the manifest")
    parser.add_argument(
        "--name", type=short, metavar="NAME", help="the job's name in telemetry; objects are called NAME-..."
    )
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
amount = _matching("KIND=NUMBER", r"[a-z0-9.-]+/[A-Za-z0-9._-]+=[1-9][0-9]*")


def _count(text: str) -> int:
    if (number := int(text)) < 1:
        raise ValueError(text)
    return number


count = named_as("positive number", _count)

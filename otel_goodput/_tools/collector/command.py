"""``otel-goodput collector``: the collector's configuration, its systemd unit or a Kubernetes manifest, in one file."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Callable
from typing import Any, Final

from otel_goodput._runtime import files
from otel_goodput._tools.arguments import named_as
from otel_goodput._tools.collector.manifests import ACCOUNT, KINDS, Values, manifest
from otel_goodput._tools.collector.targets import SPOOL, TARGETS, Choices, configuration, head, source

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
    _add_choices(config)
    config.add_argument("--queue-dir", type=folder, metavar="DIR", help="where requests wait on disk")
    words = f"also keep what jobs send in files, the newest 600 MB (default: QUEUE_DIR/spool, else {SPOOL})"
    config.add_argument("--spool", nargs="?", const="", type=folder, metavar="DIR", help=words)
    systemd = subcommand(
        "systemd",
        "a script that installs the collector as a systemd unit on a VM",
        "A script that installs the collector as a systemd unit, for a place:",
        TARGETS,
        _SYSTEMD,
    )
    _add_choices(systemd)
    words = f"also keep what jobs send in {SPOOL}, the newest 600 MB"
    systemd.add_argument("--spool", action="store_const", const="", help=words)
    systemd.set_defaults(queue_dir=None)  # the unit has a directory of its own
    k8s = subcommand(
        "k8s",
        "a Kubernetes manifest with the collector and its configuration, in one file",
        "A Kubernetes manifest with the collector and its configuration, in one file:",
        KINDS,
        _K8S,
    )
    k8s.add_argument("kind", choices=tuple(KINDS), metavar="KIND", help=", ".join(KINDS))
    _add_values(k8s)
    for each, write in ((config, _config), (systemd, _systemd), (k8s, _k8s)):
        each.add_argument("--output", metavar="FILE", help="write here, readable only by you (default: print it)")
        each.set_defaults(parser=each, write=write)


def _add_choices(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("place", choices=tuple(TARGETS), metavar="PLACE", help=", ".join(TARGETS))
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


# --- what is written --------------------------------------------------------------------------------------------------

PROGRAM: Final = "/usr/local/bin/otelcol-goodput"
CONFIGURATION: Final = "/etc/otelcol-goodput/config.yaml"
_ENVIRONMENT: Final = f"""\
# Put variables of your own into `systemctl edit otelcol-goodput`: this file is written anew.
OTELCOL_OPTIONS=--config={CONFIGURATION}
"""
_END: Final = "END_OF_FILE"
_HEAD: Final = """\
#!/bin/sh
# Installs the OpenTelemetry Collector as the systemd unit otelcol-goodput, and starts it. Can be run again.
# {brief}
# Written by: {command}
#
# Before: install -m 755 otelcol-contrib {program}
# Then, as root: sh install.sh
# To look first: DESTDIR=/tmp/look sh install.sh writes the files below that folder, and starts nothing.
#
# {notes}
set -eu
root=${{DESTDIR:-}}
if [ -z "$root" ] && [ ! -x {program} ]; then
  echo "there is no {program}: install the collector first, as the head of this script says" >&2
  exit 1
fi
umask 022
mkdir -p "$root/etc/otelcol-goodput" "$root/etc/systemd/system"
"""
_TAIL: Final = """\
if [ -z "$root" ]; then
  systemctl daemon-reload
  systemctl enable otelcol-goodput
  systemctl restart otelcol-goodput
fi
"""


def installer(name: str, command: str, chosen: Choices) -> str:
    """Return the script for a target; `command` wrote it."""
    target = TARGETS[name]
    notes = list(target.notes)
    if target.roles:
        notes.append(f"The VM's service account needs {' and '.join(target.roles)}.")
    written = {
        CONFIGURATION: configuration(name, chosen),
        "/etc/otelcol-goodput/move-broken-queues.sh": source("configs", "move-broken-queues.sh"),
        "/etc/otelcol-goodput/environment": _ENVIRONMENT,
        "/etc/systemd/system/otelcol-goodput.service": source("systemd", "otelcol-goodput.service"),
    }
    head = _HEAD.format(brief=target.brief, command=command, program=PROGRAM, notes="\n# ".join(notes))
    files = "".join(f"cat > \"$root{path}\" <<'{_END}'\n{text}{_END}\n" for path, text in written.items())
    return head + files + _TAIL


def run_collector(options: argparse.Namespace) -> int:
    """Print or write the file, and return 0."""
    text = options.write(options)
    if options.output is None or options.output == "-":
        sys.stdout.write(text)
    else:
        files.write_for_owner(files.named(options.output), text.encode())
    return 0


def _config(options: argparse.Namespace) -> str:
    chosen, command = _chosen(options)
    return head(options.place, command, chosen) + configuration(options.place, chosen)


def _systemd(options: argparse.Namespace) -> str:
    chosen, command = _chosen(options)
    return installer(options.place, command, chosen)


def _chosen(options: argparse.Namespace) -> tuple[Choices, str]:
    """Return what was chosen for the target, and the command that chooses the same."""
    chosen = Choices(**{name: getattr(options, name) for name in Choices._fields})
    _refuse_others(options, options.place, chosen._asdict(), TARGETS[options.place].options)
    words = ["otel-goodput", "collector", options.written, options.place]
    for name, value in chosen._asdict().items():
        if value is not None:
            words += [f"--{name.replace('_', '-')}", *([value] if value else [])]
    return chosen, shlex.join(words)


def _k8s(options: argparse.Namespace) -> str:
    kind = KINDS[options.kind]
    values = Values(**{name: getattr(options, name) for name in Values._fields})
    hosts, trainer, others = ("hosts", "slices"), ("image", "dir"), ("accelerators", "spool")
    given = {name: getattr(values, name) or None for name in (*hosts, *trainer, *others)}
    allowed = {*(hosts if kind.hosts else ()), *((*trainer, *others) if kind.trains else ())}
    _refuse_others(options, options.kind, given, frozenset(allowed))
    missing = [f"--{name}" for name in trainer if kind.trains and given[name] is None]
    if missing:
        options.parser.error(f"{options.kind} needs {' and '.join(missing)}")
    return manifest(options.kind, values)


def _refuse_others(options: argparse.Namespace, target: str, given: dict[str, object], allowed: frozenset[str]) -> None:
    """Refuse the options that mean nothing for this target, rather than ignore them silently."""
    wrong = [
        f"--{name.replace('_', '-')}" for name, value in given.items() if value is not None and name not in allowed
    ]
    if wrong:
        options.parser.error(f"{target} has no {' and no '.join(wrong)}")

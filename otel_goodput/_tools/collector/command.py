"""``otel-goodput collector``: print or write the file that was asked for."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable
from typing import Final

from otel_goodput._runtime import files
from otel_goodput._tools.collector.manifests import KINDS, Values, manifest
from otel_goodput._tools.collector.places import PLACES, Choices, configuration, head, source

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
# {told}
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
    """Return the script for a place; `command` wrote it.

    Raises:
        OSError: the installation is not whole.
    """
    place = PLACES[name]
    told = list(place.told.split("\n# "))
    if place.roles:
        told.append(f"The VM's service account needs {' and '.join(place.roles)}.")
    written = {
        CONFIGURATION: configuration(name, chosen),
        "/etc/otelcol-goodput/move-broken-queues.sh": source("configs", "move-broken-queues.sh"),
        "/etc/otelcol-goodput/environment": _ENVIRONMENT,
        "/etc/systemd/system/otelcol-goodput.service": source("systemd", "otelcol-goodput.service"),
    }
    head = _HEAD.format(brief=place.brief, command=command, program=PROGRAM, told="\n# ".join(told))
    files = "".join(f"cat > \"$root{path}\" <<'{_END}'\n{text}{_END}\n" for path, text in written.items())
    return head + files + _TAIL


def run(options: argparse.Namespace) -> int:
    """Print or write what was asked for, and return 0.

    Raises:
        SystemExit: with 2, an option does not belong to the place.
        OSError: the file cannot be written.
    """
    text = _WRITERS[options.written](options)
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
    """Return what was chosen for the place, and the command that chooses the same."""
    chosen = Choices(**{name: getattr(options, name) for name in Choices._fields})
    _refuse_others(options, options.place, chosen._asdict(), PLACES[options.place].options)
    words = ["otel-goodput", "collector", options.written, options.place]
    for name, value in chosen._asdict().items():
        if value is not None:
            words += [f"--{name.replace('_', '-')}", *([value] if value else [])]
    return chosen, shlex.join(words)


def _k8s(options: argparse.Namespace) -> str:
    kind = KINDS[options.kind]
    given = {"hosts": options.hosts, "slices": options.slices}
    trainer = {"image": options.image, "dir": options.dir}
    others = {"accelerators": options.accelerators, "spool": options.spool or None}
    allowed = {*(given if kind.hosts else ()), *((*trainer, *others) if kind.trains else ())}
    _refuse_others(options, options.kind, {**given, **trainer, **others}, frozenset(allowed))
    missing = [f"--{name}" for name, value in trainer.items() if kind.trains and value is None]
    if missing:
        options.parser.error(f"{options.kind} needs {' and '.join(missing)}")
    return manifest(
        options.kind,
        Values(
            project=options.project,
            namespace=options.namespace,
            new_namespace=options.create_namespace,
            image=options.image,
            directory=options.dir,
            name=options.name,
            account=options.account,
            accelerators=options.accelerators,
            hosts=options.hosts,
            slices=options.slices,
            spool=options.spool,
        ),
    )


def _refuse_others(options: argparse.Namespace, place: str, given: dict[str, object], allowed: frozenset[str]) -> None:
    """Say which options mean nothing for this place, rather than leave them out silently."""
    wrong = [
        f"--{name.replace('_', '-')}" for name, value in given.items() if value is not None and name not in allowed
    ]
    if wrong:
        options.parser.error(f"{place} has no {' and no '.join(wrong)}")


_WRITERS: Final[dict[str, Callable[[argparse.Namespace], str]]] = {
    "config": _config,
    "systemd": _systemd,
    "k8s": _k8s,
}

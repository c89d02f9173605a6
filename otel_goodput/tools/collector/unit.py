"""The collector as a systemd unit: one shell script that writes its files and starts it."""

from __future__ import annotations

from typing import Final

from otel_goodput.tools.collector.places import PLACES, Choices, configuration, source

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

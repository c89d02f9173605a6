#!/bin/sh
# Installs the OpenTelemetry Collector as the systemd unit otelcol-goodput, and starts it. Can be run again.
# @BRIEF@
# Written by: @COMMAND@
#
# Before: install -m 755 otelcol-contrib /usr/local/bin/otelcol-goodput
# Then, as root: sh install.sh
# To look first: DESTDIR=/tmp/look sh install.sh writes the files below that folder, and starts nothing.
#
# @NOTES@
set -eu
root=${DESTDIR:-}
if [ -z "$root" ] && [ ! -x /usr/local/bin/otelcol-goodput ]; then
  echo "there is no /usr/local/bin/otelcol-goodput: install the collector first, as the head of this script says" >&2
  exit 1
fi
umask 022
mkdir -p "$root/etc/otelcol-goodput" "$root/etc/systemd/system"
cat > "$root/etc/otelcol-goodput/config.yaml" <<'END_OF_FILE'
@CONFIG@END_OF_FILE
cat > "$root/etc/otelcol-goodput/move-broken-queues.sh" <<'END_OF_FILE'
@MOVE@END_OF_FILE
cat > "$root/etc/otelcol-goodput/environment" <<'END_OF_FILE'
# Put variables of your own into `systemctl edit otelcol-goodput`: this file is written anew.
OTELCOL_OPTIONS=--config=/etc/otelcol-goodput/config.yaml
END_OF_FILE
cat > "$root/etc/systemd/system/otelcol-goodput.service" <<'END_OF_FILE'
@UNIT@END_OF_FILE
if [ -z "$root" ]; then
  systemctl daemon-reload
  systemctl enable otelcol-goodput
  systemctl restart otelcol-goodput
fi

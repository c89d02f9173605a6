"""Whether what is on the local disk is still there after a restart."""

from __future__ import annotations

from collections.abc import Mapping

from otel_goodput.disruption.metadata import metadata_host
from otel_goodput.resources.kubernetes import CLUSTER


def goes_with(environ: Mapping[str, str]) -> str:
    """What the local disk probably goes with: this pod, this VM of Google's; empty if with nothing. No network is used.

    A volume that is mounted stays, but nobody mounts one where a program happens to be started.
    """
    if environ.get(CLUSTER):
        return "this pod"
    return "" if metadata_host(environ) is None else "this VM"

"""Where a job runs, as the location of Cloud Monitoring's resources."""

from __future__ import annotations

import re
from typing import Final

from opentelemetry.sdk.resources import Resource

from otel_goodput import semconv
from otel_goodput.resources.detected import DetectedResource

NOWHERE: Final = "global"
# `us-central1`, `us-central1-a`; with anything else every point would be rejected.
_PLACE: Final = re.compile(r"[a-z]+-[a-z]+\d+(-[a-z])?")


def location(resource: Resource) -> str:
    """Return the zone, else the region, else ``global``. Waits a moment if it is still being detected."""
    settled(resource)
    for key in (semconv.CLOUD_AVAILABILITY_ZONE, semconv.CLOUD_REGION):
        found = str(resource.attributes.get(key, ""))
        if _PLACE.fullmatch(found):
            return found
    return NOWHERE


def settled(resource: Resource) -> None:
    """Wait, a second at most, until the resource is detected, because a series keeps its first labels."""
    if isinstance(resource, DetectedResource):
        resource.wait()

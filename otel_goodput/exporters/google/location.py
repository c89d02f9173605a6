"""Where a job runs, in the words of Cloud Monitoring's resources."""

from __future__ import annotations

import re
from typing import Final

from opentelemetry.sdk.resources import Resource

from otel_goodput import semconv
from otel_goodput.resources.detected import DetectedResource

NOWHERE: Final = "global"
# `us-central1`, `us-central1-a`; anything else would have every point refused.
_PLACE: Final = re.compile(r"[a-z]+-[a-z]+\d+(-[a-z])?")


def location(resource: Resource) -> str:
    """The zone, else the region, else ``global``. Waits a moment where it is still being found out."""
    settled(resource)
    for key in (semconv.CLOUD_AVAILABILITY_ZONE, semconv.CLOUD_REGION):
        found = str(resource.attributes.get(key, ""))
        if _PLACE.fullmatch(found):
            return found
    return NOWHERE


def settled(resource: Resource) -> None:
    """Wait, a second at most, for what is still being found out of the resource: a series keeps its first labels."""
    if isinstance(resource, DetectedResource):
        resource.wait()

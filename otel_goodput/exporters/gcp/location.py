"""Where a job runs, in the words of Cloud Monitoring's resources."""

from __future__ import annotations

import re
from typing import Final

from opentelemetry.sdk.resources import Resource

from otel_goodput import semconv

NOWHERE: Final = "global"
# `us-central1`, `us-central1-a`; anything else would have every point refused.
_PLACE: Final = re.compile(r"[a-z]+-[a-z]+\d+(-[a-z])?")


def location(resource: Resource) -> str:
    """The zone, else the region, else ``global``."""
    for key in (semconv.CLOUD_AVAILABILITY_ZONE, semconv.CLOUD_REGION):
        found = str(resource.attributes.get(key, ""))
        if _PLACE.fullmatch(found):
            return found
    return NOWHERE

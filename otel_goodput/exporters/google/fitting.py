"""Make metrics fit for Cloud Monitoring before they are translated: labels, value types, numbers, and the location."""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from opentelemetry.sdk.metrics.export import Metric, NumberDataPoint
from opentelemetry.sdk.resources import Resource

from otel_goodput import semconv
from otel_goodput._resources.detected import DetectedResource
from otel_goodput._text.redact import encodable
from otel_goodput.exporters import walk
from otel_goodput.exporters.fitting import INT64_MAX, INT64_MIN
from otel_goodput.semconv import METRICS

LABEL_LENGTH: Final = 100  # characters of a label's key
VALUE_LENGTH: Final = 1024  # characters of a label's value
MOST_LABELS: Final = 30
_FOREIGN: Final = re.compile(r"[^A-Za-z0-9_]")

# Metrics with integer values. All others are sent as floats from the first point on, because Cloud Monitoring derives
# the type of a metric from its first point.
COUNTS: Final = frozenset(metric.name for metric in METRICS if metric.unit.startswith("{"))


class Labels:
    """Converts attribute keys to Cloud Monitoring's label keys, unique within a metric and the same in every export.

    `renamed=False`: Google converts the keys itself; only those that would become equal are changed.
    """

    def __init__(self, *, renamed: bool = True) -> None:
        self._renamed = renamed
        self._taken: dict[str, dict[str, str]] = {}  # by metric: label key -> attribute key

    def __call__(self, metric: str, attributes: Mapping[str, Any] | None) -> dict[str, str]:
        """Return the labels of a point: at most 30, values as text of at most 1,024 characters."""
        taken = self._taken.setdefault(metric, {})
        labels = {}
        for key, value in sorted((attributes or {}).items())[:MOST_LABELS]:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            label = _label(key, taken)
            if not self._renamed and key.isascii() and len(key) <= LABEL_LENGTH and taken.get(_plain(key)) == key:
                label = key
            labels[label] = encodable(text)[:VALUE_LENGTH]
        return labels


def _plain(key: str) -> str:
    label = _FOREIGN.sub("_", key)
    return (label if label[:1].isalpha() else f"key_{label}")[:LABEL_LENGTH]


def _label(key: str, taken: dict[str, str]) -> str:
    label = _plain(key)
    if taken.setdefault(label, key) != key:
        label = f"{label[: LABEL_LENGTH - 9]}_{zlib.crc32(key.encode('utf-8', 'replace')):08x}"
        taken[label] = key
    return label


def fitting_metric(metric: Metric, labels: Labels) -> Metric | None:
    """Return the metric with labels and values that Cloud Monitoring accepts; None if it has no points."""
    points: list[Any] = [
        replace(point, attributes=labels(metric.name, point.attributes)) for point in metric.data.data_points
    ]
    if points and isinstance(points[0], NumberDataPoint):
        points = list(_numbers(points, metric.name in COUNTS))
    return walk.with_points(metric, points) if points else None


def _numbers(points: Sequence[Any], counts: bool) -> Iterator[Any]:
    for point in points:
        value = point.value
        if not math.isfinite(value):
            continue
        value = min(max(int(value), INT64_MIN), INT64_MAX) if counts else float(value)
        yield replace(point, value=value)


NOWHERE: Final = "global"
# `us-central1`, `us-central1-a`; with anything else every point would be rejected.
_PLACE: Final = re.compile(r"[a-z]+-[a-z]+\d+(-[a-z])?")


def location(resource: Resource) -> str:
    """Return the zone, else the region, else ``global``. Waits a moment if it is still being detected."""
    settled(resource)
    for key in (semconv.CLOUD_AVAILABILITY_ZONE, semconv.CLOUD_REGION):
        place = str(resource.attributes.get(key, ""))
        if _PLACE.fullmatch(place):
            return place
    return NOWHERE


def settled(resource: Resource) -> None:
    """Wait, a second at most, until the resource is detected, because a series keeps its first labels."""
    if isinstance(resource, DetectedResource):
        resource.wait()

"""What telemetry.googleapis.com asks of OTLP beyond the rules of traces and metrics, one row a rule."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import grpc

from emulators.records import Rule

LOCATION_KEYS = ("location", "cloud.availability_zone", "cloud.region")
POINTS = 200
INVALID = grpc.StatusCode.INVALID_ARGUMENT


class ResourceCase(NamedTuple):
    """A resource's attributes, as strings."""

    attributes: Mapping[str, str]
    projects: Collection[str]


class PointsCase(NamedTuple):
    points: int


def location_of(attributes: Mapping[str, str]) -> str:
    return next(filter(None, (attributes.get(key) for key in LOCATION_KEYS)), "")


def _project_missing(case: ResourceCase) -> str | None:
    return None if case.attributes.get("gcp.project_id") else "Resource is missing required attribute gcp.project_id."


def _project(case: ResourceCase) -> str | None:
    project = case.attributes["gcp.project_id"]
    return None if project in case.projects else f"Permission denied on project '{project}' (or it may not exist)."


def _location(case: ResourceCase) -> str | None:
    return None if location_of(case.attributes) else "Resource is missing a location, such as cloud.region."


def _instance(case: ResourceCase) -> str | None:
    return None if case.attributes.get("service.instance.id") else "Resource is missing service.instance.id."


def _points(case: PointsCase) -> str | None:
    return None if case.points <= POINTS else f"{case.points} points in a request; at most {POINTS}."


RESOURCE_RULES: tuple[Rule[ResourceCase], ...] = (
    Rule("otlp.project", INVALID, _project_missing),
    Rule("project", grpc.StatusCode.PERMISSION_DENIED, _project),
    Rule("otlp.location", INVALID, _location),
    Rule("otlp.instance", INVALID, _instance),
)

POINTS_RULES: tuple[Rule[PointsCase], ...] = (Rule("otlp.batch", INVALID, _points),)

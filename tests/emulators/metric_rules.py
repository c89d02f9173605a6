"""What Cloud Monitoring asks of a time series, one row a rule."""

from __future__ import annotations

import re
from typing import NamedTuple

import grpc

from emulators.catalogue import DOMAINS, LOCATION, LOCATION_LABELS, PROMETHEUS, RESOURCES, domain
from emulators.point_checks import (
    decrease,
    distribution,
    duplicate,
    end_time,
    interval_cumulative,
    interval_gauge,
    order,
    reset_start,
    sampling,
    value,
)
from emulators.records import Rule
from emulators.series_case import Kind, SeriesCase, ValueType

TYPE = re.compile(r"[a-z0-9-]+(\.[a-z0-9-]+)+/[A-Za-z0-9_][A-Za-z0-9_./-]*")
TYPE_LENGTH = 200
LABEL_KEY = re.compile("[A-Za-z_][A-Za-z0-9_]*")
LABELS, KEY_LENGTH, VALUE_LENGTH = 30, 100, 1024
BATCH = 200
INVALID = grpc.StatusCode.INVALID_ARGUMENT


class BatchCase(NamedTuple):
    series: int


def _batch(case: BatchCase) -> str | None:
    if case.series <= BATCH:
        return None
    return f"Field timeSeries had an invalid value: A maximum of {BATCH} TimeSeries can be written in a single request."


def _points(case: SeriesCase) -> str | None:
    count = len(case.series.points)
    if count == 1:
        return None
    return f"Field timeSeries[{case.position}].points had an invalid value: Exactly one point is required, not {count}."


def _metric_type(case: SeriesCase) -> str | None:
    if TYPE.fullmatch(case.type) and len(case.type) <= TYPE_LENGTH:
        return None
    return (
        f'Field timeSeries[{case.position}].metric.type had an invalid value of "{case.type}": must be a URL-formatted '
        "string with a domain and non-empty path."
    )


def _domain(case: SeriesCase) -> str | None:
    if case.descriptor is not None or domain(case.type) in DOMAINS:
        return None
    return f"User does not have permission to write to metric '{case.type}'"


def _resource_type(case: SeriesCase) -> str | None:
    known = case.series.resource.type in RESOURCES
    return None if known else f"Unrecognized resource type: {case.series.resource.type}."


def _resource_labels(case: SeriesCase) -> str | None:
    missing = RESOURCES[case.series.resource.type] - set(case.series.resource.labels)
    if not missing:
        return None
    return f"The set of resource labels is incomplete. Missing labels: ({', '.join(sorted(missing))})."


def _resource_label_unknown(case: SeriesCase) -> str | None:
    unknown = set(case.series.resource.labels) - RESOURCES[case.series.resource.type] - {"project_id"}
    return f"Unrecognized resource label: {min(unknown)}." if unknown else None


def _location(case: SeriesCase) -> str | None:
    labels = case.series.resource.labels
    bad = [labels[key] for key in LOCATION_LABELS if key in labels and not LOCATION.fullmatch(labels[key])]
    return f"Unrecognized region or location: '{bad[0]}'." if bad else None


def _resource_for_metric(case: SeriesCase) -> str | None:
    of_googles = case.descriptor.monitored_resource_types if case.descriptor else ()
    if case.series.resource.type in DOMAINS.get(domain(case.type), of_googles):
        return None
    return f"The metric '{case.type}' may not be written for a resource of type '{case.series.resource.type}'."


def _labels(case: SeriesCase) -> str | None:
    labels = case.series.metric.labels
    known = {label.key for label in case.descriptor.labels} if case.descriptor else set()
    count = len(known | set(labels))
    if count > LABELS:
        return f"The metric '{case.type}' would have {count} labels; at most {LABELS}."
    for key, content in labels.items():
        # Prometheus' own names have dots since they come by OTLP.
        if len(key) > KEY_LENGTH or not (LABEL_KEY.fullmatch(key) or case.series.resource.type == PROMETHEUS):
            return f"Invalid label key: '{key}'."
        if len(content) > VALUE_LENGTH:
            return f"The value of label '{key}' has {len(content)} characters; at most {VALUE_LENGTH}."
    return None


def _unknown_labels(case: SeriesCase) -> list[str]:
    if case.descriptor is None:
        return []
    return sorted(set(case.series.metric.labels) - {label.key for label in case.descriptor.labels})


def _label_unknown(case: SeriesCase) -> str | None:
    unknown = _unknown_labels(case)
    return f"Unrecognized metric label: {unknown[0]}." if unknown and case.google else None


def _label_added(case: SeriesCase) -> str | None:
    unknown = _unknown_labels(case)
    return f"Labels added to the descriptor: {', '.join(unknown)}." if unknown and not case.google else None


def _kind(case: SeriesCase) -> str | None:
    known = case.descriptor.metric_kind if case.descriptor else 0
    if case.kind == known or (not known and case.kind in (Kind.GAUGE, Kind.CUMULATIVE)):
        return None
    must = Kind.Name(known) if known else "GAUGE or CUMULATIVE"
    return f"Metric kind for metric {case.type} must be {must}, but is {Kind.Name(case.kind)}."


def _value_type(case: SeriesCase) -> str | None:
    known = case.descriptor.value_type if case.descriptor else 0
    must = known or case.series.value_type
    for given in filter(None, (case.series.value_type, case.value_type)):
        if must and given != must:
            return f"Value type for metric {case.type} must be {ValueType.Name(must)}, but is {ValueType.Name(given)}."
    return None


BATCH_RULES: tuple[Rule[BatchCase], ...] = (Rule("mon.batch", INVALID, _batch),)

SERIES_RULES: tuple[Rule[SeriesCase], ...] = (
    Rule("mon.points", INVALID, _points),
    Rule("mon.metric_type", INVALID, _metric_type),
    Rule("mon.domain", grpc.StatusCode.PERMISSION_DENIED, _domain),
    Rule("mon.end_time", INVALID, end_time),
    Rule("mon.interval_gauge", INVALID, interval_gauge),
    Rule("mon.interval_cumulative", INVALID, interval_cumulative),
)

# The others of the request are written all the same.
PARTIAL_RULES: tuple[Rule[SeriesCase], ...] = (
    Rule("mon.resource_type", INVALID, _resource_type),
    Rule("mon.resource_labels", INVALID, _resource_labels),
    Rule("mon.resource_label_unknown", INVALID, _resource_label_unknown),
    Rule("mon.location", INVALID, _location),
    Rule("mon.resource_for_metric", INVALID, _resource_for_metric),
    Rule("mon.labels", INVALID, _labels),
    Rule("mon.label_unknown", INVALID, _label_unknown),
    Rule("mon.kind", INVALID, _kind),
    Rule("mon.value_type", INVALID, _value_type),
    Rule("mon.value", INVALID, value),
    Rule("mon.distribution", INVALID, distribution),
    Rule("mon.duplicate", INVALID, duplicate),
    Rule("mon.order", INVALID, order),
    Rule("mon.reset_start", INVALID, reset_start),
    Rule("mon.sampling", INVALID, sampling),
    Rule("mon.label_unknown", None, _label_added),
    Rule("mon.decrease", None, decrease),
)

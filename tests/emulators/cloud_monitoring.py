"""google.monitoring.v3.MetricService, as far as a writer of metrics meets it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any

import grpc
from google.api.metric_pb2 import MetricDescriptor
from google.cloud.monitoring_v3 import (
    CreateMetricDescriptorRequest,
    CreateTimeSeriesRequest,
    GetMetricDescriptorRequest,
    ListMetricDescriptorsRequest,
    ListMetricDescriptorsResponse,
    ListTimeSeriesRequest,
    ListTimeSeriesResponse,
)
from google.protobuf.empty_pb2 import Empty

from emulators.access_rules import admit_project
from emulators.catalogue import googles
from emulators.descriptor_rules import DESCRIPTOR_RULES, DescriptorCase
from emulators.records import Method, Point, Records, Refused, SeriesKey, nanoseconds
from emulators.series_case import VALUE_TYPES
from emulators.series_writing import add_labels, write_series

# One condition of a filter: metric.type = "x", metric.labels.k = "v", metric.type = starts_with("x").
CONDITION = re.compile(r'\s*([\w.]+)\s*=\s*(starts_with)?\(?\s*"([^"]*)"\s*\)?\s*')


class CloudMonitoring:
    def __init__(self, records: Records, projects: Collection[str]) -> None:
        self._records, self._book, self._projects = records, records.metrics, projects
        self._book.descriptors.update(googles())
        methods: dict[str, tuple[Any, Callable[[Any, int], Any]]] = {
            "CreateTimeSeries": (CreateTimeSeriesRequest, self.create_series),
            "CreateMetricDescriptor": (CreateMetricDescriptorRequest, self.create_descriptor),
            "GetMetricDescriptor": (GetMetricDescriptorRequest, self.get_descriptor),
            "ListMetricDescriptors": (ListMetricDescriptorsRequest, self.list_descriptors),
            "ListTimeSeries": (ListTimeSeriesRequest, self.list_series),
        }
        self.methods = {
            f"/google.monitoring.v3.MetricService/{name}": Method(name, request.pb(), _items, answer)
            for name, (request, answer) in methods.items()
        }

    def create_series(self, request: Any, now: int) -> Empty:
        project = admit_project(self._records, request.name, self._projects)
        write_series(self._records, self._book, request.time_series, project, now)
        return Empty()

    def create_descriptor(self, request: Any, now: int) -> MetricDescriptor:
        project = admit_project(self._records, request.name, self._projects)
        new = request.metric_descriptor
        known = self._book.descriptors.get(new.type)
        refused = self._records.refuse(DESCRIPTOR_RULES, DescriptorCase(new, known), new.type)
        if refused is not None:
            raise refused
        if known is None:
            known = self._book.descriptors[new.type] = new
            known.name = f"projects/{project}/metricDescriptors/{new.type}"
        add_labels(known, [label.key for label in new.labels])
        return _copy(known)

    def get_descriptor(self, request: Any, now: int) -> MetricDescriptor:
        admit_project(self._records, request.name, self._projects)
        metric_type = request.name.partition("/metricDescriptors/")[2]
        descriptor = self._book.descriptors.get(metric_type)
        if descriptor is None:
            raise Refused(grpc.StatusCode.NOT_FOUND, f"Could not find descriptor for metric '{metric_type}'.")
        return _copy(descriptor)

    def list_descriptors(self, request: Any, now: int) -> Any:
        admit_project(self._records, request.name, self._projects)
        matches = _filter(request.filter)
        matching = [one for one in self._book.descriptors.values() if matches({"metric.type": one.type})]
        return ListMetricDescriptorsResponse.pb()(metric_descriptors=matching)

    def list_series(self, request: Any, now: int) -> Any:
        """Series with points whose end time is in the interval (start excluded), newest first."""
        admit_project(self._records, request.name, self._projects)
        matches = _filter(request.filter)
        first, last = nanoseconds(request.interval.start_time), nanoseconds(request.interval.end_time)
        response = ListTimeSeriesResponse.pb()()
        for key, points in self._book.series.items():
            inside = [point for point in points if first < point.end <= last]
            if inside and matches(_fields(key)):
                self._list(response.time_series.add(), key, inside[::-1])
        return response

    def _list(self, series: Any, key: SeriesKey, points: list[Point]) -> None:
        descriptor = self._book.descriptors[key.type]
        series.metric.type, series.resource.type = key.type, key.resource
        series.metric.labels.update(key.labels)
        series.resource.labels.update(key.resource_labels)
        series.metric_kind, series.value_type = descriptor.metric_kind, descriptor.value_type
        series.unit = descriptor.unit
        field = next(field for field, value_type in VALUE_TYPES.items() if value_type == descriptor.value_type)
        for point in points:
            added = series.points.add()
            added.interval.start_time.FromNanoseconds(point.end if point.start is None else point.start)
            added.interval.end_time.FromNanoseconds(point.end)
            if field == "distribution_value":
                added.value.distribution_value.CopyFrom(point.value)
            else:
                setattr(added.value, field, point.value)


def _items(request: Any) -> int:
    return len(getattr(request, "time_series", "1"))


def _copy(descriptor: MetricDescriptor) -> MetricDescriptor:
    copy = MetricDescriptor()
    copy.CopyFrom(descriptor)
    return copy


def _fields(key: SeriesKey) -> dict[str, str]:
    fields = {"metric.type": key.type, "resource.type": key.resource}
    for prefix, labels in (("metric", key.labels), ("resource", key.resource_labels)):
        for name, value in labels:
            fields[f"{prefix}.labels.{name}"] = fields[f"{prefix}.label.{name}"] = value
    return fields


def _filter(text: str) -> Callable[[dict[str, str]], bool]:
    """The filter as a function of a series' fields; INVALID_ARGUMENT where it says more than conditions with AND."""
    conditions = [CONDITION.fullmatch(part) for part in re.split(r"\bAND\b", text)] if text.strip() else []
    if None in conditions:
        raise Refused(grpc.StatusCode.INVALID_ARGUMENT, f'Field filter had an invalid value of "{text}".')

    def matches(fields: dict[str, str]) -> bool:
        for condition in filter(None, conditions):
            field, prefix, value = condition.groups()
            value_of_field = fields.get(field)
            if value_of_field is None or not (value_of_field.startswith(value) if prefix else value_of_field == value):
                return False
        return True

    return matches

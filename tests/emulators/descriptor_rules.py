"""What Cloud Monitoring asks of a metric descriptor, one row a rule."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import grpc
from google.api.label_pb2 import LabelDescriptor
from google.api.metric_pb2 import MetricDescriptor

from emulators.catalogue import DOMAINS, domain
from emulators.metric_rules import KEY_LENGTH, LABEL_KEY, LABELS, TYPE, TYPE_LENGTH
from emulators.records import Rule
from emulators.series_case import Kind, ValueType

INVALID = grpc.StatusCode.INVALID_ARGUMENT
ONLY_GAUGES = (ValueType.BOOL, ValueType.STRING)


class DescriptorCase(NamedTuple):
    descriptor: MetricDescriptor
    known: MetricDescriptor | None


def _metric_type(case: DescriptorCase) -> str | None:
    name = case.descriptor.type
    if TYPE.fullmatch(name) and len(name) <= TYPE_LENGTH:
        return None
    return (
        f'Field metricDescriptor.type had an invalid value of "{name}": must be a URL-formatted string with a domain '
        "and non-empty path."
    )


def _domain(case: DescriptorCase) -> str | None:
    name = case.descriptor.type
    return None if domain(name) in DOMAINS else f"User does not have permission to write to metric '{name}'"


def _kind(case: DescriptorCase) -> str | None:
    kind, value_type = case.descriptor.metric_kind, case.descriptor.value_type
    if kind not in (Kind.GAUGE, Kind.CUMULATIVE):
        return f'Field metricDescriptor.metricKind had an invalid value of "{Kind.Name(kind)}".'
    if not value_type or (value_type in ONLY_GAUGES and kind != Kind.GAUGE):
        return f'Field metricDescriptor.valueType had an invalid value of "{ValueType.Name(value_type)}".'
    return None


def _labels(case: DescriptorCase) -> str | None:
    field = "Field metricDescriptor.labels"
    count = len(case.descriptor.labels)
    if count > LABELS:
        return f"{field} had an invalid value: {count} labels; at most {LABELS}."
    for index, label in enumerate(case.descriptor.labels):
        if label.value_type != LabelDescriptor.ValueType.STRING:
            return f"{field}[{index}].valueType had an invalid value: user-defined labels must be STRING."
        if len(label.key) > KEY_LENGTH or not LABEL_KEY.fullmatch(label.key):
            return f'{field}[{index}].key had an invalid value of "{label.key}".'
    twice = [key for key, times in Counter(label.key for label in case.descriptor.labels).items() if times > 1]
    return f'{field} had an invalid value: Duplicate label key "{twice[0]}".' if twice else None


def _exists(case: DescriptorCase) -> str | None:
    new, known = case.descriptor, case.known
    if known is None or (new.metric_kind, new.value_type) == (known.metric_kind, known.value_type):
        return None
    return "The metric already exists."


DESCRIPTOR_RULES: tuple[Rule[DescriptorCase], ...] = (
    Rule("mon.metric_type", INVALID, _metric_type),
    Rule("mon.domain", grpc.StatusCode.PERMISSION_DENIED, _domain),
    Rule("mon.desc_kind", INVALID, _kind),
    Rule("mon.desc_labels", INVALID, _labels),
    Rule("mon.desc_exists", grpc.StatusCode.ALREADY_EXISTS, _exists),
)

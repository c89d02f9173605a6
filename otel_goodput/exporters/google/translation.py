"""Use Google's own exporters as translators: each is given a client that keeps the requests instead of sending them.

We deliver the requests ourselves, because their exporters neither retry nor keep what they could not send. What they
add is the translation into Google's terms, kept by Google as these change:

- of metrics: descriptors with kind, type and unit; keys of labels; the monitored resource; histograms of both kinds as
  distributions with their buckets;
- of spans: the request, with attributes, events, links and status cut to what Cloud Trace takes, and the renaming of
  attributes that its pages know by other names.

Both exporters are deprecated and use deprecated functions; our users should not see warnings about that.

People read the step's number beside the span's name in Cloud Trace, and durations with their unit. That is for display
only: metrics and filters use span names, which must stay few.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from opentelemetry.sdk.metrics.export import MetricsData
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

from otel_goodput._text.durations import NS
from otel_goodput._text.quantities import format_duration
from otel_goodput.errors import GoodputError
from otel_goodput.exporters.google.connection import load, quietly
from otel_goodput.semconv import (
    GOODPUT_PHASE,
    GOODPUT_STEP,
    GOODPUT_STEPS_FIRST,
    GOODPUT_STEPS_LAST,
    SPAN_ATTRIBUTES,
    STEPS_SUMMARY_SPAN,
    Phase,
)

TEXT: Final = ".text"  # appended to the key of an attribute in ns
_LENGTHS: Final = tuple(attribute.key for attribute in SPAN_ATTRIBUTES if attribute.type == "int (ns)")


def display_name(span: ReadableSpan) -> str | None:
    """Return ``step 123`` or ``steps 100 to 1099``; None if the span's own name is to be shown."""
    attributes: Mapping[str, Any] = span.attributes or {}
    if span.name == Phase.STEP == attributes.get(GOODPUT_PHASE) and GOODPUT_STEP in attributes:
        return f"{span.name} {attributes[GOODPUT_STEP]}"
    if span.name == STEPS_SUMMARY_SPAN and GOODPUT_STEPS_FIRST in attributes and GOODPUT_STEPS_LAST in attributes:
        return f"{span.name} {attributes[GOODPUT_STEPS_FIRST]} to {attributes[GOODPUT_STEPS_LAST]}"
    return None


def lengths(span: ReadableSpan) -> Iterator[tuple[str, str]]:
    """Yield (key, text) of an additional attribute for each attribute of ours in ns: the duration with its unit."""
    attributes: Mapping[str, Any] = span.attributes or {}
    for key in _LENGTHS if len(attributes) > 1 else ():
        value = attributes.get(key)
        if isinstance(value, int):
            yield key + TEXT, format_duration(value / NS)


_TRACE: Final = "opentelemetry.exporter.cloud_trace"
_MONITORING: Final = "opentelemetry.exporter.cloud_monitoring"
_WARNING: Final = rf"opentelemetry\.exporter\.cloud_|{re.escape(__name__)}"
PACKAGES: Final = (_TRACE, _MONITORING)
WORKLOAD_PACKAGES: Final = ("google.cloud.monitoring_v3",)  # all that Google's own series need

# Resource attributes that distinguish the spans of processes, pods and attempts.
RESOURCE: Final = r"(service|goodput|k8s|cloud|gcp|host)\."
NOTHING: Final = r"(?!)"
MOST_ATTRIBUTES: Final = 1024  # of a span, see https://cloud.google.com/trace/docs/quotas
LONGEST_VALUE: Final = 1024  # characters; names of clusters and jobs are shorter
RESOURCE_VARIABLE: Final = "OTEL_EXPORTER_GCP_TRACE_RESOURCE_REGEX"


class SpanTranslation:
    """Translates spans for Cloud Trace; `resource` is a regular expression of the resource attributes to add to them.

    They are added here: Google's exporter would translate them again for each span, which takes longer than the rest.
    """

    def __init__(self, project: str, resource: str) -> None:
        self._resource = re.compile(resource)
        self._request: Any = None
        self._stock = _made(_TRACE, "CloudTraceSpanExporter", project, self, resource_regex=NOTHING)

    def __call__(self, spans: Sequence[ReadableSpan]) -> Any:
        """Return the request that writes the spans.

        Raises:
            GoodputError: one of them cannot be translated.
        """
        _quiet()
        with quietly(_TRACE):  # it logs each failure with a traceback, also for each half of a batch
            if self._stock.export(spans) is not SpanExportResult.SUCCESS:
                raise GoodputError("Google's exporter cannot translate it")
        translated = type(self._request).pb(self._request).spans
        if len(translated) != len(spans):
            raise GoodputError("it has no identity")
        resources = {id(span.resource): span.resource for span in spans}
        prepared = {key: self._prepared(resource) for key, resource in resources.items()}
        for span, one in zip(spans, translated, strict=True):
            shown = display_name(span)
            if shown is not None:
                one.display_name.value = shown
            more = prepared[id(span.resource)]
            if len(one.attributes.attribute_map) + len(more.attribute_map) <= MOST_ATTRIBUTES:
                one.attributes.MergeFrom(more)
                for key, text in lengths(span):
                    one.attributes.attribute_map[key].string_value.value = text
        return self._request

    def _prepared(self, resource: Resource) -> Any:
        types = load("google.cloud.trace_v2.types")
        attributes = types.Span.Attributes.pb(types.Span.Attributes())
        for key, value in resource.attributes.items():
            if self._resource.match(key):
                attributes.attribute_map[key].string_value.value = str(value)[:LONGEST_VALUE]
        return attributes

    def batch_write_spans(self, request: Any) -> None:
        """Keep the request. Google's exporter calls this method of its client."""
        self._request = request


class MetricTranslation:
    """Translates metrics for Cloud Monitoring."""

    def __init__(self, project: str) -> None:
        self._descriptors: list[Any] = []
        self._series: list[Any] = []
        self._stock = _made(_MONITORING, "CloudMonitoringMetricsExporter", project, self)

    def __call__(self, data: MetricsData) -> tuple[list[Any], list[Any]]:
        """Return requests for the descriptors that are new, and a ``TimeSeries`` for each point."""
        self._descriptors, self._series = [], []
        _quiet()
        self._stock.export(data)
        return self._descriptors, self._series

    def common_project_path(self, project: str) -> str:
        """Return a path. Google's exporter calls this method of its client, and the next two."""
        return f"projects/{project}"

    def create_metric_descriptor(self, request: Any) -> Any:
        self._descriptors.append(request)
        return request.metric_descriptor

    def create_time_series(self, request: Any) -> None:
        self._series += type(request).pb(request).time_series


def _made(module: str, name: str, project: str, client: object, **more: object) -> Any:
    _quiet()
    return getattr(load(module), name)(project_id=project, client=client, **more)


def _quiet() -> None:
    """Ignore their warnings, which as errors would cost the data. Called each time: others reset the filters."""
    warnings.filterwarnings("ignore", category=DeprecationWarning, module=_WARNING)

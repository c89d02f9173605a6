"""The spans of the `gcp` exporter: Google's exporter translates them, and we deliver what it would send.

Its translation is kept by Google as Cloud Trace changes, but a failed request loses a batch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

from otel_goodput import semconv
from otel_goodput._runtime.guard import quietly
from otel_goodput._text.durations import NS
from otel_goodput._text.quantities import format_duration
from otel_goodput.errors import GoodputError
from otel_goodput.exporters.fitting import fitting
from otel_goodput.exporters.google.connection import TRACE, hide_deprecations, load, stock_exporter
from otel_goodput.exporters.google.delivery import PATIENCE_S, DeliveredSpanExporter, Delivery, Send
from otel_goodput.exporters.google.monitoring import settled

_TRACE: Final = "opentelemetry.exporter.cloud_trace"
TEXT: Final = ".text"  # appended to the key of an attribute in ns
_LENGTHS: Final = tuple(attribute.key for attribute in semconv.SPAN_ATTRIBUTES if attribute.type == "int (ns)")


def _display_name(span: ReadableSpan, attributes: Mapping[str, Any]) -> str | None:
    """Return ``step 123`` or ``steps 100 to 1099``; None if the span's own name is to be shown."""
    step = attributes.get(semconv.GOODPUT_STEP)
    if span.name == semconv.Phase.STEP == attributes.get(semconv.GOODPUT_PHASE) and step is not None:
        return f"{span.name} {step}"
    first, last = (attributes.get(key) for key in (semconv.GOODPUT_STEPS_FIRST, semconv.GOODPUT_STEPS_LAST))
    if span.name == semconv.STEPS_SUMMARY_SPAN and first is not None and last is not None:
        return f"{span.name} {first} to {last}"
    return None


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
        self._stock = stock_exporter(_TRACE, "CloudTraceSpanExporter", project, self, resource_regex=NOTHING)

    def __call__(self, spans: Sequence[ReadableSpan]) -> Any:
        """Return the request that writes the spans. Raises GoodputError if one of them cannot be translated."""
        hide_deprecations()
        with quietly(_TRACE):  # it logs each failure with a traceback, also for each half of a batch
            if self._stock.export(spans) is not SpanExportResult.SUCCESS:
                raise GoodputError("Google's exporter cannot translate it")
        translated = type(self._request).pb(self._request).spans
        if len(translated) != len(spans):
            raise GoodputError("it has no identity")
        resources = {id(span.resource): span.resource for span in spans}
        prepared = {key: self._prepared(resource) for key, resource in resources.items()}
        for span, one in zip(spans, translated, strict=True):
            attributes: Mapping[str, Any] = span.attributes or {}
            shown = _display_name(span, attributes)
            if shown is not None:
                one.display_name.value = shown
            more = prepared[id(span.resource)]
            if len(one.attributes.attribute_map) + len(more.attribute_map) <= MOST_ATTRIBUTES:
                one.attributes.MergeFrom(more)
                for key in _LENGTHS if len(attributes) > 1 else ():
                    if isinstance(value := attributes.get(key), int):
                        one.attributes.attribute_map[key + TEXT].string_value.value = format_duration(value / NS)
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


class CloudTraceExporter(DeliveredSpanExporter):
    """Exports spans to Cloud Trace. `resource`: regular expression of the resource attributes added to every span."""

    def __init__(self, delivery: Delivery, resource: str) -> None:
        super().__init__(delivery)
        self._resource = resource
        self._translation: SpanTranslation | None = None

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if self._translation is None:
            project = self._delivery.project(PATIENCE_S)
            if project is None:
                return SpanExportResult.FAILURE
            self._translation = SpanTranslation(project, self._resource)
        for resource in {id(span.resource): span.resource for span in spans}.values():
            settled(resource)
        return super().export([fitting(span, floats=False) for span in spans])

    def request(self, spans: Sequence[ReadableSpan]) -> Send:
        assert self._translation is not None
        request = self._translation(spans)

        def send(seconds: float) -> None:
            self._delivery.connection.client(TRACE).batch_write_spans(request=request, timeout=seconds, retry=None)

        return send

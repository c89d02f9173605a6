"""telemetry.googleapis.com: the OTLP services for traces and metrics."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from emulators.otlp_rules import POINTS_RULES, RESOURCE_RULES, PointsCase, ResourceCase
from emulators.otlp_translation import attributes_of, cloud_series, cloud_span, data_of, target_of
from emulators.records import Method, Records
from emulators.series_writing import write_series
from emulators.trace_rules import SpanCase, admit_spans


class Telemetry:
    def __init__(self, records: Records, projects: Collection[str]) -> None:
        self._records, self._projects = records, projects
        collector = "/opentelemetry.proto.collector"
        self.methods = {
            f"{collector}.trace.v1.TraceService/Export": Method(
                "OtlpTraces", ExportTraceServiceRequest, _spans, self.traces
            ),
            f"{collector}.metrics.v1.MetricsService/Export": Method(
                "OtlpMetrics", ExportMetricsServiceRequest, _points, self.metrics
            ),
        }

    def traces(self, request: ExportTraceServiceRequest, now: int) -> ExportTraceServiceResponse:
        book = self._records.otlp_traces
        cases, sent = [], {}
        for resource in request.resource_spans:
            project = self._admit(resource.resource)["gcp.project_id"]
            for scope in resource.scope_spans:
                for span in scope.spans:
                    named = cloud_span(span, project)
                    cases.append(SpanCase(named, project, now, book.names, book.in_trace))
                    sent[named.name] = span
        book.spans += [sent[span.name] for span in admit_spans(self._records, book, cases)]
        return ExportTraceServiceResponse()

    def metrics(self, request: ExportMetricsServiceRequest, now: int) -> ExportMetricsServiceResponse:
        refused = self._records.refuse(POINTS_RULES, PointsCase(_points(request)), "points")
        if refused is not None:
            raise refused
        series: list[Any] = []
        for resource in request.resource_metrics:
            target = target_of(self._admit(resource.resource))
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    series += cloud_series(metric, target)
        write_series(self._records, self._records.otlp_metrics, series, "", now)
        return ExportMetricsServiceResponse()

    def _admit(self, resource: Any) -> Mapping[str, str]:
        """The resource's attributes; Refused where one is missing."""
        attributes = attributes_of(resource.attributes)
        case = ResourceCase(attributes, self._projects)
        refused = self._records.refuse(RESOURCE_RULES, case, attributes.get("service.name", "resource"))
        if refused is not None:
            raise refused
        return attributes


def _spans(request: ExportTraceServiceRequest) -> int:
    return sum(len(scope.spans) for resource in request.resource_spans for scope in resource.scope_spans)


def _points(request: ExportMetricsServiceRequest) -> int:
    metrics = [
        metric for resource in request.resource_metrics for scope in resource.scope_metrics for metric in scope.metrics
    ]
    return sum(len(data_of(metric)) for metric in metrics)

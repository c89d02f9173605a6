"""``logfire._internal.tracer``: a provider and its tracers, which wrap those of the SDK."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Tracer as SDKTracer
from opentelemetry.sdk.trace import TracerProvider as SDKTracerProvider
from opentelemetry.trace import Link, Span, SpanKind, Tracer, TracerProvider
from opentelemetry.util.types import Attributes


class ProxyTracerProvider(TracerProvider):
    def __init__(self, provider: SDKTracerProvider) -> None:
        self.provider = provider

    def get_tracer(
        self, instrumenting_module_name: str, *args: Any, is_span_tracer: bool = True, **kwargs: Any
    ) -> _ProxyTracer:
        tracer = self.provider.get_tracer(instrumenting_module_name, *args, **kwargs)
        return _ProxyTracer(instrumenting_module_name, tracer, self, is_span_tracer)

    def add_span_processor(self, span_processor: Any) -> None:
        self.provider.add_span_processor(span_processor)

    @property
    def resource(self) -> Resource:
        return self.provider.resource


class _ProxyTracer(Tracer):
    def __init__(
        self, instrumenting_module_name: str, tracer: Tracer, provider: ProxyTracerProvider, is_span_tracer: bool
    ) -> None:
        self.tracer = tracer

    def start_span(
        self,
        name: str,
        context: Context | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        start_time: int | None = None,
        record_exception: bool = True,
        set_status_on_exception: bool = True,
    ) -> Span:
        return self.tracer.start_span(
            name, context, kind, attributes, links, start_time, record_exception, set_status_on_exception
        )

    start_as_current_span = SDKTracer.start_as_current_span

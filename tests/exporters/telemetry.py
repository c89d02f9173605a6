"""Spans and metrics made by the real SDK, with everything in them that the protocol has a field for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from exported import Spans
from opentelemetry.metrics import CallbackOptions, Meter, Observation
from opentelemetry.sdk.metrics import Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, InMemoryMetricReader, MetricsData
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

START = 1_700_000_000_123_456_789

RESOURCE = Resource(
    {"service.name": "llama", "goodput.attempt": 0, "ratio": 0.25, "on": True, "tags": ["a", "b"]},
    "https://example.test/resource",
)


def context(number: int, *, remote: bool = False, state: TraceState | None = None) -> SpanContext:
    return SpanContext(number << 64 | number, number, remote, TraceFlags(TraceFlags.SAMPLED), state)


def spans(count: int = 1) -> list[ReadableSpan]:
    """`count` plain spans, through the SDK."""
    memory, provider = _provider()
    tracer = provider.get_tracer("plain", "1.2.3")
    for number in range(count):
        tracer.start_span(f"step {number}", start_time=START + number).end(START + number + 10)
    return memory.all()


def rich_spans() -> list[ReadableSpan]:
    """Spans of two scopes that use every field: events, links, status, dropped counts, flags, trace state, odd values.

    The one named `job` has dropped one attribute, one event and one link.
    """
    memory, provider = _provider(SpanLimits(max_span_attributes=12, max_events=2, max_links=3, max_event_attributes=1))
    tracer = provider.get_tracer("otel_goodput", "0.1.0", "https://example.test/scope", {"scope.key": 7})
    other = provider.get_tracer("other")
    remote = set_span_in_context(NonRecordingSpan(context(0xABC, remote=True, state=TraceState([("vendor", "x")]))))

    job = tracer.start_span("job", remote, start_time=START, kind=SpanKind.SERVER)
    job.set_attributes(
        {
            "text": 'quotes " and \\ and ünïcode \u2028 \U0001f680',
            "empty": "",
            "true": True,
            "false": False,
            "zero": 0,
            "min": -(2**63),
            "max": 2**63 - 1,
            "float": 0.1,
            "nan": float("nan"),
            "inf": float("inf"),
            "-inf": float("-inf"),
            "floats": (1.0, float("inf"), 1e300),
        }
    )
    job.set_attribute("thirteenth", 1)  # one over the limit: dropped attributes
    for number in range(3):
        job.add_event(f"event {number}", {"a": number, "b": "dropped"}, START + number)
    for number in range(1, 5):
        job.add_link(context(number, remote=number % 2 == 0), {"link": number})
    job.set_status(Status(StatusCode.ERROR, "it broke"))

    within = set_span_in_context(job)
    for kind in SpanKind:
        child = other.start_span("0", within, kind=kind, start_time=START + 1)
        child.set_attributes({"list": ["a", "b"], "none": [], "ints": [1, 2**62], "raw": b"\x00\xff"})
        if kind is SpanKind.INTERNAL:
            child.set_status(StatusCode.OK)
        child.end(START + 2)
    job.end(START + 10**9)
    tracer.start_span("alone", start_time=0, links=[Link(context(9))]).end(START)
    return memory.all()


def _provider(limits: SpanLimits | None = None) -> tuple[Spans, TracerProvider]:
    memory = Spans()
    provider = TracerProvider(resource=RESOURCE, span_limits=limits, shutdown_on_exit=False)
    provider.add_span_processor(memory.processor)
    return memory, provider


def collect(*records: Callable[[Meter], object], exponential: bool = False, delta: bool = False) -> MetricsData:
    """The metrics that a real MeterProvider gives after `records` made and fed their instruments."""
    reader = InMemoryMetricReader(
        preferred_temporality={Histogram: AggregationTemporality.DELTA} if delta else None,
        preferred_aggregation={Histogram: ExponentialBucketHistogramAggregation()} if exponential else None,
    )
    provider = MeterProvider([reader], resource=RESOURCE, shutdown_on_exit=False)
    meter = provider.get_meter("otel_goodput", "0.1.0", "https://example.test/scope", {"scope.key": 7})
    for record in records:
        record(meter)
    data = reader.get_metrics_data()
    assert data is not None
    provider.shutdown()
    return data


def observed(kind: str, name: str, *points: tuple[float, dict[str, str]], unit: str = "s") -> Callable[[Meter], object]:
    """Makes an observable instrument (`gauge`, `counter`, `up_down_counter`) that reports `points`."""

    def callback(options: CallbackOptions) -> Sequence[Observation]:
        return [Observation(value, attributes) for value, attributes in points]

    return lambda meter: getattr(meter, f"create_observable_{kind}")(name, [callback], unit, "what it is")


def recorded(name: str, *values: float) -> Callable[[Meter], object]:
    """Makes a histogram and records `values`."""

    def record(meter: Meter) -> None:
        histogram = meter.create_histogram(name, "s", "how long")
        for value in values:
            histogram.record(value, {"goodput.phase": "step"})

    return record

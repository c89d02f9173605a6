"""Whatever a user puts into a span can be translated, and what could be sent as it is stays as it is."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricsData
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.trace import Link, Status, StatusCode

from exporters.telemetry import context, rich_spans
from otel_goodput.exporters.fitting import fitting, fitting_metrics
from otel_goodput.exporters.google.monitoring import Labels
from otel_goodput.exporters.google.spans import RESOURCE, SpanTranslation

NOW = time.time_ns()
TEXT = st.text(st.characters(exclude_categories=()), max_size=20)
PLAIN: st.SearchStrategy[Any] = st.booleans() | st.integers(-(2**80), 2**80) | st.floats() | TEXT
VALUES = PLAIN | st.lists(TEXT, max_size=3) | st.lists(st.integers(-(2**80), 2**80), max_size=3)
ATTRIBUTES = st.dictionaries(TEXT, VALUES, max_size=5)


@st.composite
def spans(draw: st.DrawFn) -> ReadableSpan:
    times = st.none() | st.integers(NOW - 10**12, NOW + 10**12) | st.integers(-(10**30), 10**30)
    return ReadableSpan(
        draw(TEXT), context(draw(st.integers(1, 2**63))), None, Resource({}), draw(ATTRIBUTES),
        [Event(draw(TEXT), draw(ATTRIBUTES), draw(times) or NOW) for _ in range(draw(st.integers(0, 2)))],
        [Link(context(3), draw(ATTRIBUTES)) for _ in range(draw(st.integers(0, 2)))],
        status=Status(StatusCode.ERROR, draw(TEXT)),
        start_time=draw(times), end_time=draw(times),
    )  # fmt: skip


@settings(deadline=None)
@given(span=spans())
def test_everything_can_be_translated(span: ReadableSpan) -> None:
    (translated,) = SpanTranslation("p", RESOURCE)([fitting(span, floats=False)]).spans
    (resource,) = encode_spans([fitting(span)]).resource_spans
    (encoded,) = resource.scope_spans[0].spans
    assert translated.display_name.value and encoded.name
    assert encoded.end_time_unix_nano >= encoded.start_time_unix_nano
    assert {one.key for one in encoded.attributes} >= {key for key in span.attributes or {} if key.isascii() and key}


@settings(deadline=None)
@given(value=st.floats())
def test_a_float_keeps_its_digits(value: float) -> None:
    fitted = fitting(ReadableSpan("s", attributes={"v": value}, start_time=1, end_time=2), floats=False).attributes
    assert fitted is not None and isinstance(fitted["v"], str)
    assert float(fitted["v"]) == value or math.isnan(value)


def test_what_fits_is_not_copied() -> None:
    for span in rich_spans():
        assert fitting(span) is span or span.name == "alone", "only its start, in 1970, is odd"


@given(keys=st.lists(TEXT.filter(bool), min_size=1, max_size=25, unique=True))
def test_no_two_keys_become_one(keys: list[str]) -> None:
    labels = Labels()
    fitted = labels("m", {key: str(number) for number, key in enumerate(keys)})
    assert sorted(fitted.values()) == sorted(str(number) for number in range(len(keys)))
    assert labels("m", {keys[0]: "again"}).keys() <= fitted.keys(), "the same at all times"
    for label in fitted:
        assert label.isascii() and label.replace("_", "a").isalnum() and label[0].isalpha() and len(label) <= 100


@pytest.mark.parametrize(("value", "text"), [(True, "true"), (False, "false"), (1, "1"), (0.5, "0.5")])
def test_values_of_labels_are_text(value: Any, text: str) -> None:
    assert Labels()("m", {"goodput.blocking": value}) == {"goodput_blocking": text}


@pytest.mark.parametrize("late", [0, 1, 30_000_000], ids=["at once", "a moment", "30 ms"])
def test_a_point_that_starts_after_its_end_is_given_an_end(late: int) -> None:
    """The SDK dates a collection at its begin; another thread may measure for the first time meanwhile."""
    reader = InMemoryMetricReader()
    MeterProvider([reader]).get_meter("test").create_counter("new").add(5)
    data = reader.get_metrics_data()
    assert data is not None
    ((metric,),) = [scope.metrics for one in data.resource_metrics for scope in one.scope_metrics]
    (point,) = metric.data.data_points
    early = replace(point, time_unix_nano=point.start_time_unix_nano - late)
    (resource,) = data.resource_metrics
    (scope,) = resource.scope_metrics
    changed: Any = replace(metric, data=replace(metric.data, data_points=[early]))
    fitted = fitting_metrics(MetricsData([replace(resource, scope_metrics=[replace(scope, metrics=[changed])])]))
    ((fitted_metric,),) = [one.metrics for one in fitted.resource_metrics[0].scope_metrics]
    (sent,) = fitted_metric.data.data_points
    assert sent.start_time_unix_nano == point.start_time_unix_nano, "else the next point is a counter begun anew"
    assert sent.start_time_unix_nano < sent.time_unix_nano <= sent.start_time_unix_nano + 10**6
    assert fitting_metrics(data) == data

"""A resource that is in use while a part of it is still being found out."""

from __future__ import annotations

import copy
import json
import logging
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from exported import Spans
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from waits import until

from otel_goodput._resources.process import DetectedResource
from otel_goodput._runtime import guard

KNOWN = {"service.name": "job", "goodput.attempt": 3}


class Gate:
    """A detector that finds what a test gives it, when the test lets it."""

    def __init__(self, attributes: dict[str, Any]) -> None:
        self.attributes = attributes
        self.opened = threading.Event()

    def __call__(self) -> dict[str, Any]:
        assert self.opened.wait(30)
        return self.attributes


@pytest.fixture
def gate() -> Iterator[Gate]:
    one = Gate({"host.name": "found", "cloud.region": "us-central1", "service.name": "no"})
    yield one
    one.opened.set()


@pytest.fixture
def resource(gate: Gate) -> DetectedResource:
    return DetectedResource(KNOWN, [gate], {"host.name": "here"})


EARLY = {**KNOWN, "host.name": "here"}
LATE = {**KNOWN, "host.name": "found", "cloud.region": "us-central1"}


def test_attributes_are_what_is_known_by_now(resource: DetectedResource, gate: Gate) -> None:
    assert dict(resource.attributes) == EARLY
    assert not resource.wait(0)
    gate.opened.set()
    assert resource.wait(10)
    assert dict(resource.attributes) == LATE
    assert resource.attributes is resource.attributes
    assert json.loads(resource.to_json()) == {"attributes": LATE, "schema_url": ""}


def test_equality_and_hash_stay(resource: DetectedResource, gate: Gate) -> None:
    plain = Resource(EARLY)
    groups = {resource: "one"}
    assert resource == plain and hash(resource) == hash(plain)
    gate.opened.set()
    assert resource.wait(10)
    assert resource == plain and plain == resource and hash(resource) == hash(plain)
    assert groups[resource] == "one"
    assert resource != Resource(LATE) and resource != Resource(EARLY, "https://opentelemetry.io/schemas/1.37.0")


def test_it_cannot_be_changed(resource: DetectedResource, gate: Gate) -> None:
    gate.opened.set()
    assert resource.wait(10)
    attributes: Any = resource.attributes
    with pytest.raises(TypeError):
        attributes["service.name"] = "other"
    assert dict(resource.attributes) == LATE


def test_what_is_merged_learns_too(resource: DetectedResource, gate: Gate) -> None:
    merged = resource.merge(Resource({"goodput.attempt": 2, "more": 1}, "https://one"))
    assert dict(merged.attributes) == {**EARLY, "goodput.attempt": 2, "more": 1}
    assert resource.merge(Resource({}, "https://one")).merge(Resource({}, "https://two")).schema_url == "https://one"
    gate.opened.set()
    assert resource.wait(10)
    assert dict(merged.attributes) == {**LATE, "goodput.attempt": 2, "more": 1}
    assert merged.schema_url == "https://one"
    over = resource.merge(Resource({"host.name": "theirs", "cloud.region": "theirs"}))
    assert dict(over.attributes) == {**KNOWN, "host.name": "theirs", "cloud.region": "theirs"}
    assert dict(Resource({"a": 1, "goodput.attempt": 1}).merge(resource).attributes) == {**LATE, "a": 1}


def test_copies_learn_too(resource: DetectedResource, gate: Gate) -> None:
    copies = [copy.copy(resource), copy.deepcopy(resource)]
    assert copies == [resource, resource]
    gate.opened.set()
    assert resource.wait(10)
    assert [dict(each.attributes) for each in copies] == [LATE, LATE]


def test_later_detectors_win_and_each_is_seen_at_once(gate: Gate) -> None:
    first = {"cloud.region": "guessed", "cloud.provider": "gcp"}
    resource = DetectedResource(KNOWN, [lambda: first, gate])
    until(lambda: "cloud.provider" in resource.attributes)
    assert dict(resource.attributes) == {**KNOWN, **first}
    assert not resource.wait(0)
    gate.opened.set()
    assert resource.wait(10)
    assert dict(resource.attributes) == {**KNOWN, **LATE, "cloud.provider": "gcp"}


def test_nothing_to_detect_starts_nothing() -> None:
    before = set(threading.enumerate())
    resource = DetectedResource(KNOWN)
    assert set(threading.enumerate()) <= before
    assert resource.wait(0) and dict(resource.attributes) == KNOWN


def test_a_detector_may_fail(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("OTEL_GOODPUT_STRICT", "0")

    def fail() -> dict[str, Any]:
        raise RuntimeError("no more")

    resource = DetectedResource(KNOWN, [fail, lambda: {"a": 1}])
    assert resource.wait(10)
    assert dict(resource.attributes) == {**KNOWN, "a": 1}
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        "resource detection failed; training goes on: no more"
    ]
    assert guard.contained["resource detection"] == 1


def test_its_thread_does_not_hold_up_the_end(resource: DetectedResource) -> None:
    assert not resource.wait(0)
    threads = [thread for thread in threading.enumerate() if thread.name == "otel-goodput-resource"]
    assert threads and all(thread.daemon for thread in threads)


@pytest.mark.parametrize("over", [False, True])
def test_in_a_forked_child_detection_is_over(resource: DetectedResource, gate: Gate, over: bool) -> None:
    if over:
        gate.opened.set()
        assert resource.wait(10)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        begin = time.monotonic()
        waited = resource.wait(20)
        merged = resource.merge(Resource({}))
        answer = [waited, time.monotonic() - begin, dict(resource.attributes), hash(resource) == hash(merged)]
        os.write(writer, json.dumps(answer).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        waited, seconds, attributes, same = json.load(pipe)
    assert os.waitpid(child, 0)[1] == 0
    assert waited and same and seconds < 5
    assert attributes == (LATE if over else EARLY)


# --- in the SDK -------------------------------------------------------------------------------------------------------


def test_exporters_see_what_is_known_when_they_export(resource: DetectedResource, gate: Gate) -> None:
    """Spans of before and after are one group of the encoder's, with all there is."""
    spans, reader = Spans(), InMemoryMetricReader()
    tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
    tracers.add_span_processor(spans.processor)
    meters = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
    meters.get_meter("test").create_counter("steps").add(1)
    tracers.get_tracer("test").start_span("early").end()
    gate.opened.set()
    assert resource.wait(10)
    tracers.get_tracer("test").start_span("late").end()
    (group,) = encode_spans(spans.get_finished_spans()).resource_spans
    assert {each.key: each.value.string_value or each.value.int_value for each in group.resource.attributes} == LATE
    data = reader.get_metrics_data()
    assert data is not None
    assert [dict(each.resource.attributes) for each in data.resource_metrics] == [LATE]
    tracers.shutdown()
    meters.shutdown()

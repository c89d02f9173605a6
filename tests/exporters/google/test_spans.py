"""Spans to Cloud Trace and to the Telemetry API: all that can arrive does, whatever else goes wrong."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from typing import Any

import pytest
from emulators.google import GoogleEmulator
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import Link, Status, StatusCode
from waits import until

from exporters.google.conftest import Open
from exporters.google.faults import FAULTS
from exporters.telemetry import RESOURCE, context
from otel_goodput._runtime.deadline import ShutdownSignal
from otel_goodput.exporters.registry import dropped_items

NOW = time.time_ns()
METHOD = {"gcp": "BatchWriteSpans", "gcp-otlp": "OtlpTraces"}


def span(number: int, name: str = "step", *, at: int = NOW, **more: Any) -> ReadableSpan:
    attributes = {"goodput.phase": "step", "goodput.step": number}
    given = {"context": context(number + 1), "attributes": attributes, "start_time": at + number, **more}
    given.setdefault("end_time", at + number + 1_000_000)
    return ReadableSpan(name, parent=context(7), resource=Resource({"service.instance.id": "0"}), **given)


@dataclass
class Traces:
    """One exporter's way for spans, and what is stored at its end."""

    name: str
    google: GoogleEmulator
    opened: Open
    stopping: ShutdownSignal

    def __post_init__(self) -> None:
        self.exporters = self.opened(self.name, stopping=self.stopping)
        assert self.exporters.span_exporter is not None
        self.exporter: SpanExporter = self.exporters.span_exporter

    def export(self, *spans: ReadableSpan) -> SpanExportResult:
        return self.exporter.export(spans)

    def names(self) -> list[str]:
        if self.name == "gcp":
            return [span.display_name.value for span in self.google.spans]
        return [span.name for span in self.google.otlp_spans]

    def attributes(self) -> list[dict[str, Any]]:
        by_span = []
        for one in self.google.spans:
            values = {}
            for key, value in one.attributes.attribute_map.items():
                kind = value.WhichOneof("value")
                values[key] = value.string_value.value if kind == "string_value" else getattr(value, kind)
            by_span.append(values)
        return by_span + [
            {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}
            for span in self.google.otlp_spans
        ]

    @property
    def dropped(self) -> int:
        return dropped_items(self.exporters)["traces"]


@pytest.fixture(params=["gcp", "gcp-otlp"])
def traces(request: pytest.FixtureRequest, google: GoogleEmulator, opened: Open) -> Traces:
    return Traces(request.param, google, opened, ShutdownSignal())


def test_spans_arrive(traces: Traces) -> None:
    assert traces.export(*(span(number, f"step {number}") for number in range(100))) is SpanExportResult.SUCCESS
    assert traces.names() == [f"step {number}" for number in range(100)]
    assert [attributes["goodput.step"] for attributes in traces.attributes()] == list(range(100))
    assert not traces.google.refusals
    assert len(traces.google.requests) == 1
    assert traces.export() is SpanExportResult.SUCCESS
    assert len(traces.google.requests) == 1, "nothing is sent where there is nothing"


def test_cloud_trace_shows_numbers_and_units(traces: Traces) -> None:
    """A viewer has no room for attributes next to a name. Elsewhere a name is one of a few, and a length an integer."""
    summary = {"goodput.steps.first": 100, "goodput.steps.last": 198, "goodput.steps.duration.p90": 1_250_000_000}
    device = {"goodput.phase": "step", "goodput.step": 7, "goodput.step.device_duration": 12_345_678}
    traces.export(
        span(150), span(3, "steps", attributes=summary), span(7, attributes=device), span(8, "mine"),
        span(9, "step", attributes={"goodput.phase": "custom"}),
    )  # fmt: skip
    shown = ["step 150", "steps 100 to 198", "step 7", "mine", "step"]
    texts = [{}, {"goodput.steps.duration.p90.text": "1.2 s"}, {"goodput.step.device_duration.text": "12.3 ms"}, {}, {}]
    if traces.name != "gcp":
        shown, texts = ["step", "steps", "step", "mine", "step"], [{}] * 5
    assert traces.names() == shown
    exported = traces.attributes()
    assert [{key: one[key] for key in one if key.endswith(".text")} for one in exported] == texts
    assert (exported[1]["goodput.steps.duration.p90"], exported[2]["goodput.step.device_duration"]) == (
        1_250_000_000, 12_345_678,
    )  # fmt: skip


def test_times_ids_and_status_are_exact(traces: Traces) -> None:
    link = Link(context(99), {"why": "previous attempt"})
    event = Event("goodput.notice", {"goodput.notice.source": "SIGTERM"}, NOW + 5)
    error = Status(StatusCode.ERROR, "interrupted")
    traces.export(span(3, "保存检查点", links=[link], events=[event], status=error))
    if traces.name == "gcp":
        (stored,) = traces.google.spans
        assert stored.span_id == f"{4:016x}" and stored.parent_span_id == f"{7:016x}"
        assert stored.start_time.ToNanoseconds() == NOW + 3 and stored.end_time.ToNanoseconds() == NOW + 1_000_003
        assert stored.links.link[0].span_id == f"{99:016x}"
        assert stored.time_events.time_event[0].annotation.description.value == "goodput.notice"
        assert stored.status.message == "interrupted"
    else:
        (other,) = traces.google.otlp_spans
        assert other.span_id.hex() == f"{4:016x}" and other.parent_span_id.hex() == f"{7:016x}"
        assert (other.start_time_unix_nano, other.end_time_unix_nano) == (NOW + 3, NOW + 1_000_003)
        assert other.links[0].span_id.hex() == f"{99:016x}" and other.events[0].name == "goodput.notice"
        assert other.status.message == "interrupted"
    assert traces.names() == ["保存检查点"]


def test_the_resource_goes_along(google: GoogleEmulator, opened: Open) -> None:
    """Cloud Trace has no resources: what tells one process, pod and attempt from another stands at each span."""
    traces = Traces("gcp", google, opened, ShutdownSignal())
    resource = RESOURCE.merge(Resource({"k8s.pod.name": "trainer-0", "process.pid": 1}))
    traces.export(ReadableSpan("job", context(1), None, resource, start_time=NOW, end_time=NOW + 1))
    (attributes,) = traces.attributes()
    assert attributes["service.name"] == "llama" and attributes["goodput.attempt"] == "0"
    assert attributes["k8s.pod.name"] == "trainer-0" and "process.pid" not in attributes


ODD: dict[str, dict[str, Any]] = {
    "no name": {"name": ""},
    "an integer above 64 bits": {"attributes": {"flops": 2**63, "steps": (1, 2**70)}},
    "surrogates": {"name": "caf\udce9", "attributes": {"pa\udce9th": "\udce9", "names": ["\udce9"]}},
    "no times": {"start_time": None, "end_time": None},
    "an end before its start": {"start_time": NOW, "end_time": NOW - 1},
    "not a number": {"attributes": {"loss": float("nan"), "rate": 1e-9}},
    "times beyond all calendars": {"start_time": 10**20, "end_time": 10**30},
    "times before all calendars": {"start_time": -(10**20), "end_time": -1},
    "an event beyond all calendars": {"events": [Event("e", {}, 10**30), Event("e", {}, -1)]},
    "an odd attribute": {"attributes": {"a": {"b": 2**70}, "c": object()}},
    "no identity": {"context": None},
    "an odd event": {"events": [Event("", {"flops": 2**64}, NOW)]},
    "an odd link": {"links": [Link(context(5), {"flops": -(2**64)})]},
    "an odd status": {"status": Status(StatusCode.ERROR, "\udce9")},
}  # fmt: skip


@pytest.mark.parametrize("odd", ODD)
def test_an_odd_span_takes_no_other_along(traces: Traces, odd: str) -> None:
    good = [span(number) for number in range(100)]
    bad = span(200, **ODD[odd])
    assert traces.export(*good[:50], bad, *good[50:]) is SpanExportResult.SUCCESS
    numbers = [attributes["goodput.step"] for attributes in traces.attributes() if "goodput.step" in attributes]
    assert set(range(100)) <= set(numbers)
    # What is only odd arrives; what cannot be a span is counted.
    lost = odd in ("no times", "no identity") or odd.startswith("times ")
    assert (traces.dropped, len(traces.names())) == ((1, 100) if lost else (0, 101)), traces.google.refusals


def test_what_does_not_fit_is_exported_as_text(traces: Traces) -> None:
    traces.export(span(0, attributes={"flops": 2**63, "rate": 0.000012345, "on": True, "tags": ["a", "b"]}))
    (exported,) = traces.attributes()
    assert exported["flops"] == str(2**63)
    assert float(exported["rate"]) == 0.000012345
    assert exported["on"] is True


def test_spans_that_are_refused_are_left_out_and_counted(traces: Traces, caplog: pytest.LogCaptureFixture) -> None:
    """What only the server can know: here that spans are too old for it."""
    spans = [span(number) for number in range(200)]
    for number in (0, 17, 18, 99, 150, 199):
        spans[number] = span(number, "ancient", at=NOW - 40 * 86_400 * 10**9)
    with caplog.at_level(logging.WARNING):
        assert traces.export(*spans) is SpanExportResult.SUCCESS
    assert len(traces.names()) == 194 and "ancient" not in traces.names()
    assert traces.dropped == 6
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 1 and "'ancient'" in messages[0]


def test_a_batch_that_is_bad_as_a_whole_costs_few_requests(traces: Traces) -> None:
    spans = [span(number, at=NOW - 40 * 86_400 * 10**9) for number in range(512)]
    assert traces.export(*spans) is SpanExportResult.SUCCESS
    assert traces.dropped == 512 and not traces.names()
    assert len(traces.google.requests) < 60


@pytest.mark.parametrize("fault", FAULTS)
def test_what_passes_is_waited_for(traces: Traces, fault: str) -> None:
    FAULTS[fault](traces.google, METHOD[traces.name])
    assert traces.export(*(span(number) for number in range(100))) is SpanExportResult.SUCCESS
    if traces.name == "gcp":
        assert len(traces.names()) == 100, "one of each id"
    else:
        assert len({one.span_id for one in traces.google.otlp_spans}) == 100
    assert traces.dropped == 0 and not traces.google.refusals


def test_a_missing_permission_is_reported_once(traces: Traces, caplog: pytest.LogCaptureFixture) -> None:
    traces.google.fail("*", "PERMISSION_DENIED", None)
    with caplog.at_level(logging.WARNING):
        for number in range(50):
            assert traces.export(span(number)) is SpanExportResult.FAILURE
    (message,) = [record.getMessage() for record in caplog.records]
    role = {"gcp": "roles/cloudtrace.agent", "gcp-otlp": "roles/telemetry.writer"}[traces.name]
    assert role in message and "test-project" in message
    assert len(traces.google.requests) == 1, "it is not asked again and again"
    assert traces.dropped == 0, "they are kept"
    traces.google.heal()
    traces.stopping.begin(5.0)  # at the end it is tried once more
    assert traces.export(span(50)) is SpanExportResult.SUCCESS
    assert len(traces.names()) == 51


def test_what_is_kept_is_bounded_and_what_is_above_is_counted(traces: Traces) -> None:
    traces.google.fail("*", "PERMISSION_DENIED", None)
    for start in range(0, 4096 + 512, 512):
        assert traces.export(*(span(start + at) for at in range(512))) is SpanExportResult.FAILURE
    assert traces.dropped == 512
    traces.google.heal()
    traces.stopping.begin(60.0)
    assert traces.export() is SpanExportResult.SUCCESS
    assert sorted(attributes["goodput.step"] for attributes in traces.attributes()) == list(range(512, 4096 + 512))


@pytest.mark.parametrize(
    ("code", "text", "cure"),
    [
        ("PERMISSION_DENIED", "Cloud Trace API has not been used in project 7 before", "gcloud services enable"),
        ("UNAUTHENTICATED", "Request had invalid authentication credentials", "application-default login"),
        ("NOT_FOUND", "Resource projects/test-project not found", "OTEL_GOODPUT_GCP_PROJECT"),
        ("UNIMPLEMENTED", "Method not found", "OTEL_GOODPUT_GCP_ENDPOINT"),
    ],
)  # fmt: skip
def test_the_error_says_what_would_help(
    traces: Traces, caplog: pytest.LogCaptureFixture, code: str, text: str, cure: str
) -> None:
    traces.google.fail("*", code, None, text=text)
    with caplog.at_level(logging.WARNING):
        traces.export(span(0))
    (message,) = [record.getMessage() for record in caplog.records]
    assert code in message and cure in message and text in message


def test_the_end_cuts_waiting_short(traces: Traces) -> None:
    """An outage at the stop: the exporter gives up when the process has to go, not after two minutes."""
    traces.google.fail("*", "UNAVAILABLE", None)
    results = []
    thread = threading.Thread(target=lambda: results.append(traces.export(span(0))))
    thread.start()
    until(lambda: len(traces.google.requests) >= 2)
    began = time.monotonic()
    traces.stopping.begin(1.0)
    thread.join(20)
    assert results == [SpanExportResult.FAILURE]
    assert time.monotonic() - began < 1.5


def test_what_an_outage_held_up_arrives_at_the_end(traces: Traces) -> None:
    traces.google.fail("*", "UNAVAILABLE", None)
    results = []
    thread = threading.Thread(target=lambda: results.append(traces.export(span(0))))
    thread.start()
    until(lambda: len(traces.google.requests) >= 4)  # waits for several seconds by now
    traces.google.heal()
    traces.stopping.begin(8.0)
    thread.join(20)
    assert results == [SpanExportResult.SUCCESS] and traces.names()[0].startswith("step")

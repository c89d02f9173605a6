"""What Google's own exporters lose against a service that enforces its rules: why there are others here.

Each is shown as it fails, over real sockets. If one of these stops failing, so much the better: then a reason for the
code of ours that avoids it is gone.
"""

from __future__ import annotations

import logging
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import warm
from emulators.clients import metric_client, trace_client
from emulators.google import GoogleEmulator
from opentelemetry.exporter.cloud_monitoring import CloudMonitoringMetricsExporter
from opentelemetry.exporter.cloud_trace import CloudTraceSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource, ResourceDetector
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from waits import until

pytestmark = [
    pytest.mark.filterwarnings("ignore:Cloud(MonitoringMetrics|TraceSpan)Exporter is deprecated:DeprecationWarning"),
    # What the exporter of spans itself makes use of; as an error it would lose every span.
    pytest.mark.filterwarnings("ignore:Deprecated since version 1.4.0:DeprecationWarning"),
]

TASK = {"service.name": "llama", "service.instance.id": "0"}
VM = {"cloud.platform": "gcp_compute_engine", "cloud.availability_zone": "us-central1-a", "host.id": "1"}
MINUTE = 60_000  # ms


@pytest.fixture
def google() -> Iterator[GoogleEmulator]:
    with GoogleEmulator() as emulator:
        yield emulator


@contextmanager
def meters(
    google: GoogleEmulator, attributes: Any = TASK, every: float = MINUTE, **options: Any
) -> Iterator[MeterProvider]:
    """A MeterProvider that exports to Cloud Monitoring every so many ms; leaving shuts it down."""
    with metric_client(google.endpoint) as client:
        exporter = CloudMonitoringMetricsExporter("test-project", client=client, **options)
        reader = PeriodicExportingMetricReader(exporter, export_interval_millis=every)
        provider = MeterProvider([reader], Resource(attributes), shutdown_on_exit=False)
        yield provider
        provider.shutdown()


@contextmanager
def tracers(google: GoogleEmulator, every: float = MINUTE) -> Iterator[TracerProvider]:
    """The same for spans and Cloud Trace."""
    with trace_client(google.endpoint) as client:
        exporter = CloudTraceSpanExporter("test-project", client=client)
        provider = TracerProvider(resource=Resource(TASK), shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=every))
        yield provider
        provider.shutdown()


def stored(google: GoogleEmulator) -> list[Any]:
    """Every value stored, in the order of their series."""
    return [point.value for points in google.series.values() for point in points]


def refusals(google: GoogleEmulator) -> list[str]:
    return [refusal.rule for refusal in google.refusals]


def test_the_last_value_is_lost_when_the_end_is_soon_after_an_export(google: GoogleEmulator) -> None:
    """Within 5 s of it, whatever the interval: stored 60, true 62."""
    with meters(google, every=200) as provider:
        counter = provider.get_meter("job").create_counter("steps")
        counter.add(60)
        until(lambda: google.series)
        counter.add(2)
    assert stored(google) == [60]
    assert set(refusals(google)) == {"mon.sampling"}


def test_what_comes_after_a_flush_is_lost_at_the_end(google: GoogleEmulator) -> None:
    """Stored 10, true 15."""
    with meters(google) as provider:
        counter = provider.get_meter("job").create_counter("steps")
        counter.add(10)
        provider.force_flush()
        counter.add(5)
    assert stored(google) == [10]
    assert refusals(google) == ["mon.sampling"]


@pytest.mark.parametrize(
    ("unique", "seed", "kept"),
    [(False, None, 1), (True, None, 4), (True, 42, 1)],
    ids=["as it comes", "with an identifier", "with an identifier and a seed"],
)
def test_ranks_on_one_machine_collide(google: GoogleEmulator, unique: bool, seed: int | None, kept: int) -> None:
    """They are one series to Google, also with the identifier of the exporter when all seed their random numbers."""
    with ExitStack() as exits:
        for rank in range(4):
            random.seed(seed)
            provider = exits.enter_context(meters(google, VM, add_unique_identifier=unique))
            provider.get_meter("job").create_counter("steps").add(rank + 1)
    assert len(stored(google)) == kept
    assert refusals(google) == ["mon.order"] * (4 - kept)  # the last to start is the first to write


def test_a_first_value_of_0_makes_integers_of_seconds(google: GoogleEmulator) -> None:
    """And whatever comes then is refused for ever."""
    with meters(google) as provider:
        counter = provider.get_meter("job").create_counter("goodput.time", "s")
        counter.add(0)
        provider.force_flush()
        counter.add(1.25)
    assert stored(google) == [0]
    assert refusals(google) == ["mon.value_type"]


@pytest.mark.parametrize("labels", [{"a.b": 1, "a_b": 2}, {"阶段": "训练"}], ids=["two that become one", "not ASCII"])
def test_labels_that_are_no_good_take_the_metric_with_them(google: GoogleEmulator, labels: dict[str, Any]) -> None:
    with meters(google) as provider:
        counter = provider.get_meter("job").create_counter("steps")
        counter.add(1, {"rank": "0"})
        counter.add(2, labels)
        provider.get_meter("job").create_counter("others").add(3)
    assert stored(google) == [3]
    assert refusals(google) == ["mon.desc_labels"]


def test_a_bad_series_keeps_the_next_request_from_being_sent(google: GoogleEmulator) -> None:
    """301 series, one of them bad: 199 are written."""
    with meters(google) as provider:
        gauge = provider.get_meter("job").create_gauge("loss")
        for rank in range(301):
            gauge.set(rank, {"rank": str(rank) * (1025 if rank == 7 else 1)})
    assert len(stored(google)) == 199
    assert refusals(google) == ["mon.labels"]
    assert [request.items for request in google.requests if request.method == "CreateTimeSeries"] == [200]


def test_metrics_are_not_tried_again(google: GoogleEmulator) -> None:
    """Spans are."""
    google.fail("CreateTimeSeries", "UNAVAILABLE")
    google.fail("BatchWriteSpans", "UNAVAILABLE")
    with meters(google) as provider:
        provider.get_meter("job").create_counter("steps").add(1)
    with tracers(google) as tracing:
        tracing.get_tracer("job").start_span("step").end()
    assert (stored(google), len(google.spans)) == ([], 1)


def test_spans_are_not_tried_again_when_the_quota_is_used_up(google: GoogleEmulator) -> None:
    google.fail("BatchWriteSpans", "RESOURCE_EXHAUSTED")
    with tracers(google) as provider:
        provider.get_tracer("job").start_span("step").end()
    assert [(request.items, request.code) for request in google.requests] == [(1, "RESOURCE_EXHAUSTED")]


@pytest.mark.parametrize(
    ("name", "attributes", "seen"),
    [("", {}, ["trace.display_name"]), ("step", {"tokens": 2**63}, [])],
    ids=["no name", "a large integer"],
)
def test_a_bad_span_takes_the_others_with_it(
    google: GoogleEmulator, name: str, attributes: dict[str, Any], seen: list[str]
) -> None:
    """The one is refused by the service, the other cannot even be sent."""
    with tracers(google) as provider:
        tracer = provider.get_tracer("job")
        for number in range(100):
            bad = number == 50
            tracer.start_span(name if bad else "step", attributes=attributes if bad else {}).end()
    assert google.spans == []
    assert refusals(google) == seen


def test_a_missing_role_is_logged_at_every_export(google: GoogleEmulator, caplog: pytest.LogCaptureFixture) -> None:
    """49 times in 2 s, with spans; here until it was 10 times."""
    google.fail("*", "PERMISSION_DENIED", times=None)

    def complaints() -> int:
        return sum(record.levelno >= logging.ERROR for record in list(caplog.records))

    with meters(google, every=50) as provider:
        provider.get_meter("job").create_counter("steps").add(1)
        until(lambda: complaints() >= 10)


# A process that exports a span and a series; what it does then is added.
SETTING = """
import os, sys
import grpc
from google.cloud.monitoring_v3 import MetricServiceClient
from google.cloud.monitoring_v3.services.metric_service.transports import MetricServiceGrpcTransport
from google.cloud.trace_v2 import TraceServiceClient
from google.cloud.trace_v2.services.trace_service.transports import TraceServiceGrpcTransport
from opentelemetry.exporter.cloud_monitoring import CloudMonitoringMetricsExporter
from opentelemetry.exporter.cloud_trace import CloudTraceSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

channel = grpc.insecure_channel(sys.argv[1])
spans = CloudTraceSpanExporter("test-project", TraceServiceClient(transport=TraceServiceGrpcTransport(channel=channel)))
series = CloudMonitoringMetricsExporter(
    "test-project", MetricServiceClient(transport=MetricServiceGrpcTransport(channel=channel))
)
attributes = dict(pair.split("=") for pair in sys.argv[2:])
resource = Resource.create(attributes)
tracing = TracerProvider(resource=resource)
tracing.add_span_processor(BatchSpanProcessor(spans))
metering = MeterProvider([PeriodicExportingMetricReader(series)], resource)
tracing.get_tracer("job").start_span("step").end()
counter = metering.get_meter("job").create_counter("steps")
counter.add(7)
"""
EXIT = 'print("leaving", flush=True)'
FLUSH = 'print("flushing", flush=True); tracing.force_flush(1000); os._exit(0)'
FORK = """
metering.force_flush()
child = os.fork()
if child:
    os.waitpid(child, 0)
else:
    metering.force_flush()
os._exit(0)
"""


@contextmanager
def process(program: str, endpoint: str, *attributes: str) -> Iterator[warm.Process]:
    command = [sys.executable, "-W", "ignore", "-c", SETTING + program, endpoint.removeprefix("http://"), *attributes]
    with warm.Process(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as started:
        try:
            yield started
        finally:
            started.kill()


def line_of(started: warm.Process) -> str:
    assert started.stdout is not None
    return started.stdout.readline().strip()


@contextmanager
def forked(*attributes: str) -> Iterator[GoogleEmulator]:
    """What arrived from a process and its child; again where gRPC in the child did not come to it, as may happen."""
    for _ in range(5):
        with GoogleEmulator() as google:
            with process(FORK, google.endpoint, *attributes) as started:
                assert started.wait(timeout=40) == 0
            if len([one for one in google.requests if one.method == "CreateTimeSeries"]) == 2:
                yield google
                return
    pytest.fail("no child of five exported anything")


def test_a_child_exports_what_its_parent_counted() -> None:
    """As a task of its own, so that the sum over all tasks is twice what it is."""
    with forked("service.name=llama") as google:
        if not hasattr(ResourceDetector, "is_process_dependent"):  # an older SDK: its child has no name of its own
            assert (stored(google), refusals(google)) == ([7], ["mon.sampling"])
            return
        assert stored(google) == [7, 7]
        assert len({dict(key.resource_labels)["task_id"] for key in google.series}) == 2


def test_a_child_on_a_machine_is_refused() -> None:
    with forked(*(f"{key}={value}" for key, value in VM.items())) as google:
        assert stored(google) == [7]
        assert refusals(google) == ["mon.sampling"]


def test_a_flush_of_spans_does_not_know_its_time(port: int) -> None:
    """Asked for 1 s, it takes 118 s while nobody answers; here it is only seen not to come back."""
    with process(FLUSH, f"127.0.0.1:{port}") as started:
        assert line_of(started) == "flushing"
        with pytest.raises(subprocess.TimeoutExpired):
            started.wait(timeout=2)


def test_a_service_that_hangs_holds_up_the_end(google: GoogleEmulator) -> None:
    """For 60 s, the measured time; here only until ours must be gone, with a second to spare."""
    google.hang()
    with process(EXIT, google.endpoint) as started:
        assert line_of(started) == "leaving"
        with pytest.raises(subprocess.TimeoutExpired):
            started.wait(timeout=11)

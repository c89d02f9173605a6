"""A job that exports to Google's services: ``python -m benchmarks.cloud_job NAME``; JSON says what to do.

Steps of a data load and a little sleep; prints ``over`` when the loop is, then ends as a job ends. Of the threads' CPU
only what exports is counted: OpenTelemetry's threads and those of gRPC.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

STEPS = "bench.steps"
EXPORTING = "Otel"  # how the SDK's threads are called
PROJECT = "test-project"


def thread_cpu() -> float:
    """Seconds of CPU that the threads which export have taken."""
    others = {thread.native_id for thread in threading.enumerate() if not thread.name.startswith(EXPORTING)}
    ticks = 0
    for task in Path("/proc/self/task").iterdir():
        if int(task.name) not in others:
            fields = (task / "stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def stock_exporters(endpoint: str) -> tuple[Any, Any]:
    """Google's own exporters for spans and metrics."""
    import grpc
    from google.cloud.monitoring_v3 import MetricServiceClient
    from google.cloud.monitoring_v3.services.metric_service.transports import MetricServiceGrpcTransport
    from google.cloud.trace_v2 import TraceServiceClient
    from google.cloud.trace_v2.services.trace_service.transports import TraceServiceGrpcTransport
    from opentelemetry.exporter.cloud_monitoring import CloudMonitoringMetricsExporter
    from opentelemetry.exporter.cloud_trace import CloudTraceSpanExporter

    channel = grpc.insecure_channel(endpoint.removeprefix("http://"))
    spans = TraceServiceClient(transport=TraceServiceGrpcTransport(channel=channel))
    metrics = MetricServiceClient(transport=MetricServiceGrpcTransport(channel=channel))
    return CloudTraceSpanExporter(PROJECT, client=spans), CloudMonitoringMetricsExporter(PROJECT, client=metrics)


def stock(endpoint: str, **_: Any) -> tuple[Callable[[int], None], Callable[[], object]]:
    """OpenTelemetry's SDK with Google's exporters: two spans a step and a counter of steps."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create({"service.name": "bench", "service.instance.id": "0"})
    span_exporter, metric_exporter = stock_exporters(endpoint)
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(span_exporter))
    meters = MeterProvider([PeriodicExportingMetricReader(metric_exporter)], resource=resource)
    counter = meters.get_meter("bench").create_counter(STEPS)
    tracer = provider.get_tracer("bench")

    def step(number: int) -> None:
        with tracer.start_as_current_span("data_loading"):
            pass
        with tracer.start_as_current_span("step", attributes={"step": number}):
            time.sleep(PERIOD_S)
        counter.add(1)

    return step, lambda: (provider.force_flush(), meters.force_flush())


def ours(
    endpoint: str, *, exporters: str, sampling: int, theirs: bool = False
) -> tuple[Callable[[int], None], Callable[[], object]]:
    """A recorder of ours; `theirs`: with Google's exporters instead of our exporter."""
    os.environ["OTEL_GOODPUT_GCP_ENDPOINT"] = endpoint
    os.environ["OTEL_GOODPUT_GCP_PROJECT"] = PROJECT
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    from otel_goodput import Recorder

    more: dict[str, Any] = {}
    if theirs:
        span_exporter, metric_exporter = stock_exporters(endpoint)
        more["span_processors"] = [BatchSpanProcessor(span_exporter)]
        more["metric_readers"] = [PeriodicExportingMetricReader(metric_exporter)]
    goodput = Recorder(
        "bench", directory=tempfile.mkdtemp(), exporters=exporters, integrations="none", step_sampling=sampling, **more
    )
    goodput.job().__enter__()

    def step(number: int) -> None:
        with goodput.data_loading():
            pass
        with goodput.step(number):
            time.sleep(PERIOD_S)

    return step, goodput.flush


PERIOD_S = 0.001
VARIANTS: dict[str, Callable[[str], tuple[Callable[[int], None], Callable[[], object]]]] = {
    "stock": stock,
    "ours": lambda endpoint: ours(endpoint, exporters="gcp", sampling=100),
    "with workload": lambda endpoint: ours(endpoint, exporters="gcp,workload", sampling=100),
    "every step": lambda endpoint: ours(endpoint, exporters="gcp", sampling=1),
    "every step, stock exporters": lambda endpoint: ours(endpoint, exporters="none", sampling=1, theirs=True),
}


def main() -> None:
    warnings.simplefilter("ignore", DeprecationWarning)  # Google's exporters
    settings = json.loads(sys.argv[2])
    step, flush = VARIANTS[sys.argv[1]](settings["endpoint"])
    warm = settings.get("warm", 0)
    for number in range(warm):
        step(number)
    if warm:
        flush()  # imports, connections and descriptors are there
    before = thread_cpu()
    until = time.monotonic() + settings.get("seconds", 1e9)
    number = warm
    for number in range(warm, warm + settings["steps"]):
        step(number)
        if time.monotonic() > until:
            break
    if settings.get("flush"):
        flush()
    print(json.dumps({"cpu": thread_cpu() - before, "steps": number + 1}), flush=True)


if __name__ == "__main__":
    main()

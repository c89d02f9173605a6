"""A process with real processors and readers over the `otlp` exporter ends in time, whatever its backend does."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import warm

from .backends import grpc_backend, http_backend, silent_backend, stalled_grpc_backend

GRACE_S = 2.0

# What runtime.py does, without what it does it for. More spans than one batch holds: one timeout is not enough.
PROGRAM = """
import atexit, sys
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from otel_goodput._runtime.deadline import close_all, reserve
from otel_goodput.exporters.registry import open_exporter
from otel_goodput.exporters.spec import ExporterContext

grace = float(sys.argv[1])
exporter = open_exporter("otlp", ExporterContext("job", "run", grace_period_s=grace))
processor = BatchSpanProcessor(exporter.span_exporter)
reader = PeriodicExportingMetricReader(exporter.metric_exporter, export_interval_millis=200)
traces = TracerProvider(shutdown_on_exit=False)
traces.add_span_processor(processor)
meters = MeterProvider([reader], shutdown_on_exit=False)
closers = [("traces", lambda ms: processor.shutdown()), ("metrics", lambda ms: reader.shutdown(timeout_millis=ms))]
reserve(len(closers))
atexit.register(lambda: print("left", close_all(closers, grace), flush=True))

meters.get_meter("m").create_counter("c").add(1)
tracer = traces.get_tracer("t")
for _ in range(2000):
    tracer.start_span("s").end()
print("end", flush=True)
"""


@contextmanager
def nobody() -> Iterator[str]:
    """An endpoint where nothing listens."""
    yield "http://127.0.0.1:9"


@contextmanager
def good_grpc() -> Iterator[str]:
    with grpc_backend() as received:
        yield received.endpoint
        assert len(received.span_names()) == 2000
        assert received.metric_names() == {"c"}


@contextmanager
def good_http() -> Iterator[str]:
    with http_backend() as received:
        yield received.endpoint
        assert len(received.span_names()) == 2000
        assert received.metric_names() == {"c"}


@pytest.mark.parametrize(
    ("wire", "backend", "grace"),
    [
        pytest.param("grpc", silent_backend, GRACE_S, id="grpc silent"),
        pytest.param("http/protobuf", silent_backend, GRACE_S, id="http silent"),
        pytest.param("grpc", stalled_grpc_backend, GRACE_S, id="grpc stalled"),
        pytest.param("grpc", nobody, GRACE_S, id="grpc nobody"),
        pytest.param("http/protobuf", nobody, GRACE_S, id="http nobody"),
        pytest.param("grpc", good_grpc, 60.0, id="grpc good"),
        pytest.param("http/protobuf", good_http, 60.0, id="http good"),
    ],
)
def test_the_process_ends_within_its_grace_period(
    wire: str, backend: Callable[[], AbstractContextManager[str]], grace: float
) -> None:
    with backend() as endpoint:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
        environ |= {"OTEL_EXPORTER_OTLP_PROTOCOL": wire, "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}
        with warm.Process(
            [sys.executable, "-c", PROGRAM, str(grace)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline() == "end\n"
            ended = time.monotonic()
            left = process.stdout.readline()
            status = process.wait(grace + 30)
            took = time.monotonic() - ended
            errors = process.stderr.read()
        assert status == 0, errors
        assert took < grace + 2.0
        assert "Traceback" not in errors
        assert "Fatal" not in errors
        assert left.startswith("left")
        if backend in (good_grpc, good_http):
            assert left == "left []\n"


CROWDED = """
import atexit, sys, time
import otel_goodput as goodput
from otel_goodput._runtime import deadline
assert deadline.crowding() >= 1.0
deadline.crowding = lambda: float(sys.argv[2])
atexit.register(lambda: print(time.monotonic() - began))  # runs behind ours
goodput.configure("job", directory=sys.argv[1], exporters="otlp", integrations="none", grace_period=6.0)
with goodput.job():
    pass
began = time.monotonic()
"""


def test_the_interpreter_has_more_time_to_end_where_it_shares_its_cores(tmp_path: Path) -> None:
    """Its end is work: two more tenths of the time are left to it at most. A collector is waited for until then."""
    with nobody() as endpoint:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
        environ |= {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}
        processes = [
            warm.Process(
                [sys.executable, "-c", CROWDED, str(tmp_path / crowding), crowding],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ,
            )
            for crowding in ("1.0", "9.0")
        ]  # fmt: skip
        idle, crowded = (float(process.communicate(timeout=60)[0]) for process in processes)
    assert 2.0 < crowded < idle

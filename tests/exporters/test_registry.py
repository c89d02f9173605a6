"""The table of exporters, what `auto` means, and what holds for every exporter."""

from __future__ import annotations

import io
import logging
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricsData
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from otel_goodput._runtime.deadline import ShutdownSignal
from otel_goodput._runtime.installation import install_command
from otel_goodput.exporters.registry import OURS, open_exporter, resolve, spec
from otel_goodput.exporters.spec import ExporterContext, ExporterUnavailable
from otel_goodput.exporters.wrappers import SafeMetricExporter, SafeSpanExporter

from .telemetry import collect, observed, spans

PIPE = io.StringIO()  # no terminal
ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4317"}


def test_auto_without_anything_is_nothing() -> None:
    assert resolve(["auto"], {}, stream=PIPE) == ()


@pytest.mark.parametrize("signal", ["", "TRACES_", "METRICS_"])
def test_auto_takes_otlp_where_an_endpoint_is_set(signal: str) -> None:
    assert resolve(["auto"], {f"OTEL_EXPORTER_OTLP_{signal}ENDPOINT": "http://h:1"}, stream=PIPE) == ("otlp",)
    assert resolve(["auto"], {f"OTEL_EXPORTER_OTLP_{signal}ENDPOINT": ""}, stream=PIPE) == ()


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_auto_leaves_otlp_out_where_its_exporter_is_missing(protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package = "grpc" if protocol == "grpc" else "http"
    environ = {**ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}
    monkeypatch.setitem(sys.modules, f"opentelemetry.exporter.otlp.proto.{package}", None)
    assert resolve(["auto"], environ, stream=PIPE) == ()
    other = "http/protobuf" if protocol == "grpc" else "grpc"
    assert resolve(["auto"], {**ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": other}, stream=PIPE) == ("otlp",)


def test_auto_takes_file_where_a_directory_is_known(tmp_path: Path) -> None:
    assert resolve(["auto"], {}, directory=tmp_path, stream=PIPE) == ("file",)
    assert resolve(["auto"], {"OTEL_GOODPUT_DIR": "runs"}, stream=PIPE) == ("file",)
    assert resolve(["auto"], {"OTEL_GOODPUT_DIR": "gs://bucket/runs"}, stream=PIPE) == ()
    assert resolve(["auto"], ENDPOINT, directory=tmp_path, stream=PIPE) == ("otlp", "file")


def test_auto_takes_console_on_a_terminal_only() -> None:
    screen, end = pty.openpty()
    with os.fdopen(end, "w") as stream:
        assert resolve(["auto"], {}, stream=stream) == ("console",)
    assert resolve(["auto"], {}, stream=stream) == ()  # closed
    os.close(screen)


def test_names_keep_their_order_and_count_once() -> None:
    assert resolve([" File", "otlp", "file", ""], {}) == ("file", "otlp")
    assert resolve(["console", "auto", "gcp"], ENDPOINT, stream=PIPE) == ("console", "otlp", "gcp")
    assert resolve([], ENDPOINT) == ()
    assert resolve(["none"], ENDPOINT) == ()


def test_wrong_names_are_refused_with_the_known_ones() -> None:
    known = "auto, none, console, file, gcp, gcp-otlp, otlp, tensorboard, workload$"
    for name in ("flie", "tensorflow"):
        with pytest.raises(ValueError, match=f"unknown exporter {name!r}; known are {known}"):
            resolve([name], {})
    with pytest.raises(ValueError, match="'none' cannot be combined"):
        resolve(["none", "file"], {})
    with pytest.raises(ValueError, match="unknown exporter 'flie'"):
        open_exporter("flie", ExporterContext("job", "run"))


GOOGLE = {"OTEL_GOODPUT_GCP_PROJECT": "p"}


def test_auto_takes_googles_exporters_where_google_cloud_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of Google's, or a project that somebody names; a collector next to the job takes spans and metrics."""
    for environ in (GOOGLE, {"OTEL_GOODPUT_GCP_ENDPOINT": "http://h:1"}, {"GCE_METADATA_HOST": "127.0.0.1:9"}):
        assert resolve(["auto"], environ, stream=PIPE) == ("gcp", "workload")
        assert resolve(["auto"], {**environ, **ENDPOINT}, stream=PIPE) == ("otlp", "workload")
    assert resolve(["auto"], {"GOOGLE_CLOUD_PROJECT": "p"}, stream=PIPE) == (), "any gcloud user has that"
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.cloud_trace", None)
    assert resolve(["auto"], GOOGLE, stream=PIPE) == ("workload",)
    monkeypatch.setitem(sys.modules, "google.cloud.monitoring_v3", None)
    assert resolve(["auto"], GOOGLE, stream=PIPE) == ()


@pytest.mark.parametrize(
    ("name", "missing", "extra"),
    [
        ("gcp", "opentelemetry.exporter.cloud_monitoring", "gcp"),
        ("workload", "google.cloud.monitoring_v3", "gcp"),
        ("gcp-otlp", "opentelemetry.exporter.otlp.proto.common", "gcp-otlp"),
    ],
)
def test_an_exporter_of_googles_without_its_extra(
    name: str, missing: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ExporterUnavailable) as caught:
        open_exporter(name, ExporterContext("job", "run", environ=GOOGLE))
    assert caught.value.hint == install_command(extra)


def test_nothing_of_googles_is_imported_to_open_an_exporter() -> None:
    """It takes a second, and credentials are looked for over the network: both are for the export's thread."""
    program = """
import sys
from otel_goodput.exporters.registry import open_exporter
from otel_goodput.exporters.spec import ExporterContext
for name in ("gcp", "workload", "gcp-otlp"):
    open_exporter(name, ExporterContext("job", "run", environ={"OTEL_GOODPUT_GCP_PROJECT": "p"}))
print([name for name in sys.modules if name.startswith(("google.auth", "google.cloud.", "google.api_core", "grpc"))])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc", None)
    monkeypatch.delitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc.trace_exporter", raising=False)
    with pytest.raises(ExporterUnavailable) as caught:
        open_exporter("otlp", ExporterContext("job", "run", environ={}))
    assert caught.value.hint == install_command("otlp")
    assert install_command("otlp") in str(caught.value)


def test_a_variable_that_an_exporter_refuses_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "lzma")
    with pytest.raises(ExporterUnavailable, match="OTEL_EXPORTER_OTLP_COMPRESSION"):
        open_exporter("otlp", ExporterContext("job", "run", environ=os.environ))


def test_nothing_heavy_is_imported_before_it_is_asked_for(tmp_path: Path) -> None:
    program = """if True:
        import sys
        from pathlib import Path
        from otel_goodput.exporters import registry, spec
        heavy = ("grpc", "google.protobuf", "requests", "opentelemetry.exporter")
        loaded = lambda names: [name for name in names if name in sys.modules]
        assert not loaded(heavy), loaded(heavy)
        names = registry.resolve(["auto", "console"], {}, directory=Path(sys.argv[1]))
        assert names == ("file", "console"), names
        for name in names:
            registry.open_exporter(name, spec.ExporterContext("job", "run", directory=Path(sys.argv[1])))
        assert not loaded(heavy), loaded(heavy)
    """
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, stdin=subprocess.DEVNULL, timeout=120)


@pytest.mark.parametrize("name", OURS)
def test_every_exporter_of_the_table_exists_under_its_name(name: str) -> None:
    assert spec(name).name == name


# --- never raising ----------------------------------------------------------------------------------------------------


class Faulty(SpanExporter):
    """Somebody's exporter that raises; what it was called with is kept."""

    def __init__(self) -> None:
        self.calls: list[object] = []

    def export(self, spans: object) -> SpanExportResult:
        raise RuntimeError("no")

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        raise RuntimeError("no")

    def shutdown(self, timeout_millis: float = 1.0) -> None:
        self.calls.append(timeout_millis)
        raise RuntimeError("no")


class FaultyMetrics(MetricExporter):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[object] = []

    def export(self, metrics_data: MetricsData, timeout_millis: float = 0, **kwargs: object) -> MetricExportResult:
        raise RuntimeError("no")

    def force_flush(self, timeout_millis: float = 0) -> bool:
        raise RuntimeError("no")

    def shutdown(self, timeout_millis: float = 0, **kwargs: object) -> None:
        self.calls.append((timeout_millis, kwargs))
        raise RuntimeError("no")


def test_they_hold_errors_logs_the_first_and_counts(caplog: pytest.LogCaptureFixture) -> None:
    inner, inner_metrics = Faulty(), FaultyMetrics()
    safe, metrics = SafeSpanExporter("x", inner), SafeMetricExporter("y", inner_metrics, ShutdownSignal())
    data = collect(observed("gauge", "a", (1.0, {}), (2.0, {"k": "v"})), observed("counter", "b", (1, {})))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert safe.export(spans(2)) is SpanExportResult.FAILURE
            assert metrics.export(data) is MetricExportResult.FAILURE
        assert not safe.force_flush()
        assert not metrics.force_flush()
        safe.shutdown(timeout_millis=250)
        metrics.shutdown(timeout=125.0)  # as the SDK's reader calls it
    assert (safe.dropped, metrics.dropped) == (6, 9)
    assert [record.getMessage() for record in caplog.records] == [
        "exporter x: exporting spans failed: RuntimeError: no",
        "exporter y: exporting metrics failed: RuntimeError: no",
        "exporter x: flushing spans failed: RuntimeError: no",
        "exporter y: flushing metrics failed: RuntimeError: no",
        "exporter x: closing spans failed: RuntimeError: no",
        "exporter y: closing metrics failed: RuntimeError: no",
    ]
    assert inner.calls == [250]
    assert inner_metrics.calls == [(125.0, {})]


def test_an_exporter_whose_shutdown_takes_no_time(tmp_path: Path) -> None:
    closed: list[str] = []

    class Plain(SpanExporter):
        def export(self, spans: object) -> SpanExportResult:
            return SpanExportResult.SUCCESS

        def shutdown(self) -> None:
            closed.append("yes")

    safe = SafeSpanExporter("x", Plain())
    assert safe.export([ReadableSpan("s")]) is SpanExportResult.SUCCESS
    safe.shutdown(timeout_millis=5)
    assert closed == ["yes"]
    assert safe.dropped == 0


FORK = """if True:
    import io, os, sys
    from pathlib import Path
    from opentelemetry.metrics import Observation
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from otel_goodput.exporters.registry import open_exporter
    from otel_goodput.exporters.spec import ExporterContext

    directory = Path(sys.argv[1])
    exporter = open_exporter("file", ExporterContext("job", "run", directory=directory))
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter.span_exporter, schedule_delay_millis=10))
    reader = PeriodicExportingMetricReader(exporter.metric_exporter, 10)
    meters = MeterProvider([reader], shutdown_on_exit=False)
    collected = []
    meters.get_meter("m").create_observable_gauge(
        "g", [lambda options: collected.append(os.getpid()) or [Observation(os.getpid())]]
    )
    tracer = provider.get_tracer("t")
    tracer.start_span("parent").end()
    child = os.fork()
    if child == 0:
        collected.clear()
        tracer.start_span("child").end()
        provider.force_flush()
        reader.collect()
        while not collected:  # the SDK's thread runs in the child too
            pass
        provider.shutdown()
        meters.shutdown()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    tracer.start_span("parent").end()
    provider.shutdown()
    meters.shutdown()
    print(child)
"""


def test_a_forked_child_is_silent(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORK, str(tmp_path)], check=True, timeout=120, capture_output=True, text=True
    )
    traces = (tmp_path / "traces-attempt0000-p0000.jsonl").read_text()
    assert traces.count('"name":"parent"') == 2
    assert '"name":"child"' not in traces
    assert f'"asInt":"{done.stdout.strip()}"' not in (tmp_path / "metrics-attempt0000-p0000.jsonl").read_text()

"""What a receiver answers over HTTP: what counts as exported, what is logged, and how much of it is read."""

from __future__ import annotations

import gzip
import http.client
import logging
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import warm
from http_server import Answer, HttpServer, Request, Response, dripping, flooding
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.metrics.export import MetricExportResult
from opentelemetry.sdk.trace.export import SpanExportResult
from otlp_server import otlp_server

from otel_goodput._runtime import answers
from otel_goodput.exporters.registry import dropped_items, open_exporter
from otel_goodput.exporters.spec import ExporterContext, Exporters, ExporterUnavailable

from .telemetry import collect, observed, spans

PROTOBUF = {"content-type": "application/x-protobuf"}
JSON = {"content-type": "application/json"}
PARTLY = ExportTraceServiceResponse()
PARTLY.partial_success.rejected_spans = 2
PARTLY.partial_success.error_message = "too old"

# What counts as exported, and how many of three spans the receiver rejects.
SUCCESSES: dict[str, tuple[Response, int]] = {
    "nothing": (Response(), 0),
    "202": (Response(202), 0),
    "204": (Response(204), 0),
    "an empty message": (Response(headers=PROTOBUF), 0),
    "a type with parameters": (Response(headers={"content-type": "Application/X-Protobuf; charset=utf-8"}), 0),
    "partly": (Response(body=PARTLY.SerializeToString(), headers=PROTOBUF), 2),
    "partly, without a type": (Response(body=PARTLY.SerializeToString()), 2),
    "partly, compressed": (
        Response(body=gzip.compress(PARTLY.SerializeToString()), headers={**PROTOBUF, "content-encoding": "gzip"}), 2,
    ),
    "JSON": (Response(body=b"{}", headers=JSON), 0),
    "partly, as JSON": (
        Response(body=b'{"partialSuccess": {"rejectedSpans": "2", "errorMessage": "too old"}, "more": 1}',
                 headers={"content-type": "application/json; charset=utf-8"}), 2,
    ),
}  # fmt: skip
# What does not, and the message about it.
FAILURES: dict[str, tuple[Answer | Response, str]] = {
    **{
        str(status): (
            Response(status, headers={"location": "https://user:s3cr3t@there.test/v1/traces"}),
            f"it answers {status}, a redirect to https://***@there.test/v1/traces; set OTEL_EXPORTER_OTLP_ENDPOINT",
        )
        for status in (301, 302, 303, 307, 308)
    },
    "304": (Response(304), "it answers 304"),
    "a page": (Response(body=b"<p>sign in", headers={"content-type": "text/html; charset=utf-8"}), "an HTML page"),
    "an empty page": (Response(headers={"content-type": "text/html"}), "an HTML page"),
    "text": (Response(body=b"OK", headers={"content-type": "text/plain"}), "with text/plain, which is not OTLP"),
    "no message": (Response(body=b"\xff" * 9, headers=PROTOBUF), "with a body that is not OTLP"),
    "no JSON": (Response(body=b"[1", headers=JSON), "with a body that is not OTLP"),
    "not compressed": (
        Response(body=b"no gzip", headers={**PROTOBUF, "content-encoding": "gzip"}), "a body that is not OTLP",
    ),
    "a long body": (Response(body=bytes(answers.LONGEST + 1), headers=PROTOBUF), "its answer is longer than 1 MiB"),
    "an endless body": (flooding(b"HTTP/1.1 200 OK\r\n\r\n"), "its answer is longer than 1 MiB"),
    "an endless header": (flooding(b"HTTP/1.1 200 OK\r\nx: "), ""),
    "endless headers": (flooding(b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 90), ""),
    "a chunk of a terabyte": (
        flooding(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n10000000000\r\n"),
        "its answer is longer than 1 MiB",
    ),
    "a body of a terabyte": (
        lambda _: [b"HTTP/1.1 200 OK\r\ncontent-length: 1099511627776\r\n\r\n"], "its answer is longer than 1 MiB",
    ),
    "an endless error": (flooding(b"HTTP/1.1 404 Not Found\r\n\r\n"), "404"),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("OTEL_") and name != "OTEL_GOODPUT_STRICT":
            monkeypatch.delenv(name)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpServer]:
    with HttpServer() as server:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.url)
        yield server


def opened(grace_period_s: float = 20.0) -> Exporters:
    return open_exporter("otlp", ExporterContext("job", "run", environ=os.environ, grace_period_s=grace_period_s))


@pytest.mark.parametrize("case", SUCCESSES)
def test_a_success_by_otlp_s_rules(case: str, server: HttpServer, caplog: pytest.LogCaptureFixture) -> None:
    response, rejected = SUCCESSES[case]
    server.answer = lambda _: response
    exporters = opened()
    assert exporters.span_exporter is not None
    assert exporters.span_exporter.export(spans(3)) is SpanExportResult.SUCCESS
    exporters.span_exporter.shutdown()
    assert dropped_items(exporters)["traces"] == rejected
    assert len(server.requests) == 1
    assert ("did not accept 2 items: too old" in caplog.text) == bool(rejected)


def test_a_success_over_grpc_that_says_that_parts_were_rejected(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with otlp_server(lambda *_: PARTLY, lambda *_: ExportMetricsServiceResponse()) as endpoint:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        exporters = opened()
        assert exporters.span_exporter is not None and exporters.metric_exporter is not None
        for _ in range(2):
            assert exporters.span_exporter.export(spans(3)) is SpanExportResult.SUCCESS
        data = collect(observed("gauge", "g", (1.0, {"a": "b"})))
        assert exporters.metric_exporter.export(data, timeout_millis=10_000) is MetricExportResult.SUCCESS
        assert dropped_items(exporters) == {"traces": 4, "metrics": 0}
        exporters.span_exporter.shutdown()
        exporters.metric_exporter.shutdown()
    (message,) = caplog.messages
    assert message.endswith("did not accept 2 items: too old")


@pytest.mark.parametrize("case", FAILURES)
def test_a_failure_is_reported_once_and_stays(case: str, server: HttpServer, caplog: pytest.LogCaptureFixture) -> None:
    answer, refusal = FAILURES[case]
    server.answer = (lambda _: answer) if isinstance(answer, Response) else answer
    # What is no HTTP at all is asked again by OpenTelemetry's exporters, as long as their time lasts.
    exporters = opened(20.0 if refusal else 2.0)
    assert exporters.span_exporter is not None and exporters.metric_exporter is not None
    for _ in range(2):
        assert exporters.span_exporter.export(spans(3)) is SpanExportResult.FAILURE
    assert "s3cr3t" not in caplog.text
    if refusal and case != "an endless error":  # OpenTelemetry's exporters say that one, at each export
        (message,) = caplog.messages
        assert message.startswith(f"traces to {server.url}/v1/traces") and refusal in message
    assert refusal in caplog.text
    # Nothing is lost: it goes when the receiver is one.
    server.answer = lambda _: Response(headers=PROTOBUF)
    assert exporters.span_exporter.export(spans(1)) is SpanExportResult.SUCCESS
    exporters.span_exporter.shutdown()
    exporters.metric_exporter.shutdown()
    assert dropped_items(exporters) == {"traces": 0, "metrics": 0}


def test_values_that_were_redirected_are_counted_as_lost(server: HttpServer) -> None:
    server.answer = lambda _: Response(307, headers={"location": "http://127.0.0.1:1/"})
    exporters = opened()
    assert exporters.metric_exporter is not None
    data = collect(observed("gauge", "g", (1.0, {"a": "b"}), (2.0, {"a": "c"})))
    assert exporters.metric_exporter.export(data, timeout_millis=10_000) is MetricExportResult.FAILURE
    exporters.metric_exporter.shutdown()
    assert dropped_items(exporters)["metrics"] == 2


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\nx: ", b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 503 Busy\r\n\r\n"])
def test_an_answer_that_drips_costs_no_more_than_one_that_does_not_come(head: bytes, server: HttpServer) -> None:
    """The witness is a receiver that never answers, before and after it."""

    def took(answer: Answer) -> float:
        server.answer = answer
        exporters = opened(grace_period_s=1.0)
        assert exporters.span_exporter is not None
        began = time.monotonic()
        assert exporters.span_exporter.export(spans(3)) is SpanExportResult.FAILURE
        return time.monotonic() - began

    def silent(request: Request) -> None:
        request.over.wait(5)

    before = took(silent)
    dripped = took(dripping(head, b" ", pause=0.005))
    assert dripped < 3 * max(before, took(silent))


def test_memory_does_not_grow_with_an_answer(server: HttpServer) -> None:
    """In a process with room for a hundredth of what the receiver would send."""
    server.answer = flooding(b"HTTP/1.1 200 OK\r\n\r\n")
    program = """
import resource
from otel_goodput.exporters.registry import open_exporter
from otel_goodput.exporters.spec import ExporterContext
import os
exporter = open_exporter("otlp", ExporterContext("job", "run", environ=os.environ, grace_period_s=20)).span_exporter
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for _ in range(5):
    exporter.export(())
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = warm.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    unit = 1 if sys.platform == "darwin" else 1024
    assert int(done.stdout) * unit < 40 << 20


def test_a_kept_connection_waits_as_long_for_the_next_answer(server: HttpServer) -> None:
    """The time that one answer has taken is not missing for the next request on its connection."""
    server.answer = lambda _: [b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n", b"ok"]
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.response_class = answers.BoundedResponse
    connection.request("GET", "/")
    assert connection.getresponse().read() == b"ok"
    assert connection.sock.gettimeout() == 30
    connection.close()


PROVIDER = """
import requests
class Signing(requests.Session):
    def request(self, *args, headers=None, **settings):
        return super().request(*args, headers={**(headers or {}), "x-signed": "yes"}, **settings)
"""


def test_the_session_of_a_credential_provider_is_used_and_checked(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """OpenTelemetry's own way to sign requests, by an installed package."""
    (tmp_path / "signing_of_this_test.py").write_text(PROVIDER)
    about = tmp_path / "signing_of_this_test-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: signing-of-this-test\nVersion: 1\n")
    entry = "[opentelemetry_otlp_credential_provider]\nsigning = signing_of_this_test:Signing\n"
    (about / "entry_points.txt").write_text(entry)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER", "signing")
    exporters = opened()
    assert exporters.span_exporter is not None
    for status, result in ((301, SpanExportResult.FAILURE), (200, SpanExportResult.SUCCESS)):
        server.answer = lambda _, status=status: Response(status)  # type: ignore[misc]
        assert exporters.span_exporter.export(spans(1)) is result
    assert {request.headers["x-signed"] for request in server.requests} == {"yes"}

    monkeypatch.setenv("OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER", "nobody")
    with pytest.raises(ExporterUnavailable, match="'nobody' is not installed"):
        opened()


def test_other_messages_of_openTelemetry_s_exporters_are_still_logged(
    server: HttpServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.answer = lambda _: Response(400)
    exporters = opened()
    assert exporters.span_exporter is not None
    with caplog.at_level(logging.WARNING):
        exporters.span_exporter.export(spans(1))
    assert "code: 400" in caplog.text

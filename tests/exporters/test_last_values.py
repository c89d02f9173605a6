"""The last values of an attempt: if a receiver does not get them in time, there is a warning."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from otlp_server import otlp_server

from otel_goodput import Recorder

LACKS = "the last metrics of this attempt have not reached otlp"


@pytest.mark.parametrize("at_the_end", ["hangs", "answers"])
def test_a_receiver_that_has_older_values(
    at_the_end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ending, over = threading.Event(), threading.Event()
    received = []

    def metrics(request: Any, _: Any) -> Any:
        if ending.is_set() and at_the_end == "hangs":
            over.wait(60)
        received.append(request)
        return ExportMetricsServiceResponse()

    with otlp_server(lambda *_: ExportTraceServiceResponse(), metrics) as endpoint:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        options: Any = {"grace_period": 2 if at_the_end == "hangs" else 60, "integrations": "none"}
        recorder = Recorder("job", directory=tmp_path, exporters="otlp", **options)
        with recorder.job(), recorder.step(0):
            pass
        assert recorder.flush(60) and received
        ending.set()
        with caplog.at_level(logging.WARNING):
            recorder.shutdown()
        over.set()
    messages = [record.getMessage() for record in caplog.records if LACKS in record.getMessage()]
    assert len(messages) == (at_the_end == "hangs")

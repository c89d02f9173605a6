"""The last metrics of a process that ended right after its job, without its exit handlers."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import warm
from exporters.backends import Received, grpc_backend

from .commands import goodput, succeeded

WORKER = """
import os, sys
import otel_goodput as goodput
goodput.configure("worker", run_id="worker", exporters="otlp", directory=sys.argv[1], integrations="none")
with goodput.job():
    for step, _ in goodput.steps(range(int(sys.argv[2])), start=int(sys.argv[3])):
        pass
if sys.argv[4] == "at once":
    os._exit(0)
"""


def kept(received: Received) -> list[int]:
    """The figures of kept steps that arrived, in order."""
    return [
        point.as_int
        for request in received.metrics
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == "goodput.step.count"
        for point in metric.sum.data_points
        if any(each.key == "goodput.step.state" and each.value.string_value == "kept" for each in point.attributes)
    ]


def work(folder: Path, received: Received, steps: int, first: int, end: str) -> None:
    environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": received.endpoint, "OTEL_GOODPUT_STRICT": ""}
    command = [sys.executable, "-c", WORKER, str(folder), str(steps), str(first), end]
    warm.run(command, env=environment, timeout=60, check=True)


@pytest.mark.parametrize("by", ["recover", "the next start"])
def test_they_are_sent_later(by: str, tmp_path: Path) -> None:
    with grpc_backend() as received:
        work(tmp_path, received, 50, 0, "at once")
        assert 50 not in kept(received), "the process was gone before"
        if by == "recover":
            variables = {"OTEL_GOODPUT_EXPORTERS": "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": received.endpoint}
            assert "the last metrics exported through otlp" in succeeded(goodput("recover", tmp_path, **variables))
            assert kept(received)[-1] == 50
            assert received.span_names().count("job") == 1
            assert {"goodput.time", "goodput.ratio"} < received.metric_names()
            assert not {"goodput.telemetry.overhead", "goodput.telemetry.dropped"} & received.metric_names()
            assert "already recovered" in succeeded(goodput("recover", tmp_path, **variables))
        else:
            work(tmp_path, received, 10, 50, "as programs do")
            assert kept(received)[-1] == 60

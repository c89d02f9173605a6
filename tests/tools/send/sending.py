"""What the tests of ``otel-goodput send`` share: jobs that write files, the command, what arrived."""

from __future__ import annotations

import base64
import contextlib
import gc
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import grpc
import warm
from exporters.backends import grpc_backend, http_backend
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceResponse,
)

from otel_goodput._tools.cli import main

from ..commands import environment
from .receivers import Say, grpc_receiver, http_receiver

GRPC, HTTP = "grpc", "http/protobuf"
BACKENDS = {GRPC: grpc_backend, HTTP: http_backend}
RECEIVERS = {GRPC: grpc_receiver, HTTP: http_receiver}
LATER = {GRPC: Say(grpc.StatusCode.UNAVAILABLE), HTTP: Say(503)}
REFUSED = {GRPC: Say(grpc.StatusCode.INVALID_ARGUMENT), HTTP: Say(400)}
UNSURE = {GRPC: Say(grpc.StatusCode.INTERNAL), HTTP: Say(500)}
_PARTIAL = ExportTraceServiceResponse(
    partial_success=ExportTracePartialSuccess(rejected_spans=1, error_message="too old")
)
PARTLY = Say(keep=True, body=_PARTIAL.SerializeToString(), headers=(("content-type", "application/x-protobuf"),))

RECORDER = """
import itertools, pathlib, sys, time
import otel_goodput as goodput

goodput.configure("job", directory=sys.argv[1], exporters="file")
over = pathlib.Path(sys.argv[2])
with goodput.job():
    for step, _ in goodput.steps(itertools.count()):
        if step >= 300 and over.exists():
            break
        time.sleep(0.002 if step < 1000 else 0.05)  # always more, but not much, however long it takes to read it
        if step % 20 == 5:
            with goodput.checkpoint_save(step), goodput.custom("look"):
                time.sleep(0.002)
            goodput.flush()  # a line of each signal, however fast the machine is
"""


def recorder(directory: Path, over: Path, metrics_ms: int = 40) -> warm.Process:
    """A real job that exports to files every 20 steps; after 300 steps it ends once `over` is there."""
    often = environment(OTEL_BSP_SCHEDULE_DELAY="15", OTEL_METRIC_EXPORT_INTERVAL=f"{metrics_ms}")
    command = [sys.executable, "-W", "error", "-c", RECORDER, str(directory), str(over)]
    return warm.Process(command, env=often)


def lines(folder: Path, signal_: str) -> list[Any]:
    """Every whole line that was written, as JSON."""
    return [
        plain(json.loads(line))
        for path in sorted(folder.glob(f"{signal_}-*.jsonl"))
        for line in path.read_bytes().splitlines(keepends=True)
        if line.endswith(b"\n")
    ]


def arrived(messages: list[Any]) -> list[Any]:
    """What arrived, written as OTLP JSON."""
    return [plain(_hex(MessageToDict(message, use_integers_for_enums=True))) for message in messages]


# Here a zero is a value; elsewhere it is as good as nothing, and protobuf leaves it out.
_VALUES = {"asInt", "asDouble", "intValue", "doubleValue", "boolValue", "stringValue", "sum", "min", "max"}


def plain(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: plain(value) for key, value in node.items() if key in _VALUES or value not in (0, "", "0", [])}
    return [plain(item) for item in node] if isinstance(node, list) else node


def _hex(node: Any) -> Any:
    if isinstance(node, list):
        return [_hex(item) for item in node]
    if not isinstance(node, dict):
        return node
    return {
        key: base64.b64decode(value).hex() if key in ("traceId", "spanId", "parentSpanId") else _hex(value)
        for key, value in node.items()
    }


def send(*arguments: str | Path, to: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The command in this process, which is sooner there than one of its own."""
    called = ["send", *map(str, arguments)]
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.dict(os.environ, {"OTEL_EXPORTER_OTLP_ENDPOINT": to, **variables}),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            status = main(called)
        finally:
            gc.enable()
    return subprocess.CompletedProcess(called, status, out.getvalue(), err.getvalue())


def answer(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(done.stdout)
    return report

"""Receivers of OTLP that answer as a test wants: refuse, lose their answer, hang, take part of a request."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import grpc
from exporters.backends import Received
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from http_server import HttpServer, Request, Response
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from otlp_server import otlp_server


class Say(NamedTuple):
    """How a request is answered: by status (HTTP's, gRPC's code), `keep`: whether it is taken before."""

    status: int | grpc.StatusCode | None = None
    keep: bool = False
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    retry_s: float = 0.0
    hang: threading.Event | None = None
    drop: bool = False
    message: str = "so it was told"


TAKE = Say(keep=True)
# What a request, by its number from 0, is answered.
Script = Callable[[int], Say]
# What it is answered for what is in it, None where its number tells.
ByContent = Callable[[ExportTraceServiceRequest], "Say | None"]


@contextmanager
def http_receiver(script: Script, port: int = 0, by_content: ByContent = lambda _: None) -> Iterator[Received]:
    def answer(request: Request) -> Response | None:
        sent = ExportTraceServiceRequest.FromString(request.body)
        with lock:
            say = by_content(sent) or script(len(received.headers))
            received.headers.append({name.lower(): value for name, value in request.headers.items()})
            if say.keep:
                received.traces.append(sent)
        if say.hang is not None:
            say.hang.wait()
        if say.drop or say.hang is not None:
            return None
        status = say.status or 200
        assert isinstance(status, int)
        return Response(status, say.body, dict(say.headers))

    lock = threading.Lock()
    received = Received("")  # somebody may have waited for it, and comes at once
    with HttpServer(answer, port) as server:
        received.endpoint = server.url
        yield received


@contextmanager
def grpc_receiver(script: Script, by_content: ByContent = lambda _: None) -> Iterator[Received]:
    def take(request: ExportTraceServiceRequest, context: grpc.ServicerContext) -> ExportTraceServiceResponse:
        say = by_content(request) or script(len(received.headers))
        received.headers.append(dict(context.invocation_metadata()))
        if say.keep:
            received.traces.append(request)
        if say.hang is not None:
            say.hang.wait()
        if say.retry_s:
            status = Status(code=say.status.value[0])  # type: ignore[union-attr]
            wanted = RetryInfo()
            wanted.retry_delay.FromMilliseconds(round(say.retry_s * 1000))
            status.details.add().Pack(wanted)
            context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
        if say.status is not None:
            context.abort(say.status, say.message)
        return ExportTraceServiceResponse.FromString(say.body)

    received = Received("")
    with otlp_server(take) as received.endpoint:
        yield received

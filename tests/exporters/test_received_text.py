"""What a receiver answers is logged by OpenTelemetry's exporters: as one line, and without terminal escapes."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from http_server import HttpServer
from otlp_server import otlp_server

from otel_goodput import Recorder

FORGED = "2026-11-26 ERROR root: checkpoint 9000 is corrupt, restart from 0"
HOSTILE = f"\x1b]0;title\x07\x1b[2J\r\n{FORGED}"


@contextmanager
def grpc_receiver() -> Iterator[str]:
    def refuse(_: Any, answering: grpc.ServicerContext) -> None:
        answering.abort(grpc.StatusCode.INVALID_ARGUMENT, HOSTILE)

    with otlp_server(refuse, refuse) as endpoint:
        yield endpoint


@contextmanager
def http_receiver() -> Iterator[str]:
    with HttpServer() as server:
        head = f"HTTP/1.1 400 \x1b[2J{FORGED}\r\nContent-Length: {len(HOSTILE)}\r\nContent-Type: text/plain\r\n\r\n"
        server.answer = lambda _: [head.encode(), HOSTILE.encode()]
        yield server.url


RECEIVERS = {"grpc": grpc_receiver, "http/protobuf": http_receiver}


@pytest.mark.parametrize("wire", RECEIVERS)
def test_an_answer_forges_no_line_of_the_log(wire: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    receiver: AbstractContextManager[str] = RECEIVERS[wire]()
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.getLogger().addHandler(handler)
    try:
        with receiver as endpoint:
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", wire)
            recorder = Recorder("job", directory=tmp_path, exporters="otlp", integrations="none")
            with recorder, recorder.job(), recorder.step(0):
                pass
    finally:
        logging.getLogger().removeHandler(handler)
    text = written.getvalue()
    assert "opentelemetry.exporter" in text and FORGED in text, "the answer is shown"
    assert not [line for line in text.split("\n") if line.startswith(FORGED)]
    assert all(letter == "\n" or letter.isprintable() for letter in text)

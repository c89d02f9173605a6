"""``otel-goodput send`` and receivers that take their time: one deadline, a word while it waits, and the truth."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import warm
from exporters.backends import grpc_backend

from otel_goodput._tools.cli import main

from ..commands import PATIENCE_S, environment, succeeded
from .receivers import TAKE, http_receiver
from .sending import BACKENDS, GRPC, HTTP, arrived, lines, send

TIMEOUT_S = 1.0
# A machine that is busy takes its time as well; a receiver that drips has no end at all.
PATIENT_S = 15.0

Talk = Callable[[socket.socket, threading.Event], None]


@contextmanager
def listening(talk: Talk, port: int) -> Iterator[None]:
    """A server that does with each connection what `talk` does.

    A bare socket: what is tested are answers to requests that were not read, and in gRPC's frames.
    """
    over = threading.Event()
    held: list[socket.socket] = []
    threads: list[threading.Thread] = []
    with socket.create_server(("127.0.0.1", port)) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 12)  # what is not read is to be noticed soon

        def work(connection: socket.socket) -> None:
            try:
                talk(connection, over)
            except OSError:
                pass  # the other end has gone

        def accept() -> None:
            while True:
                connection, _ = server.accept()
                held.append(connection)
                if over.is_set():
                    return
                threads.append(threading.Thread(target=work, args=(connection,)))
                threads[-1].start()

        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield
        finally:
            over.set()
            socket.create_connection(("127.0.0.1", port)).close()
            for thread in (accepting, *threads):
                thread.join()
            for connection in held:
                connection.close()


def dripping(head: bytes) -> Talk:
    """Reads something, says `head` at once, and then a byte at a time without an end."""

    def talk(connection: socket.socket, over: threading.Event) -> None:
        connection.recv(1 << 16)
        connection.sendall(head)
        while not over.wait(0.1):
            connection.sendall(b"x")

    return talk


def silent(connection: socket.socket, over: threading.Event) -> None:
    over.wait()


@contextmanager
def full(port: int) -> Iterator[None]:
    """A server whose queue is full: who connects waits for an answer that does not come."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", port), backlog=0))
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        yield


def late(files: Path, port: int, wire: str, scheme: str = "http") -> str:
    """What the command says where it has a second; it takes not much more, and leaves all the lines."""
    began = time.monotonic()
    done = send(files, "--timeout", str(TIMEOUT_S), to=f"{scheme}://127.0.0.1:{port}", OTEL_EXPORTER_OTLP_PROTOCOL=wire)
    assert time.monotonic() - began < TIMEOUT_S + PATIENT_S
    assert done.returncode == 1
    assert (
        f"; {len(lines(files.parent, 'traces'))} requests are left; run this command again to continue" in done.stderr
    )
    assert "Traceback" not in done.stderr and "twice" not in done.stderr + done.stdout
    return done.stderr


def next_time(files: Path, port: int, wire: str) -> str:
    """What the command says where there is a receiver that takes it all by now."""
    taking = grpc_backend(port) if wire == GRPC else http_receiver(lambda _: TAKE, port)
    with taking as received:
        output = succeeded(send(files, to=received.endpoint, OTEL_EXPORTER_OTLP_PROTOCOL=wire))
        assert arrived(received.traces) == lines(files.parent, "traces")
    return output


def test_a_busy_machine_that_wakes_it_too_late(
    traces: Path, port: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No time is left for the last try: it is given a moment, instead of less than none."""
    late = SimpleNamespace(monotonic=time.monotonic, sleep=lambda seconds: time.sleep(seconds + 0.3))
    monkeypatch.setattr("otel_goodput._tools.send.command.time", late)
    for name, value in environment(OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{port}").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", HTTP)
    assert main(["send", str(traces), "--timeout", "0.2"]) == 1
    errors = capsys.readouterr().err
    assert f"; {len(lines(traces.parent, 'traces'))} requests are left; run this command again to continue" in errors


OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 99999\r\n\r\n"
BUSY = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 99999\r\n\r\n"
BAD = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 99999\r\n\r\n"
DRIPS = {
    "a status line": (b"HTTP/1.1 200 ", "no answer within", True),
    "headers": (b"HTTP/1.1 200 OK\r\n", "no answer within", True),
    "what it took": (OK, "no answer within", True),
    "that it is busy": (BUSY, "503 Service Unavailable", False),
    "what is wrong": (BAD, "400 Bad Request", False),
}


@pytest.mark.parametrize("case", DRIPS)
def test_a_receiver_that_drips(case: str, traces: Path, port: int) -> None:
    head, words, doubt = DRIPS[case]
    with listening(dripping(head), port):
        assert words in late(traces, port, HTTP)
    assert ("one request may arrive twice" in next_time(traces, port, HTTP)) is doubt


def test_a_receiver_of_grpc_that_drips(traces: Path, port: int) -> None:
    with listening(dripping(b"\0"), port):
        late(traces, port, GRPC)
    assert "twice" not in next_time(traces, port, GRPC)


@pytest.mark.parametrize("wire", BACKENDS)
def test_nobody_accepts(wire: str, traces: Path, port: int) -> None:
    with full(port):
        output = late(traces, port, wire)
    assert "no connection within 1 s" in output or "failed to connect" in output
    assert "twice" not in next_time(traces, port, wire)


@pytest.mark.parametrize("wire", BACKENDS)
def test_nobody_agrees_upon_tls(wire: str, traces: Path, port: int) -> None:
    with listening(silent, port):
        output = late(traces, port, wire, "https")
    # gRPC gives up the handshake by itself where it is sooner than we are.
    assert "no connection within 1 s" in output or (wire == GRPC and "failed to connect" in output), output


@pytest.mark.parametrize("wire", BACKENDS)
def test_nobody_answers(wire: str, traces: Path, port: int) -> None:
    """Over HTTP what was written may be read yet; over gRPC nothing goes before the receiver has sent something."""
    with listening(silent, port):
        output = late(traces, port, wire)
    # gRPC gives up the connection by itself where it is sooner than we are.
    expected = (
        ("no answer within",) if wire == HTTP else ("no connection within", "SETTINGS frame", "failed to connect")
    )
    assert any(words in output for words in expected), output
    assert ("one request may arrive twice" in next_time(traces, port, wire)) is (wire == HTTP)


@pytest.mark.parametrize("wire", BACKENDS)
def test_nobody_listens(wire: str, traces: Path, port: int) -> None:
    late(traces, port, wire)
    assert "twice" not in next_time(traces, port, wire)


def test_nobody_reads(traces: Path, port: int) -> None:
    first, *others = traces.read_bytes().splitlines()
    content: dict[str, Any] = json.loads(first)
    content["resourceSpans"][0]["resource"].setdefault("attributes", []).append(
        {"key": "much", "value": {"stringValue": "x" * (8 << 20)}}
    )
    traces.write_bytes(b"\n".join([json.dumps(content).encode(), *others, b""]))
    with listening(silent, port):
        assert "it did not read the request within 1 s" in late(traces, port, HTTP)
    assert "twice" not in next_time(traces, port, HTTP)


def test_the_time_is_that_of_all_files(traces: Path, port: int) -> None:
    for name in "abcdef":
        traces.with_name(f"traces-{name}.jsonl").write_bytes(traces.read_bytes())
    with full(port):
        began = time.monotonic()
        assert send(traces.parent, "--timeout", "1", to=f"http://127.0.0.1:{port}").returncode == 1
        assert time.monotonic() - began < TIMEOUT_S + PATIENT_S


@pytest.mark.parametrize(("wire", "end"), [(HTTP, signal.SIGINT), (GRPC, signal.SIGKILL)], ids=[HTTP, GRPC])
def test_the_wait_has_a_message_and_can_be_interrupted(wire: str, end: signal.Signals, traces: Path, port: int) -> None:
    endpoint = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-W", "error", "-m", "otel_goodput", "send", "--json", str(traces)]
    variables = environment(OTEL_EXPORTER_OTLP_ENDPOINT=endpoint, OTEL_EXPORTER_OTLP_PROTOCOL=wire)
    with warm.Process(command, env=variables, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            process.send_signal(end)
            out, err = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert line.startswith(f"otel-goodput: {endpoint}") and "waiting since 3 s, for " in line
    assert (out, err) == ("", "")
    assert "twice" not in next_time(traces, port, wire)

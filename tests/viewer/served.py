"""Starts ``otel-goodput serve`` as a process of its own, and asks it things as a browser would."""

from __future__ import annotations

import gzip
import http.client
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import warm
from waits import PATIENCE_S, until

TOOLS = Path(__file__).parents[1] / "tools"

JOB = """
import sys, time
import otel_goodput as goodput

name, directory, pause = sys.argv[1:]
goodput.configure(name, directory=directory, run_id=name, exporters="none")
with goodput.job():
    for step, _ in goodput.steps(range(10**9)):
        time.sleep(float(pause))
        if step == 3:
            with goodput.checkpoint_save(step):
                pass
            print("stepping", flush=True)
"""


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Server:
    """A server under way."""

    process: warm.Process
    port: int
    lines: list[str]
    errors: Path
    place: Path

    @property
    def address(self) -> str:
        """The address to open in a browser, which shows the token."""
        return next(line for line in self.lines if line.startswith("http://"))

    @property
    def token(self) -> str:
        """The token; empty if there is none."""
        return self.address.partition("?token=")[2]

    @property
    def shown(self) -> dict[str, str]:
        """The header with which a program shows the token."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def ask(
        self, path: str, method: str = "GET", host: str | None = None, *, token: bool = True, **headers: str
    ) -> Answer:
        """Ask for a path exactly as it is given; with the token, unless it is not to be shown."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            connection.putheader("Host", host if host is not None else f"127.0.0.1:{self.port}")
            for name, value in {**(self.shown if token else {}), **headers}.items():
                connection.putheader(name.replace("_", "-"), value)
            connection.endheaders()
            answer = connection.getresponse()
            received = {name.lower(): value for name, value in answer.getheaders()}
            body = answer.read()
            return Answer(
                answer.status, received, gzip.decompress(body) if received.get("content-encoding") == "gzip" else body
            )
        finally:
            connection.close()

    def runs(self) -> dict[str, dict[str, Any]]:
        return {run["run_id"]: run for run in self.ask("/api/runs").json()["runs"]}

    def stop(self, with_signal: int = signal.SIGINT) -> int:
        self.process.send_signal(with_signal)
        return self.process.wait(PATIENCE_S)


@contextmanager
def serving(place: str | Path, *arguments: str, before: Sequence[str] = ()) -> Iterator[Server]:
    """``otel-goodput serve`` on a free port; `before` is a command that starts it."""
    errors = Path(f"{str(place).removeprefix('file://')}.errors")
    python = [*before, sys.executable, "-W", "error", "-m", "otel_goodput"]
    command = [*python, "serve", str(place), "--port", "0", *arguments]
    with errors.open("w") as stream:
        start: Any = subprocess.Popen if before else partial(warm.Process, extras=True)
        process = start(command, stdout=subprocess.PIPE, stderr=stream, text=True, stdin=subprocess.DEVNULL)
    assert process.stdout is not None
    try:
        lines: list[str] = []
        while not any("Ctrl-C" in line for line in lines):
            line = process.stdout.readline()
            assert line, errors.read_text()
            lines.append(line.strip())
        server = Server(process, 0, lines, errors, Path(place))
        server.port = int(server.address.split("/")[2].rpartition(":")[2])
        yield server
    finally:
        process.kill()
        process.wait(PATIENCE_S)
        process.stdout.close()


@contextmanager
def living(name: str, directory: Path, pause: float = 0.002) -> Iterator[warm.Process]:
    """A job that goes on until it is killed; it has done some steps, each as long as `pause` (s)."""
    command = [sys.executable, "-W", "error", "-c", JOB, name, str(directory), str(pause)]
    with warm.Process(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == "stepping"
            yield process
        finally:
            process.kill()


class Stream:
    """Server-sent events as they come."""

    def __init__(self, server: Server, path: str, **headers: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)
        self._connection.request("GET", path, headers={"Host": f"127.0.0.1:{server.port}", **server.shown, **headers})
        self.answer = self._connection.getresponse()
        assert self.answer.status == 200, self.answer.read()
        assert self.answer.getheader("content-type") == "text/event-stream; charset=utf-8"

    def next(self) -> tuple[str, Any]:
        """The next event's name and data; ("", None) once the stream has ended."""
        name = "message"
        while line := self.answer.readline().decode():
            if line.startswith("event: "):
                name = line.removeprefix("event: ").strip()
            elif line.startswith("data: "):
                return name, json.loads(line.removeprefix("data: "))
        return "", None

    def until(self, name: str, condition: Any) -> Any:
        """The first event of this name that fulfils the condition."""
        received: list[Any] = []

        def came() -> bool:
            event, data = self.next()
            assert event, "the stream has ended"
            if event == name and condition(data):
                received.append(data)
            return bool(received)

        until(came, lacking=lambda: f"an event {name!r}")
        return received[0]

    def close(self) -> None:
        self._connection.close()


def mute(server: Server, path: str) -> socket.socket:
    """A client that asks for a stream and never reads."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", server.port))
    shown = "".join(f"{name}: {value}\r\n" for name, value in server.shown.items())
    client.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n{shown}\r\n".encode())
    return client

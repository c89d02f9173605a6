"""At the end of a job the receiver that does not listen yet is waited for, and only while there is time."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import warm
from opentelemetry.sdk.trace.export import SpanExportResult
from waits import until

from otel_goodput._runtime.deadline import ShutdownSignal
from otel_goodput.exporters.otlp import Listener
from otel_goodput.exporters.registry import open_exporter
from otel_goodput.exporters.spec import ExporterContext

from .backends import Received, grpc_backend, http_backend, silent_backend
from .telemetry import spans

BACKENDS: dict[str, Callable[[int], AbstractContextManager[Received]]] = {
    "grpc": grpc_backend,
    "http/protobuf": http_backend,
}
JOB = """
import otel_goodput as goodput
goodput.configure("short")
with goodput.job():
    for number in range(3):
        with goodput.step(number):
            pass
print("trained", flush=True)
"""
TIMEOUT_S = 0.5  # of one export: the exporters' own tries are over after it
LATE_S = 4 * TIMEOUT_S


@contextmanager
def job(directory: Path, wire: str, endpoint: str, grace_s: float) -> Iterator[warm.Process]:
    """A short job that has trained, and is about to end."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_EXPORTER")}
    environ |= {
        "OTEL_GOODPUT_DIR": str(directory),
        "OTEL_GOODPUT_EXPORTERS": "otlp",
        "OTEL_GOODPUT_GRACE_PERIOD": str(grace_s),
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_EXPORTER_OTLP_PROTOCOL": wire,
        "OTEL_EXPORTER_OTLP_TIMEOUT": str(TIMEOUT_S),
    }
    process = warm.Process(
        [sys.executable, "-c", JOB], env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        extras=True,
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "trained\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("wire", BACKENDS)
def test_a_receiver_that_comes_after_the_job_s_end_has_everything(wire: str, port: int, tmp_path: Path) -> None:
    with job(tmp_path, wire, f"http://127.0.0.1:{port}", grace_s=60.0) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(LATE_S)
        with BACKENDS[wire](port) as received:
            _, errors = process.communicate(timeout=60)
            assert process.returncode == 0
            names = received.span_names()
            assert (names.count("step"), names.count("job")) == (3, 1)
            assert "goodput.time" in received.metric_names()
    assert errors == ""


@pytest.mark.parametrize("wire", BACKENDS)
def test_if_nobody_scrapes_there_is_a_warning_and_the_end_is_in_time(wire: str, port: int, tmp_path: Path) -> None:
    grace_s = 3.0
    with job(tmp_path, wire, f"http://127.0.0.1:{port}", grace_s) as process:
        began = time.monotonic()
        _, errors = process.communicate(timeout=60)
        took = time.monotonic() - began
    assert process.returncode == 0
    assert errors.count(f"nothing listens at 127.0.0.1:{port}") == 1
    assert "Traceback" not in errors and "not finished" not in errors
    assert took < grace_s + 2.0, "the interpreter ends, too"


def test_who_accepts_and_says_nothing_is_not_waited_for(tmp_path: Path) -> None:
    """The exporter's own timeout holds then, not the grace period."""
    with silent_backend() as endpoint, job(tmp_path, "grpc", endpoint, grace_s=60.0) as process:
        _, errors = process.communicate(timeout=45)
    assert process.returncode == 0
    assert "nothing listens" not in errors


class Looks(ShutdownSignal):
    """Counts the pauses between two looks at who listens."""

    count = 0

    def wait(self, seconds: float) -> None:
        self.count += 1
        super().wait(seconds)


@pytest.mark.parametrize("wire", BACKENDS)
def test_who_was_there_before_may_come_back(wire: str, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An export that fails in the middle of the job is not repeated at once: the next one takes its spans along."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", wire)
    context = ExporterContext("job", "run", environ=os.environ, stopping=(looks := Looks()))
    exporter = open_exporter("otlp", context).span_exporter
    assert exporter is not None
    with BACKENDS[wire](port):
        assert exporter.export(spans(1)) is SpanExportResult.SUCCESS
    assert exporter.export(spans(2)) is SpanExportResult.FAILURE
    assert looks.count == 0
    results: list[SpanExportResult] = []
    last = threading.Thread(target=lambda: results.append(exporter.export(spans(3))))
    context.stopping.begin(60.0)
    last.start()
    until(lambda: looks.count >= 5)  # not the exporter's own tries: it is asked when somebody listens
    assert last.is_alive() and results == []
    with BACKENDS[wire](port) as received:
        last.join(60)
        assert results == [SpanExportResult.SUCCESS]
        assert len(received.span_names()) == 5
    exporter.shutdown()


@pytest.mark.parametrize(("begun", "young_s"), [(False, 60.0), (True, 0.0)])
def test_one_try_in_the_middle_of_the_job_and_where_nobody_was_ever_seen(
    port: int, begun: bool, young_s: float
) -> None:
    stopping, tries = ShutdownSignal(), []
    listener = Listener(("127.0.0.1", port), stopping, young_s)
    if begun:
        stopping.begin(3600.0)
    assert not listener.deliver(lambda: bool(tries.append(1)))  # type: ignore[func-returns-value]
    assert tries == [1]


def test_an_export_that_was_under_way_when_the_end_began_has_another_try(port: int) -> None:
    stopping, tries, servers = ShutdownSignal(), [], []
    late = threading.Timer(0.3, lambda: servers.append(socket.create_server(("127.0.0.1", port))))

    def send() -> bool:
        tries.append(1)
        if len(tries) == 1:
            stopping.begin(3600.0)
            late.start()
        return len(tries) > 1

    assert Listener(("127.0.0.1", port), stopping).deliver(send)
    late.join()
    servers[0].close()
    assert tries == [1, 1]

"""What ``otel-goodput serve`` costs: 50 clients that look at a living run of 512 processes.

Run as ``python -m benchmarks.serving``; writes to RESULTS-VIEWER.md the share of a core, and how long a page, a
document and a window of a long run take.
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import machine
from benchmarks.container import Container
from benchmarks.long_run import write
from benchmarks.viewer import RESULTS, SERVER
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._journal.sidecars import checked_json, read_json

PROCESSES = 512
CLIENTS = 50
SECONDS = 30.0

JOB = """
import sys, time
import otel_goodput as goodput
goodput.configure("bench", directory=sys.argv[1], run_id="bench", exporters="none", process_count=int(sys.argv[2]))
with goodput.job():
    for step, _ in goodput.steps(range(10**9)):
        time.sleep(0.05)
        if step % 100 == 99:
            with goodput.checkpoint_save(step):
                time.sleep(0.02)
"""


LONG = 1_000_000  # steps of a second, of the run that windows are read of
WINDOW_S = 600
WINDOWS = 8
BOUND_WINDOW_MS = 200.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving", description="What `serve` costs.")
    parser.add_argument("--fast", action="store_true", help="short runs and few clients; RESULTS-VIEWER.md stays")
    options = parser.parse_args()
    described = "\n".join(f"- {what}: {value}" for what, value in machine.describe()[:4])
    rows = ["| | measured | bound |", "|---|---:|---:|"]
    for what, measured, bound in (*_live(options.fast), *_windows(10_000 if options.fast else LONG)):
        rows.append(f"| {what} | {measured} | {bound} |")
        print(rows[-1], flush=True)
    if options.fast:
        return 0
    about = (
        f"A job with steps of 50 ms in a folder with the paces of {PROCESSES} processes, and {CLIENTS} clients that "
        f"follow it for {SECONDS:.0f} s; clients and job run on the same machine. Windows: of a run of 10⁶ steps of a "
        f"second, {WINDOWS} windows of {WINDOW_S} s that were not asked for before."
    )
    before = RESULTS.read_text(encoding="utf-8").partition(SERVER)[0].rstrip() if RESULTS.exists() else "# Results"
    body = "\n".join(rows)
    RESULTS.write_text(f"{before}\n\n{SERVER}\n\n## Served\n\n{about}\n\n{described}\n\n{body}\n", encoding="utf-8")
    return 0


@contextmanager
def _server(place: str) -> Iterator[tuple[int, int]]:
    """Process and port of a server."""
    command = [sys.executable, "-m", "otel_goodput", "serve", place, "--port", "0", "--no-token"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            lines = [server.stdout.readline() for _ in range(3)]
            yield server.pid, int(next(line for line in lines if "http://" in line).split("/")[2].rpartition(":")[2])
        finally:
            server.kill()


def _live(fast: bool) -> Iterator[tuple[str, str, str]]:
    with tempfile.TemporaryDirectory(prefix="otel-goodput-bench-") as place:
        job = subprocess.Popen([sys.executable, "-c", JOB, place, str(PROCESSES)])
        try:
            _others(RunDirectory(Path(place) / "bench"))
            with _server(place) as (server, port):
                yield from _measure(server, port, 5 if fast else CLIENTS, 5.0 if fast else SECONDS)
        finally:
            job.kill()
            job.wait()


def _windows(steps: int) -> Iterator[tuple[str, str, str]]:
    with tempfile.TemporaryDirectory(prefix="otel-goodput-bench-") as place:
        write(Path(place), steps)
        with _server(place) as (_, port):
            head = Container(_ask(port, "/api/runs/long/document")[1]).head
            length = WINDOW_S * 10**9
            took = []
            for number in range(WINDOWS):
                begin = (head["end"] - length) * (2 * number + 1) // (2 * WINDOWS)
                took.append(1e3 * _ask(port, f"/api/runs/long/window?begin={begin}&end={begin + length}")[0])
            what = f"window of {WINDOW_S} s of {steps:,} steps, median (longest)"
            yield what, f"{statistics.median(took):.0f} ms ({max(took):.0f} ms)", f"{BOUND_WINDOW_MS:.0f} ms"
            again = 1e3 * _ask(port, f"/api/runs/long/window?begin={begin}&end={begin + length}")[0]
            yield "the same one again", f"{again:.0f} ms", ""


def _others(run: RunDirectory) -> None:
    """Paces of the other processes, as they would have left them."""
    deadline = time.monotonic() + 120
    while not run.file("pace", 0).exists():
        assert time.monotonic() < deadline, "the job told no pace"
        time.sleep(0.1)
    pace = read_json(run.file("pace", 0))
    for index in range(1, PROCESSES):
        run.file("pace", index).write_bytes(checked_json({**pace, "process": index}))


def _measure(server: int, port: int, clients: int, seconds: float) -> Iterator[tuple[str, str, str]]:
    run = "/api/runs/bench"
    for what, path, bound in (
        ("the page", "/runs/bench", "1000 ms"),
        ("its document, the first time", f"{run}/document", ""),
        ("its document again", f"{run}/document", ""),
    ):
        yield what, f"{1e3 * _ask(port, path)[0]:.0f} ms", bound
    streams = []
    for _ in range(clients):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", f"{run}/events")
        streams.append((connection, connection.getresponse()))
    for _, answer in streams:
        answer.readline()
    time.sleep(3)  # what is read once is not what each second costs
    began, before = time.monotonic(), _processor(server)
    events = spans = size = 0
    while time.monotonic() - began < seconds:
        for _, answer in streams:
            line = answer.readline()
            events += line.startswith(b'data: {"live')
            spans += line.startswith(b'data: "')
            size += len(line)
    passed = time.monotonic() - began
    spent = _processor(server) - before
    each = clients * passed
    yield "figures, spans: events a second and client", f"{events / each:.2f}, {spans / each:.2f}", "1"
    yield "bytes a second and client", f"{size / each:,.0f}", ""
    yield f"{clients} clients, of a core", f"{100 * spent / passed:.2f} %", "1 %"
    made = Container(_ask(port, f"{run}/document")[1]).head["made_at"]
    yield "documents meanwhile", "none" if time.time() - made > seconds else "one or more", ""
    for connection, _ in streams:
        connection.close()
    time.sleep(2)
    idle, before = time.monotonic(), _processor(server)
    time.sleep(min(10.0, seconds))
    yield "nobody looks, of a core", f"{100 * (_processor(server) - before) / (time.monotonic() - idle):.2f} %", ""


def _ask(port: int, path: str) -> tuple[float, bytes]:
    began = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    assert answer.status == 200, json.loads(body)
    connection.close()
    took = time.monotonic() - began
    return took, gzip.decompress(body) if answer.getheader("content-encoding") == "gzip" else body


def _processor(process: int) -> float:
    """Processor time of a process, s."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main())

"""What ``otel-goodput serve`` costs: 50 clients that look at a living run of 512 processes.

Run as ``python -m benchmarks.serving``; prints the share of a core, and how long a page, a document and a window take.
"""

from __future__ import annotations

import gzip
import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from otel_goodput.journal.rundir import RunDirectory
from otel_goodput.journal.sidecars import checked_json, read_json
from otel_goodput.viewer.columns import Container

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


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        job = subprocess.Popen([sys.executable, "-c", JOB, place, str(PROCESSES)])
        server = None
        try:
            run = RunDirectory(Path(place) / "bench")
            _others(run)
            command = [sys.executable, "-m", "otel_goodput", "serve", place, "--port", "0"]
            server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            assert server.stdout is not None
            lines = [server.stdout.readline() for _ in range(3)]
            port = int(next(line for line in lines if "http://" in line).split("/")[2].rpartition(":")[2])
            _measure(server.pid, port)
        finally:
            for process in filter(None, (job, server)):
                process.kill()
                process.wait()


def _others(run: RunDirectory) -> None:
    """Paces of the other processes, as they would have left them."""
    deadline = time.monotonic() + 120
    while not run.pace_path(0).exists():
        assert time.monotonic() < deadline, "the job told no pace"
        time.sleep(0.1)
    told = read_json(run.pace_path(0))
    for index in range(1, PROCESSES):
        run.pace_path(index).write_bytes(checked_json({**told, "process": index}))


def _measure(server: int, port: int) -> None:
    print(f"{CLIENTS} clients, a living run of {PROCESSES} processes, load {os.getloadavg()[0]:.1f}")
    for path in ("/runs/bench", "/api/runs/bench/document", "/api/runs/bench/document"):
        print(f"{path}: {1e3 * _ask(port, path)[0]:.0f} ms")
    head = Container(_ask(port, "/api/runs/bench/document")[1]).head
    end = head["end"]
    for begin in (0, max(0, end - 10**10)):
        took = _ask(port, f"/api/runs/bench/window?begin={begin}&end={end}")[0]
        print(f"window of {(end - begin) / 1e9:.0f} s: {1e3 * took:.0f} ms")
    streams = []
    for _ in range(CLIENTS):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/api/runs/bench/events")
        streams.append((connection, connection.getresponse()))
    began, before = time.monotonic(), _processor(server)
    events = 0
    while time.monotonic() - began < SECONDS:
        for _, answer in streams:
            events += answer.readline().startswith(b'data: {"live')
    passed = time.monotonic() - began
    spent = _processor(server) - before
    print(f"events: {events / CLIENTS / passed:.2f} a second and client; {100 * spent / passed:.2f} % of a core")
    for connection, _ in streams:
        connection.close()
    idle, before = time.monotonic(), _processor(server)
    time.sleep(10)
    print(f"nobody looks: {100 * (_processor(server) - before) / (time.monotonic() - idle):.2f} % of a core")


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
    main()

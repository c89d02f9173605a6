"""Whole jobs that are ended together with their workers, and one that the signal does not end: process 1."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from waits import Lines

from otel_goodput._journal.rundir import RunDirectory
from otel_goodput.reports.run import RecordedRun

# As torch's DataLoader: workers that are forked, and a handler for their deaths that raises in the training loop.
WORKERS = """
import multiprocessing, signal, time
import otel_goodput as goodput
goodput.configure("train", run_id="run", exporters="file")

def work(taken):
    taken.send((signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)))
    time.sleep(60)

fork = multiprocessing.get_context("fork")
theirs, ours = fork.Pipe()
workers = [fork.Process(target=work, args=(ours,), daemon=True) for _ in range(2)]
def look(*_):
    if not all(worker.is_alive() for worker in workers):
        raise RuntimeError("DataLoader worker is killed by signal: Terminated")
signal.signal(signal.SIGCHLD, look)
for worker in workers:
    worker.start()
    assert theirs.recv() == (signal.SIG_DFL, signal.default_int_handler)
with goodput.job():
    for step, _ in goodput.steps(range(100_000)):
        with goodput.part("forward"):
            time.sleep(0.002)
        if step == 5:
            print("there", flush=True)
"""


def start(code: str, folder: Path, *prefix: str) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if name != "OTEL_GOODPUT_STRICT"}
    process = subprocess.Popen(
        [*prefix, sys.executable, "-c", code], cwd=folder, env=environment, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    Lines(process.stdout.fileno(), lambda: "").until("there".__eq__, "there")
    return process


def report(folder: Path) -> dict[str, Any]:
    return RecordedRun(RunDirectory(folder / "goodput" / "run")).report().to_json()


def test_sigterm_to_the_group_with_forked_workers(tmp_path: Path) -> None:
    process = start(WORKERS, tmp_path)
    # All have the signal before a worker dies of it; else, on a busy machine, the job may hear of that death first.
    for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGCONT):
        os.killpg(process.pid, number)
    _, errors = process.communicate(timeout=60)
    # Another thread may have taken the signal, and the main thread the death of a worker first: then that is its error.
    raised = errors.count("Traceback") == 1 and errors.endswith("killed by signal: Terminated\n")
    assert raised or not errors
    assert process.returncode == -signal.SIGTERM or (raised and process.returncode == 1)
    again = start(WORKERS, tmp_path)
    answer = report(tmp_path)
    os.killpg(again.pid, signal.SIGKILL)
    again.communicate(timeout=60)
    assert answer["attempts"] == 2 and answer["disruption_reasons"] == {"signal": 1}


RAISING = """
import signal, time
import otel_goodput as goodput
from opentelemetry.sdk.trace import SpanProcessor

class Slow(SpanProcessor):
    def shutdown(self):
        print("finishing", flush=True)
        time.sleep(0.3)
goodput.configure("train", run_id="run", exporters="file", span_processors=[Slow()])

def look(*_):
    raise RuntimeError("DataLoader worker is killed by signal: Terminated")
signal.signal(signal.SIGCHLD, look)
with goodput.job():
    for step, _ in goodput.steps(range(100_000)):
        time.sleep(0.0005)
        if step == 5:
            print("there", flush=True)
"""


def test_sigterm_ends_the_job_although_another_handler_raises_all_the_time(tmp_path: Path) -> None:
    """Between the end of the recording and the end of the process, too."""
    process = start(RAISING, tmp_path)
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None
    Lines(process.stdout.fileno()).until("finishing".__eq__, "finishing")
    until = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < until:
        process.send_signal(signal.SIGCHLD)
    process.kill()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM and not errors


ENDING = """
import os, signal, time
import otel_goodput as goodput
from opentelemetry.sdk.trace import SpanProcessor

class Signaled(SpanProcessor):
    def on_end(self, span):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.2)
recorder = goodput.configure("train", run_id="run", exporters="file", grace_period=40, span_processors=[Signaled()])
goodput.job().__enter__()
print("there", flush=True)
"""


def test_sigterm_while_the_process_ends_does_not_hold_that_up(tmp_path: Path) -> None:
    """The main thread holds what the end by the signal would wait for."""
    process = start(ENDING, tmp_path)
    process.communicate(timeout=30)  # the grace period is longer
    assert process.returncode in (0, -signal.SIGTERM)


SURVIVOR = """
import os, signal, threading, time
import otel_goodput as goodput
recorder = goodput.configure("train", run_id="run", exporters="none", grace_period=1)
with goodput.job():
    for step, _ in goodput.steps(range(60)):
        time.sleep(0.0005)
        if step == 5:
            assert os.getpid() == 1
            print("there", flush=True)
            os.kill(1, signal.SIGTERM)
"""


def test_process_1_of_a_container_goes_on_and_so_does_its_recording(tmp_path: Path) -> None:
    """Nobody handles SIGTERM there, and the kernel spares it: what it still trains is recorded."""
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-pf", "--mount-proc", "true"], check=False).returncode:
        pytest.skip("needs unshare -pf --mount-proc")
    process = start(SURVIVOR, tmp_path, unshare, "-pf", "--mount-proc")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    answer = report(tmp_path)
    assert answer["steps"]["kept"] == 60 and answer["ended"]

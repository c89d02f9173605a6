"""configure() raises for a wrong argument only: whatever else is wrong gets a warning, and training starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import warm

JOB = """
import sys
import otel_goodput as goodput
goodput.configure("job", run_id="run", directory=sys.argv[1], exporters="file", integrations="signals")
with goodput.job():
    for step in goodput.steps(range(3)):
        pass
    goodput.flush()
report = goodput.report()
goodput.shutdown()
print("trained", None if report is None else report.to_json()["steps"]["kept"], flush=True)
"""
NO_THREADS = """
import _thread, threading
def no_more(*_, **__):
    raise RuntimeError("can't start new thread")
for module, names in ((_thread, ("start_new_thread", "start_joinable_thread")),
                      (threading, ("_start_new_thread", "_start_joinable_thread"))):
    for name in names:
        if hasattr(module, name):
            setattr(module, name, no_more)
"""
NO_HOST = """
import socket
def refused():
    raise PermissionError(1, "refused")
socket.gethostname = refused
"""
NO_FOLDER = "import os, tempfile; here = tempfile.mkdtemp(); os.chdir(here); os.rmdir(here)"
NO_STDERR = "import os; os.close(2)"
NO_HANDLERS = """
import signal
def refused(*_):
    raise ValueError("refused")
signal.signal = refused
"""


def start(folder: Path, before: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    return warm.run(
        [sys.executable, "-c", before + JOB, str(folder)],
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    "before",
    [NO_THREADS, NO_HOST, NO_FOLDER + "\n", NO_STDERR + "\n", NO_HANDLERS],
    ids=["no more threads", "no host name", "no working directory", "stderr closed", "no signal handlers"],
)
def test_what_the_system_refuses_does_not_keep_training_from_its_start(before: str, tmp_path: Path) -> None:
    done = start(tmp_path, before)
    assert (done.returncode, done.stdout) == (0, "trained 3\n"), done.stderr


def test_without_threads_a_warning_says_what_is_lost(tmp_path: Path) -> None:
    done = start(tmp_path, NO_THREADS)
    lines = [line for line in done.stderr.splitlines() if "can't start new thread" in line]
    assert lines and len(set(lines)) == len(lines), "each once"
    assert "Traceback" not in done.stderr, done.stderr


@pytest.mark.parametrize(
    "variable",
    [
        "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT=many",
        "OTEL_SPAN_EVENT_COUNT_LIMIT=-1",
        "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT=-7",
        "OTEL_METRICS_EXEMPLAR_FILTER=sometimes",
    ],
)
def test_a_wrong_variable_only_warns(variable: str, tmp_path: Path) -> None:
    name, _, value = variable.partition("=")
    done = start(tmp_path, **{name: value})
    assert (done.returncode, done.stdout) == (0, "trained 3\n"), done.stderr
    assert name in done.stderr and "Traceback" not in done.stderr

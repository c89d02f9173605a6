"""Runs ``otel-goodput`` and jobs to ask it about, as processes of their own, most of them forked (``warm``)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import warm
from waits import PATIENCE_S

ROOT = Path(__file__).parents[2]
NS = 1_000_000_000

# Which variables change what the command does.
_PREFIXES = ("OTEL_", "SLURM_", "JAX_NUM_", "JAX_PROCESS_", "JOB", "TPU_", "MEGASCALE_", "MASTER_", "LOCAL_", "OMPI_")
_NAMES = ("RANK", "WORLD_SIZE", "CLOUD_TPU_TASK_ID", "PROCESSES_IN_JOB", "REPLICATED_JOB_REPLICAS")

Answer = subprocess.CompletedProcess[str]


def environment(**more: str | Path) -> dict[str, str]:
    """The environment without what would change the command, and with `more`."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(_PREFIXES) and name not in _NAMES}
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**plain, "PYTHONPATH": os.pathsep.join(paths), **{name: str(value) for name, value in more.items()}}


def goodput(
    *arguments: str | Path, cwd: Path | None = None, text: str | None = None, **variables: str | Path
) -> Answer:
    """``otel-goodput`` with these arguments, `text` on its standard input, and these variables."""
    return warm.run(
        [sys.executable, "-W", "error", "-m", "otel_goodput", *arguments],
        input=text, stdin=None if text is not None else subprocess.DEVNULL,
        capture_output=True, text=True, cwd=cwd, env=environment(**variables), timeout=PATIENCE_S,
    )  # fmt: skip


def succeeded(answer: Answer) -> str:
    """What the command printed; it must have done well and complained of nothing."""
    assert (answer.returncode, answer.stderr) == (0, ""), answer.stdout + answer.stderr
    return answer.stdout


def failed(answer: Answer) -> str:
    """The one line in which the command says why it cannot."""
    assert answer.returncode == 1, answer.stdout + answer.stderr
    assert answer.stdout == ""
    assert answer.stderr.startswith("otel-goodput: ")
    assert answer.stderr.endswith("\n")
    assert answer.stderr.count("\n") == 1, answer.stderr
    return answer.stderr.strip()


def total_ns(seconds: dict[str, Any]) -> int:
    """Sum of the categories of an answer."""
    flat = {name: value for name, value in seconds.items() if name != "custom"} | seconds.get("custom", {})
    return sum(round(value * NS) for value in flat.values())


JOB = """
import sys, time
import otel_goodput as goodput

name, directory, first, last, ending = sys.argv[1:]
goodput.configure(name, directory=directory, exporters="none")
with goodput.job():
    with goodput.training_prep():
        time.sleep(0.002)
    for step, _ in goodput.steps(range(int(first), int(last)), start=int(first)):
        time.sleep(0.002)
        if step == int(first) + 5:
            with goodput.checkpoint_save(step), goodput.custom("look"):
                time.sleep(0.002)
    if ending == "wait":
        with goodput.step(int(last)):
            print("waiting", flush=True)
            time.sleep(3600)
print("over", flush=True)
"""


@contextmanager
def job(
    name: str, directory: Path | str, first: int, last: int, ending: str = "end", **variables: str
) -> Iterator[warm.Process]:
    """A job that does steps `first` to `last` - 1; it is yielded once it has ended, or waits in step `last`."""
    command = [sys.executable, "-W", "error", "-c", JOB, name, directory, str(first), str(last), ending]
    with warm.Process(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(**variables)
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        try:
            line = process.stdout.readline().strip()
            assert line == ("waiting" if ending == "wait" else "over"), process.stderr.read()
            if ending != "wait":
                assert process.wait(PATIENCE_S) == 0
            yield process
        finally:
            process.kill()


def finished(name: str, directory: Path | str, first: int = 0, last: int = 10, **variables: str) -> None:
    """A job that has ended well."""
    with job(name, directory, first, last, **variables):
        pass


def killed(name: str, directory: Path | str, first: int = 0, last: int = 10, **variables: str) -> None:
    """A job that was killed in step `last`."""
    with job(name, directory, first, last, "wait", **variables) as process:
        process.send_signal(signal.SIGKILL)
        assert process.wait(PATIENCE_S) == -signal.SIGKILL


def write_timeline(path: Path, rows: list[dict[str, Any]]) -> Path:
    """A JSON-lines file of `rows`."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


SMALL: list[dict[str, Any]] = [
    {"kind": "job", "start": 0, "end": 20},
    {"kind": "training_prep", "start": 0, "end": 4},
    {"kind": "step", "step": 0, "start": 4, "end": 8},
    {"kind": "step", "step": 1, "start": 8, "end": 12},
    {"kind": "custom", "name": "eval", "start": 12, "end": 15},
    {"kind": "step", "step": 2, "start": 15, "end": 19},
]

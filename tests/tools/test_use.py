"""The command as a command: help, version, wrong use, pipes that close early."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import otel_goodput

from .commands import PATIENCE_S, SMALL, environment, finished, goodput, succeeded, write_timeline

OPTIONS = {
    "report": ["directory", "--run", "--process", "--at", "--window", "--exclude", "--ideal-step-time", "--json"],
    "replay": ["file", "--at", "--window", "--exclude", "--ideal-step-time", "--json"],
    "recover": ["directory", "--run", "--process", "--exporters", "--again"],
    "send": ["FILE", "--endpoint", "--protocol", "--timeout", "--again", "--dry-run", "--quiet", "--json"],
    "env": ["--json"],
    "doctor": ["--timeout", "--json"],
}


def test_help() -> None:
    text = succeeded(goodput("--help"))
    assert text.startswith("usage: otel-goodput")
    for command in OPTIONS:
        assert f"\n    {command} " in text


@pytest.mark.parametrize("command", OPTIONS)
def test_help_of_each_command(command: str) -> None:
    text = succeeded(goodput(command, "--help"))
    assert text.startswith(f"usage: otel-goodput {command}")
    for option in OPTIONS[command]:
        assert option in text


def test_version() -> None:
    assert succeeded(goodput("--version")) == f"{otel_goodput.__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("explain",),
        ("replay",),
        ("replay", "x.jsonl", "--at", "noon"),
        ("replay", "x.jsonl", "--at", "nan"),
        ("replay", "x.jsonl", "--at", "1e300"),
        ("replay", "x.jsonl", "--window", "3"),
        ("replay", "x.jsonl", "--window", "0", "inf"),
        ("replay", "x.jsonl", "--ideal-step-time", "0"),
        ("report", "--process", "first"),
        ("report", "one", "two"),
        ("env", "all"),
        ("doctor", "--timeout", "soon"),
    ],
)
def test_wrong_use(arguments: tuple[str, ...]) -> None:
    done = goodput(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("usage: otel-goodput")
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("otel-goodput")


@pytest.mark.parametrize(
    "question", ["env", "env --json", "doctor", "report runs", "report runs --json", "replay long"]
)
def test_whoever_reads_may_have_seen_enough(question: str, tmp_path: Path) -> None:
    """As with ``| head -1``; here the reader has gone before the first line."""
    if "runs" in question:
        finished("job", tmp_path / "runs")
    write_timeline(tmp_path / "long", SMALL)
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "otel_goodput", *question.split()],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment(),
    ) as process:  # fmt: skip
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        errors = process.stderr.read()
        assert (process.wait(PATIENCE_S), errors) == (0, "")


def test_an_interrupt_is_no_error_of_ours(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "otel_goodput", "replay", "-"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
    ) as process:  # fmt: skip
        assert process.stdin is not None and process.stderr is not None
        # More than the pipe holds: once it is written, the command is reading.
        process.stdin.write('{"kind": "job", "start": 0}\n' * 40_000)
        process.stdin.flush()
        process.send_signal(2)
        errors = process.stderr.read()
        assert process.wait(PATIENCE_S) == 130
        assert errors == ""

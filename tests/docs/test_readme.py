"""The README is true: its code runs, its commands work, its names and links exist."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import otel_goodput
from otel_goodput import semconv
from otel_goodput.envvars import ENVVARS, STANDARD
from otel_goodput.recording.phases import Phases

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PATIENCE_S = 120

# What needs the network, or runs these very tests.
NOT_HERE = ("make demo", "make test", "pip install -e '.[otlp]'", "pip install -e '.[gcp]'")


class Block(NamedTuple):
    language: str
    text: str

    @property
    def file(self) -> str:
        """Name of the file that it is to be, by its first line; empty for a block that stands for itself."""
        named = re.match(r"# (\w+\.py)\n", self.text)
        return named[1] if named else ""


BLOCKS = [Block(*found) for found in re.findall(r"^```(\w+)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)]


def lines(block: Block) -> Iterator[str]:
    """The commands of a block, without what only comments on them."""
    for line in block.text.splitlines():
        command = line.partition(" #")[0].strip()
        if command and command not in NOT_HERE:
            yield command


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with the commands that an installation has."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, command in (("python", ""), ("otel-goodput", " -m otel_goodput")):
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -W error{command} "$@"\n')
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    folder = tmp_path / "here"
    folder.mkdir()
    return folder


def run(command: list[str], here: Path) -> str:
    done = subprocess.run(
        command, cwd=here, capture_output=True, text=True, timeout=PATIENCE_S, check=False, stdin=subprocess.DEVNULL
    )
    assert (done.returncode, done.stderr) == (0, ""), f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.servers
def test_all_of_it_from_top_to_bottom(here: Path) -> None:
    """Every block of Python and every command that needs no network, in order, in one folder."""
    from emulators.google import GoogleEmulator
    from exporters.backends import grpc_backend

    assert {block.language for block in BLOCKS} <= {"python", "sh", "text"}
    said: dict[str, str] = {}
    with grpc_backend() as received, GoogleEmulator() as google:
        on_google = f"OTEL_GOODPUT_GCP_ENDPOINT={google.endpoint} OTEL_GOODPUT_GCP_PROJECT=test-project "
        for block in BLOCKS:
            if block.language == "python" and block.file:
                (here / block.file).write_text(block.text)
            elif block.language == "python":
                said[block.text] = run([sys.executable, "-W", "error", "-c", block.text], here)
            elif block.language == "sh":
                for line in lines(block):
                    there = line.replace("http://localhost:4317", received.endpoint)
                    there = on_google + there if "--gcp" in line else there
                    said[line] = run(["bash", "-c", there], here)
        assert "step" in received.span_names()
        assert "goodput.time" in received.metric_names()
        assert {"BatchWriteSpans", "CreateTimeSeries"} <= {request.method for request in google.requests}
    for block in BLOCKS:
        assert not block.file or f"python {block.file}" in said, f"{block.file} is never run"

    printed = said["python train.py"]
    assert printed.startswith("Goodput of demo, 1 attempt, since ")
    for word in ("productive", "data_loading", "checkpoint_save", "custom eval", "200 started = 200 kept"):
        assert word in printed
    report = json.loads(said["otel-goodput report --json"])
    assert report["run_id"] == "demo"
    assert report["steps"] == {"executed": 200, "kept": 200, "lost": 0}
    assert said["otel-goodput report"].splitlines()[0] == printed.splitlines()[0].replace("not ended", "ended")
    listed = said["ls goodput/demo/"]
    assert "traces-" in listed
    assert "metrics-" in listed
    assert "7.000 s" in said["otel-goodput replay timeline.jsonl"]


def test_what_is_not_run_here_is_there() -> None:
    commands = [line.partition(" #")[0].strip() for block in BLOCKS for line in block.text.splitlines()]
    makefile = (ROOT / "Makefile").read_text()
    for command in NOT_HERE:
        assert command in commands
        if command.startswith("make "):
            assert f"\n{command.removeprefix('make ')}: " in makefile


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", README)
    assert targets
    for target in targets:
        assert "://" in target or (ROOT / target).exists(), target


def test_variables_exist() -> None:
    known = {variable.name for variable in (*ENVVARS, *STANDARD)}
    assert set(re.findall(r"\bOTEL_[A-Z_]+\b", README)) <= known


def test_functions_and_arguments_exist() -> None:
    for name in re.findall(r"\bgoodput\.(\w+)\(", README):
        assert name in otel_goodput.__all__, name
    import inspect

    arguments = inspect.signature(otel_goodput.configure).parameters
    phase = inspect.signature(Phases.data_loading).parameters
    given = set(re.findall(r"`(\w+)=`", README)) | set(re.findall(r"configure\((\w+)=", README))
    processor = inspect.signature(otel_goodput.GoodputSpanProcessor).parameters
    assert given <= {*arguments, *phase, *processor}, given


def test_names_on_the_wire_exist() -> None:
    keys = {value for value in vars(semconv).values() if isinstance(value, str)}
    metrics = {metric.name for metric in semconv.METRICS}
    for name in re.findall(r"`((?:goodput|badput|service|host|process)\.[\w.]+)`", README):
        assert name in keys | metrics, name


def test_the_lead_of_the_file_is_what_the_lead_needs() -> None:
    """What the project is, then the two commands that show it."""
    first = BLOCKS[0]
    assert [line.split(" #")[0].strip() for line in first.text.splitlines()] == ["make demo", "make test"]
    assert README.index("```") < 1200

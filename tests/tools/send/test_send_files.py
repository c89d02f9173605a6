"""``otel-goodput send``: what lies next to a file, or in a folder of files, may be anybody's."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from exporters.backends import grpc_backend

from otel_goodput._journal.sidecars import CHECK, checked_json

from ..commands import succeeded
from .sending import arrived, lines, send


def as_a_pipe(path: Path, _: Path) -> None:
    os.mkfifo(path)


def as_a_link(path: Path, victim: Path) -> None:
    path.symlink_to(victim)


def as_a_huge_file(path: Path, _: Path) -> None:
    with path.open("wb") as file:
        file.truncate(8 * 2**30)


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "elsewhere"
    path.write_text("precious")
    return path


@pytest.mark.parametrize("disguise", [as_a_pipe, as_a_link, as_a_huge_file])
@pytest.mark.parametrize("end", [".sent", ".sent.lock"])
def test_next_to_a_file(
    end: str, disguise: Callable[[Path, Path], None], traces: Path, run: Path, victim: Path
) -> None:
    """Refused, with its name; a lock's content is nothing to us."""
    copy = traces.with_name(traces.name + end)
    disguise(copy, victim)
    with grpc_backend() as received:
        done = send(traces, to=received.endpoint)
        if end == ".sent.lock" and disguise is as_a_huge_file:
            assert arrived(received.traces) == lines(run, "traces")
        else:
            assert done.returncode == 1 and copy.name in done.stderr and not received.traces
    assert victim.read_text() == "precious"


def test_in_a_folder(traces: Path, run: Path, tmp_path: Path) -> None:
    """Links in it lead nowhere, and pipes next to a file hold up nobody."""
    other = tmp_path / "other.jsonl"
    other.write_bytes(traces.read_bytes())
    (run / "traces-planted.jsonl").symlink_to(other)
    (run.parent / "linked").symlink_to(tmp_path)
    os.mkfifo(run / f"{traces.stem[:-1]}.jsonl.sent")
    with grpc_backend() as received:
        succeeded(send(run.parent, to=received.endpoint))
        assert arrived(received.traces) == lines_of(traces)
    assert not other.with_name("other.jsonl.sent").exists()


def lines_of(path: Path) -> list[object]:
    from .sending import plain

    return [plain(json.loads(line)) for line in path.read_bytes().splitlines()]


@pytest.mark.parametrize("name", ["offset", "length", "lines"])
@pytest.mark.parametrize("value", [-1, 2**70])
def test_what_is_remembered_makes_no_sense(name: str, value: int, traces: Path) -> None:
    with grpc_backend() as received:
        succeeded(send(traces, to=received.endpoint))
        state = traces.with_name(traces.name + ".sent")
        content = json.loads(state.read_bytes())
        content["entries"][0][name] = value
        del content[CHECK]
        state.write_bytes(checked_json(content))
        done = send(traces, to=received.endpoint)
    assert done.returncode == 1 and "cannot be parsed" in done.stderr

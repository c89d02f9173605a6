"""A run that takes long to read: its answer comes first, and all the rest by itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tools.commands import goodput, succeeded

from benchmarks.container import Container
from benchmarks.long_run import write

from .served import Server, Stream, serving

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytestmark = pytest.mark.servers

PROCESSES = 24  # more than are read at once


def _document(server: Server, name: str) -> dict[str, object]:
    answer = server.ask(f"/api/runs/{name}/document")
    assert answer.status == 200
    return Container(answer.body).head


def test_the_answer_comes_first_and_the_rest_by_itself(tmp_path: Path) -> None:
    run = write(tmp_path / "runs", 40_000, PROCESSES)
    name = run.path.name
    report = json.loads(succeeded(goodput("report", run.path, "--json")))
    with serving(tmp_path / "runs") as server:
        first = _document(server, name)
        assert first["partial"]
        # Every figure of the answer is there, and every process.
        for figure in ("elapsed_s", "goodput", "seconds", "started_steps", "disruptions"):
            assert first["report"][figure] == report[figure]
        assert len(first["processes"]) == PROCESSES
        assert not any(one["bins"] for one in first["processes"][1:])
        assert not first["detail"]["complete"]
        # The stream says when there is more: a page then asks again.
        stream = Stream(server, f"/api/runs/{name}/events")
        stream.until("run", lambda data: data["news"] > first["made_at"])
        stream.close()
        whole = _document(server, name)
        assert not whole["partial"]
        assert all(one["bins"] for one in whole["processes"])
        assert whole["detail"]["spans"] > 0
        assert whole["report"] == first["report"]
        assert server.errors.read_text() == ""


def test_a_short_run_comes_at_once(tmp_path: Path) -> None:
    run = write(tmp_path / "runs", 2_000, 3)
    with serving(tmp_path / "runs") as server:
        head = _document(server, run.path.name)
        assert not head["partial"]
        assert all(one["bins"] for one in head["processes"])


def test_pages_are_compressed_for_those_who_take_it(tmp_path: Path) -> None:
    with serving(tmp_path / "runs") as server:
        plain, packed = server.ask("/"), server.ask("/", Accept_Encoding="gzip")
        assert "content-encoding" not in plain.headers
        assert packed.headers["content-encoding"] == "gzip"
        assert packed.body == plain.body
        assert packed.headers["content-security-policy"] == plain.headers["content-security-policy"]
        assert plain.headers["vary"] == packed.headers["vary"] == "accept-encoding"

"""The files of a run to be sent."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ..commands import PATIENCE_S
from .sending import lines, recorder


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("recorded")
    with recorder(directory, directory) as process:
        assert process.wait(PATIENCE_S) == 0
    return directory / "job"


@pytest.fixture
def run(recorded: Path, tmp_path: Path) -> Path:
    """The folder of a real run, with more than ten lines of spans and more than two of metrics."""
    shutil.copytree(recorded, tmp_path / "runs" / "job")
    assert len(lines(recorded, "traces")) > 10 and len(lines(recorded, "metrics")) > 2
    return tmp_path / "runs" / "job"


@pytest.fixture
def traces(run: Path) -> Path:
    (path,) = run.glob("traces-*.jsonl")
    return path

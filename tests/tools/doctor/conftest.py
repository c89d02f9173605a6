"""A place for the doctor to look around in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """Where the doctor is called; it leaves nothing there."""
    folder, temporary = tmp_path / "here", tmp_path / "tmp"
    folder.mkdir()
    temporary.mkdir()
    yield folder
    assert list(folder.iterdir()) == []
    assert list(temporary.iterdir()) == []

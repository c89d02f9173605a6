"""The disks are real ones."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

MountDisk = Callable[..., Path]


@pytest.fixture
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this machine keeps its copies of journals at URLs."""
    place = tmp_path / "spool"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    monkeypatch.setenv("TMPDIR", str(place))
    return place


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[[str], Path | None]]:
    """Mounts a file system of its own with these options; None where this user or this container may not."""
    mounted: list[Path] = []

    def attempt(options: str) -> Path | None:
        place = tmp_path / f"disk{len(mounted)}"
        place.mkdir()
        if os.geteuid() == 0:
            done = subprocess.run(
                ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], capture_output=True, check=False
            )
            if done.returncode == 0:
                mounted.append(place)
                return place
        return None

    yield attempt
    for place in mounted:
        subprocess.run(["umount", "--lazy", str(place)], check=True)

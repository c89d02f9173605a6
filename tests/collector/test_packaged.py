"""What the package has of this tree for ``otel-goodput collector`` is what is in the tree."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from .written import COLLECTOR

SOURCES = Path("otel_goodput/_tools/collector/sources")


def packaged(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(COLLECTOR / "generator" / "packaged.py"), *arguments],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_the_copies_are_up_to_date() -> None:
    done = packaged("--check")
    assert (done.returncode, done.stderr) == (0, "")


def test_copies_that_are_out_of_date_are_found_and_renewed(tmp_path: Path) -> None:
    for folder in ("configs", "kubernetes", "systemd"):
        shutil.copytree(COLLECTOR / folder, tmp_path / "collector" / folder)
    assert packaged("--root", str(tmp_path)).returncode == 0
    assert packaged("--check", "--root", str(tmp_path)).returncode == 0
    copy, left = tmp_path / SOURCES / "configs/local.yaml", tmp_path / SOURCES / "configs/old.yaml"
    good = copy.read_bytes()
    copy.write_bytes(b"receivers:\n")
    left.write_bytes(b"")
    stale = packaged("--check", "--root", str(tmp_path))
    assert stale.returncode == 1
    assert [Path(line.split(" ")[0]).name for line in stale.stderr.splitlines()] == ["local.yaml", "old.yaml"]
    assert packaged("--root", str(tmp_path)).returncode == 0
    assert copy.read_bytes() == good and not left.exists()

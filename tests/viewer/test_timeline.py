"""What the timeline draws, by its own modules, run with node: shares of columns, packing of lanes, scales."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import otel_goodput.viewer

ASSETS = Path(otel_goodput.viewer.__file__).with_name("assets")
NODE = shutil.which("node")

pytestmark = pytest.mark.skipif(NODE is None, reason="node is not installed")


@pytest.mark.parametrize("seed", [1, 20, 300])
def test_what_is_drawn_is_what_is_there(tmp_path: Path, seed: int) -> None:
    modules = tmp_path / "modules"
    shutil.copytree(ASSETS, modules)
    (modules / "package.json").write_text('{"type": "module"}')
    assert NODE is not None
    command = [NODE, str(Path(__file__).with_name("timeline.mjs")), str(modules), str(seed)]
    done = subprocess.run(command, timeout=120, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

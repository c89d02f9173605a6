"""The wheel: built, installed apart from the source tree, and used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

TIMELINE = """\
{"kind": "job", "start": 0, "end": 10, "attempt": 1}
{"kind": "step", "start": 2, "end": 6, "step": 0, "attempt": 1}
"""


def test_the_wheel_works_without_the_source_tree(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)

    def run(*arguments: str) -> str:
        environ = {**os.environ, "PYTHONPATH": str(site)}
        done = subprocess.run(
            [sys.executable, "-P" if sys.version_info >= (3, 11) else "-s", *arguments],
            input=TIMELINE,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            cwd=tmp_path,
            env=environ,
        )
        return done.stdout

    where = run("-c", "import otel_goodput; print(otel_goodput.__file__)").strip()
    assert Path(where).is_relative_to(site)
    answer = json.loads(run("-m", "otel_goodput", "replay", "-", "--json"))
    assert answer["seconds"] == {"productive": 4.0, "other": 6.0}
    assert (site / "otel_goodput" / "py.typed").exists()
    assert "googleclientauth" in run("-m", "otel_goodput", "collector", "config", "classic")
    page = run("-c", "from otel_goodput._viewer import page; print(page.html(b'OGV1'))")
    assert page.startswith("<!doctype html>") and "uPlot" in page
    assert not list(site.glob("tests*")) and not list(site.glob("benchmarks*"))

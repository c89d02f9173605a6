"""The committed files are what the generator gives, and it says so when they are not."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .written import COLLECTOR, FILES, load

PAGE = "../docs/collector/alerts.md"


def generate(*arguments: str, root: Path = COLLECTOR) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(root / "generate.py"), *arguments],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    shutil.copytree(COLLECTOR.parent / "docs" / "collector", tmp_path / "docs" / "collector")
    return shutil.copytree(COLLECTOR, tmp_path / "collector", ignore=shutil.ignore_patterns("__pycache__"))


def test_the_files_are_up_to_date() -> None:
    done = generate("--check")
    assert (done.returncode, done.stderr) == (0, "")


def test_files_that_are_out_of_date_are_found_and_renewed(copied: Path) -> None:
    good = {name: (copied / name).read_text(encoding="utf-8") for name in [*FILES, PAGE]}
    changed, removed = copied / "dashboards/goodput.grafana.json", copied / "alerts/restart-loop.json"
    page, left = copied / PAGE, copied / "alerts/of-old.json"
    changed.write_text(good["dashboards/goodput.grafana.json"].replace("goodput_ratio", "goodput_share"))
    removed.unlink()
    page.write_text(good[PAGE].replace("### Restart loop", "### Restarts"))
    left.write_text("{}")
    stale = generate("--check", root=copied)
    assert stale.returncode == 1
    named = [line.partition(" ")[0] for line in stale.stderr.splitlines()]
    assert named == [PAGE, "alerts/of-old.json", "alerts/restart-loop.json", "dashboards/goodput.grafana.json"]
    assert "goodput_share" in changed.read_text() and left.exists(), "--check changes nothing"
    assert generate(root=copied).returncode == 0
    assert {name: (copied / name).read_text(encoding="utf-8") for name in good} == good
    assert not left.exists()


def test_readme_and_page_tell_of_every_file_and_alert() -> None:
    text = "".join((COLLECTOR / name).read_text(encoding="utf-8") for name in ("README.md", PAGE))
    named = set(re.findall(r"(?<![/\w])(?:dashboards|alerts)/[\w./-]+\.(?:json|yaml)", text))
    assert named == set(FILES)
    for rule in load("alerts/prometheus.yaml")["groups"][0]["rules"]:
        assert f"`{rule['alert']}`, {rule['labels']['severity']}, " in text


def test_wrong_options_and_missing_markers_are_told_of(copied: Path) -> None:
    done = generate("--windows", "1h")
    assert done.returncode == 2 and "--windows" in done.stderr
    (copied / PAGE).write_text("no markers\n")
    done = generate(root=copied)
    assert done.returncode != 0 and "markers" in done.stderr

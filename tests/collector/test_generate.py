"""The committed files are what the generator gives, and it says so when they are not."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .written import COLLECTOR, FILES, ROUTING, load

PAGE = "docs/collector/alerts.md"
TEMPLATES = Path("otel_goodput/_tools/templates")


def generate(*arguments: str, root: Path = COLLECTOR.parent) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(root / "collector" / "generator" / "generate.py"), *arguments],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    shutil.copytree(COLLECTOR.parent / "docs" / "collector", tmp_path / "docs" / "collector")
    shutil.copytree(COLLECTOR.parent / TEMPLATES, tmp_path / TEMPLATES)
    unneeded = shutil.ignore_patterns("__pycache__", "bin")
    shutil.copytree(COLLECTOR, tmp_path / "collector", ignore=unneeded)
    return tmp_path


def test_the_files_are_up_to_date() -> None:
    done = generate("--check")
    assert (done.returncode, done.stderr) == (0, "")


def test_files_that_are_out_of_date_are_found_and_renewed(copied: Path) -> None:
    templates = [str(path.relative_to(copied)) for path in (copied / TEMPLATES).rglob("*") if path.is_file()]
    paths = [*(f"collector/{name}" for name in FILES), *templates, PAGE]
    good = {path: (copied / path).read_text(encoding="utf-8") for path in paths}
    board, removed = "collector/dashboards/goodput.grafana.json", "collector/alerts/restart-loop.json"
    left, template = "collector/alerts/of-old.json", f"{TEMPLATES}/workload/dashboards/workload.cloud-monitoring.json"
    for path, old, new in (
        (board, "goodput_ratio", "goodput_share"), (template, "<<window>>", "1h"), (PAGE, "### Restart loop", "### No"),
    ):  # fmt: skip
        assert old in good[path]
        (copied / path).write_text(good[path].replace(old, new))
    (copied / removed).unlink()
    (copied / left).write_text("{}")
    stale = generate("--check", root=copied)
    assert stale.returncode == 1
    assert [line.partition(" ")[0] for line in stale.stderr.splitlines()] == [left, removed, board, PAGE, template]
    assert "goodput_share" in (copied / board).read_text() and (copied / left).exists(), "--check changes nothing"
    assert generate(root=copied).returncode == 0
    assert {path: (copied / path).read_text(encoding="utf-8") for path in good} == good
    assert not (copied / left).exists()


def test_readme_and_page_tell_of_every_file_and_alert() -> None:
    text = "".join((COLLECTOR.parent / name).read_text(encoding="utf-8") for name in ("collector/README.md", PAGE))
    named = set(re.findall(r"(?<![/\w])(?:dashboards|alerts)/[\w./-]+\.(?:json|yaml)", text))
    assert named == {*FILES, ROUTING}
    for rule in load("alerts/prometheus.yaml")["groups"][0]["rules"]:
        assert f"`{rule['alert']}`, {rule['labels']['severity']}, " in text


def test_wrong_options_and_missing_markers_are_reported(copied: Path) -> None:
    done = generate("--windows", "1h")
    assert done.returncode == 2 and "--windows" in done.stderr
    (copied / PAGE).write_text("no markers\n")
    done = generate(root=copied)
    assert done.returncode != 0 and "markers" in done.stderr

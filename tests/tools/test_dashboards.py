"""``otel-goodput dashboards``: the files of a checkout, for those who have only the package."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from collector.written import COLLECTOR, FILES, ROUTING

from otel_goodput._tools.dashboards import PLACES

from .commands import failed, goodput, succeeded


def files_in(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_all_places_together_are_the_files_of_the_checkout(tmp_path: Path) -> None:
    written = [
        line for place in PLACES for line in succeeded(goodput("dashboards", place, "views", cwd=tmp_path)).split()
    ]
    names = sorted([*FILES, ROUTING])
    assert sorted(written) == [f"views/{name}" for name in names]
    assert files_in(tmp_path / "views") == {name: (COLLECTOR / name).read_text() for name in names}


def test_others_may_read_them_and_what_else_is_there_stays(tmp_path: Path) -> None:
    """Grafana runs as a user of its own."""
    kept = tmp_path / "dashboards" / "mine.json"
    kept.parent.mkdir()
    kept.write_text("mine")
    succeeded(goodput("dashboards", "workload", tmp_path))
    (made,) = (path for path in kept.parent.iterdir() if path != kept)
    umask = os.umask(0o022)
    os.umask(umask)
    assert kept.read_text() == "mine" and stat.S_IMODE(made.stat().st_mode) == 0o666 & ~umask


def test_thresholds_windows_and_the_datasource_are_options(tmp_path: Path) -> None:
    options = ("--goodput-target", "0.9", "--windows", "600s,2h", "--at-risk=60", "--hang-multiple=5")
    succeeded(goodput("dashboards", "grafana", tmp_path, *options, "--datasource", "mimir"))
    (group,) = yaml.safe_load((tmp_path / "alerts" / "prometheus.yaml").read_text())["groups"]
    rules = {rule["alert"]: rule for rule in group["rules"]}
    below, hang = rules["GoodputBelowTarget"], rules["TrainingHang"]
    assert 'goodput_window="10m"' in below["expr"] and "< 0.9" in below["expr"] and "> 600" in below["expr"]
    assert "90%" in below["annotations"]["description"] and "clamp_min(5 *" in hang["expr"]
    assert "datasourceUid: mimir" in (tmp_path / "alerts" / "grafana.yaml").read_text()
    succeeded(goodput("dashboards", "gcp-otlp", tmp_path, *options))
    assert "> 60" in (tmp_path / "alerts" / "otlp" / "progress-at-risk.json").read_text()
    succeeded(goodput("dashboards", "workload", tmp_path, *options))
    workload = (tmp_path / "dashboards" / "workload.cloud-monitoring.json").read_text()
    assert "7200" in workload and "86400" not in workload


@pytest.mark.parametrize("windows", ["10m", "10m,1h,6h,12h,24h"])
@pytest.mark.parametrize("place", PLACES)
def test_there_is_a_panel_for_each_window_and_none_lies_over_another(place: str, windows: str, tmp_path: Path) -> None:
    names = windows.split(",")
    succeeded(goodput("dashboards", place, tmp_path, "--windows", windows))
    files = files_in(tmp_path)
    assert not [name for name, text in files.items() if "<<" in text or ">>" in text]
    for text in (text for name, text in files.items() if name.startswith("dashboards/")):
        document = json.loads(text)
        panels = [*placed(document)]
        cells = [(left + x, top + y) for left, top, wide, high, _ in panels for x in range(wide) for y in range(high)]
        assert len(cells) == len(set(cells))
        assert min(cells) == (0, 0) and max(x for x, _ in cells) + 1 in (12, 24)
        title = document.get("title") or document["displayName"]
        figures = [name for *_, name in panels if name.startswith("Goodput, last ")]
        assert "all runs" in title or figures == [f"Goodput, last {name}" for name in names]
        ids = [panel["id"] for panel in document.get("panels", [])]
        assert len(ids) == len(set(ids))
        listed = [line for line in explained(document) if line.startswith("- **Goodput, last")]
        assert not explained(document) or "all runs" in title or len(listed) == len(names)


def placed(document: Any) -> Iterator[tuple[int, int, int, int, str]]:
    """Left, top, width, height and title of each panel."""
    for panel in document.get("panels", []):
        grid = panel["gridPos"]
        yield grid["x"], grid["y"], grid["w"], grid["h"], panel["title"]
    for tile in document.get("mosaicLayout", {}).get("tiles", []):
        yield tile["xPos"], tile["yPos"], tile["width"], tile["height"], tile["widget"]["title"]


def explained(document: Any) -> list[str]:
    """The lines of Cloud Monitoring's texts."""
    tiles = document.get("mosaicLayout", {}).get("tiles", [])
    return "\n".join(tile["widget"].get("text", {}).get("content", "") for tile in tiles).split("\n") if tiles else []


@pytest.mark.parametrize(
    ("arguments", "refusal"),
    [
        ((), "PLACE, DIR"),
        (("gcp",), "DIR"),
        (("azure", "d"), "'azure'"),
        (("gcp", "d", "--datasource", "uid"), "gcp has no --datasource"),
        (("gcp", "d", "--goodput-target", "80"), "share above 0, at most 1"),
        (("gcp", "d", "--gone", "-1"), "invalid positive number"),
        (("gcp", "d", "--gone", "nan"), "invalid positive number"),
        (("gcp", "d", "--gone", "inf"), "invalid positive number"),
        (("gcp", "d", "--windows", "soon"), "invalid list of rolling windows"),
        (("gcp", "d", "--windows", ""), "invalid list of rolling windows"),
    ],
)
def test_wrong_options_are_reported(arguments: tuple[str, ...], refusal: str, tmp_path: Path) -> None:
    done = goodput("dashboards", *arguments, cwd=tmp_path)
    assert done.returncode == 2 and refusal in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "views").write_text("a file")
    assert "views" in failed(goodput("dashboards", "gcp", "views", cwd=tmp_path))

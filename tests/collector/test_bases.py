"""An overlay's directory is all that is needed: copied to anywhere, it builds what it builds here."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from .places import COLLECTOR, KUBERNETES, kustomize, text_of


def bases(*arguments: str, root: Path = KUBERNETES) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(root / "bases.py"), *arguments], capture_output=True, text=True, timeout=120, check=False
    )


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    for folder in ("configs", "kubernetes"):
        shutil.copytree(COLLECTOR / folder, tmp_path / "collector" / folder)
    return tmp_path / "collector" / "kubernetes"


def test_the_bases_are_up_to_date() -> None:
    text_of("job")  # or kustomize is not here
    done = bases("--check")
    assert (done.returncode, done.stderr) == (0, "")


def test_bases_that_are_out_of_date_are_found_and_renewed(copied: Path) -> None:
    text_of("job")
    names = ("example/base.yaml", "fleet/base.yaml", "fleet/names.yaml")
    good = {name: (copied / "overlays" / name).read_text(encoding="utf-8") for name in names}
    job = (copied / "job" / "job.yaml").read_text(encoding="utf-8")
    (copied / "job" / "job.yaml").write_text(job.replace("backoffLimit: 6", "backoffLimit: 7"))
    (copied / "overlays" / "fleet" / "names.yaml").unlink()
    stale = bases("--check", root=copied)
    assert stale.returncode == 1
    stale_files = [line.partition(" ")[0] for line in stale.stderr.splitlines()]
    assert stale_files == ["overlays/example/base.yaml", "overlays/fleet/names.yaml"]
    assert bases(root=copied).returncode == 0
    renewed = {name: (copied / "overlays" / name).read_text(encoding="utf-8") for name in names}
    assert renewed.pop("example/base.yaml") == good.pop("example/base.yaml").replace("Limit: 6", "Limit: 7")
    assert renewed == good


@pytest.mark.parametrize("name", ["example", "fleet"])
def test_a_copy_outside_of_the_tree_builds_the_same(name: str, tmp_path: Path) -> None:
    place = shutil.copytree(KUBERNETES / "overlays" / name, tmp_path / "mine")
    done = kustomize(place)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == text_of(f"overlays/{name}")


@pytest.mark.parametrize(("name", "kind"), [("example", "Job"), ("fleet", "JobSet")])
def test_a_copy_has_what_is_put_into_it(name: str, kind: str, tmp_path: Path) -> None:
    """Another project's settings reach the ConfigMap that the pods name, a prefix all of it."""
    place = shutil.copytree(KUBERNETES / "overlays" / name, tmp_path / "mine")
    settings = place / "kustomization.yaml"
    text = settings.read_text(encoding="utf-8").replace("example-project", "other-project")
    settings.write_text(f"{text}\nnamePrefix: mine-\n", encoding="utf-8")
    done = kustomize(place)
    assert (done.returncode, done.stderr) == (0, "")
    there = [each for each in yaml.safe_load_all(done.stdout) if each]
    (goodput,) = (each for each in there if each["kind"] == "ConfigMap" and "OTEL_GOODPUT_DIR" in each["data"])
    assert goodput["data"]["GOOGLE_CLOUD_PROJECT"] == "other-project"
    assert goodput["metadata"]["name"] == "mine-goodput"
    (job,) = (each for each in there if each["kind"] == kind)
    named = {line.strip() for line in yaml.safe_dump(job).splitlines() if "goodput" in line and "name:" in line}
    assert named == {"name: mine-goodput"}

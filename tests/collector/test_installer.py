"""``otel-goodput collector systemd``: the script writes the unit of this tree with what it reads, and starts it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from tools.commands import goodput, succeeded

from otel_goodput._tools.collector.command import TARGETS

from .places import UNIT, settings
from .written import COLLECTOR

ETC = Path("etc/otelcol-goodput")
PROGRAM = "/usr/local/bin/otelcol-goodput"


def install(directory: Path, *options: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """What the script that `options` ask for does, called in `directory`."""
    script = directory / "install.sh"
    script.write_text(succeeded(goodput("collector", "systemd", *options)), encoding="utf-8")
    return subprocess.run(
        ["sh", str(script)], env={**os.environ, **environ}, capture_output=True, text=True, timeout=60, check=False
    )


def installed(directory: Path, *options: str) -> Path:
    """Where the files of the script are."""
    root = directory / "root"
    done = install(directory, *options, DESTDIR=str(root))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return root


@pytest.mark.parametrize("place", TARGETS)
def test_every_place_has_the_unit_and_what_it_reads(place: str, tmp_path: Path) -> None:
    root = installed(tmp_path, place)
    unit = root / "etc/systemd/system" / UNIT.name
    assert unit.read_bytes() == UNIT.read_bytes()
    assert (root / ETC / "move-broken-queues.sh").read_bytes() == (
        COLLECTOR / "configs/move-broken-queues.sh"
    ).read_bytes()
    given = settings((root / ETC / "environment").read_text(encoding="utf-8"))
    (config,) = given["OTELCOL_OPTIONS"]
    assert given == {"OTELCOL_OPTIONS": [config]}
    (files,) = settings(unit.read_text(encoding="utf-8"))["EnvironmentFile"]
    assert files == f"/{ETC}/environment"
    text = (root / config.removeprefix("--config=/")).read_text(encoding="utf-8")
    assert text.count("\n") > 50 and succeeded(goodput("collector", "config", place)).endswith(text)
    assert {path.stat().st_mode & 0o777 for path in (root / ETC).iterdir()} == {0o644}, "a user of its own reads them"


def test_what_is_chosen_is_in_the_configuration(tmp_path: Path) -> None:
    text = (installed(tmp_path, "classic", "--project", "my-project", "--spool") / ETC / "config.yaml").read_text()
    assert "project: my-project" in text and "GOOGLE_CLOUD_PROJECT" not in text
    # The unit names both folders: they are its own.
    assert "${env:OTELCOL_GOODPUT_STATE:-" in text and "${env:OTELCOL_GOODPUT_SPOOL:-" in text
    (tmp_path / "gateway").mkdir()
    gateway = installed(tmp_path / "gateway", "gateway", "--listen", "0.0.0.0:4317")
    assert 'endpoint: "0.0.0.0:4317"' in (gateway / ETC / "config.yaml").read_text()


def test_it_can_be_run_again_and_writes_all_anew(tmp_path: Path) -> None:
    root = installed(tmp_path, "sidecar")
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    for path in before:
        path.write_text("old\n")
    assert installed(tmp_path, "sidecar") == root
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


@pytest.mark.skipif(Path(PROGRAM).exists(), reason="a collector is installed on this machine")
def test_without_a_collector_nothing_is_written(tmp_path: Path) -> None:
    done = install(tmp_path, "classic")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (f"there is no {PROGRAM}: install the collector first, as the head of this script says\n")
    assert not Path(f"/{ETC}/config.yaml").exists()


def test_the_head_says_what_it_needs() -> None:
    text = succeeded(goodput("collector", "systemd", "fleet", "--gateway", "gw.internal"))
    head = text.partition("set -eu")[0]
    assert "Written by: otel-goodput collector systemd fleet --gateway gw.internal\n" in head
    assert "roles/telemetry.writer and roles/monitoring.metricWriter" in head and "OTEL_GOODPUT_STEP_TRACES=own" in head
    assert "roles/" not in succeeded(goodput("collector", "systemd", "local"))
    assert all(line.startswith("#") for line in head.splitlines())
    assert max(map(len, head.splitlines())) <= 120

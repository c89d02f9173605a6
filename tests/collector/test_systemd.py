"""systemd takes the unit, and it leaves the collector time to send, a disk to keep, and nothing else."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from .places import UNIT, settings
from .written import COLLECTOR

BINARY = "/usr/local/bin/otelcol-goodput"
INTERVAL_S = 10  # between two exports of metrics by the collector


def analyze(text: str, directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not here; Debian's package systemd has it")
    assert BINARY in text
    unit = directory / UNIT.name
    unit.write_text(text.replace(BINARY, "/bin/true"), encoding="utf-8")  # the collector need not be installed
    return subprocess.run(
        [program, *arguments, str(unit)], capture_output=True, text=True, timeout=60, check=False, cwd=directory
    )


def test_systemd_takes_it(tmp_path: Path) -> None:
    done = analyze(UNIT.read_text(encoding="utf-8"), tmp_path, "verify", "--man=no")
    assert (done.returncode, UNIT.name in done.stderr) == (0, False), done.stderr


@pytest.mark.parametrize(
    ("old", "new"),
    [("StateDirectory=", "StateDirektory="), ("Restart=always", "Restart=allways"), ("[Service]", "[Servise]"),
     ("TimeoutStopSec=45", "TimeoutStopSec=soon"), ("ExecStop=/bin/sleep", "ExecStop=sleep/")],
)  # fmt: skip
def test_what_systemd_does_not_take_is_found(old: str, new: str, tmp_path: Path) -> None:
    good = UNIT.read_text(encoding="utf-8")
    assert old in good
    done = analyze(good.replace(old, new), tmp_path, "verify", "--man=no")
    assert UNIT.name in done.stderr, done.stderr


def test_it_can_do_little_harm(tmp_path: Path) -> None:
    text = UNIT.read_text(encoding="utf-8")
    strict = analyze(text, tmp_path, "security", "--offline=yes", "--threshold=20")
    assert strict.returncode == 0, strict.stdout
    lax = "\n".join(line for line in text.splitlines() if not line.startswith(("DynamicUser", "Protect", "System")))
    assert analyze(lax, tmp_path, "security", "--offline=yes", "--threshold=20").returncode != 0


def test_what_was_accepted_is_sent_or_kept() -> None:
    unit = settings(UNIT.read_text(encoding="utf-8"))
    (stop,), (limit,) = unit["ExecStop"], unit["TimeoutStopSec"]
    wait = int(stop.removeprefix("/bin/sleep "))
    assert INTERVAL_S < wait < int(limit)
    assert unit["DynamicUser"] == ["yes"]
    assert unit["StateDirectory"] == ["otelcol-goodput"]
    assert "OTELCOL_GOODPUT_STATE=%S/otelcol-goodput" in unit["Environment"]
    assert "OTELCOL_GOODPUT_SPOOL=%S/otelcol-goodput/spool" in unit["Environment"]
    assert unit["Restart"] == ["always"]


def test_memory_is_bounded_before_the_kernel_does_it() -> None:
    unit = settings(UNIT.read_text(encoding="utf-8"))
    (limit,) = (int(value.removesuffix("M")) for value in unit["MemoryMax"])
    (soft,) = (value.removeprefix("GOMEMLIMIT=") for value in unit["Environment"] if value.startswith("GOMEMLIMIT="))
    assert 0.79 * limit < int(soft.removesuffix("MiB")) <= 0.8 * limit


def test_the_metrics_of_the_host_are_not_hidden() -> None:
    unit = settings(UNIT.read_text(encoding="utf-8"))
    assert unit["ProtectProc"] == ["invisible"]  # others' processes, nothing else of /proc
    assert {*unit} & {"ProcSubset", "PrivateNetwork", "InaccessiblePaths", "TemporaryFileSystem"} == set()


def test_the_environment_has_what_the_unit_asks_for() -> None:
    given = settings((UNIT.parent / "environment").read_text(encoding="utf-8"))
    assert {*given} == {"OTELCOL_OPTIONS", "GOOGLE_CLOUD_PROJECT"}
    assert settings(UNIT.read_text(encoding="utf-8"))["ExecStart"] == [f"{BINARY} $OTELCOL_OPTIONS"]
    files = [Path(each.removeprefix("--config=")) for each in given["OTELCOL_OPTIONS"][0].split()]
    names = ["gcp-sidecar", "google-auth", "classic-metrics", "spool"]
    assert [file.name for file in files] == [f"{name}.yaml" for name in names]
    assert {str(file.parent) for file in files} == {"/etc/otelcol-goodput"}
    assert all([*(COLLECTOR / "configs").rglob(file.name)] for file in files)

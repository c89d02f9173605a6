"""The collector is what its manifest says: those components, that release, the same binary each time."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from .collector import COLLECTOR, CONFIGS, binary

BUILDER = COLLECTOR / "builder"
MANIFEST = yaml.safe_load((BUILDER / "manifest.yaml").read_text(encoding="utf-8"))
KINDS = ("receivers", "processors", "connectors", "exporters", "extensions")
RELEASE = MANIFEST["dist"]["version"]
AUTHENTICATOR = "googleclientauth"  # of the prebuilt distributions


def configured() -> Iterator[tuple[str, str]]:
    """Kind and type of all that our configurations, and what is laid over them, have."""
    for path in [*CONFIGS.glob("*.yaml"), *CONFIGS.glob("overlays/*.yaml"), COLLECTOR / "compose" / "collector.yaml"]:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        for kind in KINDS:
            for name in content.get(kind, {}):
                yield kind, name.partition("/")[0]


def in_binary() -> dict[tuple[str, str], str]:
    """Module and version by kind and type, as the binary tells them."""
    components = yaml.safe_load(
        subprocess.run([binary(), "components"], capture_output=True, check=True, timeout=60).stdout
    )
    return {(kind, each["name"]): each["module"] for kind in KINDS for each in components[kind]}


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return (
            hashlib.file_digest(file, "sha256").hexdigest()
            if sys.version_info >= (3, 11)
            else (hashlib.sha256(file.read()).hexdigest())
        )


def test_it_has_what_the_manifest_names() -> None:
    named = {each["gomod"] for kind in KINDS for each in MANIFEST[kind]}
    assert set(in_binary().values()) == named
    assert {module.rpartition(" ")[2] for module in named} == {f"v{RELEASE}"}


def test_it_has_what_the_configurations_use_and_nothing_else() -> None:
    assert {*configured()} - {("extensions", AUTHENTICATOR)} == {*in_binary()}


def test_images_and_text_name_the_same_release() -> None:
    named = {
        (str(path.relative_to(COLLECTOR)), version)
        for path in COLLECTOR.rglob("*")
        if path.suffix in (".yaml", ".md", ".service")
        for version in re.findall(r"opentelemetry-collector-contrib:([\d.]+)", path.read_text(encoding="utf-8"))
    }
    assert {version for _, version in named} == {RELEASE}
    assert f"{RELEASE}" in (COLLECTOR / "README.md").read_text(encoding="utf-8")


def test_the_lock_has_the_manifest() -> None:
    lock = (BUILDER / "go.mod").read_text(encoding="utf-8")
    sums = (BUILDER / "go.sum").read_text(encoding="utf-8")
    for each in (each["gomod"] for kind in (*KINDS, "providers") for each in MANIFEST[kind]):
        assert f"\t{each}\n" in lock and f"{each} h1:" in sums
    assert "replace" not in lock


@pytest.mark.release
@pytest.mark.timeout(900)
def test_the_same_sources_make_the_same_binary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same Go, whatever somebody has set for work of his own."""
    for name, value in {
        "GOFLAGS": "-mod=vendor",
        "GO111MODULE": "off",
        "GOARCH": "arm64",
        "GOTOOLCHAIN": "go1.20.1",
    }.items():
        monkeypatch.setenv(name, value)
    before = binary()
    again = tmp_path / "again"
    done = subprocess.run(
        [sys.executable, str(BUILDER / "build.py"), "--output", str(again)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert digest(again) == digest(Path(before))
    assert [path.name for path in tmp_path.iterdir()] == ["again"]


def test_a_manifest_that_is_not_locked_is_not_built(tmp_path: Path) -> None:
    for path in BUILDER.glob("*.*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    manifest = tmp_path / "manifest.yaml"
    manifest.write_text(manifest.read_text().replace("otlpreceiver v0.159.0", "otlpreceiver v0.158.0"))
    done = subprocess.run(
        [sys.executable, str(tmp_path / "build.py"), "--output", str(tmp_path / "it")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and "otlpreceiver v0.158.0" in done.stderr and "--lock" in done.stderr
    assert "Traceback" not in done.stderr and not (tmp_path / "it").exists()

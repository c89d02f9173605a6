"""Which command installs an extra, for each way of installing the package."""

from __future__ import annotations

import json
import shlex
from importlib import metadata
from pathlib import Path

import pytest

import otel_goodput
from otel_goodput._runtime.installation import install_command

REQUIRES = (
    "opentelemetry-api>=1.35",
    "fsspec>=2024.2; extra == 'remote'",
    'starlette>=0.41; extra == "serve"',
    "uvicorn>=0.32; extra == 'serve'",
)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the metadata of an installation."""
    folder = tmp_path / "otel_goodput-9.dist-info"
    folder.mkdir()
    listed = "".join(f"Requires-Dist: {each}\n" for each in REQUIRES)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.4\nName: otel-goodput\nVersion: 9\n{listed}")
    monkeypatch.setattr(metadata, "distribution", lambda name: metadata.PathDistribution(folder))
    return folder


def direct(folder: Path, url: str, **more: object) -> None:
    (folder / "direct_url.json").write_text(json.dumps({"url": url, **more}))


def test_from_an_index(installed: Path) -> None:
    assert install_command("otlp") == "pip install 'otel-goodput[otlp]'"


def test_from_a_clone(installed: Path, tmp_path: Path) -> None:
    clone = tmp_path / "my clone"
    clone.mkdir()
    direct(installed, clone.as_uri(), dir_info={"editable": True})
    assert shlex.split(install_command("otlp")) == ["pip", "install", "-e", f"{clone}[otlp]"]
    direct(installed, clone.as_uri(), dir_info={})
    assert shlex.split(install_command("gcp", "gcp-otlp")) == ["pip", "install", f"{clone}[gcp,gcp-otlp]"]


def test_from_a_wheel(installed: Path, tmp_path: Path) -> None:
    wheel = tmp_path / "otel_goodput-9-py3-none-any.whl"
    direct(installed, wheel.as_uri(), archive_info={})
    assert not wheel.exists()
    assert install_command("serve") == "pip install 'starlette>=0.41' 'uvicorn>=0.32'", (
        "the wheel is not there any more"
    )
    wheel.touch()
    assert install_command("serve") == f"pip install '{wheel}[serve]'"


def test_from_a_repository(installed: Path) -> None:
    direct(installed, "https://me:swordfish@example.test/x.git", vcs_info={"vcs": "git", "commit_id": "abc"})
    command = install_command("otlp")
    assert shlex.split(command)[2].startswith("otel-goodput[otlp] @ git+https://")
    assert "example.test/x.git@abc" in command and "swordfish" not in command


@pytest.mark.parametrize("text", ["not json", "[]", '{"url": 7}', "{}"])
def test_damaged_metadata_raises_nothing(text: str, installed: Path) -> None:
    (installed / "direct_url.json").write_text(text)
    assert "[otlp]" in install_command("otlp")


def test_a_clone_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    root = Path(otel_goodput.__file__).resolve().parents[1]
    assert shlex.split(install_command("otlp")) == ["pip", "install", "-e", f"{root}[otlp]"]

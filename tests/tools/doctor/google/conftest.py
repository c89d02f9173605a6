"""The doctor and what it meets: an emulator of Google's services, servers of tokens and metadata; nothing else."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from disruption.metadata_server import MetadataServer, metadata_server
from emulators.google import GoogleEmulator
from emulators.token_server import TokenServer
from resources.machines import GPU_VM, serve

from otel_goodput._tools.doctor.examination import examine

from ...commands import Answer
from .words import MARKER, Examined, Variables


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No credentials, no project and no proxy but the test's own; and nobody looks for a machine of Google's."""
    for name in list(os.environ):
        if name.startswith(("GOOGLE_", "GCLOUD_", "GCP_", "GCE_", "CLOUDSDK_", "GRPC_")) or name.lower().endswith(
            "_proxy"
        ):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NO_GCE_CHECK", "true")


@pytest.fixture
def examined(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Examined:
    """The doctor in this process: for what needs neither credentials nor certificates, which libraries remember."""
    monkeypatch.chdir(place)
    monkeypatch.setenv("TMPDIR", str(place.parent / "tmp"))

    def examined(*, gcp: bool = True, timeout_s: float = 2.0, **variables: str | Path) -> Answer:
        with monkeypatch.context() as changed:
            for name, value in variables.items():
                changed.setenv(name, str(value))
            capsys.readouterr()
            status = examine(timeout_s=timeout_s, as_json=True, gcp=gcp)
        output = capsys.readouterr()
        return subprocess.CompletedProcess([], status, output.out, output.err)

    return examined


@pytest.fixture
def google() -> Iterator[GoogleEmulator]:
    with GoogleEmulator() as emulator:
        yield emulator


@pytest.fixture
def metadata() -> Iterator[MetadataServer]:
    with metadata_server() as server:
        serve(server, GPU_VM)
        yield server


@pytest.fixture
def tokens() -> Iterator[TokenServer]:
    with TokenServer() as server:
        yield server


@pytest.fixture
def encrypted(tokens: TokenServer, tmp_path: Path) -> Iterator[tuple[GoogleEmulator, Variables]]:
    """An emulator that wants tokens over TLS, and the variables with which a job would get and bring them."""
    key = tokens.key_file(tmp_path / "key.json")
    content = json.loads(key.read_text()) | {"private_key_id": MARKER, "client_id": MARKER}
    key.write_text(json.dumps(content))
    with GoogleEmulator(tls=True, tokens=tokens.tokens) as google:
        yield (
            google,
            {
                "OTEL_GOODPUT_GCP_ENDPOINT": google.endpoint,
                "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": google.certificate,
                "GOOGLE_APPLICATION_CREDENTIALS": key,
                "GOOGLE_CLOUD_QUOTA_PROJECT": "other-project",
            },
        )

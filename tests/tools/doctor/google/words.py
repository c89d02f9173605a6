"""What the tests of ``doctor --gcp`` say to each other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from emulators.google import GoogleEmulator

from ...commands import Answer

TRACE, MONITORING, TELEMETRY = "Cloud Trace", "Cloud Monitoring", "Telemetry API"
SERVICES = (TRACE, MONITORING, TELEMETRY)
DEAD = "127.0.0.1:9"
MARKER = "swordfish-0123456789"  # a secret

Examined = Callable[..., Answer]
Variables = dict[str, "str | Path"]
Encrypted = tuple[GoogleEmulator, Variables]

PROJECT: Variables = {"OTEL_GOODPUT_GCP_PROJECT": "test-project"}


def garbage(tmp_path: Path) -> Path:
    """A file of credentials that is none: nothing is asked with it, and nobody is asked for others."""
    path = tmp_path / "garbage"
    path.write_text(f"{MARKER}\n")
    return path

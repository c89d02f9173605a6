"""Tests of the drop-in for ml-goodput-measurement."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_goodput.compat import goodput


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the runs; recorders are shut down afterwards."""
    directory = tmp_path / "runs"
    monkeypatch.setenv("OTEL_GOODPUT_DIR", str(directory))
    monkeypatch.setenv("OTEL_GOODPUT_EXPORTERS", "none")
    monkeypatch.setenv("OTEL_GOODPUT_INTEGRATIONS", "none")
    monkeypatch.setenv("OTEL_GOODPUT_DEVICE_CLOCK", "host")
    yield directory
    for handle in tuple(goodput._handles.values()):
        handle.recorder.shutdown()
    goodput._handles.clear()

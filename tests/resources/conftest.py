"""A metadata server, and nobody hears a secret of it."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from disruption.metadata_server import MetadataServer, metadata_server

from .machines import SECRET


@pytest.fixture
def server(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Iterator[MetadataServer]:
    """Whatever it says, its secrets are in no log and on no terminal."""
    caplog.set_level(logging.DEBUG)
    with metadata_server() as running:
        yield running
    out, err = capfd.readouterr()
    assert SECRET not in caplog.text + out + err

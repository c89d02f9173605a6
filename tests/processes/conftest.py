"""Processes of one machine share what jax has compiled: compiling is not the matter here."""

from __future__ import annotations

import pytest

from otel_goodput._live import channels

from .shared import Shared


@pytest.fixture(autouse=True)
def _compiled(compiled: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in compiled.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Shared:
    store = Shared()
    monkeypatch.setattr(channels, "current_store", lambda before: store)
    return store

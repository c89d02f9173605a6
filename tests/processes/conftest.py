"""Processes of one machine share what jax has compiled: compiling is not the matter here."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _compiled(compiled: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in compiled.items():
        monkeypatch.setenv(name, value)

"""Every test meets each site of errors for the first time."""

from __future__ import annotations

import pytest

from otel_goodput._runtime import guard


@pytest.fixture(autouse=True)
def _nothing_reported_yet() -> None:
    guard.contained.clear()

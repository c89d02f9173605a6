"""The order of the tests."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What waits for minutes comes first: one worker waits while the others work."""
    items.sort(key=lambda item: item.path.name != "test_losses.py" or item.path.parent.name != "otelcol")

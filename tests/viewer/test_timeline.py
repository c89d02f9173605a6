"""What the timeline draws, by its own modules in a browser: shares of columns, packing of lanes, scales."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .browser import evaluated


@pytest.mark.parametrize("seed", [1, 20, 300])
def test_what_is_drawn_is_what_is_there(chromium: Any, seed: int) -> None:
    assert evaluated(chromium, Path(__file__).with_name("timeline.js"), "shows.drawnAsListed(given)", seed) == 60

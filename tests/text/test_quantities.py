"""Quantities as people read them."""

from __future__ import annotations

import pytest

from otel_goodput._text.quantities import format_duration, short_duration, width


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0.0 ms"), (0.0004, "0.4 ms"), (0.0994, "99.4 ms"), (0.31, "310 ms"), (0.9996, "1.0 s"), (3.1, "3.1 s"),
        (9.96, "10 s"), (42.4, "42 s"), (119.6, "2.0 min"), (750, "12.5 min"), (5990, "1.7 h"), (360_000, "100.0 h"),
    ],
)  # fmt: skip
def test_short_durations(seconds: float, text: str) -> None:
    assert short_duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.85, "850 ms"), (0.9996, "1.0 s"), (12.34, "12.3 s"), (-12.34, "-12.3 s"), (59.97, "1 min 00 s"),
        (245, "4 min 05 s"), (11_220, "3 h 07 min"), (187_200, "2 d 04 h"),
    ],
)  # fmt: skip
def test_long_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_cells_of_wide_and_combining_letters() -> None:
    assert width("評価 e\u0301") == 6

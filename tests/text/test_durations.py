"""Lengths and moments of time as people write them."""

from __future__ import annotations

import time

import pytest

from otel_goodput._text.durations import NS, Moment, parse_duration, parse_moment, parse_requested_moment


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90), ("90", 90), ("1.5h", 5400), ("1h30m", 5400), ("1h 30min", 5400), ("350ms", 0.35), ("2d", 172_800),
        ("1w", 604_800), (" 10m ", 600), ("0.001", 0.001),
    ],
)  # fmt: skip
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == round(seconds * NS)


@pytest.mark.parametrize(
    "text", ["", "h", "1y", "-1h", "0s", "nan", "inf", "1e10", "1h30", "ten", "99999w", "9" * 400 + "s"]
)
def test_no_durations(text: str) -> None:
    with pytest.raises(ValueError):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("0", 0),
        ("-1.5", -1_500_000_000),
        ("1763810700", 1_763_810_700 * NS),
        ("2025-11-22T11:25:00Z", 1_763_810_700 * NS),
        ("2025-11-22t11:25z", 1_763_810_700 * NS),
        ("2025-11-22 13:25:00.5+02:00", 1_763_810_700 * NS + NS // 2),
        ("2025-11-22T11:25:00.123456789Z", 1_763_810_700 * NS + 123_456_789),
        ("1969-12-31T23:59:59.25Z", -3 * NS // 4),
    ],
)
def test_moments(text: str, ns: int) -> None:
    assert parse_moment(text) == ns
    assert parse_requested_moment(text) == Moment(ns)


@pytest.mark.parametrize(
    "text",
    ["", "nan", "inf", "-1e300", "2025-11-22T11:25:00", "2025-11-22", "2025-13-22T11:25:00Z", "9999-01-01T00:00Z"],
)
def test_no_moments(text: str) -> None:
    with pytest.raises(ValueError):
        parse_moment(text)


def test_moments_relative_to_the_start_or_to_now() -> None:
    assert parse_requested_moment("1h30m") == Moment(5400 * NS, relative=True)
    assert parse_requested_moment("1h").since(NS) == 3601 * NS and parse_requested_moment("1h").since(None) == 3600 * NS
    before = time.time_ns()
    now, ago = parse_requested_moment("now"), parse_requested_moment("2 h ago")
    after = time.time_ns()
    assert before <= now.ns <= after and before <= ago.ns + 7200 * NS <= after
    assert not now.relative and now.since(5) == now.ns
    for wrong in ("ago", "5 ago", "tomorrow", "now ago"):
        with pytest.raises(ValueError):
            parse_requested_moment(wrong)

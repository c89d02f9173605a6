"""Conditions on a comparison: their grammar, and when they hold."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_goodput.reports.comparison import COUNT, FIGURES, SHARE, TIME, Figure
from otel_goodput.reports.comparison_text import parse


def holds(text: str, a: float | None, b: float | None) -> bool | None:
    condition = parse(text)
    return condition.check({condition.figure: Figure(FIGURES[condition.figure], a, b)}).holds


@pytest.mark.parametrize(
    ("text", "a", "b", "expected"),
    [
        ("goodput < -2 %", 0.90, 0.87, True),  # 3.3 % of A less
        ("goodput < -2 %", 0.90, 0.89, False),
        ("goodput < -2 pp", 0.90, 0.875, True),
        ("goodput<-2pp", 0.90, 0.885, False),
        ("data_loading > 1 pp", 0.05, 0.07, True),
        ("step_time >= 1.5ms", 0.010, 0.0116, True),
        ("step_time > 4 %", 0.010, 0.0103, False),
        ("p90 > 1 s", 1.0, 3.0, True),
        ("at_risk > 10 min", 0.0, 601.0, True),
        ("disruptions > 0", 1, 1, False),
        ("disruptions > 0", 1, 2, True),
        ("disruptions <= -1", 3, 2, True),
        ("lost_steps > 50 %", 0, 1, True),  # a change from 0 exceeds every percentage
        ("lost_steps > 50 %", 0, 0, False),
        ("goodput > 5 %", 0.0, 0.0, False),
        ("data_loading_per_step > 100us", 0.001, 0.0012, True),
        ("goodput < -2 %", None, 0.9, None),
        ("goodput < -2 %", 0.9, None, None),
    ],
)
def test_when_a_condition_holds(text: str, a: float | None, b: float | None, expected: bool | None) -> None:
    assert holds(text, a, b) is expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not a condition"),
        ("goodput", "not a condition"),
        ("goodput = 2 %", "not a condition"),
        ("goodput < two %", "not a condition"),
        ("goodput < 2 % and step_time > 1 %", "not a condition"),
        ("godput < 2 %", "did you mean goodput?"),
        ("nonsense < 2 %", "known are goodput, badput"),
        ("goodput < 2 ms", "in % or pp"),
        ("goodput < 2", "in % or pp"),
        ("step_time < 2 pp", "one of us, ms, s, min, h"),
        ("disruptions > 1 pp", "% or no unit"),
        ("step_time > 1 parsec", "one of us"),
    ],
)
def test_an_invalid_condition_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why.replace("?", r"\?")):
        parse(text)


values = st.floats(0, 1e6, allow_nan=False)


@given(st.sampled_from(sorted(FIGURES)), st.sampled_from("<>"), st.floats(-100, 100), values, values)
def test_the_percentage_is_of_a(name: str, sign: str, bound: float, a: float, b: float) -> None:
    text = f"{name} {sign} {bound:.6f} %"
    change = 100 * (b - a) / a if a else math.copysign(math.inf, b - a) if b != a else 0.0
    if abs(change - round(bound, 6)) > 1e-4:
        assert holds(text, a, b) is ((change < bound) if sign == "<" else (change > bound))


def test_every_figure_takes_one_unit_at_least() -> None:
    units = {SHARE: "pp", TIME: "ms", COUNT: ""}
    for name, kind in FIGURES.items():
        assert parse(f"{name} > 1 %").figure == parse(f"{name} > 1 {units[kind]}").figure == name

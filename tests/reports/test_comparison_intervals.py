"""Intervals of the difference of two runs' step times: coverage, symmetry, few steps."""

from __future__ import annotations

import math
import random
from statistics import NormalDist, fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_goodput._accounting import stats
from otel_goodput.reports import comparison
from otel_goodput.reports.comparison import LEAST_STEPS, Statistic, estimate, ratio, t_quantile

STATISTICS: dict[str, Statistic] = {
    "median": lambda rising: stats.quantile(rising, 0.5),
    "p90": lambda rising: stats.quantile(rising, 0.9),
    "mean": fmean,
}
TRIALS = 120


def steps(source: random.Random, count: int, usual: float, likeness: float) -> list[int]:
    """Step times of a log-normal autoregressive process; `likeness` is the correlation of successive ones."""
    level, lengths = source.gauss(0, 1), []
    for _ in range(count):
        level = likeness * level + math.sqrt(1 - likeness**2) * source.gauss(0, 1)
        lengths.append(round(usual * math.exp(0.1 * level)))
    return lengths


@pytest.mark.parametrize("statistic", STATISTICS)
@pytest.mark.parametrize(("count", "likeness"), [(100, 0.0), (400, 0.5), (1000, 0.8)])
def test_the_interval_holds_the_truth_as_often_as_it_says(statistic: str, count: int, likeness: float) -> None:
    source = random.Random(f"{statistic} {count}")
    choice = STATISTICS[statistic]
    hits = 0
    for _ in range(TRIALS):
        estimated = ratio(
            estimate(steps(source, count, 1e7, likeness), choice),
            estimate(steps(source, count, 1.1e7, likeness), choice),
        )
        assert estimated.low is not None and estimated.high is not None
        hits += estimated.low <= 1.1 <= estimated.high
    # 95 % asked for; the bound is five standard deviations of the count below 93 %.
    assert hits / TRIALS > 0.93 - 5 * math.sqrt(0.93 * 0.07 / TRIALS)


def test_what_depends_on_each_other_is_not_taken_for_independent() -> None:
    """An interval that ignored the correlation would be three times too narrow here."""
    source = random.Random(7)
    choice = STATISTICS["mean"]
    alike = [estimate(steps(source, 1000, 1e7, 0.8), choice) for _ in range(20)]
    apart = [estimate(steps(source, 1000, 1e7, 0.0), choice) for _ in range(20)]
    assert fmean(one.variance or 0 for one in alike) > 4 * fmean(one.variance or 0 for one in apart)


lists = st.lists(st.integers(1, 10**10), min_size=1, max_size=300)


@given(lists, lists, st.sampled_from(sorted(STATISTICS)))
def test_exchanging_the_runs_gives_the_reciprocal(a: list[int], b: list[int], statistic: str) -> None:
    there, back = (ratio(*pair) for pair in _both(a, b, STATISTICS[statistic]))
    assert there.value == pytest.approx(1 / back.value)
    assert (there.low is None) == (back.low is None) == (len(a) < LEAST_STEPS or len(b) < LEAST_STEPS)
    if there.low is not None and back.low is not None and there.high is not None and back.high is not None:
        assert there.low == pytest.approx(1 / back.high) and there.high == pytest.approx(1 / back.low)
        assert there.low <= there.value * (1 + 1e-12) and there.value <= there.high * (1 + 1e-12)


def _both(a: list[int], b: list[int], statistic: Statistic) -> list[tuple[comparison.Estimate, comparison.Estimate]]:
    first, second = estimate(a, statistic), estimate(b, statistic)
    return [(first, second), (second, first)]


@given(lists)
def test_a_run_is_as_fast_as_itself(nets: list[int]) -> None:
    same = estimate(nets, STATISTICS["median"])
    estimated = ratio(same, same)
    assert estimated.value == 1 and (estimated.low or 1) <= 1 <= (estimated.high or 1)


@given(st.integers(2, 60))
def test_equal_steps_leave_no_doubt(percent: int) -> None:
    one, other = estimate([10**6] * 200, fmean), estimate([10**6 + 10**4 * percent] * 200, fmean)
    estimated = ratio(one, other)
    assert (estimated.low, estimated.value, estimated.high) == pytest.approx((1 + percent / 100,) * 3)
    assert estimated.low is not None and estimated.high is not None and not estimated.low <= 1 <= estimated.high


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [
        (3, 3.18245),
        (4, 2.77645),
        (5, 2.57058),
        (8, 2.30600),
        (10, 2.22814),
        (19, 2.09302),
        (38, 2.02439),
        (100, 1.98397),
    ],
)
def test_quantiles_of_student(freedom: float, quantile: float) -> None:
    assert t_quantile(freedom) == pytest.approx(quantile, abs=2e-5)
    assert t_quantile(1e7) == pytest.approx(NormalDist().inv_cdf(0.975), abs=1e-4)

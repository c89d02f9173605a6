"""A series of samples stays bounded, covers the same time, and keeps sums and highest values."""

from __future__ import annotations

from functools import reduce
from itertools import pairwise
from operator import or_

from hypothesis import given
from hypothesis import strategies as st

from otel_goodput._journal.usage import MOST, Usage, UsageSeries, thinned

amounts = st.integers(0, 10**12)
BITS = st.integers(0, 31)
SAMPLES = st.lists(st.tuples(st.integers(1, 10**12), *[amounts] * 9, BITS), max_size=60)


def laid_out(rows: list[tuple[int, ...]]) -> list[Usage]:
    """Samples that follow each other without a gap."""
    series, end = [], 0
    for length, *rest in rows:
        end += length
        series.append(Usage(end, length, *rest))
    return series


def sums(usages: list[Usage]) -> tuple[int, ...]:
    return tuple(sum(one[at] for one in usages) for at in (1, 2, 3, 7, 8, 9, 10))


def highest(usages: list[Usage]) -> tuple[int, ...]:
    """Also why clocks were held down, at all."""
    return (*(max(one[at] for one in usages) for at in (4, 5, 6)), reduce(or_, (one.throttled for one in usages)))


@given(SAMPLES, st.integers(1, 70))
def test_thinned(rows: list[tuple[int, ...]], most: int) -> None:
    usages = laid_out(rows)
    few = thinned(usages, most)
    assert len(few) <= most and sums(few) == sums(usages)
    if usages:
        assert highest(few) == highest(usages) and few[-1].end == usages[-1].end
        assert all(one.end - one.length == before.end for before, one in pairwise(few))


def test_a_long_series_is_bounded_and_loses_nothing() -> None:
    series, usages = (
        UsageSeries(),
        laid_out([(1 + at % 7, at % 5, at % 11, at * 7919 % 1000, at, -1) for at in range(9999)]),
    )
    for at, usage in enumerate(usages, 1):
        series.add(usage)
        assert len(series.usages) <= MOST
        if at in (1, MOST - 1, MOST, MOST + 1, 2 * MOST + 3, 9999):
            assert sums(series.usages) == sums(usages[:at]) and highest(series.usages) == highest(usages[:at])
            assert series.usages[-1].end == usage.end
    assert len(series.usages) >= MOST // 2

"""When a job waited for which of its ranks: bins against sums over all of the time that was added."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import pytest

from otel_goodput._accounting.cost_bins import MOST, STANDS_OUT, CostBins

NS = 1_000_000_000
BEGIN = 1_795_000_000 * NS


def stretches(seed: int, count: int, longest: int) -> list[tuple[str, int, int]]:
    chance, now = random.Random(seed), BEGIN
    made = []
    for _ in range(count):
        now += chance.randrange(longest) * chance.randrange(2)
        end = now + chance.randrange(longest)
        made.append((chance.choice("abcd"), now, end))
        now = end
    return made


@pytest.mark.parametrize(("count", "longest"), [(1, 3 * NS), (200, NS // 10), (2_000, 2 * NS), (300, 90 * NS)])
def test_each_bin_has_its_time_of_what_stands_out(count: int, longest: int) -> None:
    for seed in range(5):
        bins, expected = CostBins[str](), Counter[tuple[int, str]]()
        added = stretches(seed, count, longest)
        for one in added:
            bins.add(*one)
        for cause, begin, end in added:
            for low, high in pairwise([begin, *range((begin // bins.width + 1) * bins.width, end, bins.width), end]):
                expected[low // bins.width, cause] += high - low
        assert list(bins.bins) == sorted(bins.bins)
        assert max(bins.bins) - min(bins.bins) < MOST
        last = (max(end for _, _, end in added) - 1) // bins.width
        held = {(number, cause): ns for number, one in bins.bins.items() for cause, ns in one.items()}
        for (number, cause), ns in expected.items():
            # What did not stand out in a bin is missing from a wider one that it became part of.
            missing = ns - held.get((number, cause), 0)
            assert 0 <= missing <= bins.width // STANDS_OUT * 2
            assert not missing or number <= last
        assert not set(held) - set(+expected)


def test_a_day_in_which_every_rank_is_a_little_late_takes_little_room() -> None:
    bins, now = CostBins[int](), BEGIN
    chance = random.Random(1)
    for step in range(43_200):
        now += 2 * NS
        late = chance.randrange(6, 512)
        bins.add(late, now - NS // 1000, now)
        if step % 8_000 == 0:
            bins.add(5, now, now + 60 * NS)
            now += 60 * NS
    assert sum(map(len, list(bins.bins.values())[:-1])) < 50
    assert sum(one.get(5, 0) for one in bins.bins.values()) == 6 * 60 * NS


def test_a_stretch_has_the_time_of_its_bins() -> None:
    bins = CostBins[str]()
    width = bins.width
    first = BEGIN // width * width
    for number, cause, spent in [(0, "a", 900), (1, "a", 800), (1, "b", 2), (2, "a", 1), (3, "a", 700), (3, "b", 600)]:
        begin = first + number * width + (500_000_000 if cause == "b" else 0)
        bins.add(cause, begin, begin + spent * 500_000)
    assert sorted(bins.stretches(width // 50)) == [
        (first, first + 2 * width, "a", 850_000_000),
        (first + 3 * width, first + 4 * width, "a", 350_000_000),
        (first + 3 * width, first + 4 * width, "b", 300_000_000),
    ]

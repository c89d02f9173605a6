"""Numpy computes with columns what plain arithmetic does."""

from __future__ import annotations

import random
from array import array

import pytest

from otel_goodput._accounting.arithmetic import PLAIN, WHOLE
from otel_goodput._journal.numpy_arithmetic import NumpyArithmetic

NOW = 1_790_000_000_000_000_000
LONG = 1 << 32  # ns: more does not fit 32 bits


def test_numpy_computes_the_same() -> None:
    quick, rng = NumpyArithmetic(pytest.importorskip("numpy")), random.Random(0)
    for _ in range(300):
        count, ranks = rng.choice((1, 2, 9)), rng.choice((1, 2, 3, 8))
        most = rng.choice((3, 1000, LONG + 5))
        columns = []
        for _ in range(2 * ranks):
            times = [NOW + rng.randrange(-most, most) for _ in range(count)]
            columns.append(array(WHOLE, times) if rng.random() < 0.8 else times)
        begins, ends = columns[::2], columns[1::2]
        middle = max(0, ranks - 2) // 2
        plain, common = PLAIN.common(begins, ends, middle), quick.common(begins, ends, middle)
        assert [*common.each()] == [*plain.each()]
        assert all(type(one) is int for row in common.each() for one in row)
        mine, theirs = quick.lengths(begins[0], ends[0]), PLAIN.lengths(begins[0], ends[0])
        assert ([*mine.steps], *mine[1:]) == ([*theirs.steps], *theirs[1:])
        assert quick.sum_and_least(mine.steps) == PLAIN.sum_and_least(mine.steps)
        assert [*quick.moved(begins[0], -most)] == [*PLAIN.moved(begins[0], -most)]

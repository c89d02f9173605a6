"""Confidence intervals for the difference of two runs' step times, from steps that depend on each other.

Successive steps are not independent: they share a warm or cold device, a busy network, a slow part of the data. So each
run is cut into batches of successive steps, the statistic (a median, a quantile, a mean) is computed in each batch, and
what the batches differ by is what the statistic is uncertain by: the method of batch means (L. Schmeiser, "Batch size
effects in the analysis of simulation output", Operations Research 30, 1982), for any statistic and two samples as in
R. Ibragimov and U. K. Müller, "t-statistic based correlation and heterogeneity robust inference", J. Business &
Economic Statistics 28, 2010. It needs no random numbers, takes O(n log n), and holds as long as what one batch has in
common with the next is little, that is, for dependence that lasts much less than a twentieth of the run.

The ratio of two runs is estimated on a logarithmic scale, by Welch's t with the degrees of freedom of Satterthwaite, so
that exchanging the runs gives exactly the reciprocal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import NormalDist, fmean, variance
from typing import Any, Final, NamedTuple

CONFIDENCE: Final = 0.95
BATCHES: Final = 20
LEAST_BATCHES: Final = 5
LEAST_STEPS: Final = 50  # with fewer there is no interval
_BATCH: Final = 20  # steps that a batch should hold at least

Statistic = Callable[[Sequence[int]], float]


class Ratio(NamedTuple):
    """A statistic of run B over that of run A; `low` and `high` are the ends of its interval, None if not known."""

    value: float
    low: float | None
    high: float | None

    @property
    def clear(self) -> bool:
        """Whether the interval is known and does not contain 1."""
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high

    def to_json(self) -> dict[str, Any]:
        return {"ratio": self.value, "low": self.low, "high": self.high, "confidence": CONFIDENCE}


class Estimate(NamedTuple):
    """A statistic of one run, ns, and the variance of its logarithm, estimated from `batches`; None with too few."""

    value: float
    variance: float | None
    batches: int


def batches(count: int) -> int:
    """Return how many batches `count` steps are cut into; 0 if they are too few for an interval."""
    return 0 if count < LEAST_STEPS else max(LEAST_BATCHES, min(BATCHES, count // _BATCH))


def estimate(nets: Sequence[int], statistic: Statistic) -> Estimate:
    """Return the estimate of a statistic of the step times `nets` (ns, above 0, in the order of the steps, not empty).

    `statistic` is called with sorted times, and returns a time above 0.
    """
    value = statistic(sorted(nets))
    many = batches(len(nets))
    if not many:
        return Estimate(value, None, many)
    edges = [len(nets) * at // many for at in range(many + 1)]
    parts = [math.log(statistic(sorted(nets[begin:end]))) for begin, end in pairwise(edges)]
    return Estimate(value, variance(parts, fmean(parts)) / many, many)


def ratio(a: Estimate, b: Estimate) -> Ratio:
    """Return B over A with the interval of the confidence ``CONFIDENCE``."""
    value = b.value / a.value
    if a.variance is None or b.variance is None:
        return Ratio(value, None, None)
    both = a.variance + b.variance
    if not both:
        return Ratio(value, value, value)
    freedom = both**2 / (a.variance**2 / (a.batches - 1) + b.variance**2 / (b.batches - 1))
    margin = t_quantile(freedom) * math.sqrt(both)
    middle = math.log(value)
    return Ratio(value, math.exp(middle - margin), math.exp(middle + margin))


def t_quantile(freedom: float, confidence: float = CONFIDENCE) -> float:
    """Return t such that Student's variable with `freedom` >= 3 degrees of freedom is within -t to t with `confidence`.

    G. W. Hill, Algorithm 396, Communications of the ACM 13, 1970; exact to five digits or more.
    """
    n, tails = freedom, 1 - confidence
    a = 1 / (n - 0.5)
    b = 48 / (a * a)
    c = ((20700 * a / b - 98) * a - 16) * a + 96.36
    d = ((94.5 / (b + c) - 3) / b + 1) * math.sqrt(a * math.pi / 2) * n
    y: float = (d * tails) ** (2 / n)
    if y > a + 0.05:
        x = NormalDist().inv_cdf(tails / 2)
        y = x * x
        if n < 5:
            c += 0.3 * (n - 4.5) * (x + 0.6)
        c += (((0.05 * d * x - 5) * x - 7) * x - 2) * x + b
        y = (((((0.4 * y + 6.3) * y + 36) * y + 94.5) / c - y - 3) / b + 1) * x
        y = math.expm1(a * y * y)
    else:
        y = ((1 / (((n + 6) / (n * y) - 0.089 * d - 0.822) * (n + 2) * 3) + 0.5 / (n + 4)) * y - 1) * (n + 1) / (
            n + 2
        ) + 1 / y
    return math.sqrt(n * y)

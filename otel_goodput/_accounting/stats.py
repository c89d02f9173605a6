"""Statistics of net step times: median, ideal step time, deviation. All samples are bounded."""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Sequence

from otel_goodput._accounting.rules import DEVIATION_SAMPLE, IDEAL_SAMPLE

# Scales the median absolute deviation to the standard deviation of a normal distribution.
MAD_SCALE = 1.4826


def median(values: Sequence[int], *, ordered: bool = False) -> int:
    """Median of integers; the mean of the middle two, rounded down, for an even count."""
    rising = values if ordered else sorted(values)
    middle = len(rising) // 2
    if len(rising) % 2:
        return rising[middle]
    return (rising[middle - 1] + rising[middle]) // 2


def quantile(ordered: Sequence[int], q: float) -> float:
    """The `q` quantile (0 to 1) of sorted values, by linear interpolation."""
    at = (len(ordered) - 1) * q
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def ideal_step_time(rising: Sequence[int]) -> float | None:
    """Mean of the net times that are at most median + 3 x 1.4826 x MAD, in ns; None without steps.

    `rising`: the last 1,000 kept net times in ns, sorted.
    """
    if not rising:
        return None
    middle = statistics.median(rising)
    spread = statistics.median([abs(net - middle) for net in rising])
    # Always keep the smallest: a float threshold may be rounded below the integer that it equals.
    usual = rising[: bisect_right(rising, middle + 3 * MAD_SCALE * spread) or 1]
    return sum(usual) / len(usual)


def step_time_deviation(nets: Sequence[int]) -> float | None:
    """p90 of the last 100 net times minus the median of up to 1,000 before them, signed, in ns; None without steps.

    `nets`: the latest kept net times in ns, oldest first.
    With 100 steps or fewer, it is their p90 minus their median.
    """
    if not nets:
        return None
    recent = sorted(nets[-DEVIATION_SAMPLE:])
    before = nets[-DEVIATION_SAMPLE - IDEAL_SAMPLE : -DEVIATION_SAMPLE]
    return quantile(recent, 0.9) - statistics.median(before or recent)

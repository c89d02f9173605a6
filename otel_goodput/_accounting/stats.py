"""Statistics of net step times: median, ideal step time, deviation, the paces of processes. All samples are bounded."""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from otel_goodput._accounting.rules import DEVIATION_SAMPLE, IDEAL_SAMPLE

# Scales the median absolute deviation to the standard deviation of a normal distribution.
MAD_SCALE = 1.4826


def median(values: Sequence[int], *, ordered: bool = False) -> int:
    """Median of integers; the mean of the middle two, rounded down, for an even count."""
    rising = values if ordered else sorted(values)
    middle = len(rising) // 2
    return rising[middle] if len(rising) % 2 else (rising[middle - 1] + rising[middle]) // 2


def quantile(ordered: Sequence[int], q: float) -> float:
    """The `q` quantile (0 to 1) of sorted values, by linear interpolation."""
    at = (len(ordered) - 1) * q
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def ideal_step_time(rising: Sequence[int]) -> float | None:
    """Mean of those of the sorted net times that are at most median + 3 x 1.4826 x MAD, in ns; None without steps."""
    if not rising:
        return None
    middle = statistics.median(rising)
    spread = statistics.median([abs(net - middle) for net in rising])
    # Always keep the smallest: a float threshold may be rounded below the integer that it equals.
    usual = rising[: bisect_right(rising, middle + 3 * MAD_SCALE * spread) or 1]
    return sum(usual) / len(usual)


def step_time_deviation(nets: Sequence[int]) -> float | None:
    """p90 of the last 100 kept net times minus the median of up to 1,000 before them (or of them), in ns."""
    if not nets:
        return None
    recent = sorted(nets[-DEVIATION_SAMPLE:])
    before = nets[-DEVIATION_SAMPLE - IDEAL_SAMPLE : -DEVIATION_SAMPLE]
    return quantile(recent, 0.9) - statistics.median(before or recent)


FEW: Final = 10  # fewer steps than this say nothing about a process's pace


class Pace(NamedTuple):
    """How fast one process has stepped recently.

    Attributes:
        process: its index.
        at: when it reported this, ns since the epoch.
        steps: number of kept steps.
        median, p90: of the net times of the latest steps, ns.
        outside: usual time from one step to the next without the step itself (loading, time in no phase): the median
            interval between the starts of steps minus the median step, ns.
    """

    process: int
    at: int
    steps: int
    median: int
    p90: int
    outside: int

    def to_json(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "median_s": self.median / 1e9,
            "p90_s": self.p90 / 1e9,
            "outside_s": self.outside / 1e9,
        }


class Straggler(NamedTuple):
    """A process that stands out: its median step time by that of all, or the share of its cadence outside steps."""

    process: int
    ratio: float


def _known(paces: Sequence[Pace]) -> Sequence[Pace]:
    """Those that say something; none if there are fewer than two of them."""
    known = [pace for pace in paces if pace.steps >= FEW and pace.median > 0]
    return known if len(known) > 1 else ()


def straggler(paces: Sequence[Pace]) -> Straggler | None:
    """Return the process with the longest steps; None if fewer than two have a pace.

    If steps wait for each other, all take as long as the slowest: that shows in `Pace.outside`, and the others wait.
    """
    known = _known(paces)
    if not known:
        return None
    slowest = max(known, key=lambda pace: pace.median)
    return Straggler(slowest.process, slowest.median / statistics.median(pace.median for pace in known))


def late(paces: Sequence[Pace]) -> Straggler | None:
    """Return the process that spends most time outside steps, and that share of its cadence; None as `straggler`."""
    known = _known(paces)
    if not known:
        return None
    latest = max(known, key=lambda pace: pace.outside)
    return Straggler(latest.process, latest.outside / (latest.outside + latest.median))


def paces_to_json(paces: Sequence[Pace], count: int) -> Mapping[str, Any]:
    """The report's section on the processes; `count` is their total number."""
    slowest, latest = straggler(paces), late(paces)
    return {
        "count": count,
        "paces": {str(pace.process): pace.to_json() for pace in sorted(paces)},
        "straggler": None if slowest is None else {"process": slowest.process, "ratio": slowest.ratio},
        "late": None if latest is None else {"process": latest.process, "share": latest.ratio},
    }

"""The runtime goodput to expect of a checkpoint interval, and the interval with the highest. All times in seconds.

**The model.** Failures strike at random, during saves and restores too; the times between them are exponentially
distributed with mean M. After every W seconds of training a save blocks it for C. A failure loses the work since the
last save. Then it takes D until the job runs again, in which nothing can fail; then R until it trains again. A failure
in R costs D and R again.

**The expected time** E(L) to complete L = W + C seconds without a failure, retries included: with probability exp(-L/M)
it takes L; else a failure strikes after X, and D, a restore and another try follow::

    E(L) = exp(-L/M) L + (1 - exp(-L/M)) (E[X | X < L] + D + E(restore) + E(L)),  E[X | X < L] = M - L / (exp(L/M) - 1)

With R in place of L the same gives E(restore) = (exp(R/M) - 1) (M + D). The terms with L cancel, which leaves

    E(L) = exp(R/M) (M + D) (exp((W + C)/M) - 1)

Each save is a renewal, so the share of the time spent in training, the expected goodput, is exactly W / E(W + C).
(Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22, 2006, derives it for
D = 0; Bougeret et al., "Checkpointing strategies for parallel jobs", SC 2011, for any D.) The best W does not depend on
D and R.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

# What the formulas take, and what is shown beside it, in s.
QUANTITIES: Final[Mapping[str, str]] = {
    "mtbf": "mean time between failures",
    "save": "time a save blocks training",
    "restore": "start-up and restore after a restart",
    "reschedule": "downtime before a restart",
    "step": "step time",
    "interval": "training time between saves",
}


def expected_goodput(
    interval: float, *, mtbf: float, save: float, restore: float = 0.0, reschedule: float = 0.0
) -> float:
    """Return the share of the time spent in training with a save after each `interval` of training; see the module."""
    length = interval + save
    if not length / mtbf:  # the limit for a length of 0: only the failures cost time
        return math.exp(-restore / mtbf) * mtbf / (mtbf + reschedule)
    return interval * math.exp(-(restore + length) / mtbf) / ((mtbf + reschedule) * -math.expm1(-length / mtbf))


def young(mtbf: float, save: float) -> float:
    """Return Young's first-order interval (CACM 17, 1974): accurate if `save` is much shorter than `mtbf`."""
    return math.sqrt(2 * save * mtbf)


def daly(mtbf: float, save: float) -> float:
    """Return Daly's higher-order interval (FGCS 22, 2006)."""
    if save >= 2 * mtbf:
        return mtbf
    ratio = save / (2 * mtbf)
    return math.sqrt(2 * save * mtbf) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save


def best_interval(mtbf: float, save: float) -> float:
    """Return the interval with the highest :func:`expected_goodput`; 0 if a save costs nothing.

    There is exactly one: goodput rises up to it and falls after it.
    """
    if not save:
        return 0.0
    # The derivative is 0 where 1 - W/M = exp(-(W + C)/M), between 0 and M. Its sign changes only there, from + to -, so
    # bisection finds W to the last digit. Goodput itself is too flat near its maximum for that.
    low, high = 0.0, mtbf
    while low < (middle := (low + high) / 2) < high:
        if -math.expm1(-(middle + save) / mtbf) > middle / mtbf:
            low = middle
        else:
            high = middle
    return low

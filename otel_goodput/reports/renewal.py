"""The runtime goodput to expect of a checkpoint interval, and the interval with the highest. All times in seconds.

**The model.** Failures strike at random, exponentially distributed with a mean time M between them, during saves and
restores too. After W seconds of training a save holds it up for C. A failure costs what was done since the last save;
then D until the job runs again, while nothing can fail; then R until it trains again, which may fail and cost D and R
anew.

**The expected time** E(L) to get through L = W + C seconds without a failure, retries included: with probability
exp(-L/M) it takes L; else a failure strikes after X, and D, a restore and another try follow::

    E(L) = exp(-L/M) L + (1 - exp(-L/M)) (E[X | X < L] + D + E(restore) + E(L)),  E[X | X < L] = M - L / (exp(L/M) - 1)

A restore is the same with R for L, so E(restore) = (exp(R/M) - 1) (M + D). The terms with L cancel, and what is left is

    E(L) = exp(R/M) (M + D) (exp((W + C)/M) - 1)

The run renews itself at each save, so W / E(W + C) of its time trains: that is the expected goodput, exactly. (Daly,
"A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22, 2006, has it for D = 0;
Bougeret et al., "Checkpointing strategies for parallel jobs", SC 2011, for any D.) The best W does not depend on D
and R.
"""

from __future__ import annotations

import math


def expected_goodput(
    interval: float, *, mtbf: float, save: float, restore: float = 0.0, reschedule: float = 0.0
) -> float:
    """Share of the time that trains, with a save after each `interval` of training; see the module."""
    length = interval + save
    if not length / mtbf:  # the limit: what is lost is only what the failures themselves cost
        return math.exp(-restore / mtbf) * mtbf / (mtbf + reschedule)
    return interval * math.exp(-(restore + length) / mtbf) / ((mtbf + reschedule) * -math.expm1(-length / mtbf))


def young(mtbf: float, save: float) -> float:
    """Young's interval, of the first order (CACM 17, 1974): good where a save is much shorter than `mtbf`."""
    return math.sqrt(2 * save * mtbf)


def daly(mtbf: float, save: float) -> float:
    """Daly's interval, of a higher order (FGCS 22, 2006)."""
    if save >= 2 * mtbf:
        return mtbf
    ratio = save / (2 * mtbf)
    return math.sqrt(2 * save * mtbf) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save


def best_interval(mtbf: float, save: float) -> float:
    """The interval with the highest :func:`expected_goodput`.

    There is one: goodput rises up to it and falls after it. 0 where a save costs nothing.
    """
    if not save:
        return 0.0
    # The derivative is 0 where 1 - W/M = exp(-(W + C)/M), between 0 and M. It only falls, so halving finds it to the
    # last digit; near its highest, goodput itself is too flat for that.
    low, high = 0.0, mtbf
    while low < (middle := (low + high) / 2) < high:
        if -math.expm1(-(middle + save) / mtbf) > middle / mtbf:
            low = middle
        else:
            high = middle
    return low

"""Jobs of many ranks whose steps end together, as samples of their training threads would show them: made, not run."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from otel_goodput._accounting.own_time import OwnTime
from otel_goodput._accounting.rules import NS
from otel_goodput._accounting.stragglers import Stragglers

WINDOW = 30 * NS
SAMPLES = 120  # of a rank in a window

NOBODY, CHRONIC, LATER, WANDERING = KINDS = ("nobody", "chronic", "later", "wandering")


class Scenario(NamedTuple):
    """A job; times in s. From `begin` on (a window), a rank takes `factor` times as long as the others."""

    ranks: int
    kind: str
    culprit: int
    factor: float
    begin: int
    windows: int
    step: float
    load: float  # time outside of steps, as a share of a step
    noise: float  # deviation of what a rank computes in a window, as a share
    unclear: float  # share of the own time, and of the waits, in calls that may be either


def scenario(seed: int, sizes: Sequence[int]) -> Scenario:
    random = Random(seed)
    kind, ranks, windows = KINDS[seed % 4], random.choice(sizes), 12
    return Scenario(
        ranks,
        kind,
        random.randrange(ranks),
        random.choice((1.2, 1.3, 1.5, 2.0)),
        random.randrange(1, 4) if kind == LATER else 0,
        windows,
        random.choice((0.01, 0.1, 0.5, 1.0)),
        random.choice((0.0, 0.05, 0.3)),
        random.choice((0.0, 0.003, 0.01)),
        random.choice((0.0, 0.0, 0.7)),
    )


def _some(random: Random, of: int, share: float) -> int:
    """A number of a binomial distribution, nearly."""
    deviation = (of * max(0.0, share * (1 - share))) ** 0.5
    return max(0, min(of, round(random.gauss(of * share, deviation))))


def play(one: Scenario, seed: int) -> tuple[Stragglers, list[tuple[int, ...]], list[int | None]]:
    """Return who compares the ranks, who was slow in each window by that, and who really was."""
    random, compared = Random(~seed), Stragglers(WINDOW)
    own = dict.fromkeys(range(one.ranks), OwnTime())
    compared.look(0, 0, own)
    named, true = list[tuple[int, ...]](), list[int | None]()
    steps = 0
    for window in range(one.windows):
        slow = None
        if one.kind == WANDERING:
            slow = random.randrange(one.ranks)
        elif one.kind != NOBODY and window >= one.begin:
            slow = one.culprit
        work = [one.step * (1 + random.gauss(0, one.noise)) for _ in range(one.ranks)]
        if slow is not None:
            work[slow] *= one.factor
        longest = max(work) * 1.01
        turn = longest + one.load * one.step
        steps += max(1, round(WINDOW / NS / turn))
        own = {rank: _sampled(random, before, work[rank], longest, turn, one) for rank, before in own.items()}
        ended = compared.look((window + 1) * WINDOW, steps, own)
        named.append(() if ended is None else ended.slow)
        true.append(slow)
    return compared, named, true


def _sampled(random: Random, before: OwnTime, work: float, longest: float, turn: float, one: Scenario) -> OwnTime:
    inside = _some(random, SAMPLES, longest / turn)
    waiting = _some(random, inside, 1 - work / longest)
    unclear = _some(random, inside - waiting, one.unclear)
    hidden = _some(random, waiting, one.unclear)
    # The processor time is exact: of work, and of what is outside of steps.
    computed = round(WINDOW * (work + turn - longest) / turn)
    return OwnTime(
        before.samples + SAMPLES,
        before.inside + inside,
        before.waiting + waiting - hidden,
        before.unclear + unclear + hidden,
        before.lasted + WINDOW,
        before.computed + computed,
    )

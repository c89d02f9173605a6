"""Who is slow inside of steps that end together: named if it is certain, and nobody otherwise."""

from __future__ import annotations

import time
from itertools import pairwise
from random import Random

import pytest

from otel_goodput._accounting.own_time import OwnTime, OwnWindow
from otel_goodput._accounting.rules import NS
from otel_goodput._accounting.stragglers import ALL, KEPT, NAMED, STEPS, Stragglers
from tests.accounting import simulated_ranks as simulated

WINDOW = simulated.WINDOW
MS = NS // 1000


class Job:
    """A job whose turns take as long as its slowest rank takes for its own work, 20 ms by default."""

    def __init__(self, ranks: int = 4) -> None:
        self.stragglers = Stragglers(WINDOW)
        self.own = dict.fromkeys(range(ranks), OwnTime())
        self.at = self.steps = 0
        self.stragglers.look(0, 0, self.own)

    def window(
        self, work: dict[int, int] | None = None, *, loading: dict[int, int] | None = None, waits: bool = True
    ) -> OwnWindow:
        """Let a window pass in which ranks take so many ms for their own `work`, and for `loading` before it."""
        works = {rank: 20 + (work or {}).get(rank, 0) for rank in self.own}
        loads = {rank: (loading or {}).get(rank, 0) for rank in self.own}
        turn = max(works[rank] + loads[rank] for rank in self.own)
        self.at += WINDOW
        self.steps += WINDOW // (turn * MS)
        for rank, own in self.own.items():
            waiting = turn - loads[rank] - works[rank] if waits else 0
            shares = (round(120 * part / turn) for part in (turn, turn - loads[rank], waiting))
            added = OwnTime(*shares, 0, WINDOW, 0)
            self.own = {**self.own, rank: OwnTime(*map(sum, zip(own, added, strict=True)))}
        return self.stragglers.look(self.at, self.steps, self.own)

    @property
    def pattern(self) -> str:
        return self.stragglers.times().pattern


def test_the_culprit_and_what_it_costs() -> None:
    job = Job()
    for _ in range(5):
        window = job.window({2: 5})
        assert window.slow == (2,)
    times = job.stragglers.times()
    (slow,) = times.slow
    assert (times.pattern, slow.rank, slow.pattern, slow.windows, slow.seen) == ("chronic", 2, "chronic", 5, 5)
    assert slow.own == pytest.approx(25 * MS, rel=0.02) and slow.usual == pytest.approx(20 * MS, rel=0.02)
    assert slow.gain == pytest.approx(0.25, rel=0.05) and slow.lost == pytest.approx(5 * WINDOW / 5, rel=0.05)
    assert window.turn == pytest.approx(25 * MS, rel=0.01) and window.without == pytest.approx(20 * MS, rel=0.02)
    assert window.of[0].waiting == pytest.approx(5 * MS, rel=0.05) and window.of[2].waiting == 0


def test_once_recurring_and_wandering() -> None:
    once, wandering, recurring = Job(), Job(8), Job()
    for number in range(8):
        once.window({1: 10} if number == 3 else {})
        wandering.window({number: 10})
        recurring.window({3: 10} if number % 3 == 0 else {})
    assert (once.pattern, wandering.pattern, recurring.pattern) == ("once", "wandering", "recurring")
    assert {one.pattern for one in wandering.stragglers.times().slow} == {"wandering"}


def test_two_slow_ranks() -> None:
    """Without the slower one alone, the job would wait for the other."""
    job = Job(8)
    assert job.window({2: 30, 5: 20}).slow == (2, 5)
    slow = {one.rank: one for one in job.stragglers.times().slow}
    assert slow[2].gain == pytest.approx(50 / 40 - 1, rel=0.1) and slow[5].lost == 0


@pytest.mark.parametrize(
    "happens",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"loading": {1: 10}}, id="one that loads longer is late, and not slow inside"),
        pytest.param({"work": {1: 10}, "waits": False}, id="nobody waits for it: they do not step together"),
        pytest.param({"work": dict.fromkeys(range(4), 10)}, id="all of them"),
    ],
)
def test_nobody_is_named(happens: dict) -> None:
    job = Job()
    for _ in range(10):
        assert job.window(**happens).slow == ()
    assert job.stragglers.times().pattern == "" and len(job.stragglers.times().windows) == 10


def test_calls_that_compute_or_wait_are_told_apart_by_processor_time() -> None:
    computing = OwnTime(100, 100, 0, 90, 10 * NS, 10 * NS)
    waiting = computing._replace(computed=6 * NS)
    assert computing.shares() == (1.0, 0.0)
    assert waiting.shares() == (pytest.approx(0.6), pytest.approx(0.4))
    assert waiting._replace(computed=0).shares() == (pytest.approx(0.1), pytest.approx(0.9)), "sampled in other code"
    assert OwnTime().shares() == (0.0, 0.0)


def test_a_rank_that_restarts_counts_again_and_one_that_falls_silent_does_not() -> None:
    job = Job()
    assert job.window({2: 10}).slow == (2,)
    job.own[2] = OwnTime()  # another process
    assert job.window({2: 10}).slow == (2,)
    silent, before = job.own[3], job.own
    later = {rank: OwnTime(*(2 * count for count in one)) for rank, one in before.items()} | {3: silent}
    window = job.stragglers.look(job.at + 2 * WINDOW, job.steps + 2000, later)
    assert window is not None and [one.rank for one in window.ranks] == [0, 1, 2]


def test_windows_wait_for_steps() -> None:
    stragglers, own = Stragglers(WINDOW), dict.fromkeys(range(2), OwnTime())
    stragglers.look(0, 0, own)
    own = dict.fromkeys(range(2), OwnTime(600, 600, 0, 0, 5 * WINDOW, 0))
    assert stragglers.look(5 * WINDOW, STEPS - 1, own) is None
    window = stragglers.look(6 * WINDOW, STEPS, own)
    assert window is not None and (window.begin, window.end) == (0, 6 * WINDOW)
    assert not stragglers.due(6 * WINDOW + 1) and stragglers.due(7 * WINDOW)


def test_it_is_bounded() -> None:
    job = Job(100)
    for number in range(KEPT + 2):
        window = job.window(dict.fromkeys(range(40), 20) if number % 2 else {})
        assert len(window.slow) <= NAMED and len(window.ranks) <= ALL
    windows = job.stragglers.times().windows
    assert len(windows) <= KEPT and sum(one.steps for one in windows) == job.steps
    assert windows[0].begin == 0 and windows[-1].end == job.at
    assert all(one.end == other.begin for one, other in pairwise(windows))


def _outcomes(seeds: range, sizes: tuple[int, ...]) -> tuple[int, int, int]:
    """Return in how many jobs the right rank was named, another one, and none though there was one."""
    right = wrong = missed = 0
    for seed in seeds:
        one = simulated.scenario(seed, sizes)
        compared, _, true = simulated.play(one, seed)
        slow = {each.rank for each in compared.times().slow}
        wrong += bool(slow - {each for each in true if each is not None})
        if one.kind in (simulated.CHRONIC, simulated.LATER):
            right += one.culprit in slow
            missed += one.culprit not in slow
        elif one.kind == simulated.WANDERING and slow & {*true}:
            right += 1
    return right, wrong, missed


def test_simulated_jobs() -> None:
    right, wrong, missed = _outcomes(range(32), (2, 4, 8, 16))
    assert right >= 16 and wrong == missed == 0


@pytest.mark.release
def test_500_simulated_jobs_of_up_to_ten_thousand_ranks() -> None:
    """Precision and recall of at least 0.99."""
    right, wrong, missed = _outcomes(range(492), (2, 3, 4, 8, 16, 32, 64, 128, 256, 512))
    more = _outcomes(range(1000, 1008), (2048, 10_000))
    right, wrong, missed = right + more[0], wrong + more[1], missed + more[2]
    assert right / (right + wrong) >= 0.99 and right / (right + missed) >= 0.99, (right, wrong, missed)
    assert right > 250


def test_a_look_at_a_thousand_ranks_takes_little() -> None:
    """The leader does so twice a minute."""
    random, stragglers = Random(1), Stragglers(WINDOW)
    own = dict.fromkeys(range(1000), OwnTime())
    stragglers.look(0, 0, own)
    own = {rank: OwnTime(120, 120, random.randrange(5, 15), 0, WINDOW, 0) for rank in own}
    began = time.thread_time()
    assert stragglers.look(WINDOW, 1500, own) is not None
    assert time.thread_time() - began < 0.5

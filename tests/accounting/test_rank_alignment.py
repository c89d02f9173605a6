"""Ranks that are too fast for single steps, and change the sizes of their groups at different steps (rule R11)."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from otel_goodput._accounting import rank_alignment
from otel_goodput._accounting.events import NOT_KNOWN
from otel_goodput._accounting.job import JobAccount
from otel_goodput._accounting.rank_groups import grouped
from otel_goodput._accounting.rank_updates import RankUpdate
from otel_goodput._accounting.ranks import Piece, RankStep
from otel_goodput._accounting.rules import DATA_LOADING_TIME
from otel_goodput._accounting.totals import Totals
from otel_goodput.semconv import Category

US = 1_000
BEGIN = 1_764_000_000 * 10**9
Raw = dict[int, tuple[list[RankStep], list[Piece]]]


@pytest.fixture(autouse=True)
def _few_are_many(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "slow" not in request.node.name:
        monkeypatch.setattr(rank_alignment, "FAST", 0)


def fast_job(rng: random.Random, ranks: int, count: int, *, together: bool = True) -> Raw:
    """Steps of about a ms each, with a load before each; the loads of one rank are longer."""
    raw: Raw = {rank: ([], []) for rank in range(ranks)}
    at = dict.fromkeys(raw, BEGIN)
    pace = {rank: rng.randrange(300, 3000) for rank in raw}
    for number in range(1, count + 1):
        begins = {}
        for rank, (_, pieces) in raw.items():
            begins[rank] = at[rank] + rng.randrange(50, 800 if rank == 1 else 200) * US
            pieces.append(Piece(at[rank], begins[rank], DATA_LOADING_TIME))
        done = max(begins.values()) + rng.randrange(200, 600) * US
        for rank, (steps, _) in raw.items():
            end = done + rng.randrange(20) * US if together else begins[rank] + pace[rank] * US
            steps.append(RankStep(number, begins[rank], end))
            at[rank] = end
    return raw


def updates(rng: random.Random, raw: Raw, sizes: tuple[int, ...]) -> Iterator[tuple[int, RankUpdate]]:
    """What the ranks publish, every 100 ms or so, each with groups whose size changes now and then."""
    streams = []
    for rank, (steps, pieces) in raw.items():
        rest, between, first, taken, size, at = list[RankStep](), list[Piece](), 0, 0, rng.choice(sizes), BEGIN
        last = steps[-1].end
        while at < last:
            at = min(at + rng.randrange(50_000, 150_000) * US, last)
            behind = next((place for place in range(first, len(steps)) if steps[place].end > at), len(steps))
            end = steps[behind - 1].end if behind else BEGIN
            upto = next((place for place in range(taken, len(pieces)) if pieces[place].begin >= end), len(pieces))
            if rng.random() < 0.3:
                size = max(rng.choice(sizes), size // 2)  # as ranks do, it is halved at once
            new, parts, rest, between = grouped(rest + steps[first:behind], between + pieces[taken:upto], size)
            left = NOT_KNOWN
            if at == last:
                new, parts, rest, between, left = new + rest, parts + between, [], [], last
            known = min([end, *(one.begin for one in (*rest[:1], *between[:1]))])
            streams.append((at, rank, RankUpdate(BEGIN, known, max(at, known), left, new, parts, None, size)))
            first, taken = behind, upto
    for _, rank, update in sorted(streams, key=lambda one: (one[0], one[1])):
        yield rank, update


def accounted(raw: Raw, published: Iterator[tuple[int, RankUpdate]], *, aligned: bool = True) -> JobAccount:
    account = JobAccount()
    account.expect(raw)
    for rank, update in published:
        account.update(rank, update if aligned else update._replace(size=0))
    return account


def loading(totals: Totals) -> float:
    return totals.run.categories[Category.DATA_LOADING] / totals.run.elapsed


@pytest.mark.parametrize("seed", range(6))
def test_ranks_that_change_their_groups_at_different_steps_step_together(seed: int) -> None:
    rng = random.Random(seed)
    raw = fast_job(rng, rng.choice((2, 3, 5)), 3000)
    account = accounted(raw, updates(rng, raw, (1, 2, 4, 8)))
    assert account.together and account.clocks_disagree == {}
    totals, whole = account.totals(), JobAccount()
    whole.expect(raw)
    for rank in raw:
        whole.join(rank, BEGIN)
    for rank, (steps, pieces) in raw.items():
        whole.feed(rank, steps, pieces, steps[-1].end)
        whole.leave(rank, steps[-1].end, died=False)
    exact = whole.totals()
    assert totals.run.elapsed == exact.run.elapsed == sum(totals.run.categories.values())
    assert totals.kept == 3000 == exact.kept, "every step of a group is counted"
    assert loading(totals) == pytest.approx(loading(exact), abs=0.02), "within the length of a group"


def test_without_it_they_would_not() -> None:
    rng = random.Random(1)
    raw = fast_job(rng, 3, 3000)
    every = list(updates(rng, raw, (1, 2, 4, 8)))
    assert accounted(raw, iter(every)).together and not accounted(raw, iter(every), aligned=False).together


@pytest.mark.parametrize("seed", range(2))
def test_ranks_that_do_not_step_together_are_still_seen(seed: int) -> None:
    rng = random.Random(seed)
    raw = fast_job(rng, 3, 2000, together=False)
    account = accounted(raw, updates(rng, raw, (1, 2, 4, 8)))
    totals = account.totals()
    assert not account.together and totals.run.elapsed == sum(totals.run.categories.values())
    alone = [sum(piece.end - piece.begin for piece in pieces) for _, pieces in raw.values()]
    lengths = [steps[-1].end - BEGIN for steps, _ in raw.values()]
    assert loading(totals) == pytest.approx(sum(alone) / sum(lengths), rel=0.02)


@pytest.mark.parametrize("died", [True, False])
def test_a_rank_that_stops_holds_nobody_up(died: bool) -> None:
    rng = random.Random(7)
    raw = fast_job(rng, 3, 1500)
    end = raw[2][0][700].end
    account, held = JobAccount(), 0
    account.expect(raw)
    for rank, update in updates(rng, raw, (1, 4)):
        if rank != 2 or update.at < end:
            account.update(rank, update._replace(left=NOT_KNOWN))
        held = max(held, account.horizon)
    assert held < end, "it is waited for"
    account.leave(2, end, died=died)
    assert account.horizon > end if not died else account.horizon >= held
    account.leave(0, raw[0][0][-1].end, died=False)
    account.leave(1, raw[1][0][-1].end, died=False)
    assert account.totals().run.elapsed == sum(account.totals().run.categories.values())


def test_slow_ranks_wait_for_nothing() -> None:
    account = JobAccount()
    for rank in range(2):
        account.update(rank, RankUpdate(0, 0, 1, NOT_KNOWN, [], [], None))
    steps = [RankStep(number, 100 * number + 1, 100 * number + 90) for number in range(50)]
    for rank in range(2):
        account.update(rank, RankUpdate(0, 5000, 5000, NOT_KNOWN, steps, [], None))
        assert account.horizon == (0 if rank == 0 else 5000)

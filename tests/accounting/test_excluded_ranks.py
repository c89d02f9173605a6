"""Time that ranks exclude, or in which their hosts were suspended, in the account of their job (rules R7 and R11)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeAlias, TypeVar

import pytest

from accounting.test_ranks import LOAD, SECOND, parts
from otel_goodput._accounting.events import NOT_KNOWN
from otel_goodput._accounting.job import JobAccount
from otel_goodput._accounting.ranks import Piece, RankStep
from otel_goodput._accounting.rules import CUT_OUT, EXCLUDED_TIME, OTHER, SUSPENDED_TIME
from otel_goodput.semconv import Category

T = TypeVar("T")
Times: TypeAlias = Mapping[int, Sequence[T]]  # by rank


def seconds(account: JobAccount, at: int | None = None) -> dict[str, float]:
    """Seconds by category, of steps together, and those that are in none."""
    totals = account.totals(at)
    run = totals.run
    assert sum(run.categories.values()) + sum(run.custom.values()) == run.elapsed
    spent = Counter({name: time / SECOND for name, time in parts(run).items()})
    return dict(+(spent + Counter(excluded=totals.excluded / SECOND, suspended=totals.suspended / SECOND)))


@pytest.mark.parametrize("cut", sorted(CUT_OUT))
def test_time_that_ranks_exclude_is_no_time_of_the_job_and_nobodys_fault(cut: int) -> None:
    """Before the first step and after the last one, on all ranks or one of them, and in steps."""
    account, what = JobAccount(), "excluded" if cut == EXCLUDED_TIME else "suspended"
    for rank in range(4):
        account.join(rank, 0)

    def feed(steps: Times[tuple[int, int, int]], pieces: Times[tuple[int, int]], known: int) -> None:
        for rank in range(4):
            own = [Piece(begin * SECOND, end * SECOND, cut) for begin, end in pieces.get(rank, ())]
            taken = [RankStep(number, begin * SECOND, end * SECOND) for number, begin, end in steps.get(rank, ())]
            account.feed(rank, taken, own, known * SECOND)

    every = range(4)
    feed({}, {rank: [(0, 5)] for rank in every}, 7)  # the start
    assert seconds(account) == {"elapsed": 2, "other": 2, what: 5}
    feed({rank: [(0, 7, 10)] for rank in every}, {}, 10)
    account.feed(2, [], [Piece(10 * SECOND, 30 * SECOND, cut)], 31 * SECOND)  # one of them, the others wait for it
    for rank in every:
        if rank != 2:
            account.feed(rank, [RankStep(1, 10 * SECOND, NOT_KNOWN)], [], 31 * SECOND)
    assert seconds(account, 30 * SECOND) == {"elapsed": 5, "other": 2, "steps": 3, what: 25}
    assert account.open_now(20 * SECOND).cause is None and account.open_now(30 * SECOND).cause is None
    feed({rank: [(1, 31 if rank == 2 else 10, 50)] for rank in every}, {1: [(35, 40)]}, 50)  # in its step
    assert seconds(account) == {"elapsed": 20, "other": 3, "steps": 17, what: 30}
    for rank, categories in ((0, [LOAD]), (1, [cut, LOAD])):  # of what they do in a step, that counts which ends last
        begins = range(50, 50 + 10 * len(categories), 10)
        own = [Piece(at * SECOND, (at + 10) * SECOND, one) for at, one in zip(begins, categories, strict=True)]
        account.feed(rank, [RankStep(2, 50 * SECOND - 1, 80 * SECOND)], own, 80 * SECOND)
    feed({rank: [(2, 50, 80)] for rank in (2, 3)}, {3: [(50, 55)]}, 80)
    assert seconds(account)[what] == 30 and seconds(account)[Category.DATA_LOADING] == 20
    feed({}, {rank: [(80, 90)] for rank in every}, 91)  # the end
    for rank in every:
        account.leave(rank, 91 * SECOND, died=False)
    account.conclude(failed=False)
    assert seconds(account) == {"elapsed": 51, "other": 4, "steps": 27, "data_loading": 20, what: 40}
    assert {cause.category for cause in account.costs.whole} <= {LOAD, OTHER}


def test_ranks_that_do_not_step_together_have_the_sum_of_what_they_exclude() -> None:
    account = JobAccount()
    for rank in range(2):
        account.place(rank, f"role {rank}")
        account.join(rank, 0)
        pieces = [Piece(0, 10 * SECOND, EXCLUDED_TIME)] if rank == 0 else []
        suspended = Piece(10 * SECOND, 14 * SECOND, SUSPENDED_TIME)
        account.feed(rank, [RankStep(0, 14 * SECOND, 20 * SECOND)], [*pieces, suspended], 20 * SECOND)
    assert seconds(account) == {"elapsed": 11, "other": 5, "steps": 6, "excluded": 5, "suspended": 4}

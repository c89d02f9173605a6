"""The job of several ranks (rule R11): each of its moments, which rank it waits for, and its account by one ledger.

Longer than other files, because its stories and drawings are of the same small jobs.
"""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting.rank_simulator import MS, SimulatedJob, every_millisecond, reports, simulate
from otel_goodput._accounting import events as ev
from otel_goodput._accounting.events import FAILED, NO_STEP, NOT_KNOWN, Event
from otel_goodput._accounting.job import Cause, JobAccount
from otel_goodput._accounting.rank_updates import DOING
from otel_goodput._accounting.ranks import DIED, NOBODY, STEP_TIME, JobStep, Piece, RankMerger, RankStep
from otel_goodput._accounting.rules import CATEGORY_INDEX, EXCLUDED_TIME, OTHER, RECOVERY
from otel_goodput._accounting.totals import Partition
from otel_goodput._timeline.ranks import digest_of
from otel_goodput.reports.timeline import Timeline, account
from otel_goodput.semconv import Category, Phase

from .intervals import cut_out_in, traced
from .strategies import Rows, runs
from .test_properties import MANY, USUAL

LOAD, SAVE, INIT = (
    CATEGORY_INDEX[name] for name in (Category.DATA_LOADING, Category.CHECKPOINT_SAVE, Category.ACCELERATOR_INIT)
)
OF_STEPS = (Category.PRODUCTIVE, Category.WASTED_PROGRESS, Category.IN_FLIGHT, Category.STALLED)
SECOND = 1000 * MS
JOBS = 60
MANY_JOBS = 2500  # with restarts and without: 5,000
RELEASED = [
    pytest.param(range(first, first + 250), id=f"{first}", marks=pytest.mark.release)
    for first in range(JOBS, MANY_JOBS, 250)
]
SEEDS = pytest.mark.parametrize("seeds", [pytest.param(range(JOBS), id="usual"), *RELEASED])


def jobs(seeds: range, *, restarts: bool) -> Iterator[tuple[random.Random, SimulatedJob]]:
    """Random jobs: one in a hundred of many ranks, and one in twenty with a rank of which nothing is known."""
    for seed in seeds:
        rng = random.Random(seed)
        counts = (64, 200, 512) if seed % 100 == 99 else (2, 3, 4, 8, 16)
        job = simulate(rng, restarts=restarts, counts=counts)
        if seed % 20 == 19 and not restarts and len(job.begins) > 1:
            job = job.without(rng.choice(sorted(job.begins)))
        if job.groups:
            yield rng, job


def begun(job: SimulatedJob, account: RankMerger | JobAccount) -> None:
    for rank, begin in job.begins.items():
        if rank not in job.joins:
            account.join(rank, begin * MS)


def merged(job: SimulatedJob, rng: random.Random) -> tuple[RankMerger, list[tuple[int, int, tuple[object, ...]]]]:
    """What is decided of a job: begin, end (ns) and owner of each stretch, as the simulator names owners."""
    merger = RankMerger()
    begun(job, merger)
    decided: list[tuple[int, int, tuple[object, ...]]] = []
    for report in reports(job, rng):
        report(merger)
        for item in merger.take():
            number = item.number if isinstance(item, JobStep) else NO_STEP
            for begin, end, category, name, rank, waits in item.stretches if isinstance(item, JobStep) else (item,):
                owner = (
                    (number, 0, "", NOBODY, False) if category == STEP_TIME else (NO_STEP, category, name, rank, waits)
                )
                decided.append((begin, end, owner))
    return merger, decided


@pytest.mark.parametrize("restarts", [False, True], ids=["undisturbed", "with restarts"])
@SEEDS
def test_each_moment_belongs_to_the_step_or_to_the_rank_that_the_job_waits_for(seeds: range, restarts: bool) -> None:
    for rng, job in jobs(seeds, restarts=restarts):
        merger, decided = merged(job, rng)
        spent: Counter[object] = Counter()
        reached = min(job.begins.values()) * MS
        for begin, end, owner in decided:
            assert begin == reached
            reached = end
            spent[owner] += (end - begin) // MS
        assert +spent == every_millisecond(job)
        assert merger.together and not merger.apart


@pytest.mark.parametrize("restarts", [False, True], ids=["undisturbed", "with restarts"])
@SEEDS
def test_one_ledger_accounts_the_job_and_its_categories_add_up_at_any_time(seeds: range, restarts: bool) -> None:
    for rng, job in jobs(seeds, restarts=restarts):
        account = JobAccount([60 * SECOND])
        begun(job, account)
        begin = min(job.begins.values()) * MS
        for report in reports(job, rng):
            report(account)
            if account.horizon > begin and rng.random() < 0.2:
                whole = account.totals()
                totals = whole.run
                assert totals.elapsed + whole.excluded + whole.suspended == account.horizon - begin
                assert sum(totals.categories.values()) + sum(totals.custom.values()) == totals.elapsed
        whole = account.totals(job.end * MS)
        totals = whole.run
        assert sum(sum(held.values()) for held in account.overview(job.end * MS).bins) == totals.elapsed
        expected: Counter[str] = Counter()
        for (number, category, *_), spent in every_millisecond(job).items():
            expected["step" if number != NO_STEP else DOING[category]] += spent * MS
        assert whole.excluded == expected.pop(Phase.EXCLUSION, 0)
        assert whole.suspended == expected.pop("suspended", 0)
        times = Counter({name: spent for name, spent in totals.categories.items() if spent})
        times[Category.CUSTOM] += sum(totals.custom.values())
        # Start-up of first steps is the only time of steps that a ledger gives to another category (R5).
        startup = times.pop(Category.PROGRAM_STARTUP, 0)
        of_steps = sum(times.pop(name, 0) for name in OF_STEPS)
        assert startup >= expected[Category.PROGRAM_STARTUP]
        assert of_steps + startup == expected.pop("step", 0) + expected.pop(Category.PROGRAM_STARTUP, 0)
        assert +times == +expected


@SEEDS
def test_the_rank_with_the_slow_loader_is_the_one_that_cost_most(seeds: range) -> None:
    right = wrong = 0
    for seed in seeds:
        rng = random.Random(seed)
        job = simulate(rng, slow_only=True)
        if not job.groups or 50 * job.delayed < job.end - min(job.begins.values()):
            continue
        account = JobAccount()
        begun(job, account)
        for report in reports(job, rng):
            report(account)
        whole = Counter[int]()
        for cause, spent in account.costs.whole.items():
            whole[cause.rank] += spent
        named = max(whole, key=whole.__getitem__, default=None) == job.slow
        right, wrong = right + named, wrong + (not named)
    assert right > len(seeds) // 4 and 100 * wrong <= right + wrong


# --- stories ----------------------------------------------------------------------------------------------------------


class Ranks:
    """A job told step by step: what each rank does before step `n`, in seconds; a step takes one second."""

    def __init__(self, count: int, clocks: dict[int, int] | None = None) -> None:
        self.account = JobAccount([3600 * SECOND], spread=10 * MS)
        self.at = dict.fromkeys(range(count), 0)
        self.late = clocks or {}
        self.number = 0
        for rank in range(count):
            self.account.join(rank, 0)

    def step(self, loads: dict[int, float] | None = None) -> None:
        loads = loads or {}
        begins = {rank: at + round(loads.get(rank, 0.1) * SECOND) for rank, at in self.at.items()}
        done = max(begins.values()) + SECOND
        for rank, begin in begins.items():
            end = done + self.late.get(rank, 0)
            load = Piece(self.at[rank], begin, LOAD)
            self.account.feed(rank, [RankStep(self.number, begin, end)], [load], end)
            self.at[rank] = end
        self.number += 1

    @property
    def shares(self) -> dict[str, float]:
        run = self.account.totals().run
        return {name: spent / run.elapsed for name, spent in run.categories.items() if spent}


def test_an_account_that_is_continued_has_the_time_in_which_the_job_was_away() -> None:
    job, events = Ranks(4), list[Event]()
    for _ in range(5):
        job.step()
    ledger, before = job.account.ledger, job.account.totals()
    job.account = JobAccount(spread=10 * MS, ledger=ledger, record=events.extend)
    job.at = {rank: at + 30 * SECOND for rank, at in job.at.items()}
    for rank, at in job.at.items():
        job.account.join(rank, at)
    for _ in range(3):
        job.step({2: 0.5})
    assert ledger.totals(before.at) == before  # whoever records the events feeds them
    ledger.feed(events)
    totals = job.account.totals()
    assert totals.run.elapsed == before.run.elapsed + 30 * SECOND + round(3 * 1.5 * SECOND)
    assert totals.run.categories[Category.INFRASTRUCTURE_RECOVERY] == 30 * SECOND
    assert totals.attempts == 2 and totals.kept == 8


def test_a_job_that_is_over_on_all_ranks_has_ended() -> None:
    job = Ranks(4)
    for _ in range(3):
        job.step()
    for rank, at in job.at.items():
        job.account.feed(rank, (), [Piece(at, at + SECOND, CATEGORY_INDEX[Category.CHECKPOINT_SAVE])], at + SECOND)
        job.account.leave(rank, at + SECOND, died=False)
    open_one = job.account.totals()
    job.account.conclude(failed=False)
    totals = job.account.totals()
    assert not open_one.ended and totals.ended and totals.finished
    assert totals.run == open_one.run and totals.run.categories[Category.CHECKPOINT_SAVE] == SECOND


def test_a_step_in_which_one_died_is_over_even_if_another_one_completed_it() -> None:
    """It is killed once all have exchanged what they computed: the others notice it in the next step."""
    job = Ranks(2)
    job.step()
    account, at, number = job.account, job.at[0], job.number
    account.feed(1, [RankStep(number, at, NOT_KNOWN)], [], at + SECOND)
    account.leave(1, at + SECOND, died=True)
    ended = RankStep(number, at, at + SECOND + 5 * MS)
    failed = RankStep(number + 1, at + SECOND + 6 * MS, at + SECOND + 60 * MS, FAILED)
    account.feed(0, [ended, failed], [], failed.end)
    account.leave(0, failed.end, died=False)
    for rank in (0, 1):
        account.join(rank, at + 5 * SECOND)
    for rank in (0, 1):
        account.feed(rank, [RankStep(number, at + 6 * SECOND, at + 7 * SECOND)], [], at + 7 * SECOND)
    totals = account.totals()
    assert totals.attempts == 2 and totals.run.categories[Category.INFRASTRUCTURE_RECOVERY] == 4 * SECOND


@pytest.mark.parametrize("step", [False, True], ids=["in their start", "one in a step"])
def test_each_start_that_fails_before_all_ranks_are_back_is_a_disruption(step: bool) -> None:
    """Rank 2 is on a slow host: it comes when the others have died once more."""
    job = Ranks(3)
    for _ in range(4):
        job.step()
    account, died = job.account, job.at[0]
    for rank in job.at:
        account.leave(rank, died, died=True)
    for attempt in range(3):
        begin = died + (2 + 20 * attempt) * SECOND
        for rank in (0, 1):
            account.join(rank, begin + rank * SECOND)
            steps = [RankStep(4, begin + 8 * SECOND, NOT_KNOWN)] if step and rank == 0 else []
            init = Piece(begin + rank * SECOND, begin + (10 - 2 * len(steps)) * SECOND, INIT)
            account.feed(rank, steps, [init], begin + 10 * SECOND)
            account.leave(rank, begin + (10 + rank) * SECOND, died=True)
        account.join(2, begin + 12 * SECOND)
        account.leave(2, begin + 13 * SECOND, died=True)
        assert account.totals().attempts == 2 + attempt
    back = died + 70 * SECOND
    for rank in job.at:
        account.join(rank, back)
    job.at = dict.fromkeys(job.at, back)
    job.step()
    totals, ours = account.totals(), (7 if step else 9) * SECOND
    assert totals.attempts == 5 and sum(totals.disruptions.values()) == 4
    assert totals.run.categories[Category.ACCELERATOR_INIT] == 3 * ours
    assert totals.run.categories[Category.INFRASTRUCTURE_RECOVERY] == 70 * SECOND - 3 * ours
    assert [one.time for one in totals.history] == [died + (3 + 20 * at) * SECOND for at in range(3)] + [back]
    assert (totals.kept, totals.lost) == (5, 0)


def test_what_the_leader_notes_while_ranks_are_away_is_no_sign_of_life_of_the_job() -> None:
    """It is back before the others, sets the limit of its steps, and commits a checkpoint."""
    job = Ranks(3)
    for _ in range(3):
        job.step()
    account, died = job.account, job.at[0]
    for rank in job.at:
        account.leave(rank, died, died=True)
    for rank, back in enumerate((10, 20, 30)):
        account.join(rank, died + back * SECOND)
    account.note([Event(died + 11 * SECOND, ev.LIMIT, 0, 500 * MS), Event(died + 12 * SECOND, ev.DURABLE, step=2)])
    job.at = {rank: died + (10 + 10 * rank) * SECOND for rank in job.at}
    job.step({0: 21.0, 1: 11.0, 2: 1.0})
    for _ in range(9):
        job.step()
    totals = account.totals()
    assert totals.run.categories[Category.INFRASTRUCTURE_RECOVERY] == 30 * SECOND
    assert totals.history[-1].recovery == 30 * SECOND and totals.attempts == 2
    assert totals.run.categories[Category.STALLED]  # the limit holds for the steps of the attempt


def test_a_role_that_is_heard_of_when_the_others_are_over_does_not_hide_their_steps() -> None:
    account = JobAccount()
    account.expect(range(3))
    for rank, role in enumerate(("learner", "learner", "actor")):
        account.place(rank, role)
        account.join(rank, 0)
        steps = [RankStep(number, number * SECOND, (number + 1) * SECOND) for number in range(5)]
        account.feed(rank, steps, (), 5 * SECOND)
        account.leave(rank, 5 * SECOND, died=False)
    account.conclude(failed=False)
    for totals in account.totals_of_roles().values():
        assert totals.kept == 5 and totals.run.categories[Category.OTHER] == 0


def test_an_outage_is_recovery_while_it_lasts() -> None:
    job = Ranks(3)
    job.step()
    account, died = job.account, job.at[0]
    before = account.totals().run
    for rank in job.at:
        account.leave(rank, died, died=True)
        assert account.totals().run == before
    for rank in job.at:  # one more is back
        at = died + 10 * (rank + 1) * SECOND
        account.join(rank, at)
        for other in range(rank + 1):
            account.feed(other, (), [Piece(at, at + SECOND, LOAD)], at + SECOND)
        totals, load = account.totals(), SECOND if rank == 2 else 0
        assert (totals.attempts, totals.at) == (2, at + SECOND)
        assert totals.run.categories == {
            **before.categories,
            Category.DATA_LOADING: before.categories[Category.DATA_LOADING] + load,
            Category.INFRASTRUCTURE_RECOVERY: at + SECOND - load - died,
        }


def test_a_rank_that_was_not_in_an_attempt_goes_back_with_the_others() -> None:
    """All steps are reported before any is decided, as when journals are merged."""
    account, begins = JobAccount(), (0, 10, 20)
    for rank in range(3):
        account.join(rank, 0)
    for rank in (1, 2, 0):
        steps, pieces, away = list[RankStep](), list[Piece](), 0
        for number, begin in enumerate(begins):
            if rank == 2 and number == 1:
                continue  # this attempt is of two ranks
            at, first = begin * SECOND, 3 * number  # each attempt lost the last of its four steps
            pieces += [Piece(away, at, RECOVERY)] if away else []
            steps += [RankStep(first + one, at + one * SECOND, at + (one + 1) * SECOND) for one in range(4)]
            away = at + 5 * SECOND
        account.feed(rank, steps, pieces, 24 * SECOND)
    totals = account.totals()
    assert account.together and not account.left_out
    assert (totals.kept, totals.lost, sum(totals.disruptions.values())) == (10, 2, 2)


@pytest.mark.parametrize("alone", [True, False])
def test_a_step_that_fails_on_one_rank_and_is_tried_again_there_is_waited_for(alone: bool) -> None:
    """The others are in it all the time; if it fails on all of them, it is lost, and taken once more."""
    job = Ranks(3)
    for _ in range(3):
        job.step()
    account, begin, number = job.account, job.at[0], job.number
    updates = list[tuple[int, list[RankStep]]]()
    for rank in range(3):
        if alone and rank < 2:
            steps = [RankStep(number, begin, begin + 3 * SECOND)]
        else:
            failed = RankStep(number, begin, begin + SECOND, FAILED)
            steps = [failed, RankStep(number, begin + 2 * SECOND, begin + 3 * SECOND)]
        updates.append((rank, steps))
    for rank, steps in updates:
        account.feed(rank, steps[:1], [], begin + (3 if len(steps) == 1 else 1) * SECOND)
    for rank, steps in updates:
        account.feed(rank, steps[1:], [], begin + 3 * SECOND)
    job.at, job.number = dict.fromkeys(job.at, begin + 3 * SECOND), number + 1
    job.step()
    totals = account.totals()
    assert account.together
    assert (totals.kept, totals.lost) == (5, 0 if alone else 1)
    assert totals.run.categories[Category.WASTED_PROGRESS] == (0 if alone else SECOND)
    assert totals.run.categories[Category.OTHER] == (2 if alone else 1) * SECOND
    assert account.costs.whole == ({Cause(2, CATEGORY_INDEX[Category.OTHER], ""): 2 * SECOND} if alone else {})


@pytest.mark.parametrize("died", [False, True])
def test_ranks_that_are_gone_do_not_keep_the_others_from_going_back(died: bool) -> None:
    """The next attempt is of fewer ranks."""
    account = JobAccount()
    for rank in range(5):
        account.join(rank, 0)
    for rank in range(5):
        steps = [RankStep(number, number * SECOND, (number + 1) * SECOND) for number in range(4)]
        again = [RankStep(number, (20 + number) * SECOND, (21 + number) * SECOND) for number in range(2, 10)]
        if rank < 2:  # which is back at 20 s, or at 21 s
            back = (20 + rank) * SECOND
            pieces = [Piece(4 * SECOND, back, RECOVERY), Piece(back, 22 * SECOND, INIT)]
            account.feed(rank, [*steps, *again], pieces, 30 * SECOND)
        else:
            account.feed(rank, steps, [], 4 * SECOND)
            account.leave(rank, 4 * SECOND, died=died)
    totals = account.totals()
    assert account.together
    assert (totals.kept, totals.lost, sum(totals.disruptions.values())) == (10, 2, 1)
    assert totals.run.categories[Category.INFRASTRUCTURE_RECOVERY] == 17 * SECOND
    assert totals.run.categories[Category.ACCELERATOR_INIT] == SECOND


@pytest.mark.parametrize(("after", "disruptions"), [(3, 1), (100, 2)])
def test_ranks_that_one_left_behind_are_ended_later_in_the_same_disruption(after: int, disruptions: int) -> None:
    """They do not exchange anything, so that they complete steps until the launcher ends them, if it does."""
    job = Ranks(2)
    for _ in range(4):
        job.step()
    account, died, number = job.account, job.at[1], job.number
    account.leave(1, died, died=True)
    steps = [RankStep(number + one, died + one * SECOND, died + (one + 1) * SECOND) for one in range(1, after + 1)]
    account.feed(0, steps, [], steps[-1].end)
    account.leave(0, steps[-1].end, died=True)
    back = steps[-1].end + 5 * SECOND
    for rank in (0, 1):
        account.join(rank, back + rank * 500 * MS)
    for rank in (0, 1):
        steps = [RankStep(2 + one, back + (1 + one) * SECOND, back + (2 + one) * SECOND) for one in range(9)]
        account.feed(rank, steps, [], steps[-1].end)
    totals = account.totals()
    assert sum(totals.disruptions.values()) == len(totals.history) == disruptions
    assert totals.attempts == disruptions + 1
    assert totals.run.categories[Category.INFRASTRUCTURE_RECOVERY] == 6 * SECOND
    assert sum(one.recovery for one in totals.history) == 6 * SECOND
    assert (totals.history[0].died, totals.history[-1].time) == (died, back)
    assert totals.lost == after + 2  # from step 2 on


def test_a_step_that_one_rank_began_before_the_death_and_another_after_it_is_no_attempt_of_its_own() -> None:
    """Rank 2 was still loading when rank 1 died before the step. The others complete it, and are ended."""
    job = Ranks(3)
    for _ in range(4):
        job.step()
    account, at, number = job.account, job.at[0], job.number
    died = at + 10 * MS
    account.feed(1, [], [], died)
    for rank, begin in ((0, at), (2, at + 40 * MS)):
        account.feed(rank, [RankStep(number, begin, at + 80 * MS)], [], at + SECOND)
    for rank in (1, 0, 2):
        account.leave(rank, died if rank == 1 else at + SECOND, died=True)
    back = at + 10 * SECOND
    for rank in range(3):
        account.join(rank, back)
    for rank in range(3):
        account.feed(rank, [RankStep(number, back + SECOND, back + 2 * SECOND)], [], back + 2 * SECOND)
    totals = account.totals()
    assert (sum(totals.disruptions.values()), totals.attempts) == (1, 2)
    (one,) = totals.history
    assert (one.died, one.recovery) == (died, back - died - 40 * MS)
    assert (one.from_step, one.to_step, one.kept_step) == (number, number, number)
    assert (one.first_step, one.regained) == (2 * SECOND, 2 * SECOND)
    assert (totals.kept, totals.lost) == (5, 1)


def test_ranks_that_train_one_after_the_other_have_no_start_that_fails() -> None:
    """Each of them takes its step and ends before the next one begins, attempt after attempt."""
    account = JobAccount(spread=20 * MS)
    account.expect(range(3))
    for rank in range(3):
        account.join(rank, rank * 2 * MS)
    for rank in range(3):
        begins = [attempt * SECOND + rank * 2 * MS for attempt in range(3)]
        steps = [RankStep(number, begin + MS // 2, begin + MS) for number, begin in enumerate(begins)]
        away = [Piece(begin + MS, begin + SECOND, RECOVERY) for begin in begins[:2]]
        account.feed(rank, steps, away, steps[-1].end)
    totals = account.totals()
    assert account.together
    assert (totals.attempts, sum(totals.disruptions.values()), totals.kept) == (3, 2, 3)


def test_a_rank_with_a_slow_loader_lowers_the_goodput_of_the_job_and_is_named() -> None:
    even, slow = Ranks(8), Ranks(8)
    for _ in range(100):
        even.step()
        slow.step({5: 0.4})
    assert even.shares[Category.PRODUCTIVE] == pytest.approx(1 / 1.1)
    assert slow.shares[Category.PRODUCTIVE] == pytest.approx(1 / 1.4)
    assert slow.account.costs.whole == {Cause(5, LOAD, ""): 100 * 300 * MS}
    assert not even.account.costs.whole


def test_a_rank_that_hangs_in_its_loader_is_the_one_that_is_named_again_and_again() -> None:
    job = Ranks(4)
    for _ in range(10):
        job.step()
    begin = job.at[2]
    for seconds in range(1, 200, 10):
        now = begin + seconds * SECOND
        for rank in (0, 1, 3):
            job.account.feed(rank, [RankStep(10, begin + 100 * MS, -1)], [], now)
        job.account.feed(2, [], [Piece(max(begin, now - 10 * SECOND), now, LOAD)], now)
        assert job.account.waits(now) == {Cause(2, LOAD, ""): begin + 100 * MS}


@pytest.mark.parametrize("ends", ["killed", "the one that hangs first", "the others fail"])
@pytest.mark.parametrize("again", [False, True], ids=["for good", "restarted"])
@pytest.mark.parametrize("steps", [0, 1], ids=["first step", "later"])
def test_a_rank_that_hangs_in_its_loader_until_all_are_killed_has_that_time(ends: str, again: bool, steps: int) -> None:
    job = Ranks(4)
    for _ in range(steps):
        job.step()
    account, begin = job.account, job.at[2]
    end = begin + 600 * SECOND
    account.feed(2, (), [Piece(begin, end, LOAD)], end)
    for rank in (0, 1, 3):
        piece = Piece(begin, begin + 100 * MS, LOAD)
        account.feed(rank, [RankStep(steps, begin + 100 * MS, NOT_KNOWN)], [piece], end)
    live = account.totals(end)
    order = (2, 0, 1, 3) if ends == "the one that hangs first" else (0, 1, 3, 2)
    for at, rank in enumerate(order):
        left = end if rank == 2 else end + at * MS
        if ends == "the others fail" and rank != 2:
            account.feed(rank, [RankStep(steps, begin + 100 * MS, left, FAILED)], (), left)
        account.leave(rank, left, died=ends != "the others fail" or rank == 2)
    back = end + 60 * SECOND
    if again:
        for rank in job.at:
            account.join(rank, back)
        job.at = dict.fromkeys(job.at, back)
        job.step()
    totals = account.totals()
    whole = account.costs_at(account.horizon).whole
    assert {cause: spent for cause, spent in whole.items() if cause.category != RECOVERY} == {
        Cause(2, LOAD, ""): end - begin - 100 * MS
    }
    if not again:
        assert totals.run == live.run
        return
    assert totals.lost == 0 and totals.attempts == 2
    back_to_work = {
        Category.DATA_LOADING: 100 * MS,
        Category.PRODUCTIVE: SECOND,
        Category.INFRASTRUCTURE_RECOVERY: back - end,
    }
    assert totals.run.categories == {
        name: spent + back_to_work.get(name, 0) for name, spent in live.run.categories.items()
    }


def test_a_standstill_in_one_ranks_loader_is_no_goodput_although_the_step_completes() -> None:
    job = Ranks(4)
    for number in range(60):
        job.step({1: 258.0} if number == 30 else {})
    assert job.shares[Category.DATA_LOADING] == pytest.approx((258 + 59 * 0.1) / (258 + 59 * 0.1 + 60))
    assert job.account.costs.whole == {Cause(1, LOAD, ""): round(257.9 * SECOND)}


def test_a_rank_whose_steps_end_a_little_late_each_time_stays_visible() -> None:
    job = Ranks(4, {2: 5 * MS})
    for _ in range(50):
        job.step()
    assert job.account.together
    # The others load 5 ms earlier: the job waits for this one.
    assert job.account.costs.whole == {Cause(2, LOAD, ""): 49 * 5 * MS}


def test_a_rank_that_ends_last_has_the_end_of_the_job() -> None:
    job = Ranks(4)
    job.step()
    begin = job.at[2]
    job.account.feed(2, [], [Piece(begin, begin + 9 * SECOND, SAVE)], begin + 9 * SECOND)
    assert job.account.totals(begin).run.elapsed == begin
    for rank in range(4):
        job.account.leave(rank, begin + 9 * SECOND if rank == 2 else begin, died=False)
    run = job.account.totals().run
    assert run.elapsed == begin + 9 * SECOND and run.categories[Category.CHECKPOINT_SAVE] == 9 * SECOND


def test_a_long_run_takes_no_longer_for_each_of_its_steps() -> None:
    def spent(count: int) -> float:
        account, period = JobAccount(), 20 * MS
        steps = [RankStep(number, number * period + 5 * MS, (number + 1) * period) for number in range(count)]
        pieces = [Piece(number * period, number * period + 5 * MS, LOAD) for number in range(count)]
        for rank in range(2):
            account.join(rank, 0)
        began = time.thread_time()
        for rank in range(2):
            account.feed(rank, steps, pieces, count * period)
        took = time.thread_time() - began
        assert account.totals().run.elapsed == count * period
        return took

    longer, shorter = (min(spent(count) for _ in range(3)) for count in (8_000, 1_000))
    assert longer < 2 * 8 * shorter


def test_nobody_is_named_while_several_ranks_are_not_there_yet() -> None:
    job = Ranks(4)
    job.step()
    begin = job.at[0]
    now = begin + 20 * SECOND
    job.account.feed(0, [RankStep(1, begin + MS, -1)], [], now)
    for rank in (1, 2, 3):
        job.account.feed(rank, [], [Piece(begin, now, LOAD)], now)
    assert job.account.waits(now) == {}
    assert job.shares[Category.DATA_LOADING] == pytest.approx(20.1 / 21.1)


@pytest.mark.parametrize("how", ["independent", "pipeline", "sweep"])
def test_ranks_that_do_not_step_together_are_noticed(how: str) -> None:
    rng, at = random.Random(how), [0] * 4
    steps: list[tuple[int, int, RankStep]] = []
    for number in range(400):
        for rank in range(4):
            begin, length = {
                "independent": (at[rank] + rng.randrange(3), rng.randrange(10, 40)),
                "pipeline": (number * 20 + rank * 25, 18),
                "sweep": (at[rank], 10 * (rank + 1)),
            }[how]
            at[rank] = begin + length
            steps.append((at[rank], rank, RankStep(number, begin * MS, at[rank] * MS)))
    merger = RankMerger(spread=2 * MS)
    for rank in range(4):
        merger.join(rank, 0)
    for end, rank, step in sorted(steps):
        merger.feed(rank, [step], [], end * MS)
    for rank in range(4):
        merger.leave(rank, at[rank] * MS, died=False)
    assert not merger.together


# --- one rank ---------------------------------------------------------------------------------------------------------


@given(rows=runs(), seed=st.integers(0, 2**32))
@settings(MANY, max_examples=USUAL // 2)
def test_a_job_of_one_rank_has_the_partition_of_that_rank(rows: Rows, seed: int) -> None:
    timeline = Timeline(rows)
    if timeline.latest is None:
        return
    events = cut_out_in(list(timeline.events(timeline.latest)), random.Random(seed))
    own = account(events, at=timeline.latest)
    digest = digest_of([*events, Event(timeline.latest, ev.HEARTBEAT)])
    if digest is None:
        return
    if digest.parts.pieces and digest.parts.pieces[-1][1:3] == (digest.end, RECOVERY):
        return  # nothing has happened since it came back
    job = JobAccount()
    job.join(0, digest.begin)
    job.feed(0, digest.parts.steps, digest.parts.pieces, digest.end)
    totals, expected = job.totals(digest.end), Counter(parts(own.run))
    # A body that was no step, in a step that is still open, is time of that step: the job has no other inside of steps.
    inside = sum(
        max(0, min(end, step.end if step.end != NOT_KNOWN else digest.end) - max(begin, step.begin))
        for begin, end, category in traced(events, at=timeline.latest).intervals()
        for step in digest.parts.steps
        if category == OTHER
    )
    expected += Counter({"steps": inside, Category.OTHER: -inside})
    assert Counter(parts(totals.run)) == expected
    assert (totals.excluded, totals.suspended) == (own.excluded, own.suspended)


def parts(partition: Partition) -> dict[str, int]:
    """ns by category; those of steps together, since which steps are start-up or lost does not matter here."""
    of_steps = (*OF_STEPS, Category.PROGRAM_STARTUP)
    times = {name: spent for name, spent in partition.categories.items() if spent and name not in of_steps}
    times |= {f"custom {name}": spent for name, spent in partition.custom.items() if spent}
    return times | {"steps": sum(partition.categories[name] for name in of_steps), "elapsed": partition.elapsed}


# --- the drawings of docs/accounting.md -------------------------------------------------------------------------------

RULES = (Path(__file__).parents[2] / "docs/accounting.md").read_text(encoding="utf-8")
DRAWINGS = re.findall(r"```ranks\n(.*?)```", RULES, re.DOTALL)
SUMS = re.findall(r"```sum\n(.*?)```", RULES, re.DOTALL)
LETTERS = {
    "l": LOAD,
    "s": SAVE,
    "a": INIT,
    "o": CATEGORY_INDEX[Category.OTHER],
    "g": CATEGORY_INDEX[Category.INFRASTRUCTURE_RECOVERY],
    "d": CATEGORY_INDEX[Category.ELASTIC_SLICE_DOWN],
    "x": EXCLUDED_TIME,
}
WIDTH = 11  # of the names of rows


def drawn(row: str) -> tuple[list[RankStep], list[Piece]]:
    """The steps and pieces of a rank; a character is a second. If it is away (`g`) after a step, it died in that."""
    steps = [
        RankStep(
            int(match[0][0]),
            match.start() * SECOND,
            match.end() * SECOND,
            FAILED | DIED if row[match.end() :].startswith("g") else 0,
        )
        for match in re.finditer(r"(\d)\1*", row)
    ]
    pieces = [
        Piece(match.start() * SECOND, match.end() * SECOND, LETTERS[match[0][0]])
        for match in re.finditer(r"([a-z])\1*", row)
    ]
    return steps, pieces


@pytest.mark.parametrize("drawing", DRAWINGS, ids=str)
def test_the_drawings_are_what_is_decided(drawing: str) -> None:
    rows = {line[:WIDTH].strip(): line[WIDTH:] for line in drawing.splitlines()}
    ranks = {int(name.removeprefix("rank ")): row for name, row in rows.items() if name.startswith("rank ")}
    merger = RankMerger()
    for rank in ranks:
        merger.join(rank, 0)
    for rank, row in ranks.items():
        steps, pieces = drawn(row.rstrip("!"))
        if row[-2:-1].isdigit() and row.endswith("!"):
            steps[-1] = steps[-1]._replace(end=NOT_KNOWN)  # it was killed in it
        if row[-2:-1].isalpha() and row.endswith("!"):
            pieces[-1] = pieces[-1]._replace(end=len(row) * SECOND)
        merger.feed(rank, steps, pieces, len(row) * SECOND)
        if row.endswith("!"):
            merger.leave(rank, len(row) * SECOND, died=True)
    account, waits = "", ""
    names = {category: letter for letter, category in LETTERS.items()} | {STEP_TIME: "p", EXCLUDED_TIME: "-"}
    for item in merger.take():
        for one in item.stretches if isinstance(item, JobStep) else (item,):
            seconds = (one.end - one.begin) // SECOND
            account += names[one.category] * seconds
            waits += (str(one.rank) if one.waits else " ") * seconds
    assert (account, waits.rstrip()) == (rows["account"], rows["waits"].rstrip())


@pytest.mark.parametrize("drawing", SUMS, ids=str)
def test_the_drawn_sums_are_those_of_roles(drawing: str) -> None:
    rows = {line[:WIDTH].strip(): line[WIDTH:] for line in drawing.splitlines()}
    account = JobAccount()
    for name in rows.keys() - {"seconds"}:
        account.place(int(name.removeprefix("rank ")), role=name)
    for name in rows.keys() - {"seconds"}:
        rank, row = int(name.removeprefix("rank ")), rows[name]
        account.join(rank, 0)
        account.feed(rank, *drawn(row), len(row) * SECOND)
    run = account.totals().run
    names = {"p": Category.PRODUCTIVE, "l": Category.DATA_LOADING}
    shares = {names[one[-1]]: round(float(one[:-1]) * SECOND) for one in rows["seconds"].split(", ")}
    # The sum of the first steps is start-up in part (R5).
    spent = {name: time for name, time in run.categories.items() if time and name != Category.PROGRAM_STARTUP}
    spent[Category.PRODUCTIVE] += run.categories[Category.PROGRAM_STARTUP]
    assert spent == shares


def test_there_are_drawings() -> None:
    assert DRAWINGS and SUMS

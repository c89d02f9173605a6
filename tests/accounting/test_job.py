"""The account of a job, live (rule R11): updates of its ranks, who is silent, and ranks that do not step together."""

from __future__ import annotations

import random

import pytest

from otel_goodput._accounting.events import NO_STEP, NOT_KNOWN
from otel_goodput._accounting.job import ABSENT, SILENT, Cause, JobAccount
from otel_goodput._accounting.rank_updates import Opened, RankUpdate
from otel_goodput._accounting.ranks import STEP_TIME, Piece, RankStep
from otel_goodput._accounting.rules import CATEGORY_INDEX, NS
from otel_goodput._accounting.totals import Partition
from otel_goodput._accounting.weighted import shared
from otel_goodput.semconv import Category

LOAD, SAVE = CATEGORY_INDEX[Category.DATA_LOADING], CATEGORY_INDEX[Category.CHECKPOINT_SAVE]


class UpdatedJob:
    """Ranks that train in step, a step a second after a load of 0.1 s, and publish every five seconds."""

    def __init__(self, count: int) -> None:
        self.account = JobAccount([3600 * NS], spread=5_000_000)
        self.number, self.now, self.ranks = 0, 0, list(range(count))
        self.account.expect(self.ranks)

    def train(self, seconds: int, without: frozenset[int] = frozenset()) -> None:
        for _ in range(seconds // 5):
            begin, self.now = self.now, self.now + 5 * NS
            steps = [
                RankStep(self.number + place, begin + place * NS + NS // 10, begin + (place + 1) * NS)
                for place in range(5)
            ]
            pieces = [Piece(begin + place * NS, begin + place * NS + NS // 10, LOAD) for place in range(5)]
            for rank in self.ranks:
                if rank not in without:
                    self.publish(rank, steps, pieces)
            self.number += 5

    def hang(self, seconds: int, rank: int, category: int = LOAD, without: frozenset[int] = frozenset()) -> None:
        """Have `rank` not come out of a phase before its next step, while the others wait in it."""
        began = self.now
        for _ in range(seconds // 5):
            begin, self.now = self.now, self.now + 5 * NS
            for other in self.ranks:
                if other in without:
                    continue
                if other == rank:
                    self.publish(rank, [], [Piece(begin, self.now, category)], Opened(category, "", NO_STEP, began))
                else:
                    since = began + NS // 10
                    load = [Piece(began, since, LOAD)] if begin == began else []
                    opened = Opened(STEP_TIME, "", self.number, since)
                    self.publish(other, [RankStep(self.number, since, NOT_KNOWN)], load, opened)

    def publish(
        self,
        rank: int,
        steps: list[RankStep],
        pieces: list[Piece],
        opened: Opened | None = None,
        *,
        joined: int = 0,
        left: int = NOT_KNOWN,
    ) -> None:
        self.account.update(rank, RankUpdate(joined, self.now, self.now, left, steps, pieces, opened))

    @property
    def run(self) -> Partition:
        run = self.account.totals().run
        assert sum(run.categories.values()) + sum(run.custom.values()) == run.elapsed
        return run


def test_updates_that_come_again_or_late_change_nothing() -> None:
    job, again = UpdatedJob(3), UpdatedJob(3)
    kept: list[tuple[int, RankUpdate]] = []
    take = again.account.update

    def twice(rank: int, update: RankUpdate) -> None:
        take(rank, update)
        take(rank, update)
        kept.append((rank, update))
        take(*kept[-3:][0])

    again.account.update = twice  # type: ignore[method-assign]
    job.train(60)
    again.train(60)
    assert job.run == again.run and job.run.categories[Category.PRODUCTIVE] == 60 * NS * 9 // 10


def test_open_now_names_the_rank_that_the_others_wait_for_and_those_that_wait() -> None:
    job = UpdatedJob(4)
    job.train(20)
    job.hang(200, 2)
    now = job.account.open_now()
    assert (now.number, now.waiting, now.silent) == (20, [0, 1, 3], [])
    assert (now.cause, now.since) == (Cause(2, LOAD, ""), 20 * NS + NS // 10)
    assert job.account.waits() == {now.cause: now.since}
    assert now.ranks[2].opened == Opened(LOAD, "", NO_STEP, 20 * NS) and now.ranks[2].at == job.now


def test_a_rank_that_does_not_leave_a_step_is_the_one_that_the_others_wait_for() -> None:
    job = UpdatedJob(4)
    job.train(20)
    begin = job.now
    job.now += 50 * NS
    for rank in job.ranks:
        first = RankStep(20, begin, NOT_KNOWN if rank == 1 else begin + NS)
        job.publish(rank, [first] if rank == 1 else [first, RankStep(21, begin + NS, NOT_KNOWN)], [])
    now = job.account.open_now()
    assert (now.number, now.waiting) == (21, [0, 2, 3])
    assert (now.cause, now.since) == (Cause(1, STEP_TIME, ""), begin + NS)


def test_nobody_is_blamed_while_all_are_in_the_step_or_two_are_not() -> None:
    job = UpdatedJob(4)
    job.train(20)
    job.hang(30, -1)
    assert job.account.waits() == {} and job.account.open_now().waiting == [0, 1, 2, 3]
    other = UpdatedJob(4)
    other.train(20)
    begin, other.now = other.now, other.now + 20 * NS
    for rank in other.ranks:
        if rank in (1, 2):
            other.publish(rank, [], [Piece(begin, other.now, LOAD)])
        else:
            other.publish(rank, [RankStep(20, begin + NS, NOT_KNOWN)], [])
    assert other.account.waits() == {} and other.account.open_now().waiting == [0, 3]


def test_a_silent_rank_is_listed_and_neither_it_nor_another_is_blamed() -> None:
    job, silent = UpdatedJob(4), frozenset({1})
    job.train(20)
    job.hang(SILENT // NS + 10, 2, without=silent)
    assert job.account.silent == [1] and job.account.waits() == {}
    # What is known ends with it.
    assert job.account.horizon == 20 * NS and job.run.elapsed == 20 * NS
    job.hang(5, 2)
    assert job.account.silent == []


def test_the_job_goes_on_without_a_rank_that_is_silent_for_long_and_with_it_when_it_is_back() -> None:
    job, silent = UpdatedJob(4), frozenset({1})
    job.train(20)
    job.train(ABSENT // NS + 20, without=silent)
    merger = job.account.roles[""].group.merger
    assert job.account.silent == [1] and job.account.horizon == job.now and job.run.elapsed == job.now
    assert job.run.categories[Category.PRODUCTIVE] == job.now * 9 // 10
    assert sum(len(one.steps) + len(one.pieces) for one in merger._ranks.values()) < 100
    job.train(50)
    assert job.account.silent == [] and job.account.together
    assert job.run.elapsed == job.now and job.run.categories[Category.PRODUCTIVE] == job.now * 9 // 10


def test_a_rank_that_comes_back_in_a_new_process_had_died_and_the_job_with_it() -> None:
    job = UpdatedJob(4)
    job.train(20)
    begin = job.now
    job.hang(20, 2, SAVE, without=frozenset({1}))
    job.now += 10 * NS
    job.ranks.remove(1)
    job.publish(1, [], [], joined=job.now)
    job.ranks.append(1)
    job.now += 5 * NS
    for rank in job.ranks:
        step = RankStep(20, begin + 34 * NS, job.now)
        joined = begin + 30 * NS if rank == 1 else 0
        job.publish(rank, [step], [Piece(begin + 30 * NS, begin + 34 * NS, LOAD)] if rank == 1 else [], joined=joined)
    run = job.run
    assert run.elapsed == job.now and run.categories[Category.INFRASTRUCTURE_RECOVERY] == 30 * NS
    # One from before the restart says nothing any more.
    job.publish(1, [RankStep(21, job.now, job.now + NS)], [], joined=0)
    assert job.run == run


# --- ranks that do not step together ----------------------------------------------------------------------------------


def sweep(account: JobAccount, count: int, *, first: int = 0, steps: int = 60, at: int = 0) -> list[Partition]:
    """Have ranks train at their own pace; returns the partition of each by itself."""
    own = []
    for rank in range(count):
        alone, moment = JobAccount(), at
        for each in (alone, account):
            if not at:
                each.join(rank, 0)
        done, loads = list[RankStep](), list[Piece]()
        for number in range(first, first + steps):
            begin = moment + (rank + 1) * NS // 7
            loads.append(Piece(moment, begin, LOAD))
            moment = begin + (2 + 3 * rank) * NS
            done.append(RankStep(number, begin, moment))
        for each in (alone, account):
            if each is account or not at:
                each.feed(rank, done, loads, moment)
                each.leave(rank, moment, died=False)
        own.append(alone.totals().run)
    return own


def test_the_job_is_the_sum_of_its_ranks_weighted_by_devices_if_they_do_not_step_together() -> None:
    account = JobAccount()
    account.place(0, devices=3)
    own = sweep(account, 3)
    run, devices = account.totals().run, (3, 1, 1)
    assert not account.together and not account.costs.whole
    assert sum(run.categories.values()) == run.elapsed == max(one.elapsed for one in own)
    whole = sum(weight * one.elapsed for weight, one in zip(devices, own, strict=True))
    for name, spent in run.categories.items():
        time = sum(weight * one.categories[name] for weight, one in zip(devices, own, strict=True))
        assert spent == pytest.approx(run.elapsed * time / whole, abs=1)
    assert account.totals().kept == 180


def test_that_ranks_do_not_step_together_may_show_late() -> None:
    job = UpdatedJob(3)
    job.train(400)
    assert job.account.together and job.run.categories[Category.PRODUCTIVE] == 360 * NS
    at = dict.fromkeys(job.ranks, job.now)
    for number in range(job.number, job.number + 50):
        for rank in job.ranks:
            begin = at[rank]
            at[rank] = job.now = begin + (rank + 2) * NS
            job.publish(rank, [RankStep(number, begin + NS, job.now)], [Piece(begin, begin + NS, SAVE)])
    assert not job.account.together
    run = job.run
    assert run.elapsed == job.account.horizon and run.categories[Category.DATA_LOADING] == 40 * NS
    assert 0 < run.categories[Category.CHECKPOINT_SAVE] < run.elapsed - 400 * NS


def test_time_is_divided_to_the_nanosecond() -> None:
    rng = random.Random(1)
    for _ in range(300):
        times = {key: rng.choice((0, rng.randrange(10), rng.randrange(10**15))) for key in range(rng.randrange(1, 20))}
        whole = rng.randrange(10**12)
        parts = shared(times, whole)
        total = sum(times.values())
        assert sum(parts.values()) == (whole if total else 0)
        assert all(abs(parts[key] * total - whole * time) < total for key, time in times.items() if total)


# --- clocks -----------------------------------------------------------------------------------------------------------


def with_clock(job: UpdatedJob, late: dict[int, int], seconds: int = 100) -> None:
    """Have the ranks train together, while the clocks of some are ahead."""
    take = job.account.update

    def shifted(rank: int, update: RankUpdate) -> None:
        by = late.get(rank, 0) + 1000 * NS
        take(
            rank,
            update._replace(
                joined=update.joined + by,
                known=update.known + by,
                at=update.at + by,
                steps=[step._replace(begin=step.begin + by, end=step.end + by) for step in update.steps],
                pieces=[piece._replace(begin=piece.begin + by, end=piece.end + by) for piece in update.pieces],
            ),
        )

    job.account.update = shifted  # type: ignore[method-assign]
    job.train(seconds)


def test_a_known_offset_of_a_clock_is_taken_out() -> None:
    for ahead in (-120 * NS, 3 * NS):
        job, even = UpdatedJob(4), UpdatedJob(4)
        job.account.offset(2, ahead, NS // 1000)
        with_clock(job, {2: ahead})
        with_clock(even, {})
        assert job.account.together and not job.account.clocks_disagree and job.run == even.run
        assert not job.account.costs.whole


@pytest.mark.parametrize("ahead", [-300 * NS, 65 * NS])
def test_clocks_that_are_minutes_apart_are_noticed(ahead: int) -> None:
    job = UpdatedJob(4)
    with_clock(job, {2: ahead}, 400)
    assert job.account.clocks_disagree == {2: ahead}
    assert not job.account.together and not job.account.costs.whole and job.account.waits() == {}
    assert job.run.elapsed == job.account.horizon - min(1000 * NS, 1000 * NS + ahead)


def test_a_clock_that_is_off_by_less_than_a_step_is_not_made_of_steps_that_end_late() -> None:
    job = UpdatedJob(4)
    with_clock(job, {2: 5_000_000})
    assert job.account.together and not job.account.clocks_disagree
    # Its time is not moved: the others wait for it.
    assert job.account.costs.whole == {Cause(2, LOAD, ""): 100 * 5_000_000}

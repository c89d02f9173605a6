"""The account of a job, live (rule R11): updates of its ranks, who is silent, and ranks that do not step together."""

from __future__ import annotations

import random
import time

import pytest

from otel_goodput._accounting import events as ev
from otel_goodput._accounting import rules
from otel_goodput._accounting.events import FAILED, NO_STEP, NOT_KNOWN, Event
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
        self.joined: dict[int, int] = {}
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
        joined: int | None = None,
        left: int = NOT_KNOWN,
    ) -> None:
        joined = self.joined.setdefault(rank, 0) if joined is None else joined
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
    assert account.totals().kept == 60 and not account.totals().ended
    before = account.totals()
    account.conclude(failed=False)
    assert account.totals().ended and account.totals().run == before.run


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


# --- ranks that come and go -------------------------------------------------------------------------------------------

DOWN, UP = CATEGORY_INDEX[Category.ELASTIC_SLICE_DOWN], CATEGORY_INDEX[Category.ELASTIC_SCALE_UP]


def test_a_slice_that_is_away_costs_the_time_in_which_the_others_wait_for_it() -> None:
    """Ranks 2 and 3 die in step 2; the others notice, go on without them, and with them when they are back."""
    account, at = JobAccount(), 0
    for rank in range(4):
        account.join(rank, 0)

    def step(number: int, ranks: tuple[int, ...], before: int, category: int = LOAD) -> None:
        nonlocal at
        begin, end = at + before * NS, at + (before + 10) * NS
        for rank in ranks:
            account.feed(rank, [RankStep(number, begin, end)], [Piece(at, begin, category)], end)
        at = end

    step(0, (0, 1, 2, 3), 1)
    step(1, (0, 1, 2, 3), 1)
    for rank in range(4):  # after 1 s of loading
        account.feed(rank, [RankStep(2, at + NS, NOT_KNOWN)], [Piece(at, at + NS, LOAD)], at + 5 * NS)
    for rank in (2, 3):
        account.leave(rank, at + 5 * NS, died=True)
    for rank in (0, 1):
        account.feed(rank, [RankStep(2, at + NS, at + 7 * NS, FAILED)], [Piece(at + 7 * NS, at + 27 * NS, DOWN)], at)
    at += 27 * NS
    assert account.totals(at).run.categories[Category.INFRASTRUCTURE_RECOVERY] == 0
    for number in range(2, 6):
        step(number, (0, 1), 1)
    run = account.totals().run
    assert run.elapsed == at == sum(run.categories.values())
    times = {name: spent // NS for name, spent in run.categories.items() if spent}
    assert times == {
        Category.PRODUCTIVE: 60,
        Category.DATA_LOADING: 7,
        Category.WASTED_PROGRESS: 4,
        Category.INFRASTRUCTURE_RECOVERY: 2,
        Category.ELASTIC_SLICE_DOWN: 20,
    }
    for rank in (2, 3):
        account.join(rank, at)
    step(6, (0, 1, 2, 3), 3, UP)
    step(7, (0, 1, 2, 3), 1)
    run = account.totals().run
    assert {name: spent // NS for name, spent in run.categories.items() if spent} == times | {
        Category.PRODUCTIVE: 80,
        Category.DATA_LOADING: 8,
        Category.ELASTIC_SCALE_UP: 3,
    }
    assert account.together


def test_ranks_that_leave_for_good_are_not_waited_for() -> None:
    job = UpdatedJob(4)
    job.train(20)
    job.ranks = [0, 1, 2]
    job.publish(3, [], [], left=job.now)
    job.train(20)
    assert job.account.horizon == job.now and job.account.silent == [] and 3 not in job.account.open_now().ranks
    assert job.run.categories[Category.PRODUCTIVE] == 36 * NS
    job.ranks.append(7)  # and another one comes
    job.joined[7] = job.now
    job.train(20)
    assert job.run.elapsed == job.now and job.run.categories[Category.PRODUCTIVE] == 54 * NS


def test_thousands_of_ranks_that_die_at_once_and_come_back_take_no_longer_each() -> None:
    def spent(count: int) -> float:
        account = JobAccount()
        for rank in range(count):
            account.join(rank, 0)
        for rank in range(count):
            steps = [RankStep(0, NS, 2 * NS), RankStep(1, 2 * NS + 1000, NOT_KNOWN)]
            account.feed(rank, steps, [Piece(0, NS, LOAD)], 3 * NS + rank)
        began = time.thread_time()
        for rank in range(count):
            account.leave(rank, 3 * NS + rank * 1000, died=True)
        for rank in range(count):
            account.join(rank, 10 * NS + rank * 1000)
        for rank in range(count):
            account.feed(rank, [RankStep(1, 12 * NS, 13 * NS)], [], 13 * NS)
        took = time.thread_time() - began
        run = account.totals().run
        assert run.elapsed == 13 * NS and run.categories[Category.INFRASTRUCTURE_RECOVERY] >= 7 * NS
        return took

    few = min(spent(250) for _ in range(3))
    assert any(spent(2000) < 2 * 8 * few for _ in range(3))  # processor time, too, is longer on a busy machine


def test_updates_of_many_ranks_cost_no_more_each_than_those_of_few() -> None:
    def spent(count: int) -> float:
        job = UpdatedJob(count)
        job.train(10)
        began = time.thread_time()
        job.train(30)
        took = time.thread_time() - began
        assert job.account.together and job.run.elapsed == job.now
        return took / count

    few = min(spent(32) for _ in range(3))
    assert any(spent(512) < 3 * few for _ in range(3))


def test_a_checkpoint_that_the_leader_commits_at_the_end_holds_the_steps_of_all_ranks() -> None:
    """They do not step together, and the other one is heard of late, and has ended before it is durable."""
    account = JobAccount()
    account.join(0, 0)
    save = Event(20 * NS, ev.START, rules.SAVE, 7, 19, ev.NONBLOCKING | ev.COVERS)
    account.note([save, Event(20 * NS, ev.LABEL, 0, 7, 19)])
    account.join(1, 0)
    for number in range(20):
        begin = number * NS
        account.feed(0, [RankStep(number, begin, begin + NS // 2)], [], begin + NS)
        account.feed(1, [RankStep(number, begin + NS // 2 + 1, begin + NS)], [], begin + NS)
    account.note([Event(25 * NS, ev.DURABLE, 0, 7), Event(25 * NS, ev.END, rules.SAVE, 7)])
    account.leave(1, 21 * NS, died=False)
    account.feed(0, [], [], 26 * NS)
    account.leave(0, 26 * NS, died=False)
    assert not account.together
    account.conclude(failed=False)
    assert account.totals().at_risk == 0


# --- what should not be -----------------------------------------------------------------------------------------------


def test_two_processes_with_one_index_are_the_one_that_began_last() -> None:
    job, even = UpdatedJob(2), UpdatedJob(2)
    for one in (job, even):
        one.train(20)
    for number in range(10):
        job.publish(1, [RankStep(900 + number, job.now, job.now + 5)], [Piece(0, job.now, SAVE)], joined=-5 * NS)
    assert job.run == even.run


def test_a_rank_that_numbers_its_steps_otherwise_or_only_evaluates_is_waited_for_by_nobody() -> None:
    account, at = JobAccount(), 0
    evaluation = CATEGORY_INDEX[Category.CUSTOM]
    for rank in range(4):
        account.join(rank, 0)
    for number in range(300):
        for rank in range(3):
            step = RankStep(number, at + NS // 10, at + NS)
            account.feed(rank, [step], [Piece(at, at + NS // 10, LOAD)], at + NS)
        account.feed(3, [], [Piece(at, at + NS, evaluation, "eval")], at + NS)
        at += NS
    assert account.together and not account.costs.whole
    assert account.totals().run.categories[Category.PRODUCTIVE] == 270 * NS
    numbered = JobAccount()
    for rank in range(2):
        numbered.join(rank, 0)
    for number in range(300):
        for rank in range(2):
            step = RankStep(number + 1000 * rank, number * NS, (number + 1) * NS)
            numbered.feed(rank, [step], [], (number + 1) * NS)
    assert not numbered.together and numbered.totals().run.categories[Category.PRODUCTIVE] == 300 * NS
    assert numbered.numbered_apart == {1: 1000} and not account.numbered_apart


@pytest.mark.parametrize("higher", [{2: 1}, {0: 1}, {1: -1, 3: 2}])
def test_ranks_that_number_the_same_steps_otherwise_are_named(higher: dict[int, int]) -> None:
    account, rng = JobAccount(), random.Random(len(higher))
    account.expect(range(6))
    for rank in range(6):
        account.join(rank, 0)
    for rank in range(6):
        steps = list[RankStep]()
        for number in range(300):
            begin = number * NS + rng.randrange(NS // 5)
            end = (number + 1) * NS - rng.randrange(NS // 10)
            steps.append(RankStep(1 + number + higher.get(rank, 0), begin, end))
        account.feed(rank, steps, [], 301 * NS)
    assert not account.together and account.numbered_apart == higher


def test_nobody_numbers_steps_otherwise_in_a_sweep() -> None:
    account = JobAccount()
    sweep(account, 4)
    assert not account.together and not account.numbered_apart


def test_reports_that_contradict_each_other_raise_nothing_and_add_up() -> None:
    for seed in range(150):
        rng, account = random.Random(seed), JobAccount([60 * NS])
        for _ in range(rng.randrange(60)):
            rank, at = rng.randrange(4), rng.randrange(100)
            steps = [
                RankStep(
                    rng.randrange(6), begin, rng.choice((NOT_KNOWN, begin + rng.randrange(30))), rng.choice((0, 2))
                )
                for begin in sorted(rng.randrange(100) for _ in range(rng.randrange(4)))
            ]
            edges = sorted(rng.randrange(100) for _ in range(2 * rng.randrange(4)))
            pieces = [Piece(a, b, rng.choice((LOAD, SAVE, DOWN))) for a, b in zip(edges[::2], edges[1::2], strict=True)]
            left = rng.choice((NOT_KNOWN, NOT_KNOWN, at))
            joined = rng.choice((NOT_KNOWN, 0, 0, rng.randrange(100)))
            account.update(rank, RankUpdate(joined, rng.randrange(at + 1), at, left, steps, pieces, None))
            if rng.random() < 0.1:
                account.leave(rank, rng.randrange(120), died=rng.random() < 0.5)
            if rng.random() < 0.2:
                account.open_now()
                run = account.totals().run
                assert sum(run.categories.values()) + sum(run.custom.values()) == run.elapsed
                assert account.brief() == account.totals().brief


# --- roles ------------------------------------------------------------------------------------------------------------


def test_each_role_is_accounted_by_itself_and_the_job_is_their_sum() -> None:
    """Two actors, of two devices each, generate for 4 s; two learners wait for that, and train for 1 s."""
    account = JobAccount([60 * NS])
    account.expect(range(4))
    for rank in range(4):
        account.place(rank, "actor" if rank < 2 else "learner", devices=2 if rank < 2 else 1)
    for number in range(100):
        at = number * 5 * NS
        for rank in range(4):
            begin, end, wait = (at, at + 4 * NS, at + 5 * NS) if rank < 2 else (at + 4 * NS, at + 5 * NS, at + 5 * NS)
            own = [(at + 4 * NS, wait)] if rank < 2 else [(at, begin)]
            pieces = [Piece(*one, LOAD) for one in own]
            account.update(rank, RankUpdate(0, wait, wait, NOT_KNOWN, [RankStep(number, begin, end)], pieces, None))
    roles = {name: totals.run.categories for name, totals in account.totals_of_roles().items()}
    assert not account.together and list(roles) == ["actor", "learner"]
    assert roles["actor"][Category.PRODUCTIVE] == roles["learner"][Category.DATA_LOADING] == 400 * NS
    run = account.totals().run
    assert run.elapsed == 500 * NS == sum(run.categories.values())
    assert run.categories[Category.PRODUCTIVE] == (2 * 400 + 100) * NS // 3
    assert account.totals().rolling[0][1].elapsed == 60 * NS


def test_a_rank_that_others_of_its_role_wait_for_costs_the_job_their_part_of_the_devices() -> None:
    account = JobAccount()
    for rank in range(4):
        account.place(rank, "actor" if rank < 2 else "learner", devices=3 if rank < 2 else 1)
        account.join(rank, 0)
    for number in range(10):
        at = number * 5 * NS
        for rank in range(4):
            begin = at + (4 * NS if rank == 3 else NS)
            account.feed(rank, [RankStep(number, begin, at + 5 * NS)], [Piece(at, begin, LOAD)], at + 5 * NS)
    assert account.costs.whole == account.costs_at(account.horizon).whole == {Cause(3, LOAD, ""): 30 * NS * 2 // 8}
    assert account.costs.latest == {Cause(3, LOAD, ""): (NS, 49 * NS)}


def test_roles_of_which_no_time_has_passed_have_none_to_divide() -> None:
    account = JobAccount()
    for rank, begin in enumerate((0, 5 * NS)):
        account.place(rank, str(rank))
        account.join(rank, begin)
        account.leave(rank, begin, died=False)
    assert account.totals().run.elapsed == 0 == sum(account.totals().run.categories.values())


def test_one_role_of_all_ranks_is_the_job() -> None:
    job, named = UpdatedJob(2), UpdatedJob(2)
    for rank in range(2):
        named.account.place(rank, "trainer")
    for one in (job, named):
        one.train(50)
    assert named.account.together and named.run == job.run and list(named.account.roles) == ["trainer"]
    assert named.account.ledger.totals().run == job.account.ledger.totals().run


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


@pytest.mark.parametrize("lengths", [(40, 30, 20, 10), (10, 10, 10, 35), (20, 21)], ids=str)
def test_the_number_of_steps_does_not_jump_when_ranks_turn_out_not_to_step_together(lengths: tuple[int, ...]) -> None:
    """It is a metric. It is that of the rank that has completed most."""
    ms, count = NS // 1000, len(lengths)
    account, at, taken, before = JobAccount(), [0] * count, [0] * count, (True, 0)
    for rank in range(count):
        account.join(rank, 0)
    for now in range(0, 4000, min(lengths)):
        for rank, length in enumerate(lengths):
            steps = list[RankStep]()
            while at[rank] + length <= now:
                steps.append(RankStep(taken[rank], at[rank] * ms, (at[rank] + length) * ms))
                at[rank], taken[rank] = at[rank] + length, taken[rank] + 1
            account.feed(rank, [*steps, RankStep(taken[rank], at[rank] * ms, NOT_KNOWN)], [], now * ms)
        totals = account.totals()
        assert account.brief() == totals.brief
        assert before[1] <= totals.kept <= before[1] + 4, (before, account.together)
        before = account.together, totals.kept
    assert before == (False, max(taken)) and totals.executed == totals.kept
    assert totals.kept_by_rank == (min(taken), max(taken))

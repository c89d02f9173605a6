"""A step in which a rank is killed behind its save is in the checkpoint: the job keeps it as its ranks do (R4, R11)."""

from __future__ import annotations

import json
import random

import pytest

from otel_goodput._accounting import Event, Ledger
from otel_goodput._accounting import events as ev
from otel_goodput._accounting.job import JobAccount
from otel_goodput._accounting.rules import JOB, RESTORE, SAVE, STEP
from otel_goodput._accounting.step_history import RECOVERABLE
from otel_goodput._accounting.totals import Totals
from otel_goodput.semconv import Category

from .saving_ranks import SavingJob, live, merged, own_accounts, saving_job

JOBS = 15
MANY = 400
SEEDS = pytest.mark.parametrize(
    "seeds", [range(JOBS), pytest.param(range(JOBS, MANY), id="many", marks=pytest.mark.release)]
)
AHEAD = pytest.mark.parametrize("ahead", [0, 1], ids=["labeled like the step", "labeled like the next one"])


def three_ways(job: SavingJob, seed: int) -> tuple[Totals, Totals, Totals]:
    """The totals of the journals of all ranks, live, and of the job's own records."""
    records = Ledger()
    account: JobAccount = live(job.events, random.Random(seed), records.feed)
    records.feed(account.undecided(account.horizon))
    return merged(job.events).totals(), account.totals(), records.totals(account.horizon)


@AHEAD
@SEEDS
def test_the_job_keeps_the_steps_that_its_leader_keeps(seeds: range, ahead: int) -> None:
    """All of them, unless the leader was killed while it saved, too."""
    kept = lost = 0
    for seed in seeds:
        job = saving_job(random.Random(seed), ahead=ahead)
        own = own_accounts(job.events)
        expected = job.steps - (not job.saved)
        assert own[0].totals().kept == expected
        for totals in three_ways(job, seed):
            assert (totals.kept, totals.attempts) == (expected, 2), seed
            assert sum(totals.run.categories.values()) == totals.run.elapsed
            assert totals.lost == 0 or not job.saved
        kept, lost = kept + job.saved, lost + (not job.saved)
    assert kept > len(seeds) // 2 and lost > 0


@AHEAD
@SEEDS
def test_so_it_does_if_the_records_of_a_rank_end_before_it_began_the_step(seeds: range, ahead: int) -> None:
    """The checkpoint proves that it took part; since its records end, it counts as away."""
    saved = 0
    for seed in seeds:
        job = saving_job(random.Random(seed), ahead=ahead, forgets=True)
        saved += job.saved
        for totals in three_ways(job, seed):
            assert totals.kept == job.steps - (not job.saved), seed
            assert totals.attempts == 2 and totals.run.categories[Category.INFRASTRUCTURE_RECOVERY] > 0
            assert sum(totals.run.categories.values()) == totals.run.elapsed
    assert saved > len(seeds) // 2


def test_ranks_that_die_again_and_again_take_bounded_room() -> None:
    """The job's own records, in which each step is one that a rank died in; the account is restored after a restart."""
    ledger, at = Ledger(), 1_000
    ledger.feed([Event(at, ev.ATTEMPT, step=0), Event(at, ev.START, JOB, 1)])
    for number in range(RECOVERABLE + 100):
        step = Event(at, ev.START, STEP, 2 + number, number)
        ledger.feed([step, Event(at + 1_000, ev.END, STEP, 2 + number, number, ev.FAILED | ev.RANK_DIED)])
        at += 2_000
    head, blobs = ledger.dump()
    again = Ledger.load(json.loads(json.dumps(head)), b"".join(bytes(blob) for blob in blobs))
    save = [Event(at, ev.START, SAVE, 9_999, number, ev.COVERS), Event(at + 1_000, ev.END, SAVE, 9_999, number)]
    for one in (ledger, again):
        one.feed(save)
        assert one.totals(at + 2_000).kept == RECOVERABLE, "the oldest stay lost"


@pytest.mark.parametrize(("label", "given", "step"), [(5, 5, 5), (5, 0, 4), (6, 6, 4)])
def test_a_label_that_is_the_number_of_the_step_behind_an_open_one_is_taken_as_given(
    label: int, given: int, step: int
) -> None:
    """A process is killed in step 4, behind its work, which another thread has saved; the next one restores that."""
    keys, at = iter(range(1, 99)), 0
    events: list[Event] = []

    def phase(of: int, number: int, flags: int = 0, *, dies: bool = False) -> None:
        nonlocal at
        key, at = next(keys), at + 1_000
        events.append(Event(at, ev.START, of, key, number, flags))
        if dies:
            phase(SAVE, label, ev.NONBLOCKING)
        else:
            at += 1_000
            events.append(Event(at, ev.END, of, key))

    for attempt, numbers in enumerate((range(4), range(given, given + 3))):
        events += [Event(at + 500, ev.ATTEMPT, step=attempt), Event(at + 500, ev.START, JOB, 1_000 + attempt)]
        if attempt:
            phase(RESTORE, label)
        for number in numbers:
            phase(STEP, number)
        if not attempt:
            phase(STEP, 4, dies=True)
    ledger = Ledger()
    ledger.feed(events)
    totals = ledger.totals(at)
    assert (totals.kept, totals.run.max_productive_step) == (7, step + 2)

"""Incidents are noticed in what an account says every few seconds, and named; jobs without a fault are silent."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

import pytest

from otel_goodput._accounting.incident_baseline import turns
from otel_goodput._accounting.incident_detector import Detector, Limits
from otel_goodput._accounting.incidents import STEP, Incident, Observation, Source, source_of
from otel_goodput._accounting.job import Cause
from otel_goodput._accounting.ranks import STEP_TIME
from otel_goodput._accounting.rules import DATA_LOADING_TIME, NS
from otel_goodput.semconv import Category, IncidentKind

from .incident_scenarios import BEGINS_S, FAULTS, Job, SingleTurns, incidents, trained_before, verdict

LOAD, SAVE = Source(Category.DATA_LOADING), Source(Category.CHECKPOINT_SAVE)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named(fault: str) -> None:
    named, known = verdict(Job(0, fault, ranks=64))
    assert named, known


def test_what_nothing_tells_of_hides_no_slowdown() -> None:
    """Every half minute, a step takes five seconds longer: there is an evaluation in it."""
    job = Job(0, "steps are slow", ranks=8, untold=True)
    job.step, job.burst, job.burst_every, job.burst_length = 0.25, STEP, 30.0, 5.0
    named, known = verdict(job)
    assert named and known[0].opened <= (BEGINS_S + 90) * NS, known


@pytest.mark.parametrize("seed", range(3))
def test_a_job_without_a_fault_is_silent(seed: int) -> None:
    assert not incidents(Job(seed, ranks=8))


UNTOLD = pytest.mark.parametrize("untold", [False, True], ids=["all is told", "untold"])


@pytest.mark.release
@UNTOLD
@pytest.mark.parametrize("fault", FAULTS)
def test_each_of_twelve_faults_is_named_in_19_of_20_jobs(fault: str, untold: bool) -> None:
    results = [verdict(Job(seed, fault, untold=untold)) for seed in range(20)]
    wrong = [known for named, known in results if not named]
    assert len(wrong) <= 1, wrong
    delays = sorted(known[0].opened / NS - BEGINS_S for named, known in results if named)
    print(f"{fault}: noticed after {median(delays):.0f} s, at most {delays[-1]:.0f} s")


SLOWDOWNS = (
    "the input is slow",
    "the input of a rank is slow",
    "steps are slow",
    "time is lost between steps",
    "a rank does something of its own",
)


@pytest.mark.release
def test_ten_percent_are_noticed_within_a_minute_of_training_in_57_of_60_jobs() -> None:
    jobs = [Job(seed, fault, loss=0.1) for fault in SLOWDOWNS for seed in range(12)]
    trained = sorted(trained_before(job) for job in jobs)
    print(f"noticed after {median(trained):.0f} s of training, at most {trained[-1]:.0f} s")
    assert trained[56] <= 60 and trained[-1] <= 240


@pytest.mark.release
@UNTOLD
def test_two_hundred_jobs_without_a_fault_are_silent(untold: bool) -> None:
    loud = {seed: known for seed in range(1000, 1200) if (known := incidents(Job(seed, untold=untold)))}
    assert len(loud) <= 1, loud


@pytest.mark.release
@pytest.mark.timeout(900)
def test_of_five_hundred_jobs_of_up_to_ten_thousand_ranks_99_percent_are_right() -> None:
    """Precision: of the first incidents, how many name the fault. Recall: of the faults, how many are named."""
    faults = ["", *FAULTS]
    named = alarms = faulty = 0
    for seed in range(2000, 2500):
        job = Job(seed, faults[seed % len(faults)], ranks=10_000 if seed % 10 == 0 else 0, untold=seed % 3 == 0)
        right, known = verdict(job) if job.fault else (False, incidents(job))
        named, alarms, faulty = named + right, alarms + bool(known), faulty + bool(job.fault)
    print(f"precision {named / alarms:.4f}, recall {named / faulty:.4f} of {faulty} faults in 500 jobs")
    assert named >= 0.99 * alarms and named >= 0.99 * faulty


def test_a_load_of_the_turn_that_is_not_over_is_no_part_of_those_that_are() -> None:
    load, step = Source(Category.DATA_LOADING, rank=1), Source(STEP)
    start = Observation(0, 0, 4, {step: 4 * NS}, 0)
    amid = Observation(5 * NS, 0, 8, {step: 8 * NS, load: NS}, 1, unfinished={Category.DATA_LOADING: NS})
    end = Observation(10 * NS, 0, 12, {step: 12 * NS, load: NS}, 0, unfinished={Category.DATA_LOADING: 0})
    assert turns(start, amid).times == {step: 4 * NS}, "what has no time is not there"
    assert turns(amid, end).times == {step: 4 * NS, load.phase: NS}


# --- one by one -------------------------------------------------------------------------------------------------------


class Account:
    """An account that is written down by hand."""

    def __init__(self) -> None:
        self.detector, self.at, self.steps, self.stepped = Detector(), 0, 0, 0
        self.before = self.loop = 0  # steps of attempts before; the present loop
        self.times = dict[Source, int]()
        self.single_turns = SingleTurns()
        self.known = dict[int, Incident]()

    def spend(self, seconds: float, source: Source, *, step: bool = False) -> None:
        left = round(seconds * NS)
        while left > 0:
            part = min(left, 5 * NS - self.at % (5 * NS))
            self.at, left = self.at + part, left - part
            self.times[source] = self.times.get(source, 0) + part
            if step and not left:
                self.steps, self.stepped = self.steps + 1, self.at
                took = self.times.pop(source)
                self.times[Source(STEP)] = self.times.get(Source(STEP), 0) + took
                self.single_turns.end_step(took, self.times)
            if self.at % (5 * NS) == 0:
                since, stepped = self.at - self.stepped, self.steps > self.before
                seen = Observation(
                    self.at,
                    0,
                    self.steps,
                    dict(self.times),
                    since,
                    stepped=stepped,
                    excess=self.single_turns.excess(self.times),
                    loop=self.loop,
                    unfinished=self.single_turns.unfinished(self.times),
                )
                self.known.update((one.number, one) for one in self.detector.look(seen))

    def turns(self, count: int, step: float, load: float = 0.0) -> None:
        for _ in range(count):
            self.spend(load, LOAD)
            self.spend(step, Source(Category.IN_FLIGHT), step=True)

    @property
    def incidents(self) -> list[Incident]:
        return [*self.known.values()]


@pytest.fixture
def account() -> Account:
    account = Account()
    account.turns(200, 1.0, 0.1)
    assert not account.incidents
    return account


def test_a_slowdown_has_a_beginning_a_cost_and_an_end(account: Account) -> None:
    began = account.at
    account.turns(100, 1.0, 0.4)
    (one,) = account.incidents
    assert (one.kind, one.source, one.ended) == (IncidentKind.SLOWDOWN, LOAD, None)
    assert abs(one.began - began) <= 5 * NS and one.opened - began <= 30 * NS
    assert one.cost == pytest.approx(30 * NS, rel=0.1)
    assert (one.before, one.after) == pytest.approx((1.1 * NS, 1.4 * NS), rel=0.01)
    over = account.at
    account.turns(100, 1.0, 0.1)
    (one,) = account.incidents
    assert one.ended is not None and abs(one.ended - over) <= 5 * NS
    assert one.cost == pytest.approx(30 * NS, rel=0.1)


def test_more_time_between_steps_is_noticed_though_there_is_a_lot_now_and_then() -> None:
    account, other = Account(), Source(Category.OTHER)
    for turn in range(600):
        account.spend(0.4 if turn >= 300 else 0.05, other)
        account.spend(4.0 if turn % 30 == 0 else 0.0, other)
        account.turns(1, 1.0, 0.1)
        if turn == 300:
            began = account.at
    (one,) = account.incidents
    assert one.source == other and abs(one.began - began) <= 15 * NS and one.opened - began <= 60 * NS
    assert one.cost == pytest.approx(300 * 0.35 * NS, rel=0.1)


def test_another_loop_has_steps_of_its_own_length(account: Account) -> None:
    """A second stage of training is no slowdown of the first; in it, another one is noticed."""
    for _ in range(3):  # a loop that validates, and the first one again
        account.loop = 1
        account.turns(15, 2.0, 0.1)
        account.loop = 0
        account.turns(40, 1.0, 0.1)
    account.loop = 2
    account.turns(200, 3.0, 0.1)
    assert not account.incidents
    began = account.at
    account.turns(60, 4.0, 0.1)
    (one,) = account.incidents
    assert one.source == Source(STEP) and abs(one.began - began) <= 10 * NS


def test_a_slowdown_is_noticed_although_another_loop_comes_now_and_then(account: Account) -> None:
    for _ in range(6):
        account.turns(30, 1.4, 0.1)
        account.loop = 1
        account.turns(5, 2.0, 0.1)
        account.loop = 0
    (one,) = account.incidents
    assert one.source == Source(STEP)


def test_a_loss_of_less_than_a_tenth_is_no_incident(account: Account) -> None:
    account.turns(500, 1.05, 0.1)
    assert not account.incidents


def test_single_long_steps_are_no_slowdown(account: Account) -> None:
    for _ in range(10):
        account.turns(1, 9.0)
        account.turns(40, 1.0, 0.1)
    assert not account.incidents


def test_what_is_compiled_again_and_again_soon_after_the_start_is_the_cause() -> None:
    account, startup = Account(), Source(Category.PROGRAM_STARTUP)
    account.turns(600, 0.2, 0.02)
    for _ in range(300):
        account.spend(0.2, startup)
        account.turns(1, 0.23, 0.02)  # dispatching takes longer, too
    (one,) = account.incidents
    assert one.source == startup and one.cost == pytest.approx(69 * NS, rel=0.15)


def test_who_is_reported_to_first_hears_of_what_is_compiled_not_of_steps_that_it_slows() -> None:
    account, startup = Account(), Source(Category.PROGRAM_STARTUP)
    account.turns(300, 0.2, 0.02)
    while not account.incidents:
        account.spend(0.1, startup)
        account.turns(1, 0.24, 0.02)
    assert account.incidents[0].source == startup


def test_a_hang_ends_with_the_next_step(account: Account) -> None:
    began = account.at
    account.spend(120.0, Source(Category.IN_FLIGHT))
    (one,) = account.incidents
    assert (one.kind, one.source.category, one.ended) == (IncidentKind.HANG, STEP, None)
    assert one.began == began and one.opened - began <= 40 * NS and one.cost == account.at - began
    account.times[Source(STEP)] += account.times.pop(Source(Category.IN_FLIGHT))
    account.turns(30, 1.0, 0.1)
    (one,) = account.incidents
    assert one.ended is not None and one.ended - one.began == pytest.approx(120 * NS, abs=6 * NS)


def test_a_restart_may_take_its_time_until_the_first_step(account: Account) -> None:
    """The account has steps of earlier attempts."""
    account.detector = Detector()
    account.before, account.stepped = account.steps, account.at
    account.spend(900.0, Source(Category.CHECKPOINT_RESTORE))
    account.spend(100.0, Source(Category.IN_FLIGHT))
    account.times[Source(STEP)] += account.times.pop(Source(Category.IN_FLIGHT))
    account.turns(100, 1.0, 0.1)
    assert not account.incidents


def test_who_begins_to_look_at_a_job_that_stands_still_knows_that_it_had_begun(account: Account) -> None:
    """As a process that looks in place of one that is stopped."""
    account.spend(20.0, Source(Category.IN_FLIGHT))
    account.detector, began = Detector(), account.at
    account.spend(60.0, Source(Category.IN_FLIGHT))
    (one,) = account.incidents
    assert one.kind == IncidentKind.HANG and one.opened - began <= 40 * NS


def test_a_job_of_the_past_does_not_hang() -> None:
    """Its times are given: a step that ended hours ago is the latest one."""
    detector = Detector()
    for at in range(3):
        now = 10_000 * NS + at * 5 * NS
        assert not detector.look(
            Observation(now, 0, 7 + at, {Source(STEP): (7 + at) * NS}, now - 20 * NS, stepped=True)
        )


def test_the_first_long_evaluation_is_no_hang(account: Account) -> None:
    account.spend(600.0, Source(Category.CUSTOM, "evaluation"))
    account.turns(50, 1.0, 0.1)
    assert not account.incidents


def test_what_is_in_some_steps_and_nothing_tells_of_hangs_twice_at_most(account: Account) -> None:
    for _ in range(10):
        account.spend(90.0, Source(Category.IN_FLIGHT))
        account.times[Source(STEP)] += account.times.pop(Source(Category.IN_FLIGHT))
        account.turns(100, 1.0, 0.1)
    assert [one.kind for one in account.incidents] == [IncidentKind.HANG] * 2


def test_a_step_that_stalls_hangs_since_it_began(account: Account) -> None:
    began = account.at
    account.spend(12.0, Source(Category.IN_FLIGHT))
    account.spend(30.0, Source(Category.STALLED))
    (one,) = account.incidents
    assert one.began == began and one.opened - began <= 40 * NS


def test_a_first_load_of_an_epoch_that_takes_much_longer_than_before_hangs(account: Account) -> None:
    """That is one incident, not two."""
    for seconds in (20.0, 22.0, 18.0, 20.0, 100.0, 20.0):
        account.spend(seconds, LOAD)
        account.turns(60, 1.0, 0.1)
    (one,) = account.incidents
    assert (one.kind, one.source) == (IncidentKind.HANG, LOAD) and one.ended is not None
    assert one.cost == pytest.approx(100 * NS, rel=0.1)


def test_saves_are_compared_with_saves(account: Account) -> None:
    for _ in range(4):
        account.spend(20.0, SAVE)
        account.turns(60, 1.0, 0.1)
    assert not account.incidents
    began = account.at
    account.spend(100.0, SAVE)
    account.turns(60, 1.0, 0.1)
    (one,) = account.incidents
    assert (one.kind, one.source) == (IncidentKind.SLOWDOWN, SAVE)
    assert one.cost == pytest.approx(80 * NS, rel=0.1) and abs(one.began - began) <= 6 * NS
    account.spend(20.0, SAVE)
    account.turns(60, 1.0, 0.1)
    (one,) = account.incidents
    assert one.ended is not None and one.ended - one.began == pytest.approx(100 * NS, abs=10 * NS)


def test_an_evaluation_that_hangs_is_one_incident(account: Account) -> None:
    evaluation = Source(Category.CUSTOM, "evaluation")
    for _ in range(4):
        account.spend(20.0, evaluation)
        account.turns(60, 1.0, 0.1)
    account.spend(3000.0, evaluation)
    (one,) = account.incidents
    assert one.source == evaluation and one.ended is None


def _looks(detector: Detector, *attempts: int) -> Iterator[Incident]:
    for number in attempts:
        seen = Observation((number + 1) * NS, number, 0, {}, 0, None, number, (NS, "crash"))
        yield from detector.look(seen)


def test_attempts_without_progress_are_one_incident_until_there_is_some() -> None:
    detector = Detector(Limits(setbacks=3))
    assert not [*_looks(detector, 0, 1, 2)]
    (one,) = _looks(detector, 3)
    assert (one.kind, one.source.name, one.began) == (IncidentKind.RESTART_LOOP, "crash", NS)
    (one,) = detector.look(Observation(9 * NS, 3, 1, {}, 0))
    assert one.ended == 9 * NS


def test_a_rank_whose_step_the_others_wait_for_is_no_category() -> None:
    """The number that stands for a step's own time is no index of a category."""
    assert source_of(Cause(3, STEP_TIME, "")) == Source(STEP, "", 3)
    assert source_of(Cause(3, DATA_LOADING_TIME, "")) == Source(Category.DATA_LOADING, "", 3)

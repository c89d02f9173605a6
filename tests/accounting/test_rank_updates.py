"""What a rank publishes about itself: its updates add up to its own partition, moment by moment."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_goodput._accounting import Ledger, rank_updates
from otel_goodput._accounting import events as ev
from otel_goodput._accounting.events import NO_STEP, NOT_KNOWN, Event, Item, Turns, events_of, following
from otel_goodput._accounting.job import JobAccount
from otel_goodput._accounting.rank_groups import grouped
from otel_goodput._accounting.rank_updates import Opened, RankUpdate
from otel_goodput._accounting.ranks import DIED, STEP_TIME, Piece, RankStep
from otel_goodput._accounting.rules import (
    CUSTOM,
    CUSTOM_PHASE,
    DATA_LOADING,
    DATA_LOADING_TIME,
    EXCLUDED_TIME,
    EXCLUSION,
    JOB,
    RECOVERY,
    RESTORE,
    RESTORE_TIME,
    SAVE,
    STEP,
    SUSPENDED_TIME,
)
from otel_goodput._accounting.tracing import Tracer
from otel_goodput._timeline.ranks import digest_of
from otel_goodput._timeline.reader import ordered
from otel_goodput.reports.timeline import Timeline

from .intervals import TracerOfJobs, cut_out_in, followed, partition_of, traced, without_kinds
from .strategies import Rows, runs
from .test_properties import MANY, USUAL
from .test_turns import items, kept, steps_on_device

SECOND = 10**9
SEEDS = USUAL // 10


def in_order(events: Iterable[Event]) -> Iterable[Event]:
    """The events of a whole run in the order in which a reader gives them."""
    attempt: list[Event] = []
    for event in events:
        if event.kind == ev.ATTEMPT:
            yield from ordered(attempt)
            attempt = []
        attempt.append(event)
    yield from ordered(attempt)


def expected(tracer: TracerOfJobs) -> tuple[list[RankStep], list[Piece]]:
    return ([], []) if tracer.begin is None else partition_of(tracer)


def updates(sequence: Sequence[Item], fate: random.Random, often: float, *, whole: bool = True) -> list[RankUpdate]:
    """The updates of a rank that are taken as `often` as that, while it has a job, the last one at the end.

    They are by the clock of the attempt.
    """
    ledger = Ledger()
    ledger.begin_updates(whole=whole)
    at, latest, taken, begun = 0, 0, list[RankUpdate](), False
    while at < len(sequence):
        batch = sequence[at : at + fate.randint(1, 6)]
        at += len(batch)
        ledger.feed(batch)
        for event in batch:
            begins = isinstance(event, Event) and event.kind == ev.ATTEMPT
            latest = event.time if begins else max(latest, event.time)
            begun = not begins and (
                begun or (isinstance(event, Event) and (event.kind, event.phase) == (ev.START, JOB))
            )
        if (fate.random() < often and begun) or at == len(sequence):
            update = ledger.take_update(latest, last=whole and at == len(sequence))
            assert update is not None
            taken.append(update)
    return taken


def together(taken: Sequence[RankUpdate]) -> RankUpdate:
    first, *others = taken
    for other in others:
        first = followed(first, other)
    return first


def differ(tracer: Tracer, ledger: Ledger) -> bool:
    """Whether a ledger, which takes events as they arrive, has another account than a cursor that has them in order."""
    progress, discarded = tracer.steps.progress, ledger.provisional(None, dead=False).steps.discarded
    numbers = [progress.number_at(at) for at in range(len(progress))]
    return kept(ledger) != (numbers, progress.nets(0, len(progress))) or discarded != tracer.steps.discarded


@settings(MANY, max_examples=USUAL // 4)
@given(runs(), st.integers(0, 2**32), st.sampled_from((0, 0.3)))
def test_the_updates_of_a_rank_are_its_partition(rows: Rows, seed: int, often: float) -> None:
    timeline = Timeline(rows)
    if timeline.latest is None:
        return
    sequence = cut_out_in(list(timeline.events(timeline.latest)), random.Random(seed))
    update = together(updates([*sequence, Event(timeline.latest, ev.HEARTBEAT)], random.Random(seed), often))
    tracer = traced(sequence, at=timeline.latest)
    assert (list(update.steps), without_kinds(update.pieces)) == expected(tracer)
    digest = digest_of([*sequence, Event(timeline.latest, ev.HEARTBEAT)])
    parts = ([], []) if digest is None else (digest.parts.steps, without_kinds(digest.parts.pieces))
    assert parts == expected(tracer)


@pytest.mark.parametrize("often", [0, 0.2])
@pytest.mark.parametrize("loop", [items, steps_on_device])
def test_so_are_those_of_turns_that_are_taken_together(loop: object, often: float) -> None:
    compared = 0
    for seed in range(SEEDS):
        for calm in (0.8, 0.99, 0.999):
            fate = random.Random(seed)
            sequence: list[Item] = [*(items(fate, 6, calm) if loop is items else steps_on_device(fate, 10, calm))]
            latest = max(one.time for one in sequence)
            sequence.append(Event(latest, ev.HEARTBEAT))
            tracer, ledger = traced(in_order(events_of(sequence)), at=latest), Ledger()
            ledger.feed(sequence)
            if not differ(tracer, ledger):
                update = together(updates(sequence, fate, often))
                assert (list(update.steps), list(update.pieces)) == expected(tracer)
                compared += len(update.steps)
    assert compared > 500


@pytest.mark.parametrize("loop", [items, steps_on_device])
def test_whatever_comes_late_each_moment_is_in_one_update_only(loop: object) -> None:
    for seed in range(SEEDS):
        fate = random.Random(seed)
        sequence: list[Item] = [*(items(fate, 6, 0.8) if loop is items else steps_on_device(fate, 10, 0.8))]
        known, steps, pieces, joined = NOT_KNOWN, list[RankStep](), list[Piece](), NOT_KNOWN
        for update in updates(sequence, fate, 0.3, whole=False):
            assert update.joined <= update.known <= update.at
            if update.joined < joined:  # its clock is behind
                continue
            joined = update.joined
            steps += [step for step in update.steps if step.end != NOT_KNOWN]
            pieces += update.pieces
            assert all(NOT_KNOWN < begin < end <= update.known for _, begin, end, *_ in steps[-1:])
            assert not pieces or pieces[-1].end <= update.known
            known = max(known, update.known)
        assert all(before.end <= after.begin for before, after in pairwise(pieces))
        assert all(before.begin <= after.begin for before, after in pairwise(steps))


# --- stories ----------------------------------------------------------------------------------------------------------


class Rank:
    """A rank that records phases, and is asked for updates, at whole seconds."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.ledger.begin_updates()
        self.key = 1
        self.feed(ev.ATTEMPT, 0, step=0)
        self.feed(ev.START, 0, JOB, 1)

    def feed(self, kind: int, second: float, phase: int = 0, key: int = 0, step: int = NO_STEP, **more: object) -> None:
        self.ledger.feed([Event(round(second * SECOND), kind, phase, key, step)._replace(**more)])

    def phase(self, phase: int, begin: float, end: float | None, step: int = NO_STEP, **more: object) -> int:
        self.key += 1
        self.feed(ev.START, begin, phase, self.key, step, **more)
        if end is not None:
            self.feed(ev.END, end, phase, self.key)
        return self.key

    def update(self, second: float) -> RankUpdate:
        update = self.ledger.take_update(round(second * SECOND))
        assert update is not None
        return update


def step(number: int, begin: float, end: float, flags: int = 0) -> RankStep:
    return RankStep(number, round(begin * SECOND), NOT_KNOWN if end < 0 else round(end * SECOND), flags)


def load(begin: float, end: float) -> Piece:
    return Piece(round(begin * SECOND), round(end * SECOND), DATA_LOADING_TIME)


def test_an_open_step_comes_again_and_a_load_that_goes_on_comes_in_parts() -> None:
    rank = Rank()
    key = rank.phase(DATA_LOADING, 1, None, 0)
    first = rank.update(3)
    assert first[:7] == (
        0,
        3 * SECOND,
        3 * SECOND,
        NOT_KNOWN,
        [],
        [load(1, 3)],
        Opened(DATA_LOADING_TIME, "", -1, SECOND),
    )
    rank.feed(ev.END, 4, DATA_LOADING, key)
    key = rank.phase(STEP, 4, None, 0)
    second = rank.update(6)
    assert second.steps == [step(0, 4, -1)] and second.pieces == [load(3, 4)]
    assert second.known == 6 * SECOND and second.opened == Opened(STEP_TIME, "", 0, 4 * SECOND)
    rank.feed(ev.END, 7, STEP, key)
    rank.phase(STEP, 8, None, 1)
    third = rank.update(9)
    assert third.steps == [step(0, 4, 7), step(1, 8, -1)] and third.pieces == []
    assert followed(followed(first, second), third)[4:6] == (third.steps, [load(1, 4)])


def test_an_evaluation_inside_an_open_step_is_known_while_it_goes_on() -> None:
    rank = Rank()
    key = rank.phase(STEP, 1, None, 0)
    inner = rank.phase(CUSTOM_PHASE, 3, None, name="eval")
    first = rank.update(10)
    assert first.steps == [step(0, 1, -1)] and first.pieces == [Piece(3 * SECOND, 10 * SECOND, CUSTOM, "eval")]
    assert first.opened == Opened(CUSTOM, "eval", 0, 3 * SECOND)
    rank.feed(ev.END, 12, CUSTOM_PHASE, inner)
    rank.feed(ev.END, 13, STEP, key)
    second = rank.update(14)
    assert second.steps == [step(0, 1, 13)] and second.pieces == [Piece(10 * SECOND, 12 * SECOND, CUSTOM, "eval")]


def test_time_that_is_excluded_is_a_piece_whatever_is_open_besides() -> None:
    rank = Rank()
    key = rank.phase(STEP, 1, None, 0)
    cut = rank.phase(EXCLUSION, 2, None)
    inner = rank.phase(CUSTOM_PHASE, 3, None, name="eval")
    first = rank.update(5)
    assert first.steps == [step(0, 1, -1)] and first.pieces == [Piece(2 * SECOND, 5 * SECOND, EXCLUDED_TIME)]
    assert first.opened == Opened(EXCLUDED_TIME, "", 0, 2 * SECOND)
    rank.feed(ev.END, 6, EXCLUSION, cut)
    rank.feed(ev.END, 8, CUSTOM_PHASE, inner)
    rank.feed(ev.SUSPENDED, 9, key=3 * SECOND)
    rank.feed(ev.END, 13, STEP, key)
    second = rank.update(14)
    assert second.steps == [step(0, 1, 13)]
    assert second.pieces == [
        Piece(5 * SECOND, 6 * SECOND, EXCLUDED_TIME),
        Piece(6 * SECOND, 8 * SECOND, CUSTOM, "eval"),
        Piece(9 * SECOND, 12 * SECOND, SUSPENDED_TIME),
    ]


def test_a_step_is_over_when_the_device_is_done_with_it() -> None:
    rank = Rank()
    key = rank.phase(STEP, 1, None, 0)
    rank.feed(ev.END, 2, STEP, key, flags=ev.ON_DEVICE)
    rank.phase(DATA_LOADING, 2, 3, 1)
    assert rank.update(5).steps == [step(0, 1, -1)]
    rank.feed(ev.DEVICE_END, 6, STEP, key)
    rank.phase(DATA_LOADING, 6.5, None, 1)
    assert rank.update(7)[4:6] == ([step(0, 1, 6)], [load(6.5, 7)])


def test_batches_that_are_skipped_after_a_restore_are_loading_and_the_step_after_it_has_its_number() -> None:
    rank = Rank()
    for number in range(4):
        rank.phase(STEP, 1 + number, 2 + number, number)
    rank.phase(SAVE, 5, 6, 3)
    rank.phase(RESTORE, 7, 8, 3)
    before = rank.update(8)
    for number in range(4):
        rank.phase(STEP, 9 + 0.02 * number, 9.01 + 0.02 * number, number)
    rank.phase(STEP, 9.08, None, 4)
    rank.feed(ev.END, 10.08, STEP, rank.key)
    rank.phase(STEP, 10.5, None, 5)
    after = rank.update(11)
    assert before.pieces[-1] == Piece(7 * SECOND, 8 * SECOND, RESTORE_TIME)
    assert after.steps == [step(4, 9.08, 10.08), step(5, 10.5, -1)]
    assert [piece.category for piece in after.pieces] == [DATA_LOADING_TIME] * 4


def test_what_was_in_an_update_stays_if_something_older_is_recorded_late() -> None:
    rank = Rank()
    rank.phase(STEP, 1, 2, 0)
    rank.phase(DATA_LOADING, 2, None, 1)
    assert rank.update(6)[4:6] == ([step(0, 1, 2)], [load(2, 6)])
    rank.phase(CUSTOM_PHASE, 4, 8, name="late")  # it is known only now
    assert rank.update(9)[4:6] == ([], [Piece(6 * SECOND, 8 * SECOND, CUSTOM, "late"), load(8, 9)])


def test_the_end_of_a_job_and_a_second_one_in_the_same_process() -> None:
    rank = Rank()
    rank.phase(STEP, 1, 2, 0)
    rank.feed(ev.END, 3, JOB, 1)
    first = rank.update(4)
    assert (first.joined, first.left, first.opened) == (0, 3 * SECOND, None)
    rank.phase(JOB, 5, None)
    rank.phase(STEP, 6, 7, 1)
    second = rank.update(8)
    assert second[:6] == (5 * SECOND, 8 * SECOND, 8 * SECOND, NOT_KNOWN, [step(1, 6, 7)], [])


def test_a_new_attempt_begins_with_its_job_and_a_whole_run_has_the_death() -> None:
    begun = [
        Event(0, ev.ATTEMPT, step=0),
        Event(0, ev.START, JOB, 1),
        Event(1 * SECOND, ev.START, STEP, 2, 7),
        Event(3 * SECOND, ev.HEARTBEAT),
        Event(5 * SECOND, ev.ATTEMPT, step=1),
        Event(5 * SECOND, ev.START, JOB, 1),
        Event(6 * SECOND, ev.START, STEP, 2, 7),
        Event(7 * SECOND, ev.END, STEP, 2),
        Event(7 * SECOND, ev.HEARTBEAT),
    ]
    ledgers = Ledger(), Ledger()
    for ledger in ledgers:
        ledger.begin_updates(whole=ledger is ledgers[1])
        ledger.feed(begun)
    own, whole = (ledger.take_update(7 * SECOND) for ledger in ledgers)
    assert own is not None and whole is not None
    assert own[:1] == (5 * SECOND,) and own[4:6] == ([step(7, 6, 7)], [])
    assert whole.steps == [step(7, 1, 3, ev.FAILED | DIED), step(7, 6, 7)]
    assert whole.pieces == [Piece(3 * SECOND, 5 * SECOND, RECOVERY)]


def test_who_does_not_ask_is_given_nothing_and_copies_note_nothing() -> None:
    ledger = Ledger()
    assert ledger.take_update(0) is None
    rank = Rank()
    rank.phase(STEP, 1, 2, 0)
    copy = rank.ledger.clone()
    assert copy.take_update(0) is None
    copy.feed([Event(3 * SECOND, ev.START, STEP, 9, 1)])
    copy.totals(9 * SECOND)
    rank.ledger.totals(9 * SECOND)
    assert rank.update(5).steps == [step(0, 1, 2)]
    head, blobs = rank.ledger.dump()
    assert Ledger.load(json.loads(json.dumps(head)), b"".join(map(bytes, blobs))).take_update(0) is None


# --- groups -----------------------------------------------------------------------------------------------------------

FEW = 256


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more steps than this wait for an update."""
    monkeypatch.setattr(rank_updates, "MOST", FEW)


def fast_loop(count: int, period: int, flags: int = 0) -> list[Item]:
    """A loop of `count` steps that take up to `period` ns each, after a load that takes as long."""
    fate, time, moments, keys = random.Random(count), SECOND, list[int](), [100]
    for _ in range(2 * count):
        time += fate.randrange(1, period)
        moments.append(time)
        keys.append(following(keys[-1]))
    numbers = [(at + 1) // 2 for at in range(2 * count)]
    turns = Turns(True, tuple(moments), tuple(keys[:-1]), tuple(numbers), (0, flags) * count)
    begun = [Event(SECOND, ev.ATTEMPT, step=0), Event(SECOND, ev.START, JOB, 1)]
    begun.append(Event(SECOND, ev.START, DATA_LOADING, 100, 0))
    return [*begun, *(turns.slice(at, at + 700) for at in range(0, 2 * count, 700)), Event(time, ev.END, JOB, 1)]


def times(update: RankUpdate) -> dict[object, int]:
    """ns by category and name; of steps what is their own."""
    spent: Counter[object] = Counter({"steps": sum(one.end - one.begin for one in update.steps)})
    for piece in update.pieces:
        spent[piece[2:]] += piece.end - piece.begin
    return dict(spent)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("alone", [False, True], ids=["turns", "events"])
def test_more_steps_than_fit_come_in_groups_that_add_up(alone: bool) -> None:
    loop = fast_loop(6_000, 20_000)
    every = [*events_of(loop)]
    steps, pieces = expected(traced(every, at=every[-1].time))
    taken = updates(every if alone else loop, random.Random(1), 0.001 if alone else 0.1, whole=False)
    assert max(len(update.steps) for update in taken) <= FEW and max(update.size for update in taken) >= 4
    whole = together(taken)
    assert whole.steps[-1].number == steps[-1].number
    assert times(whole) == times(whole._replace(steps=steps, pieces=pieces))
    ends = {step.number: step.end for step in steps}
    assert all(ends[step.number] == step.end for step in whole.steps)
    assert all(before.end <= after.begin for before, after in pairwise(whole.steps))
    assert all(before.end <= after.begin for before, after in pairwise(whole.pieces))
    assert all(sum(step.number % update.size != 0 for step in update.steps) < max(2, update.size) for update in taken)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("seed", [0, 3])
def test_ranks_that_change_the_size_of_their_groups_at_different_steps_step_together(seed: int) -> None:
    loop, account, alone = fast_loop(12_000, 20_000), JobAccount(), JobAccount()
    ranks = [updates(loop, random.Random(2 * seed + rank), 0.1, whole=False) for rank in range(2)]
    changes = [[one.known for one, other in pairwise(taken) if one.size != other.size] for taken in ranks]
    assert changes[0] != changes[1] and min(map(len, changes)) > 0
    for each in (account, alone):
        each.expect(range(2))
    published = [(each, update) for each, taken in enumerate(ranks) for update in taken]
    for rank, update in sorted(published, key=lambda one: one[1].at):
        account.update(rank, update)
        alone.update(rank, update._replace(size=0))  # as they come
    assert account.together and not alone.together
    steps, _ = expected(traced(events_of(loop), at=loop[-1].time))
    totals = account.totals()
    assert totals.run.elapsed == sum(totals.run.categories.values()) == steps[-1].end - SECOND


def test_finer_groups_are_put_together_to_coarser_ones() -> None:
    loop = fast_loop(3_000, 20_000)
    steps, pieces = expected(traced(events_of(loop), at=loop[-1].time))
    pieces = sorted([*pieces, *(Piece(one.begin + 1, one.end, CUSTOM, "eval") for one in steps if one.number % 7 == 0)])
    steps[1000] = steps[1000]._replace(flags=ev.FAILED)
    fine = grouped(steps, pieces, 4)
    coarse, parts, *last = grouped(fine[0] + fine[2], fine[1] + fine[3], 32)
    again, same, *others = grouped(steps, pieces, 32)
    assert (coarse, [step.number for step in last[0]][-1:]) == (again, [step.number for step in others[0]][-1:])
    assert sorted(parts) == sorted(same)
    assert steps[1000] in coarse and sum(step.number % 32 == 0 for step in coarse) == 3_000 // 32 + 1


@pytest.mark.usefixtures("few")
def test_a_loop_of_many_steps_without_an_update_takes_little_room() -> None:
    ledger = Ledger()
    ledger.begin_updates()
    for item in fast_loop(20_000, 2_000):
        ledger.feed([item])
    update = ledger.take_update(10 * SECOND)
    assert update is not None and len(update.steps) <= FEW and update.size >= 64
    assert len(update.pieces) <= FEW + 2


@pytest.mark.usefixtures("few")
def test_groups_are_no_larger_than_they_must_be_for_few_of_them() -> None:
    events, ledger, taken = [*events_of(fast_loop(20_000, 20_000))], Ledger(), list[RankUpdate]()
    ledger.begin_updates()
    for at in range(0, len(events), 100):
        ledger.feed(events[at : at + 100])
        if not at % 8_000 and at and (update := ledger.take_update(events[at].time)) is not None:
            taken.append(update)
    for update in taken[1:]:
        assert sum(step.steps for step in update.steps) > 1_000
        assert FEW // 16 <= len(update.steps) <= FEW // 4 + 1


@pytest.mark.usefixtures("few")
def test_the_last_steps_of_a_fast_loop_are_known_soon_after_it_stands_still() -> None:
    loop = fast_loop(3_001, 20_000)[:-1]
    ledger = Ledger()
    ledger.begin_updates()
    ledger.feed(loop)
    end = loop[-1].time
    first, second, third = (ledger.take_update(end + after * SECOND) for after in (0, 5, 10))
    assert first is not None and second is not None and third is not None
    assert first.size == 64 and first.steps[-1].number == 2_944 and first.known < end
    assert second.steps[-1].number == 3_000 and second.steps[-1].end == end and second.known == end + 5 * SECOND
    assert third[4:6] == ([], [Piece(end + 5 * SECOND, end + 10 * SECOND, DATA_LOADING_TIME)])


def test_steps_that_failed_stay_by_themselves_however_many_they_are() -> None:
    ledger = Ledger()
    ledger.begin_updates()
    events = [Event(0, ev.ATTEMPT, step=0), Event(0, ev.START, JOB, 1)]
    for number in range(5_000):
        begin = 1_000_000 * (number + 1)
        events.append(Event(begin, ev.START, STEP, number + 2, number))
        events.append(Event(begin + 500_000, ev.END, STEP, number + 2, number, ev.FAILED))
    ledger.feed(events)
    update = ledger.take_update(events[-1].time)
    assert update is not None and [step.number for step in update.steps] == list(range(5_000))


def test_an_update_is_the_same_in_halves() -> None:
    ledger = Ledger()
    ledger.begin_updates()
    events = [Event(0, ev.ATTEMPT, step=0), Event(0, ev.START, JOB, 1)]
    for number in range(300):
        begin = 1_000_000 * (number + 1)
        events.append(Event(begin - 400_000, ev.START, DATA_LOADING, 2 * number + 2))
        events.append(Event(begin, ev.END, DATA_LOADING, 2 * number + 2))
        events.append(Event(begin, ev.START, STEP, 2 * number + 3, number))
        events.append(Event(begin + 500_000, ev.END, STEP, 2 * number + 3, number))
    ledger.feed(events)
    update = ledger.take_update(events[-1].time)
    assert update is not None
    first, second = update.halves()
    assert len(first.steps) == len(second.steps) == 150 and first.at == first.known <= second.known
    assert followed(first, second) == update
    with pytest.raises(ValueError, match="divided"):
        update._replace(steps=update.steps[:1], pieces=()).halves()

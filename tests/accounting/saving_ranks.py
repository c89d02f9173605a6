"""Ranks that save checkpoints inside their steps, are killed and resume: what they record, and three accounts of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from otel_goodput._accounting import Ledger
from otel_goodput._accounting import events as ev
from otel_goodput._accounting.events import NO_STEP, NOT_KNOWN, Event
from otel_goodput._accounting.job import JobAccount, holds_for_job
from otel_goodput._accounting.rules import DATA_LOADING, JOB, RESTORE, SAVE, STEP
from otel_goodput._timeline.ranks import digest_of

MS = 1_000_000
Events = dict[int, list[list[Event]]]  # by rank and attempt


@dataclass
class Process:
    """One attempt of a rank: its phases, which are in order of their begins."""

    begin: int
    at: int
    phases: list[tuple[int, int, int, int]] = field(default_factory=list)  # phase, begin, end, number

    def spend(self, phase: int, length: int, number: int = NO_STEP) -> None:
        self.phases.append((phase, self.at, self.at + length, number))
        self.at += length

    def killed(self, at: int) -> Process:
        """The same, killed at a moment: what it was in then is open."""
        phases = [(phase, begin, end if end < at else NOT_KNOWN, step) for phase, begin, end, step in self.phases]
        return replace(self, at=at, phases=[one for one in phases if one[1] < at])

    def events(self, attempt: int, ended: bool) -> list[Event]:
        """Of what ends and begins at once, the inner phase ends first, and the outer one begins first."""
        rows: list[tuple[int, int, Event]] = []
        for place, (phase, begin, end, number) in enumerate(self.phases):
            key = (attempt << 20) + place + 1
            rows.append((begin, 2 + (phase != STEP), Event(begin * MS, ev.START, phase, key, number)))
            if end != NOT_KNOWN:
                rows.append((end, int(phase == STEP), Event(end * MS, ev.END, phase, key)))
        rows.sort(key=lambda row: row[:2])
        job = (attempt + 1) << 40
        begun = [Event(self.begin * MS, ev.ATTEMPT, step=attempt), Event(self.begin * MS, ev.START, JOB, job)]
        last = Event(self.at * MS, ev.END, JOB, job) if ended else Event(self.at * MS, ev.HEARTBEAT)
        return [*begun, *(row[2] for row in rows), last]


@dataclass
class SavingJob:
    """What its ranks recorded. A rank was killed behind its save in step `number`, after which all went on.

    Attributes:
        steps: how many there were in all.
        saved: the leader was not killed before the end of its save in that step.
    """

    events: Events
    number: int
    steps: int
    saved: bool


def saving_job(rng: random.Random, *, ahead: int = 0, forgets: bool = False) -> SavingJob:
    """A job that dies once. Labels of checkpoints are `ahead` of the steps in which they are saved.

    With `forgets`, the records of the rank that is killed first end before it begins that step.
    """
    ranks, number = range(rng.randrange(2, 5)), rng.randrange(2, 8)
    steps = number + rng.randrange(3, 8)
    victim = rng.choice(ranks[1:] if forgets else ranks)
    jitter = rng.choice((0, 1, 5, 30))
    processes = {rank: Process(*[rng.randrange(20)] * 2) for rank in ranks}
    events: Events = {rank: [] for rank in ranks}

    def take(number: int) -> dict[int, tuple[int, int]]:
        """Have all take a step; return where each of them began it, and when its save was over."""
        for one in processes.values():
            one.spend(DATA_LOADING, rng.randrange(1, 10))
        done = max(one.at for one in processes.values()) + rng.randrange(40, 50)
        times = dict[int, tuple[int, int]]()
        for rank, one in processes.items():
            begin, one.at = one.at, done + rng.randrange(jitter + 1)
            place = len(one.phases)
            one.spend(SAVE, rng.randrange(2, 30), number + ahead)
            times[rank] = begin, one.at
            one.at += rng.randrange(1, 3)
            one.phases.insert(place, (STEP, begin, one.at, number))
        return times

    for at in range(number):
        take(at)
    times = take(number)
    for one in processes.values():  # it hangs in the next step
        one.spend(DATA_LOADING, rng.randrange(1, 10))
        one.spend(STEP, 1 << 20, number + 1)
    death = times[victim][1] + 1
    soon = rng.choice((5, 100))
    kills = {rank: death if rank == victim else death + rng.randrange(1, soon) for rank in ranks}
    for rank, one in processes.items():
        end = times[rank][0] if forgets and rank == victim else kills[rank]
        events[rank].append(one.killed(end).events(0, ended=False))
    back = max(kills.values()) + rng.randrange(50, 100)
    for rank in ranks:
        processes[rank] = Process(*[back + rng.randrange(20)] * 2)
        processes[rank].spend(RESTORE, rng.randrange(1, 10), number + ahead)
    for at in range(number + 1, steps):
        take(at)
    for rank, one in processes.items():
        events[rank].append(one.events(1, ended=True))
    return SavingJob(events, number, steps, saved=times[0][1] < kills[0])


def merged(events: Events) -> JobAccount:
    """The account of the ranks' journals."""
    account = JobAccount()
    digests = {rank: digest_of([event for one in attempts for event in one]) for rank, attempts in events.items()}
    known = {rank: digest for rank, digest in digests.items() if digest is not None}
    for rank, digest in known.items():
        account.join(rank, digest.begin)
    account.note(known[0].noted)
    account.feed_whole({rank: (digest.parts, digest.end) for rank, digest in known.items()})
    for rank, digest in known.items():
        account.leave(rank, digest.end, died=not digest.ended)
    return account


def live(
    events: Events, rng: random.Random, record: Callable[[Sequence[Event]], None] | None = None, every: int = 50 * MS
) -> JobAccount:
    """The account of the updates that ranks publish `every` so many ns; `record` is given the job's own records."""

    def taken(decided: Sequence[Event]) -> None:
        account.ledger.feed(decided := list(decided))
        if record is not None:
            record(decided)

    account = JobAccount(record=taken)
    account.expect(events)
    for attempt in range(max(map(len, events.values()))):
        own = {rank: attempts[attempt] for rank, attempts in events.items()}
        ledgers, noted = {rank: Ledger() for rank in own}, list[Event]()
        fed = dict.fromkeys(own, 0)
        for ledger in ledgers.values():
            ledger.begin_updates()
        moment = min(one[0].time for one in own.values())
        while any(fed[rank] < len(one) for rank, one in own.items()):
            for rank in rng.sample(sorted(own), len(own)):
                some = [event for event in own[rank][fed[rank] :] if event.time <= moment]
                fed[rank] += len(some)
                if fed[rank] and some:
                    ledgers[rank].feed(some)
                    noted += some if rank == 0 else ()
                    _publish(account, rank, ledgers[rank], min(moment, own[rank][-1].time), noted)
            moment += every
    return account


def _publish(account: JobAccount, rank: int, ledger: Ledger, moment: int, noted: list[Event]) -> None:
    update = ledger.take_update(moment)
    assert update is not None
    if rank == 0:
        while noted and noted[0].time <= update.known:
            account.note(list(holds_for_job(noted.pop(0), ledger.covers)))
    account.take(rank, update)


def own_accounts(events: Events) -> Mapping[int, Ledger]:
    """The account of each rank by itself."""
    ledgers = {rank: Ledger() for rank in events}
    for rank, attempts in events.items():
        for one in attempts:
            ledgers[rank].feed(one)
    return ledgers

"""The account of a job of several ranks from the journals of all of them (rule R11).

The journals are read one after the other. What the ranks did is kept in a spool, most of it as columns, and merged from
there: how much memory that takes does not depend on the number of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise, takewhile
from typing import Final, NamedTuple

from otel_goodput._accounting import events as ev
from otel_goodput._accounting.events import NO_STEP, NOT_KNOWN, Event, TurnColumns, following, key_behind
from otel_goodput._accounting.job import ABSENT, JobAccount, holds_for_job
from otel_goodput._accounting.rank_clocks import RankClock, by_common_clock
from otel_goodput._accounting.rank_columns import Part, RankPart, RankParts, absences_in, in_columns
from otel_goodput._accounting.rank_cursor import RankCursor
from otel_goodput._accounting.rank_updates import Opened, RankNotes
from otel_goodput._accounting.ranks import NEVER, STEP_TIME
from otel_goodput._accounting.rules import DATA_LOADING, JOB, STEP
from otel_goodput._journal.clock_offsets import clocks_of, read_offsets
from otel_goodput._journal.facts import facts_of
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._journal.turn_columns import arithmetic_now
from otel_goodput._runtime import files
from otel_goodput._timeline.damage import Damages
from otel_goodput._timeline.reader import all_turns
from otel_goodput._timeline.run_state import ENDED, FAILED, RUNNING, state_of
from otel_goodput._timeline.spool import Spool, SpooledParts

MERGED_BYTES: Final = 6 * files.MIB  # of the journals of all ranks: they are merged in some five seconds
SPREAD: Final = 5_000_000  # ns; clocks of hosts that are synchronized are no further apart
TOGETHER: Final = 4096  # events, and turns
SETTLED: Final = 16  # of these: what they say of time is final then
ALONE: Final = 16  # turns that are applied by themselves if they are not steady; twice as many each time
# Kinds and phases of events that say nothing of the job, and of those from which on times are shifted.
_OF_LOOPS: Final = {(kind, phase) for kind in (ev.START, ev.END) for phase in (STEP, DATA_LOADING)}
_SHIFTING: Final = {(ev.ATTEMPT, 0), (ev.START, JOB)}


class RankDigest(NamedTuple):
    """The whole run of one rank.

    Attributes:
        begin, end: from the begin of its first job to the end of its latest one, or to its last sign of life, ns.
        ended, failed: the latest job ended by itself; with an error.
        parts: what it did.
        backs: when it was back, each time that it was away, ns.
        noted: what it recorded that holds for the job, if it is the leader.
    """

    begin: int
    end: int
    ended: bool
    parts: RankParts
    backs: Sequence[int] = ()
    noted: Sequence[Event] = ()
    failed: bool = False

    @property
    def opened(self) -> Opened | None:
        """What the rank was doing at `end`; None if its job is over, or no phase was open."""
        if self.ended:
            return None
        latest, parts = self.parts.latest, self.parts.parts
        step = latest if latest is not None and latest.end == NOT_KNOWN else None
        number = NO_STEP if step is None else step.number
        pieces = parts[-1].pieces if parts and isinstance(parts[-1], RankPart) else ()
        if pieces and pieces[-1].end == self.end:
            return Opened(pieces[-1].category, pieces[-1].name, number, pieces[-1].begin)
        return None if step is None else Opened(STEP_TIME, "", number, step.begin)


def digest_of(events: Iterable[Event | TurnColumns], spool: Spool | None = None) -> RankDigest | None:
    """Return the digest of a rank that recorded `events`, in the order in which a reader gives them; None of no job.

    What it did is kept in the `spool`, if that is given.
    """
    cursor, notes, noted = RankCursor(), RankNotes(whole=True, in_columns=True), list[Event]()
    parts = list[Part]() if spool is None else SpooledParts(spool)
    backs = list[int]()

    def keep(some: Sequence[Part]) -> None:
        backs.extend(piece.end for part in some for piece in absences_in(part))
        parts.extend(some)

    cursor.noted = notes.rows
    covers = cursor.steps.covers = {}
    for count, (some, turns) in enumerate(_together(events), 1):
        kinds = [event[1:3] for event in some]
        shifting = [at for at, kind in enumerate(kinds) if kind in _SHIFTING]
        for begin, end in pairwise(sorted({0, len(some), *shifting, *(at + 1 for at in shifting)})):
            cursor.apply_all(some[begin:end])
            marked = (
                one
                for event, kind in zip(some[begin:end], kinds[begin:end], strict=True)
                if kind not in _OF_LOOPS
                for one in holds_for_job(event, covers)
            )
            noted += [one._replace(time=one.time + cursor.shift) for one in marked]
        if turns is not None:
            _apply_turns(cursor, turns)
        if not count % SETTLED:
            notes.settle(cursor, notes.position)
            keep([*notes.taken_parts()])
    notes.settle(cursor, notes.position)
    if cursor.begin is None:
        return None
    cursor.drain()
    update = notes.take(cursor, cursor.now, cursor.now, None, last=True)
    failed = cursor.ended and not cursor.clean
    keep([*notes.taken_parts(), *in_columns(RankPart(update.steps, update.pieces))])
    return RankDigest(cursor.begin, cursor.now, cursor.ended, RankParts(parts), backs, noted, failed)


def _together(events: Iterable[Event | TurnColumns]) -> Iterator[tuple[list[Event], TurnColumns | None]]:
    """Yield events to be applied, and turns to be applied then, without the first moment of the first and the last."""
    some: list[Event] = []
    for one in events:
        if isinstance(one, Event):
            some.append(one)
            if len(some) >= TOGETHER:
                yield some, None
                some = []
            continue
        for at in range(0, len(one.numbers), TOGETHER):
            turns = one if len(one.numbers) <= TOGETHER else one.slice(at, at + TOGETHER)
            yield some + [*turns.slice(0, 1).events()][:2], turns
            some = [*turns.slice(len(turns.numbers) - 1).events()][2:]
    yield some, None


def _apply_turns(cursor: RankCursor, turns: TurnColumns) -> None:
    """Apply turns without the first moment of the first and the last: together, as far as they are steady."""
    arithmetic, last = arithmetic_now(), len(turns.numbers) - 1
    at, alone = 0, ALONE
    while at < last:
        load = following(key_behind(turns.key, 2 * at))
        begun, ended, numbers = turns.begun[at:-1], turns.ended[at + 1 :], turns.numbers[at:-1]
        if turns.left:
            done = cursor.apply_dispatched_columns(load, begun, ended, numbers, turns.left[at:-1], arithmetic)
        else:
            done = cursor.apply_columns(load, begun, ended, numbers, arithmetic)
        at += done
        alone = ALONE if done else 2 * alone
        if at < last:
            behind = min(last, at + alone)
            cursor.apply_all([*turns.slice(at, behind + 1).events()][2:-2])
            at = behind


def read_digest(
    folder: RunDirectory,
    rank: int,
    damages: Damages | None = None,
    before: int | None = None,
    clocks: Mapping[int, Mapping[int, RankClock]] | None = None,
    spool: Spool | None = None,
) -> RankDigest | None:
    """Return the digest of one rank, only of the attempts `before` one if that is given; None if it left nothing.

    For `damages` see ``all_events``. `clocks` are those of ranks by attempt, if they have been read. What the rank did
    is kept in the `spool`, if that is given.
    """
    events: Iterable[Event | TurnColumns] = all_turns(folder, rank, damages)
    if own := (clocks_of(read_offsets(folder)) if clocks is None else clocks).get(rank):
        events = by_common_clock(events, own, arithmetic_now)
    if before is not None:
        events = takewhile(lambda one: one[1] != ev.ATTEMPT or not isinstance(one, Event) or one.step < before, events)
    return digest_of(events, spool)


def read_digests(folder: RunDirectory, damages: Damages | None = None) -> dict[int, RankDigest]:
    """Return the digests of the ranks that left anything about a job. For `damages` see ``all_events``."""
    clocks = clocks_of(read_offsets(folder))
    digests = {rank: read_digest(folder, rank, damages, clocks=clocks) for rank in folder.processes()}
    return {rank: digest for rank, digest in digests.items() if digest is not None}


def account_of_ranks(
    folder: RunDirectory,
    *,
    spread: int = SPREAD,
    damages: Damages | None = None,
    digests: Mapping[int, RankDigest] | None = None,
    count: int = 0,
    record: Callable[[Sequence[Event]], None] | None = None,
    spans: Sequence[int] = (),
) -> JobAccount:
    """Return the account of all ranks of a run, as far as all of them have recorded.

    Args:
        folder: the folder of the run.
        spread: how far clocks of two ranks may be apart, ns.
        damages: is told what had to be left out of the journals; by default it is logged.
        digests: those of the ranks, if they have been read.
        count: how many ranks the latest attempt has; 0 if that is not known. Nobody waits for others that are left.
        record: is given the events of the job as they are decided.
        spans: lengths of rolling windows, ns.
    """
    digests = read_digests(folder, damages) if digests is None else digests

    def taken(events: Iterable[Event]) -> None:
        decided = list(events)
        account.ledger.feed(decided)
        if record is not None:
            record(decided)

    account = JobAccount(spans, spread, record=taken)
    _feed(account, folder, digests)
    latest = max((digest.end for digest in digests.values()), default=0)
    backs = [end for digest in digests.values() for end in digest.backs]
    for rank, digest in digests.items():
        if state_of_rank(folder, rank, digest) == RUNNING:
            if latest - digest.end > ABSENT:
                account.set_aside(rank)
        else:
            gone = min((end for end in backs if end > digest.end), default=NEVER) if 0 < count <= rank else NEVER
            account.leave(rank, digest.end, died=not digest.ended, gone=gone)
    return account


def replay(account: JobAccount, folder: RunDirectory, before: int) -> None:
    """Give an account what the ranks of a run did in the attempts `before` one; none of them goes on."""
    clocks = clocks_of(read_offsets(folder))
    every = ((rank, read_digest(folder, rank, before=before, clocks=clocks)) for rank in folder.processes())
    digests = {rank: digest for rank, digest in every if digest is not None}
    _feed(account, folder, digests)
    for rank, digest in digests.items():
        account.leave(rank, digest.end, died=not digest.ended)


def _feed(account: JobAccount, folder: RunDirectory, digests: Mapping[int, RankDigest]) -> None:
    clocks = clocks_of(read_offsets(folder))
    for rank, digest in digests.items():
        attempt = folder.attempts(rank)[-1]
        facts = facts_of(folder, attempt, rank)
        if (clock := clocks.get(rank, {}).get(attempt)) is not None:  # the digest is by the common clock already
            for offset in clock.offsets:
                account.offset(rank, offset.ahead, offset.bound, offset.since)
        account.place(rank, "" if facts is None else facts.role, 0 if facts is None else facts.devices)
        account.join(rank, digest.begin)
    if digests:
        account.note(digests[min(digests)].noted, min(digests))
    account.feed_whole({rank: (digest.parts, digest.end) for rank, digest in digests.items()}, arithmetic_now())


def state_of_rank(folder: RunDirectory, rank: int, digest: RankDigest) -> str:
    """Return the state of a rank, as :mod:`~otel_goodput._timeline.run_state` has it."""
    if digest.ended:
        return FAILED if digest.failed else ENDED
    return state_of(folder.writing(folder.attempts(rank)[-1], rank), digest.end)

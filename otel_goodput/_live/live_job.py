"""The account of a job while it goes on: takes what its ranks publish, yields figures (rule R11).

The leader has one, and so has a deputy while it stands in.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from otel_goodput._accounting import Totals
from otel_goodput._accounting.events import NOT_KNOWN
from otel_goodput._accounting.job import Cause, Costs, JobAccount, OpenNow
from otel_goodput._accounting.own_time import OwnTime, OwnTimes
from otel_goodput._accounting.rank_clocks import Offset
from otel_goodput._accounting.rank_updates import RankUpdate
from otel_goodput._accounting.stragglers import Stragglers
from otel_goodput._accounting.totals import Brief
from otel_goodput._journal.job_now import JobNow, RankDoing
from otel_goodput._journal.job_waits import JobWaits
from otel_goodput._journal.notes import Notes
from otel_goodput._journal.usage_now import UsageNow
from otel_goodput._live.channels import RankChannel
from otel_goodput._live.job_records import JobRecords
from otel_goodput._live.publisher import Publisher
from otel_goodput._live.rank_messages import RankMessage, decode
from otel_goodput._live.rank_offsets import Clocks, correct
from otel_goodput._runtime.guard import report_once
from otel_goodput._text.redact import redacting_logger

logger = redacting_logger(__name__)

WAIT_S: Final = 15.0  # without a message of the one before, a process that has its index is its successor
LATE_NS: Final = 15_000_000_000  # the figures of a job are usually no older


class JobFigures(NamedTuple):
    """The account of the job at one moment.

    Attributes:
        ranks, expected: how many it is of, and how many there are.
        totals, costs, roles: as ``JobAccount`` has them.
        now, places: what the ranks do; the host and the process id of each.
        together, offsets, numbered: the ranks step together; how far their clocks are ahead of the leader's; by how
            much they seem to number the same steps higher.
        own: what the ranks do themselves inside of steps.
    """

    totals: Totals
    ranks: int
    expected: int
    costs: Costs
    now: OpenNow
    places: Mapping[int, tuple[str, int]]
    together: bool
    roles: Mapping[str, Totals]
    offsets: Mapping[int, Offset]
    numbered: Mapping[int, int]
    own: OwnTimes


class JobBrief(NamedTuple):
    """A part of :class:`JobFigures`, for who looks every few seconds; `waits`: for which ranks it waited so far, ns."""

    brief: Brief
    waits: Mapping[Cause, int]
    now: OpenNow


class Claims:
    """Sorts the messages of ranks by the process that sent them: a wrong variable gives two processes one index.

    On one file system, the lock of the journal keeps them apart. Others meet in a store. Only the first one counts:
    else the second one would look like its successor, and the rank would seem to have died.

    Args:
        notes: are given ranks that two processes claim to be.
        taken: is given the rank of each message that came, and up to when it says what that did, ns; 0: not known.
    """

    def __init__(self, notes: Notes, taken: Callable[[int, int], object] = lambda *_: None) -> None:
        self._notes, self._taken = notes, taken
        self._refused: dict[int, RankMessage] = {}  # the latest message of a process that does not count
        self._latest: dict[int, RankMessage] = {}  # of the process that is the rank
        self._waiting: dict[int, tuple[float, list[RankMessage]]] = {}  # since when (s, monotonic), of another process

    def counting(self, received: Mapping[int, Sequence[bytes]]) -> Iterator[tuple[int, RankMessage]]:
        """Yield those that count, of what was `received` by rank, and of processes that turn out to be successors.

        What cannot be read, and ranks that two processes claim to be, are reported once.
        """
        for rank, messages in received.items():
            for data in messages:
                try:
                    message = decode(data)
                except ValueError as error:
                    self._taken(rank, 0)
                    report_once(f"updates of rank {rank}", "an update of rank %d cannot be read: %s", rank, error)
                    continue
                self._taken(rank, message.update.known)
                if self._counts(rank, message):
                    yield rank, message
                elif rank in self._refused:
                    self._report(rank, self._latest[rank], message)
        now = time.monotonic()
        for rank in [rank for rank, (since, _) in self._waiting.items() if now - since >= WAIT_S]:
            for message in self._waiting.pop(rank)[1]:
                self._latest[rank] = message
                yield rank, message

    def _counts(self, rank: int, message: RankMessage) -> bool:
        """Whether a message counts now; if not, it may do so later."""
        owner = self._latest.get(rank)
        if owner is not None and not _same(owner, message):
            if message.attempt < owner.attempt:
                return True  # it is known to be old
            if message.attempt == owner.attempt and owner.update.left == NOT_KNOWN:
                if rank in self._refused and _same(self._refused[rank], message):
                    self._refused[rank] = message
                else:
                    self._waiting.setdefault(rank, (time.monotonic(), []))[1].append(message)
                return False
        elif (waiting := self._waiting.pop(rank, None)) is not None:  # both live
            self._refused[rank] = waiting[1][-1]
        self._latest[rank] = message
        return True

    def _report(self, rank: int, first: RankMessage, second: RankMessage) -> None:
        text = (
            f"two processes publish as rank {rank}: pid {first.pid} on {first.host} and pid {second.pid} on "
            f"{second.host}; the live account has the first one only. Give each process its own index "
            "(OTEL_GOODPUT_PROCESS_INDEX, process_index=)"
        )
        if self._notes.add(f"index taken {rank}", text):
            logger.warning("%s", text)


def _same(one: RankMessage, other: RankMessage) -> bool:
    return (one.host, one.pid) == (other.host, other.pid)


class LiveJob:
    """The account of a job that goes on.

    Args:
        own: this rank.
        count: how many ranks there are.
        channel: what they publish comes through it.
        clocks: of the ranks.
        records, job: the job's own records, and the account that adds to them.
        began: what ranks say of before this moment comes from an attempt before, unless they were in that, too, ns.
        reached: what was before this moment was decided by whoever had the account before, ns.
        concluded: when the job was over on all ranks, ns.
        taken: see :class:`Claims`.

    Attributes:
        latest: the latest update of each rank.
        stragglers: compare what the ranks do themselves inside of steps.
        changing: held while the account changes.
    """

    def __init__(
        self,
        own: Publisher,
        count: int,
        channel: RankChannel,
        clocks: Clocks,
        records: JobRecords,
        job: JobAccount,
        *,
        began: int,
        reached: int = NOT_KNOWN,
        concluded: int = NOT_KNOWN,
        taken: Callable[[int, int], object] = lambda *_: None,
    ) -> None:
        self.stragglers = Stragglers()
        self._own_times: dict[int, OwnTime] = {}
        self._own, self._count, self._channel, self._clocks = own, count, channel, clocks
        self.records, self.job = records, job
        self._began, self._reached, self._concluded = began, reached, concluded
        self.latest: dict[int, RankUpdate] = {}
        self._claims = Claims(own.account.notes, taken)
        self._places = {own.rank: own.place}
        self._usages: dict[int, tuple[float, UsageNow]] = {}  # by rank: when it came (s, monotonic)
        self._before: Mapping[Cause, int] = dict(self.job.costs.whole)  # waited for before, or counted by others, ns
        self.changing = threading.RLock()

    # --- what ranks publish -------------------------------------------------------------------------------------------

    def feed_own(self, update: RankUpdate) -> None:
        """Take what this rank did."""
        own, job = self._own, self.job
        with self.changing:
            job.place(own.rank, own.role, own.devices)
            # First what holds for the job: it is needed where the time of the update is decided.
            job.note([*own.noted(update.known)], own.rank)
            self._own_times[own.rank] = own.own_time()
            self._feed(own.rank, job.by_common_clock(own.rank, update))

    def take(self, received: Mapping[int, Sequence[bytes]], *, last: bool = False, counted: bool = False) -> None:
        """Take what was `received` of the other ranks; what waits for their clocks to be known, too, the `last` time.

        `counted`: what the job has waited for meanwhile was counted by another rank.
        """
        with self.changing:
            before = Counter(self.waits()) if counted else None
            for rank, message in self._claims.counting(received):
                self._places[rank] = message.host, message.pid
                if message.usage is not None:
                    self._usages[rank] = time.monotonic(), message.usage
                self._own_times[rank] = message.own
                self.job.place(rank, message.role, message.devices)
                self._clocks.take(rank, message, shared=self._channel.shares_folder(rank))
            for rank, message, offsets in self._clocks.known(last=last):
                correct(self.job, rank, offsets)
                update = self.job.by_common_clock(rank, message.update)
                if message.attempt >= self._own.attempt or update.at >= self._began:  # else one before has left it
                    self._feed(rank, update)
            if before is not None:
                self._before = Counter(self._before) + (Counter(self.waits()) - before)

    def _feed(self, rank: int, update: RankUpdate) -> None:
        if update.joined <= self._concluded:
            return
        if update.joined < self._reached:
            if update.at < self._began:  # of a process that may be gone: what the attempt before did not decide is lost
                return
            update = update.after(self._reached)
        self.latest[rank] = update
        self.job.take(rank, update)

    @property
    def over(self) -> bool:
        """Whether the job of every rank that was heard of is over."""
        return all(one.left != NOT_KNOWN for one in self.latest.values())

    def conclude(self) -> None:
        """Conclude the job if it is over on all its ranks."""
        whole = self.over and len(self.latest) == self._count
        if whole and self.latest[self._own.rank].joined > self._concluded:
            self._concluded = self.job.horizon
            self.job.conclude(failed=not self._own.account.ledger.settled.clean)

    def compare(self, *, last: bool = False) -> bool:
        """Compare what the ranks do themselves inside of steps, if it is time to; whether there is something new."""
        with self.changing:
            at = self._own.account.clock()
            if not self.job.together or not (last or self.stragglers.due(at)):
                return False
            self.records.refresh()
            with self.records.account.lock:
                steps = self.records.account.ledger.brief(self.job.horizon).executed
            return self.stragglers.look(at, steps, dict(self._own_times), last=last) is not None

    # --- figures ------------------------------------------------------------------------------------------------------

    def figures(self, *, of_all: bool) -> JobFigures | None:
        """Return the account; None if too few ranks have been heard of: fewer than two, or not `of_all`."""
        job, records = self.job, self.records
        with self.changing:
            if (moment := self._settled(of_all)) is None:
                return None
            with records.account.lock:
                totals = job.totals(moment)
            roles = {} if len(job.roles) < 2 else job.totals_of_roles(moment)
            of_ranks = job.costs_at(moment), job.open_now(moment), dict(self._places), job.together, roles
            in_their_ways = job.offsets, job.numbered_apart, self.stragglers.times()
            late = self._late(moment)
        if late and totals.since_step is not None and not totals.ended:
            totals = replace(totals, since_step=totals.since_step + late)
        return JobFigures(totals, len(self.latest), self._count, *of_ranks, *in_their_ways)

    def brief(self, *, of_all: bool) -> JobBrief | None:
        """Return a part of :meth:`figures`."""
        job, records = self.job, self.records
        with self.changing:
            if (moment := self._settled(of_all)) is None:
                return None
            with records.account.lock:
                brief = job.brief(moment)
            waits, now, late = job.costs_at(moment).whole, job.open_now(moment), self._late(moment)
        if late and brief.since_step is not None and not brief.ended:
            brief = brief._replace(since_step=brief.since_step + late)
        return JobBrief(brief, waits, now)

    def _settled(self, of_all: bool) -> int | None:
        """Bring the records up to date; return up to when (ns) all is decided, None if of too few ranks is heard."""
        if len(self.latest) < (self._count if of_all else 2):
            return None
        self.records.refresh()
        return self.job.horizon

    def _late(self, moment: int) -> int:
        """Return how far figures of a `moment` (ns) are behind, if that is too much: no rank may look at the clock."""
        late = self.job.common_time(self._own.rank, self._own.account.clock()) - moment
        return late if late > LATE_NS else 0

    def waits(self) -> Mapping[Cause, int]:
        """Return for which ranks the job waited since this began, and nobody else counted it, ns."""
        with self.changing:
            whole = self.job.costs_at(self.job.horizon).whole
            return {one: spent - self._before.get(one, 0) for one, spent in whole.items()}

    def usages(self) -> Mapping[int, tuple[str, UsageNow]]:
        """Return the host of each rank, and what it uses, unless nothing was heard of that for long."""
        with self.changing:
            if (now := self._own.usage()) is not None:
                self._usages[self._own.rank] = time.monotonic(), now
            since = time.monotonic() - self._own.usage_lasts
            fresh = {rank: usage for rank, (at, usage) in self._usages.items() if at >= since}
            return {rank: (self._places[rank][0], usage) for rank, usage in fresh.items()}

    def waits_so_far(self) -> JobWaits:
        """Return for which ranks the job waited since it began, as far as that is decided."""
        return JobWaits(len(self.latest), self.job.together, self.job.horizon, self.job.costs)

    def save(self, *, last: bool = False) -> None:
        """Write what the job waited for, and what its ranks do, next to its own records. May wait for the disk."""
        with self.changing:
            waits, now = self.waits_so_far(), self.job.open_now()
            ranks = [
                RankDoing(rank, *self._places.get(rank, ("", 0)), sign.at, rank in now.silent, sign.opened)
                for rank, sign in now.ranks.items()
            ]
        self.records.save(waits, last=last)
        if self.compare(last=last):
            self.records.save_own(self.stragglers.times())
        self.records.save_now(JobNow(now.at, self._count, ranks, now.cause, now.since))

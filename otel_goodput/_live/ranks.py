"""What the ranks of a job tell each other, and the account that the leader makes of it (rule R11).

Every few seconds each rank publishes what it did since the last time, on a thread of its own. It never takes part in a
collective operation, and nothing waits for it. If the leader gives no sign of life, its deputy makes the account, from
the leader's records on; it writes none: the leader may be alive, and what all ranks did is in their journals.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from otel_goodput._accounting import Event, Ledger, Totals
from otel_goodput._accounting.events import NOT_KNOWN
from otel_goodput._accounting.job import Cause, Costs, JobAccount, OpenNow, holds_for_job
from otel_goodput._accounting.rank_clocks import Offset
from otel_goodput._accounting.rank_updates import RankUpdate
from otel_goodput._accounting.ranks import NEVER
from otel_goodput._accounting.rules import NS
from otel_goodput._journal.account import Account
from otel_goodput._journal.clock_offsets import read_offsets, write_offsets
from otel_goodput._journal.job_now import JobNow, RankDoing
from otel_goodput._journal.job_waits import JobWaits
from otel_goodput._journal.journal import Journal
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._live import deputy, handover
from otel_goodput._live.channels import PROBED, Channel, RankChannel
from otel_goodput._live.claims import Claims
from otel_goodput._live.clock_exchange import OwnClock
from otel_goodput._live.job_records import JobRecords
from otel_goodput._live.rank_messages import MessageTooLarge, RankMessage, decode, encode
from otel_goodput._live.rank_offsets import RankOffsets
from otel_goodput._runtime.guard import contain, containing, report_once, started
from otel_goodput._settings.config import Config
from otel_goodput._settings.devices import local_devices
from otel_goodput._text.redact import redacting_logger
from otel_goodput._timeline.ranks import MERGED_BYTES, SPREAD, replay

logger = redacting_logger(__name__)

EVERY_S: Final = 5.0  # from one update to the next;
FIRST_S: Final = 0.5  # the first ones come sooner, each after twice as long as the one before
ALL_S: Final = 60.0  # a rank that has not been heard of so long after the job began is not waited for any more
LATE_NS: Final = 15_000_000_000  # the figures of a job are usually no older
UNSETTLED_NS: Final = 1_000_000_000  # a thread may have read the clock so long before what it records is there
EARLY: Final = 50_000  # updates, steps and pieces of a leader that wait for another rank to be heard of
LAST_S: Final = 3.0  # at the end of the job, for the last updates of the other ranks
_LOOK_S: Final = 0.05
_NO_SAVES: Final[dict[int, int]] = {}


class JobFigures(NamedTuple):
    """The account of the job at one moment.

    Attributes:
        ranks, expected: how many it is of, and how many there are.
        totals, costs, roles: as ``JobAccount`` has them.
        now, places: what the ranks do; the host and the process id of each.
        together, offsets: the ranks step together; how far their clocks are ahead of the leader's.
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


class RankExchange:
    """Publishes what this rank does and, if it leads, accounts the job of all ranks; see :meth:`start`.

    Args:
        config: the configuration in force.
        account: what this rank does. It records nothing before this is created.
        meet: returns the id under which the ranks of the job meet in a store, once the run is known; by default the one
            that was asked for.

    Attributes:
        stands_in: this rank is the deputy of the leader.
    """

    def __init__(self, config: Config, account: Account, meet: Callable[[], str] | None = None) -> None:
        self._config, self._meet = config, meet or (lambda: config.run_id)
        self._account = account
        self._own = config.process_index
        self._count = config.process_count
        self._run: RunDirectory | None = None
        self._attempt = NOT_KNOWN
        self._channel: Channel | None = None
        self._watch: deputy.Watch | None = None
        self.stands_in = False
        self._on_deputy: Callable[[bool], None] = lambda _: None
        # Of the leader, once another rank has been heard of; before that, its own updates wait for the others'.
        self._job: JobAccount | None = None
        self._records: JobRecords | None = None
        self._early: list[RankUpdate] = []
        self._held = 0  # how many these are, with their steps and pieces
        self._latest: dict[int, RankUpdate] = {}  # the latest update of each rank
        self._claims = Claims()
        self._known_clocks: deputy.KnownClocks | None = None  # of a deputy
        self._aside: dict[int, int] = {}  # the latest sign of life of ranks without which a deputy goes on, ns
        self._places: dict[int, tuple[str, int]] = {}  # host and pid of each rank
        self._number = 0  # of the next message
        self._host = socket.gethostname()
        self._covered, self._turn = handover.Covered(), handover.Turn()  # for a deputy
        self._clock = OwnClock(account.clock, self._own)
        self._offsets = RankOffsets(self._clock.signs, lambda _: None)
        self._devices = 0  # that this process computes with, as far as is known
        self._noted: deque[Event] = deque()  # what the leader has recorded that holds for the job
        self._before: dict[Cause, int] = {}  # what the job has waited for before this process, ns
        self._concluded = NOT_KNOWN  # when the job was over on all ranks, ns
        self._began = account.clock()
        self._reached = NOT_KNOWN  # what was before this moment was decided by the attempt before, ns
        self._since = time.monotonic()
        self._exchanging = threading.Lock()  # held while updates are exchanged, for which a disk may be waited for,
        self._feeding = threading.RLock()  # and while the job's account changes
        self._stop, self._closed = threading.Event(), False
        self._thread = threading.Thread(target=self._loop, name="otel-goodput-ranks", daemon=True)
        self._shown = time.monotonic()  # when the leader gave its latest sign of life
        self._noting = config.leads
        if config.leads:
            account.listeners.listen_to_single(self._note)
        self.collect(account.ledger)

    def collect(self, ledger: Ledger) -> None:
        """Begin with what `ledger` is fed, which is the account's, or becomes it."""
        ledger.begin_updates()
        self._noted.clear()

    def listen(self, on_deputy: Callable[[bool], None]) -> None:
        """Have `on_deputy` called with :attr:`stands_in` when that changes, on a thread of this object."""
        self._on_deputy = on_deputy

    def start(self, run: RunDirectory | None, attempt: int) -> None:
        """Start to publish, the first time that this is called.

        Args:
            run: the folder of the run; None if its journal is in memory only.
            attempt: number of this attempt, from 0.
        """
        if self._open(run, attempt):
            config = self._config
            self._clock.start(self._meet(), (lambda: self._offsets.measuring) if config.leads else None)
            started(self._thread, "what this rank does is missing in the live account of the job")

    def _open(self, run: RunDirectory | None, attempt: int) -> bool:
        """Open the channel; False if that has been done."""
        if self._channel is not None:
            return False
        config = self._config
        self._run, self._attempt = run, attempt
        self._since = self._shown = time.monotonic()
        self._channel = channel = RankChannel(run, self._meet(), self._own, self._count, config.leader)
        self._clock.compare(run)
        if not config.leads:
            self._watch = deputy.Watch(channel, self._own, config.leader)
        elif run is not None:
            known = read_offsets(run)
            self._offsets = RankOffsets(self._clock.signs, partial(write_offsets, run, self._own), known)
        return True

    def _loop(self) -> None:
        wait = FIRST_S
        while not self._stop.wait(wait):
            wait = min(2 * wait, EVERY_S)
            self.exchange()

    def _note(self, events: list[Event]) -> None:
        if self._config.leads or self._job is not None:
            self._noted += [event for event in events if holds_for_job(event, _NO_SAVES)]

    # --- updates ------------------------------------------------------------------------------------------------------

    def exchange(self) -> None:
        """Publish what this rank did, and take what the others have published. Errors are reported, not raised."""
        try:
            with self._exchanging:
                if (channel := self._channel) is None:
                    return
                if (update := self._take_update()) is None:
                    return
                if self._config.leads:
                    with containing("the leader's sign of life"):
                        self._publish(channel, update)  # first: a deputy that sees it counts nothing more
                    self._lead(channel.receive(), update)
                else:
                    self._publish(channel, update)
                    self._stand_in(channel, update)
        except Exception as error:
            contain("the exchange of the ranks", error)

    def _publish(self, channel: Channel, update: RankUpdate) -> None:
        place = self._number, self._attempt, self._host, os.getpid(), self._config.role or ""
        try:
            message = encode(RankMessage(*place, self._known_devices(), self._clock.signs(), update))
        except MessageTooLarge:
            for half in update.halves():
                self._publish(channel, half)
            return
        channel.publish(message)
        self._number += 1
        if self._config.leads:
            self._covered.take(self._own, update.known)

    def _known_devices(self) -> int:
        self._devices = local_devices() or self._devices
        return self._devices

    def _lead(self, received: Mapping[int, Sequence[bytes]], update: RankUpdate) -> None:
        shown, self._shown = self._shown, time.monotonic()
        if self._job is None and self._held < EARLY:
            self._early.append(update)
            self._held += 1 + len(update.steps) + len(update.pieces)
            if not received:
                return
            records, job = self._begin()
            with self._feeding:
                for early in self._early:
                    self._feed_own(job, early)
                self._records, self._job = records, job
                self._early.clear()
            if self._closed:  # while it was begun
                records.close()
        elif self._job is not None:
            with self._feeding:
                self._feed_own(self._job, update)
        if self._job is not None and self._records is not None:
            if self._shown - shown <= deputy.SILENT_S:
                self._take(self._job, self._records, received)
                return
            with self._feeding:  # meanwhile, a deputy has counted what the job waited for
                before = Counter(self.waits())
                self._take(self._job, self._records, received)
                self._before = Counter(self._before) + (Counter(self.waits()) - before)

    def _take(self, job: JobAccount, records: JobRecords, received: Mapping[int, Sequence[bytes]]) -> None:
        with self._feeding:
            for rank, messages in received.items():
                self._receive(job, rank, messages)
            for rank, message in self._claims.due():
                self._accept(job, rank, message)
            for rank, message, offset in self._offsets.known(last=self._stop.is_set()):
                if offset is not None and (offset.ahead or offset.since or rank in job.offsets):
                    job.offset(rank, offset.ahead, offset.bound, offset.since)
                update = job.by_common_clock(rank, message.update)
                if message.attempt >= self._attempt or update.at >= self._began:  # else it is what one before has left
                    self._feed(job, rank, update)
            whole = self._config.leads and self._over and len(self._latest) == self._count
            if whole and self._latest[self._own].joined > self._concluded:
                self._concluded = job.horizon
                job.conclude(failed=not self._account.ledger.settled.clean)
            waits = JobWaits(len(self._latest), job.together, job.horizon, job.costs)
            now = self._now(job)
        records.save(waits, last=self._stop.is_set())
        records.save_now(now)
        if self._config.leads and self._channel is not None and self._channel.apart and self._turn.due:
            self._hand_over(self._channel, job, records, waits)

    def _hand_over(self, channel: Channel, job: JobAccount, records: JobRecords, waits: JobWaits) -> None:
        """Leave the account for a deputy that cannot read the records; one of ranks that step apart is not in them."""
        with self._turn, self._feeding:
            records.refresh()
            with records.account.lock:
                ledger = records.account.ledger
                reached, state = ledger.settled.now, ledger.dump() if job.together else None
                begun = ledger.settled.begin is not None
            self._covered.reach(NEVER if state is None else reached if begun else 0, job.common_time)
            account = b"" if state is None else handover.encode(state, waits, self._offsets.in_force)
        channel.hand_over(account, self._covered.counts)

    def _now(self, job: JobAccount) -> JobNow:
        now = job.open_now()
        ranks = [
            RankDoing(rank, *self._places.get(rank, ("", 0)), sign.at, rank in now.silent, sign.opened)
            for rank, sign in now.ranks.items()
        ]
        return JobNow(now.at, self._count, ranks, now.cause, now.since)

    # --- in place of the leader ---------------------------------------------------------------------------------------

    def _stand_in(self, channel: Channel, update: RankUpdate) -> None:
        """Begin to lead, go on, or stop, as the leader's sign of life demands."""
        goes_on, ends = update.joined != NOT_KNOWN and update.left == NOT_KNOWN, self._stop.is_set()
        if self.stands_in if ends else goes_on and self._watch is not None and self._watch.stands_in():
            if not self.stands_in:
                self._take_over(channel)
            elif self._job is not None and self._records is not None:
                with self._feeding:
                    self._feed_own(self._job, update)
                self._take(self._job, self._records, channel.receive())
                self._set_aside(self._job)
        elif self.stands_in:
            self._step_down(channel)

    def _take_over(self, channel: Channel) -> None:
        leader = self._config.leader
        text = "process %d has given no sign of life for %.0f s; until it does, process %d publishes the job's metrics"
        logger.warning(text, leader, deputy.SILENT_S, self._own)
        if not self._noting:
            self._noting = True
            self._account.listeners.listen_to_single(self._note)
        if (begun := self._go_on(channel)) is not None:
            records, job = begun
            received: dict[int, list[bytes]] = {self._own: [*channel.sent()]}
            channel.rewind()
            for _ in range(0, self._count, PROBED):
                for rank, messages in channel.receive().items():
                    received.setdefault(rank, []).extend(messages)
            job.expect(received)
            with self._feeding:
                for rank, messages in received.items():
                    self._receive(job, rank, messages)
                self._set_aside(job)
                self._records, self._job = records, job
        self.stands_in = True
        self._on_deputy(True)

    def _set_aside(self, job: JobAccount) -> None:
        """Have the account go on without the leader and others that are silent, until more is heard of them."""
        with self._feeding:
            limit = job.common_time(self._own, self._account.clock()) - round(deputy.SILENT_S * NS)
            for rank, update in self._latest.items():
                silent = update.left == NOT_KNOWN and (rank == self._config.leader or update.at < limit)
                if silent and self._aside.get(rank) != update.at:
                    self._aside[rank] = update.at
                    job.set_aside(rank)

    def _go_on(self, channel: Channel) -> tuple[JobRecords, JobAccount] | None:
        """Go on with the leader's account, in memory; None if it cannot be read, or is so old that updates are gone."""
        config, now = self._config, self._account.clock()
        begun = deputy.account_so_far(self._run, channel, self._own, self._attempt, config.windows, now)
        if begun is None:
            return None
        records, job, self._known_clocks = begun
        self._reached = self._began = records.account.ledger.settled.now
        self._before = dict(job.costs.whole)
        job.place(self._own, config.role or "", self._known_devices())
        self._places[self._own] = self._host, os.getpid()
        return records, job

    def _step_down(self, channel: Channel) -> None:
        if self._watch is not None and not self._watch.sees_leader:
            text = "what the other ranks do cannot be read; process %d does not publish the job's metrics any more"
            logger.warning(text, self._own)
        else:
            text = "process %d gives signs of life again; process %d does not publish the job's metrics any more"
            logger.warning(text, self._config.leader, self._own)
        self.stands_in = False
        self._on_deputy(False)
        with self._feeding:
            records, self._job, self._records = self._records, None, None
            for one in (self._latest, self._places, self._aside):
                one.clear()
            self._claims = Claims()
            self._concluded = NOT_KNOWN
        if records is not None:
            records.close()
        channel.rewind()

    # --- the account --------------------------------------------------------------------------------------------------

    def _begin(self) -> tuple[JobRecords, JobAccount]:
        """Begin the account of the job, or go on with that of the attempts before."""
        config, run = self._config, self._run
        # What a killed attempt had not decided yet is not in its records. If that takes little time, all of them are
        # made again from what the ranks have recorded.
        anew = run is not None and self._attempt > 0 and run.recorded_bytes() <= MERGED_BYTES
        records = JobRecords(run, config.windows, anew=anew)
        job = JobAccount(config.windows, SPREAD, records.account.ledger, records.record)
        if run is not None and anew:
            replay(job, run, self._attempt)
            self._reached = job.horizon
        elif (settled := records.account.ledger.settled).begin is not None:
            job.remember(records.costs)
            self._reached = settled.now
            if not settled.alive:
                self._concluded = settled.now
        self._before = dict(job.costs.whole)
        job.expect(range(self._count))
        self._places[self._own] = self._host, os.getpid()
        return records, job

    def _take_update(self) -> RankUpdate | None:
        account = self._account
        at = account.clock()
        caught_up = account.refresh()
        with account.lock:
            reached = account.reached
            if not caught_up:
                return account.ledger.take_update(reached)
            return account.ledger.take_update(max(at, reached), settled=max(at - UNSETTLED_NS, reached))

    def _receive(self, job: JobAccount, rank: int, messages: Sequence[bytes]) -> None:
        for data in messages:
            try:
                message = decode(data)
                self._covered.take(rank, message.update.known)
            except ValueError as error:
                self._covered.take(rank, 0)
                report_once(f"updates of rank {rank}", "an update of rank %d cannot be read: %s", rank, error)
                continue
            if self._claims.take(rank, message):
                self._accept(job, rank, message)
            elif rank in self._claims.refused:
                self._refuse(rank, self._claims.owner(rank), message)

    def _accept(self, job: JobAccount, rank: int, message: RankMessage) -> None:
        self._places[rank] = message.host, message.pid
        job.place(rank, message.role, message.devices)
        if self._config.leads:
            shared = self._channel is not None and self._channel.shares_folder(rank)
            self._offsets.take(rank, message, shared=shared)
        else:
            if self._known_clocks is not None:
                self._known_clocks.correct(job, rank, message.attempt)
            self._feed(job, rank, job.by_common_clock(rank, message.update))

    def _refuse(self, rank: int, first: RankMessage, second: RankMessage) -> None:
        text = (
            f"two processes publish as rank {rank}: pid {first.pid} on {first.host} and pid {second.pid} on "
            f"{second.host}; the live account has the first one only. Give each process its own index "
            "(OTEL_GOODPUT_PROCESS_INDEX, process_index=)"
        )
        if self._account.notes.add(f"index taken {rank}", text):
            logger.warning("%s", text)

    def _feed_own(self, job: JobAccount, update: RankUpdate) -> None:
        # First what holds for the job: it is needed where the time of the update is decided.
        noted, covers = list[Event](), self._account.ledger.covers
        while self._noted and self._noted[0].time <= update.known:
            noted += holds_for_job(self._noted.popleft(), covers)
        job.place(self._own, self._config.role or "", self._known_devices())
        job.note(noted, self._own)
        self._feed(job, self._own, job.by_common_clock(self._own, update))

    def _feed(self, job: JobAccount, rank: int, update: RankUpdate) -> None:
        if update.joined <= self._concluded:
            return
        if update.joined < self._reached:
            if update.at < self._began:  # of a process that may be gone: what the attempt before did not decide is lost
                return
            update = update.after(self._reached)
        self._latest[rank] = update
        job.take(rank, update)

    @property
    def _over(self) -> bool:
        """Whether the job of every rank that was heard of is over."""
        return all(one.left != NOT_KNOWN for one in self._latest.values())

    # --- figures ------------------------------------------------------------------------------------------------------

    @property
    def why(self) -> str:
        """Why there are no figures of the job here (yet)."""
        if not self._config.leads:
            return f"process {self._config.leader} has the account of the job"
        return "not all other ranks have been heard of yet" if self._latest else "no other rank has been heard of"

    def figures(self, *, published: bool = False) -> JobFigures | None:
        """Return the account of the job; None if there is none (yet), and this rank's own is shown in its place.

        That of a deputy is only for what is `published`.
        """
        if not self._config.leads and not published:
            return None
        job, records = self._job, self._records
        if job is None or records is None:
            return None
        with self._feeding:
            waited = time.monotonic() - self._since >= ALL_S
            if len(self._latest) < (2 if waited else self._count):
                return None
            records.refresh()
            moment = job.horizon
            with records.account.lock:
                totals = job.totals(moment)
            roles = {} if len(job.roles) < 2 else job.totals_of_roles(moment)
            of_ranks = job.costs_at(moment), job.open_now(moment), dict(self._places), job.together, roles, job.offsets
            late = job.common_time(self._own, self._account.clock()) - moment
        if late > LATE_NS and totals.since_step is not None and not totals.ended:  # no rank may look at the clock
            totals = replace(totals, since_step=totals.since_step + late)
        return JobFigures(totals, len(self._latest), self._count, *of_ranks)

    def waits(self) -> Mapping[Cause, int] | None:
        """Return for which ranks the job waited since this process began, ns; None if that is not known."""
        with self._feeding:
            job = self._job
            whole = None if job is None else job.costs_at(job.horizon).whole
        return None if whole is None else {one: spent - self._before.get(one, 0) for one, spent in whole.items()}

    def journal(self) -> Journal | None:
        """Return the journal of the job's own records; None if this process writes none (yet)."""
        return None if self._records is None else self._records.journal

    def add_windows(self, spans: Sequence[int]) -> None:
        """Keep rolling windows of the lengths `spans` (ns), too."""
        if self._records is not None:
            self._records.account.add_windows(spans)

    # --- end ----------------------------------------------------------------------------------------------------------

    def finish(self, seconds: float, run: RunDirectory | None, attempt: int) -> None:
        """Publish the last update; the leader waits for those of the others, for some of the `seconds`.

        `run`, `attempt`: as for :meth:`start`, in case the job is over before that was called.
        """
        self._stop.set()
        self._account.refresh()
        with self._account.lock:
            begun = self._account.ledger.totals().started_at is not None
        if begun:
            self._open(run, attempt)
        until = time.monotonic() + min(seconds, LAST_S)
        self.exchange()
        while self._config.leads and self._job is not None and not self._over and time.monotonic() < until:
            time.sleep(_LOOK_S)
            self.exchange()

    def close(self, _: int = 0) -> None:
        """Write the job's own records. May wait for the disk."""
        self._stop.set()
        self._clock.stop()
        self._closed = True
        if self._records is not None:
            self._records.close()

    def orphan(self) -> None:
        """In a forked child: publish nothing, and wait for no lock of the parent."""
        self._stop.set()
        self._clock.stop()
        if self._records is not None:
            self._records.orphan()
        self._job = self._records = None
        self.stands_in = False
        self._exchanging, self._feeding = threading.Lock(), threading.RLock()

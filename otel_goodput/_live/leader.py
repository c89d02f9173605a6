"""The rank that leads: it makes the account of the job of what all ranks publish, and leaves it for a deputy."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from otel_goodput._accounting.events import NOT_KNOWN
from otel_goodput._accounting.job import JobAccount
from otel_goodput._accounting.rank_updates import RankUpdate
from otel_goodput._accounting.stragglers import Stragglers
from otel_goodput._journal.clock_offsets import read_offsets, write_offsets
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._live import deputy, handover
from otel_goodput._live.channels import RankChannel
from otel_goodput._live.job_records import JobRecords
from otel_goodput._live.live_job import LiveJob
from otel_goodput._live.publisher import Publisher
from otel_goodput._live.rank_messages import ClockSigns
from otel_goodput._live.rank_offsets import RankOffsets
from otel_goodput._runtime.guard import containing
from otel_goodput._settings.config import Config
from otel_goodput._timeline.ranks import MERGED_BYTES, SPREAD, replay

EARLY: Final = 50_000  # updates, steps and pieces of this rank that wait for another rank to be heard of


class Leader:
    """Leads the ranks of a job.

    Args:
        config: the configuration in force.
        own: this rank.
        run: the folder of the run; None if its journal is in memory only.
        channel: through it comes what the ranks publish.
        began: when this process began, ns.

    Attributes:
        live: the account of the job; None before another rank has been heard of.
    """

    def __init__(
        self, config: Config, own: Publisher, run: RunDirectory | None, channel: RankChannel, began: int
    ) -> None:
        self._config, self._own, self._run, self._channel, self._began = config, own, run, channel, began
        self.live: LiveJob | None = None
        self._signs: ClockSigns | None = None  # of the own clock, when updates were exchanged last
        if run is None:
            self.offsets = RankOffsets(self._own_signs, lambda _: None)
        else:
            self.offsets = RankOffsets(self._own_signs, partial(write_offsets, run, own.rank), read_offsets(run))
        self._early: list[RankUpdate] = []  # wait for those of another rank
        self._held = 0  # how many these are, with their steps and pieces
        self._covered, self._turn = handover.Covered(), handover.Turn()
        self._shown = time.monotonic()  # when this gave its latest sign of life
        self._closed = False

    def exchange(self, update: RankUpdate, *, last: bool) -> None:
        """Publish an `update` of this rank, and take what the others have published; all of it the `last` time."""
        with containing("the leader's sign of life"):  # first: a deputy that sees it counts nothing more
            for part in self._own.publish(self._channel, update):
                self._covered.take(self._own.rank, part.known)
        received = self._channel.receive()
        self._signs = self._own.clock.signs()  # once for all ranks
        shown, self._shown = self._shown, time.monotonic()
        if self.live is not None:
            self.live.feed_own(update)
        elif self._held < EARLY:
            self._early.append(update)
            self._held += 1 + len(update.steps) + len(update.pieces)
            if received:
                self.live = self._begin()
        if self.live is not None:
            self._lead(self.live, received, last=last, counted=self._shown - shown > deputy.SILENT_S)

    def _own_signs(self) -> ClockSigns:
        return self._own.clock.signs() if self._signs is None else self._signs

    def _begin(self) -> LiveJob:
        """Begin the account of the job, or go on with that of the attempts before."""
        spans, run, attempt = self._config.windows, self._run, self._own.attempt
        # What a killed attempt had not decided yet is not in its records. If that takes little time, all of them are
        # made again from what the ranks have recorded.
        anew = run is not None and attempt > 0 and run.recorded_bytes() <= MERGED_BYTES
        records = JobRecords(run, spans, anew=anew)
        job = JobAccount(spans, SPREAD, records.account.ledger, records.record)
        reached = concluded = NOT_KNOWN
        if run is not None and anew:
            replay(job, run, attempt)
            reached = job.horizon
        elif (settled := records.account.ledger.settled).begin is not None:
            job.remember(records.costs)
            reached, concluded = settled.now, NOT_KNOWN if settled.alive else settled.now
        count = self._config.process_count
        job.expect(range(count))
        about = {"began": self._began, "reached": reached, "concluded": concluded}
        live = LiveJob(self._own, count, self._channel, self.offsets, records, job, **about, taken=self._covered.take)
        live.stragglers = Stragglers.every(self._config.incidents)
        for early in self._early:
            live.feed_own(early)
        self._early.clear()
        if self._closed:  # meanwhile
            records.close()
        return live

    def _lead(self, live: LiveJob, received: Mapping[int, Sequence[bytes]], *, last: bool, counted: bool) -> None:
        with live.changing:
            live.take(received, last=last, counted=counted)  # a deputy has `counted` what the job waited for
            live.conclude()
        live.save(last=last)
        if self._channel.apart and self._turn.due:
            self._hand_over(live)

    def _hand_over(self, live: LiveJob) -> None:
        """Leave the account for a deputy that cannot read the records."""
        with self._turn, live.changing:
            live.records.refresh()
            account, offsets = live.records.account, self.offsets.in_force
            data = handover.account_of(live.job, account, live.waits_so_far(), offsets, self._covered)
        self._channel.hand_over(data, self._covered.counts)

    def close(self) -> None:
        """Close the job's own records. May wait for the disk."""
        self._closed = True
        if self.live is not None:
            self.live.records.close()

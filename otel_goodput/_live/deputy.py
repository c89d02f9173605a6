"""The rank that stands in for a leader which gives no sign of life.

All other ranks look at the leader's sign of life. If there is none for long, the lowest rank that lives stands in. A
rank that cannot read the leader's sign does not know that there is none: it does not stand in. No clocks are compared,
because those of hosts may differ: a rank lives if its sign changes from one look to the next.

A deputy goes on from the leader's account, which is in the leader's records, or in the store. It writes none: the
leader may be alive, and what all ranks did is in their journals.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from otel_goodput._accounting.events import NOT_KNOWN
from otel_goodput._accounting.job import JobAccount
from otel_goodput._accounting.rank_updates import RankUpdate
from otel_goodput._accounting.rules import NS
from otel_goodput._accounting.stragglers import Stragglers
from otel_goodput._journal.clock_offsets import read_offsets
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._live import handover
from otel_goodput._live.channels import PROBED, RETRY_S, RankChannel
from otel_goodput._live.job_records import JobRecords
from otel_goodput._live.live_job import LiveJob
from otel_goodput._live.outbox import KEPT_NS
from otel_goodput._live.publisher import Publisher
from otel_goodput._live.rank_messages import decode
from otel_goodput._live.rank_offsets import KnownClocks, correct
from otel_goodput._runtime.guard import containing
from otel_goodput._settings.config import Config
from otel_goodput._text.redact import redacting_logger
from otel_goodput._timeline.ranks import SPREAD

logger = redacting_logger(__name__)

SILENT_S: Final = 30.0  # a rank without a sign of life for so long may be dead
AT_ONCE: Final = 8  # ranks of which it is not known yet whether they live, looked at in one round
SILENT: Final = "process %d has given no sign of life for %.0f s; until it does, process %d publishes the job's metrics"
BACK: Final = "process %d gives signs of life again; process %d does not publish the job's metrics any more"
UNREADABLE: Final = "what the other ranks do cannot be read; process %d does not publish the job's metrics any more"


class _Seen(NamedTuple):
    signs: Mapping[str, bytes]  # the latest ones, by the way that they took
    first: float  # when this rank was looked at first, s, monotonic
    at: float = -math.inf  # when its sign was another one than at the look before; -inf: never
    way: str = ""  # that this sign took


class Watch:
    """Looks at signs of life for the rank `own`, which does not lead. Not for the training thread: a disk may hang."""

    def __init__(self, channel: RankChannel, own: int, leader: int) -> None:
        self._channel = channel
        self._leader = leader
        self._before = [rank for rank in range(own) if rank != leader]
        self._seen: dict[int, _Seen] = {}
        self._passed: dict[int, float] = {}  # until when ranks that are dead are not looked at again
        self._met: set[int] = set()  # ranks whose messages were read
        self._last = NOT_KNOWN  # sign of life of the leader, by what it has published, ns
        self.sees_leader = False  # its sign of life could be read when it was looked at last

    def stands_in(self) -> bool:
        """Whether the leader has fallen silent, and all ranks before this one are silent, too."""
        seen, signs = self._look(self._leader)
        if seen.at == -math.inf and self._silent_before(seen, signs):
            seen = self._seen[self._leader] = seen._replace(at=seen.first, way=next(iter(signs)))
        silent = time.monotonic() - seen.at
        self.sees_leader = seen.way in signs
        if silent < SILENT_S / 2 or seen.at == -math.inf or not self.sees_leader:
            return False
        # Sooner than it matters: it takes a while to see whether the ranks before this one live.
        return not self._any_lives() and silent >= SILENT_S

    def _silent_before(self, seen: _Seen, signs: Mapping[str, bytes]) -> bool:
        """Whether the leader had fallen silent when this process began, as it does where it restarts by itself.

        A rank that lives must have begun while the leader lived. Else all may have restarted, and the leader comes yet.
        """
        if not signs or time.monotonic() - seen.first < SILENT_S / 2 or self._any_lives():
            return False
        received = self._channel.receive()
        for data in received.get(self._leader, ()):
            with suppress(ValueError):
                self._last = max(self._last, decode(data).update.at)
        lives = False
        for rank, messages in received.items():
            if rank in self._met and rank != self._leader:  # they are new
                with suppress(ValueError):
                    lives = lives or NOT_KNOWN < decode(messages[-1]).update.joined < self._last
        self._met.update(received)
        return lives

    def _any_lives(self) -> bool:
        """Whether one of the ranks before this one lives, or may live."""
        unknown = 0
        for rank in self._before:
            if time.monotonic() < self._passed.get(rank, -math.inf):
                continue
            if (lives := self._lives(rank)) is None:
                unknown += 1
            if lives or unknown == AT_ONCE:
                return True
        return unknown > 0

    def _lives(self, rank: int) -> bool | None:
        """Return whether a rank lives; None if it was looked at too little."""
        (seen, signs), now = self._look(rank), time.monotonic()
        if now - seen.at < SILENT_S:
            return True
        if signs and now - seen.first < SILENT_S / 2:
            return None
        self._passed[rank] = now + min(RETRY_S, SILENT_S) / 2
        return False

    def _look(self, rank: int) -> tuple[_Seen, Mapping[str, bytes]]:
        """Look at a rank: return what has been seen of it, and its signs as far as they can be read now."""
        signs, now = self._channel.signs(rank), time.monotonic()
        seen = self._seen.get(rank) or _Seen({}, now)
        for way, sign in signs.items():
            if seen.signs.get(way, sign) != sign:
                seen = seen._replace(at=now, way=way)
        self._seen[rank] = seen = seen._replace(signs={**seen.signs, **signs})
        return seen, signs


class Deputy:
    """Watches the leader, and stands in for it.

    Args:
        config: the configuration in force.
        own: this rank.
        run: the folder of the run; None if its journal is in memory only.
        channel: through it comes what the ranks publish.
        on_change: called with :attr:`stands_in` when that changes.

    Attributes:
        stands_in: this rank is in the leader's place.
        live: the account of the job then; None if there was none to go on from.
    """

    def __init__(
        self,
        config: Config,
        own: Publisher,
        run: RunDirectory | None,
        channel: RankChannel,
        on_change: Callable[[bool], None],
    ) -> None:
        self._config, self._own, self._run, self._channel, self._on_change = config, own, run, channel, on_change
        self._watch = Watch(channel, own.rank, config.leader)
        self.stands_in = False
        self.live: LiveJob | None = None
        self._aside: dict[int, int] = {}  # the latest sign of life of ranks without which it goes on, ns

    def exchange(self, update: RankUpdate, *, last: bool) -> None:
        """Publish an `update` of this rank. Begin to lead, go on, or stop, as the leader's sign of life demands."""
        self._own.publish(self._channel, update)
        goes_on = update.joined != NOT_KNOWN and update.left == NOT_KNOWN
        if self.stands_in if last else goes_on and self._watch.stands_in():
            if not self.stands_in:
                self._take_over()
            elif (live := self.live) is not None:
                live.feed_own(update)
                live.take(self._channel.receive())
                live.compare()
                self._set_aside(live)
        elif self.stands_in:
            self._step_down()

    def _take_over(self) -> None:
        logger.warning(SILENT, self._config.leader, SILENT_S, self._own.rank)
        self._own.note()
        self.live = self._go_on()
        self.stands_in = True
        self._on_change(True)

    def _go_on(self) -> LiveJob | None:
        """Go on with the leader's account; None if there is none, or one so old that updates after it are gone."""
        own, channel, count = self._own, self._channel, self._config.process_count
        best: tuple[int, JobRecords, KnownClocks] | None = None
        for records, clocks in self._accounts():
            settled, offsets = records.account.ledger.settled, clocks.of(own.rank, own.attempt)
            now = own.account.clock() - (offsets[-1].ahead if offsets else 0)  # by the leader's clock
            goes_on = settled.begin is not None and settled.alive and records.together
            if goes_on and now - settled.now < KEPT_NS and (best is None or settled.now > best[0]):
                if best is not None:
                    best[1].close()
                best = settled.now, records, clocks
            else:
                records.close()
        if best is None:
            return None
        reached, records, clocks = best
        job = JobAccount(self._config.windows, SPREAD, records.account.ledger, records.record)
        job.remember(records.costs)
        correct(job, own.rank, clocks.new_of(own.rank, own.attempt))
        job.place(own.rank, own.role, own.devices)
        live = LiveJob(own, count, channel, clocks, records, job, began=reached, reached=reached)
        received: dict[int, list[bytes]] = {own.rank: [*channel.sent()]}
        channel.rewind()
        for _ in range(0, count, PROBED):
            for rank, messages in channel.receive().items():
                received.setdefault(rank, []).extend(messages)
        job.expect(received)
        live.take(received)
        live.stragglers = Stragglers.every(self._config.incidents)
        self._aside.clear()
        self._set_aside(live)
        return live

    def _accounts(self) -> Iterator[tuple[JobRecords, KnownClocks]]:
        """Yield the accounts that there are, with how far the clocks of ranks are ahead."""
        spans, run = self._config.windows, self._run
        if run is not None:
            yield JobRecords(run, spans, writes=False), KnownClocks(read_offsets(run))
        if data := self._channel.handed_over():
            with containing("the account that the leader has left"):
                handed = handover.decode(data, spans)
                yield JobRecords(None, spans, writes=False, handed=handed), KnownClocks(handed.offsets)

    def _set_aside(self, live: LiveJob) -> None:
        """Have the account go on without the leader and others that are silent, until more is heard of them."""
        with live.changing:
            limit = live.job.common_time(self._own.rank, self._own.account.clock()) - round(SILENT_S * NS)
            for rank, update in live.latest.items():
                silent = update.left == NOT_KNOWN and (rank == self._config.leader or update.at < limit)
                if silent and self._aside.get(rank) != update.at:
                    self._aside[rank] = update.at
                    live.job.set_aside(rank)

    def _step_down(self) -> None:
        if self._watch.sees_leader:
            logger.warning(BACK, self._config.leader, self._own.rank)
        else:
            logger.warning(UNREADABLE, self._own.rank)
        self.stands_in = False
        self._on_change(False)
        live, self.live = self.live, None
        self._own.note_no_more()
        if live is not None:
            live.records.close()
        self._channel.rewind()

    def close(self) -> None:
        """Close the account."""
        if self.live is not None:
            self.live.records.close()

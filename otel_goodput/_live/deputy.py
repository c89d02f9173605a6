"""Which rank stands in for a leader that gives no sign of life, and the account with which it goes on.

All other ranks look at the leader's sign of life. If there is none for long, the lowest rank that lives stands in. A
rank that cannot read the leader's sign does not know that there is none: it does not stand in. No clocks are compared,
because those of hosts may differ: a rank lives if its sign changes from one look to the next.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from otel_goodput._accounting.job import JobAccount
from otel_goodput._accounting.rank_clocks import Offset
from otel_goodput._journal.clock_offsets import KnownOffset, clocks_of, read_offsets
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._live import handover
from otel_goodput._live.channels import RETRY_S, Channel
from otel_goodput._live.job_records import JobRecords
from otel_goodput._live.outbox import KEPT_NS
from otel_goodput._runtime.guard import containing
from otel_goodput._timeline.ranks import SPREAD

SILENT_S: Final = 30.0  # a rank without a sign of life for so long may be dead
AT_ONCE: Final = 8  # ranks of which it is not known yet whether they live, looked at in one round


class _Seen(NamedTuple):
    signs: Mapping[str, bytes]  # the latest ones, by the way that they took
    first: float  # when this rank was looked at first, s, monotonic
    at: float = -math.inf  # when its sign was another one than at the look before; -inf: never
    way: str = ""  # that this sign took


class Watch:
    """Looks at signs of life for the rank `own`, which does not lead. Not for the training thread: a disk may hang."""

    def __init__(self, channel: Channel, own: int, leader: int) -> None:
        self._channel = channel
        self._leader = leader
        self._before = [rank for rank in range(own) if rank != leader]
        self._seen: dict[int, _Seen] = {}
        self._passed: dict[int, float] = {}  # until when ranks that are dead are not looked at again
        self.sees_leader = False  # its sign of life could be read when it was looked at last

    def stands_in(self) -> bool:
        """Whether the leader has fallen silent since this began, and all ranks before this one are silent, too."""
        seen, signs = self._look(self._leader)
        silent = time.monotonic() - seen.at
        self.sees_leader = seen.way in signs
        if silent < SILENT_S / 2 or seen.at == -math.inf or not self.sees_leader:
            return False
        # Sooner than it matters: it takes a while to see whether the ranks before this one live.
        return not self._any_lives() and silent >= SILENT_S

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


class KnownClocks:
    """Corrects the times of each rank as the leader did, by the attempt of its process."""

    def __init__(self, known: Sequence[KnownOffset]) -> None:
        self._clocks = clocks_of(known)
        self._attempts: dict[int, int] = {}  # of the processes whose offsets are in force

    def of(self, rank: int, attempt: int) -> Sequence[Offset]:
        """Return the offsets of a rank in an attempt."""
        clock = self._clocks.get(rank, {}).get(attempt)
        return () if clock is None else clock.offsets

    def correct(self, job: JobAccount, rank: int, attempt: int) -> None:
        """Have the times of a rank be corrected, whose process is that of an attempt."""
        if self._attempts.get(rank) != attempt:
            self._attempts[rank] = attempt
            offsets = self.of(rank, attempt)
            for offset in (Offset(0, 0, 0), *offsets) if offsets or rank in job.offsets else ():
                job.offset(rank, offset.ahead, offset.bound, offset.since)


class Begun(NamedTuple):
    """The leader's account, to be continued: records in memory, and how far the clocks of ranks are ahead."""

    records: JobRecords
    job: JobAccount
    clocks: KnownClocks


def account_so_far(
    run: RunDirectory | None, channel: Channel, own: int, attempt: int, spans: Sequence[int], now: int
) -> Begun | None:
    """Return the leader's account, to be continued in memory; None if there is none, or none from which to go on.

    It is in the leader's records, or in the store, whichever knows more. `now` is by the clock of the rank `own`, ns.
    Updates that come after an account that is old are gone.
    """
    best: tuple[int, JobRecords, KnownClocks] | None = None
    for records, clocks in _accounts(run, channel, spans):
        settled, offsets = records.account.ledger.settled, clocks.of(own, attempt)
        ahead = offsets[-1].ahead if offsets else 0  # of the leader's clock, which is the common one
        goes_on = settled.begin is not None and settled.alive and records.together
        if goes_on and now - ahead - settled.now < KEPT_NS and (best is None or settled.now > best[0]):
            if best is not None:
                best[1].close()
            best = settled.now, records, clocks
        else:
            records.close()
    if best is None:
        return None
    _, records, clocks = best
    job = JobAccount(spans, SPREAD, records.account.ledger, records.record)
    job.remember(records.costs)
    clocks.correct(job, own, attempt)
    return Begun(records, job, clocks)


def _accounts(
    run: RunDirectory | None, channel: Channel, spans: Sequence[int]
) -> Iterator[tuple[JobRecords, KnownClocks]]:
    """Yield the accounts that there are, with how far the clocks of ranks are ahead."""
    if run is not None:
        yield JobRecords(run, spans, writes=False), KnownClocks(read_offsets(run))
    if data := channel.handed_over():
        with containing("the account that the leader has left"):
            handed = handover.decode(data, spans)
            yield JobRecords(None, spans, writes=False, handed=handed), KnownClocks(handed.offsets)

"""How far the clocks of ranks are ahead of the leader's, as it finds out from what they publish of them (rule R11).

What is measured is how far the monotonic clocks of two hosts are apart. A process's own clock is that of its host since
it began, plus what the wall clock said then. So processes of one host differ by exactly that, and what one of them has
measured holds for all. A deputy goes on with what the leader has decided.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from otel_goodput._accounting.clock_readings import Reading
from otel_goodput._accounting.job import JobAccount
from otel_goodput._accounting.rank_clocks import Offset
from otel_goodput._journal.clock_offsets import KnownOffset, clocks_of
from otel_goodput._live.rank_messages import ClockSigns, RankMessage

CLOSE: Final = 1_000_000  # ns; clocks that are no further apart are not corrected
SET: Final = 1_000_000_000  # ns; if those of processes of one host are further apart, its clock was set in between
HELD_S: Final = 60.0  # what a rank has published waits so long for its clock to be known: for two tries to measure it
MEASURING: Final = 2  # ranks of each host that measure its clock
HOSTS: Final = 64


class Clocks(Protocol):
    """Knows by how much the times of ranks are corrected."""

    def take(self, rank: int, message: RankMessage, *, shared: bool) -> None:
        """Take a message of a rank, for :meth:`known`; `shared`: the rank and the leader share the run's folder."""

    def known(self, *, last: bool = False) -> Iterator[tuple[int, RankMessage, Sequence[Offset]]]:
        """Yield the messages of ranks whose clock is known, or all the `last`, with new offsets that are in force."""


def correct(job: JobAccount, rank: int, offsets: Iterable[Offset]) -> None:
    """Have the times of a rank be corrected by these offsets, as far as they matter."""
    for offset in offsets:
        if offset.ahead or offset.since or rank in job.offsets:
            job.offset(rank, offset.ahead, offset.bound, offset.since)


class KnownClocks:
    """Has the times of each rank corrected as the leader did, by the attempt of its process."""

    def __init__(self, known: Sequence[KnownOffset]) -> None:
        self._clocks = clocks_of(known)
        self._attempts: dict[int, int] = {}  # of the processes whose offsets are in force
        self._taken: list[tuple[int, RankMessage]] = []

    def of(self, rank: int, attempt: int) -> Sequence[Offset]:
        """Return the offsets of a rank in an attempt."""
        clock = self._clocks.get(rank, {}).get(attempt)
        return () if clock is None else clock.offsets

    def new_of(self, rank: int, attempt: int) -> Sequence[Offset]:
        """Return the offsets of a rank whose process is that of an attempt; none if they are in force already."""
        if self._attempts.get(rank) == attempt:
            return ()
        self._attempts[rank] = attempt
        return Offset(0, 0, 0), *self.of(rank, attempt)

    def take(self, rank: int, message: RankMessage, *, shared: bool) -> None:
        self._taken.append((rank, message))

    def known(self, *, last: bool = False) -> Iterator[tuple[int, RankMessage, Sequence[Offset]]]:
        taken, self._taken = self._taken, []
        for rank, message in taken:
            yield rank, message, self.new_of(rank, message.attempt)


class _Process(NamedTuple):
    """A process, the offset of its clock that is in force, and its latest sign of life by that clock, ns."""

    attempt: int
    pid: int
    offset: Offset
    at: int


class RankOffsets:
    """Decides by how much the times of ranks are corrected, and holds back what they published until that is known.

    Args:
        own: returns what the leader knows of its own clock.
        record: is given the offsets in force, whenever there is a new one that matters.
        known: those of earlier attempts.
    """

    def __init__(
        self,
        own: Callable[[], ClockSigns],
        record: Callable[[Sequence[KnownOffset]], object],
        known: Sequence[KnownOffset] = (),
    ) -> None:
        self._own, self._record = own, record
        self._known = [*known]
        self._anchor = 0
        self._signs: dict[int, ClockSigns] = {}
        self._readings: dict[int, dict[int, tuple[bool, Reading]]] = {}  # of hosts, by rank; whether by an exchange
        self._processes: dict[int, _Process] = {}
        self._held: dict[int, list[RankMessage]] = {}
        self._since: dict[int, float] = {}  # when it was begun to hold back those of a rank, s, monotonic

    @property
    def in_force(self) -> Sequence[KnownOffset]:
        """All offsets that matter, those of earlier attempts first."""
        return self._known

    @property
    def measuring(self) -> Sequence[int]:
        """The ranks that may measure how far their host's clock is ahead of the leader's."""
        own, hosts = self._own().host, dict[int, list[int]]()
        for rank, signs in sorted(self._signs.items()):
            if signs.host != own and (len(hosts) < HOSTS or signs.host in hosts):
                hosts.setdefault(signs.host, []).append(rank)
        return [rank for ranks in hosts.values() for rank in ranks[:MEASURING]]

    def take(self, rank: int, message: RankMessage, *, shared: bool) -> None:
        """Take a message of a rank, for :meth:`known`; `shared`: the rank and the leader share the run's folder."""
        before = self._signs.get(rank)
        if before is not None and before.anchor != message.clock.anchor and self._goes_on(rank, message):
            self._readings.pop(message.clock.host, None)  # its host was suspended
        self._held.setdefault(rank, []).append(message)
        self._since.setdefault(rank, time.monotonic())
        self._learn(rank, message.clock if shared else message.clock._replace(folder=None))

    def known(self, *, last: bool = False) -> Iterator[tuple[int, RankMessage, Sequence[Offset]]]:
        """Yield the messages of ranks whose clock is known, and of those that have waited for long, or all the `last`.

        With each is an offset of the clock that is in force from then on, if it is another one than before.
        """
        for rank, messages in list(self._held.items()):
            estimate = self._estimate(rank)
            late = last or time.monotonic() - self._since[rank] >= HELD_S
            if estimate is None and not late and not self._goes_on(rank, messages[0]):
                continue
            del self._held[rank], self._since[rank]
            for message in messages:
                offset = self._offset(rank, message, estimate)
                yield rank, message, () if offset is None else (offset,)

    def _goes_on(self, rank: int, message: RankMessage) -> bool:
        process = self._processes.get(rank)
        return process is not None and process[:2] == (message.attempt, message.pid)

    def _offset(self, rank: int, message: RankMessage, estimate: tuple[int, int] | None) -> Offset | None:
        """Return the offset that is in force from this message on, if it is another one."""
        at = message.update.at
        ahead, bound = (0, 0) if estimate is None else estimate
        if not self._goes_on(rank, message):
            matters = abs(ahead) > max(bound, CLOSE)
            offset = Offset(0, ahead, bound) if matters else Offset(0, 0, 0)
        else:
            _, _, offset, latest = self._processes[rank]
            at = max(at, latest)
            here = message.clock.host == self._own().host  # what was known in the beginning has not changed
            matters = estimate is not None and not here and abs(ahead - offset.ahead) > max(bound, CLOSE)
            if not matters:
                self._processes[rank] = _Process(message.attempt, message.pid, offset, at)
                return None
            offset = Offset(latest + 1, ahead, bound)
        self._processes[rank] = _Process(message.attempt, message.pid, offset, at)
        if matters:
            self._known.append(KnownOffset(rank, message.attempt, *offset))
            self._record(self._known)
        return offset

    def _learn(self, rank: int, signs: ClockSigns) -> None:
        """Note what a rank has measured: how far the monotonic clock of its host is ahead of that of this one."""
        own, now = self._own(), time.monotonic_ns()
        if own.anchor != self._anchor:  # this machine was suspended
            self._anchor = own.anchor
            self._readings.clear()
        self._signs[rank] = signs
        readings = self._readings.setdefault(signs.host, {})
        if signs.leader is not None and signs.leader[0] == own.host:
            readings[rank] = True, Reading(now, *signs.leader[1:])
        elif signs.folder is not None and own.folder is not None:
            shift = own.anchor - signs.anchor
            least, most = signs.folder[0] - own.folder[1] + shift, signs.folder[1] - own.folder[0] + shift
            readings[rank] = False, Reading(now, least, most)

    def _estimate(self, rank: int) -> tuple[int, int] | None:
        """Return how far the clock of a rank is ahead of the leader's, and how wrong that may be, ns."""
        own, signs, now = self._own(), self._signs[rank], time.monotonic_ns()
        anchors = signs.anchor - own.anchor
        if signs.host == own.host:
            return anchors if abs(anchors) >= SET else 0, 0
        readings: Mapping[int, tuple[bool, Reading]] = self._readings.get(signs.host, {})
        # A folder may be on a file system whose times are those of each host: an exchange is better.
        exchanged = [one.later(now) for by_exchange, one in readings.values() if by_exchange]
        every = exchanged or [one.later(now) for _, one in readings.values()]
        if not every:
            return None
        best = min(every, key=lambda one: one.bound)
        return best.ahead + anchors, best.bound

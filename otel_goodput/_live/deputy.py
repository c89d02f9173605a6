"""Which rank stands in for a leader that gives no sign of life.

All other ranks look at the leader's sign of life. If there is none for long, the lowest rank that lives stands in.
Clocks of different hosts are compared only for ranks that have not been looked at before.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Final, NamedTuple

from otel_goodput._accounting.rules import NS
from otel_goodput._live.channels import RETRY_S, Channel, Sign

SILENT_S: Final = 30.0  # a rank without a sign of life for so long may be dead


class _Seen(NamedTuple):
    signs: Mapping[str, Sign]
    at: float  # when the latest one was given, s, monotonic; -inf: never


_NEVER: Final = _Seen({}, -math.inf)


class Watch:
    """Looks at signs of life for the rank `own`, which does not lead. Not for the training thread: a disk may hang."""

    def __init__(self, channel: Channel, own: int, leader: int) -> None:
        self._channel = channel
        self._leader = leader
        self._before = [rank for rank in range(own) if rank != leader]
        self._since = time.monotonic()
        self._seen: dict[int, _Seen] = {}
        self._passed: dict[int, float] = {}  # until when ranks that are dead are not looked at again

    def stands_in(self) -> bool:
        """Whether the leader has fallen silent since this began, and all ranks before this one are silent, too."""
        latest = self._latest(self._leader)
        return self._since <= latest < time.monotonic() - SILENT_S and not any(map(self._lives, self._before))

    def _lives(self, rank: int) -> bool:
        now = time.monotonic()
        if now < self._passed.get(rank, -math.inf):
            return False
        lives = self._latest(rank) >= now - SILENT_S
        if not lives:
            self._passed[rank] = now + min(RETRY_S, SILENT_S) / 2
        return lives

    def _latest(self, rank: int) -> float:
        """Return when a rank gave its latest sign of life, as far as can be seen here; s, monotonic."""
        before, signs, latest = self._seen.get(rank, _NEVER), self._channel.signs(rank), -math.inf
        for way, sign in signs.items():
            known = before.signs.get(way)
            if known is None:
                latest = max(latest, time.monotonic() - max(0, time.time_ns() - sign.at) / NS)
            elif known.token != sign.token:
                latest = time.monotonic()
        self._seen[rank] = seen = _Seen({**before.signs, **signs}, max(before.at, latest))
        return seen.at
